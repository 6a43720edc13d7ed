/* test_levels.c - hierarchical, grouped and hybrid on real transport: hosts that are played on this one
 * (--host-id), the bytes between them, refusals, and the process that is named after a death. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/outer.h"

/* Promise: hierarchical on one host and grouped with one group are ring, byte for byte.
 * Promise: hierarchical and grouped on several hosts keep their payload and their bound, and deaths there
 * are named. */

#define STEPS 40
#define JOB                                                                                                  \
    "--device=ref --model=mlp --data=synthetic --limit-train-samples=103 --limit-test-samples=64 "           \
    "--steps=40 --batch-size=3 --lr=0.02 --momentum=0.9 --nesterov --bucket-cap-mb=0.1"
#define LONG_JOB                                                                                             \
    "--device=ref --model=toy --data=synthetic --limit-train-samples=64 --limit-test-samples=8 "             \
    "--batch-size=4 --steps=100000000 --log-every=20"
#define MODEL_BYTES ((784 * 256 + 256 + 256 * 10 + 10) * 4.0)

enum { RANKS = 4, PSD = RANKS };

static int needs_psd(const char *strategy)
{
    return strncmp(strategy, "ring", 4) != 0 && strncmp(strategy, "grouped", 7) != 0;
}

/* Ranks 0 and 1 on host a, 2 and 3 on host b, psd on host p, where there is one. */
static void start(process *all, const char *strategy, const char *flags)
{
    const char *token = outer_token_file();
    const int has_psd = needs_psd(strategy);
    int port = outer_port();
    if (has_psd) {
        process_start(&all[PSD], "psd", NULL,
                      "--strategy=%s --world-size=%d --listen=tcp://127.0.0.1:0 --host-id=p --token-file=%s",
                      strategy, RANKS, token);
        const char *line = wait_for_line(&all[PSD], "--server=", 30);
        assert_int_equal(sscanf(strstr(line, "--server="), "--server=tcp://127.0.0.1:%d", &port), 1);
    }
    for (int r = 0; r < RANKS; r++)
        process_start(
            &all[r], "worker", NULL,
            "--strategy=%s --%s=tcp://127.0.0.1:%d --rank=%d --world-size=%d --host-id=%s --local-size=2 "
            "--token-file=%s --threads=1 %s",
            strategy, has_psd ? "server" : "rendezvous", port, r, RANKS, r < 2 ? "a" : "b", token, flags);
}

/* Its result.json; the caller releases it. */
static json_t *play(const char *strategy, const char *flags)
{
    process all[RANKS + 1];
    char more[512], path[300];
    const char *out = outer_folder();
    const int n = RANKS + needs_psd(strategy);
    snprintf(more, sizeof more, "--quiet --out=%s %s " JOB, out, flags);
    start(all, strategy, more);
    for (int i = 0; i < n; i++)
        outer_expect_end(&all[i], 0);
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *r = json_load_file(path, 0, NULL);
    assert_non_null(r);
    return r;
}

static void near(const json_t *a, const json_t *b, const char *key, double tolerance)
{
    const double x = number_at(a, key), y = number_at(b, key);
    if (!(fabs(x - y) <= tolerance * fabs(y))) fail_msg("%s: %.9g and %.9g", key, x, y);
}

/* ---- hierarchical ---- */

static void test_two_hosts(void **state)
{
    (void)state;
    json_t *ring = play("ring", "");
    static const char *const ways[] = {"", "--transport=tcp"};
    char hash[2][65];
    for (int i = 0; i < 2; i++) {
        json_t *two = play("hierarchical", ways[i]);
        const double wire = number_at(two, "wire_bytes"), payload = number_at(two, "payload_bytes");
        near(two, ring, "test_loss", 1e-4);
        near(two, ring, "train_loss", 1e-4);
        assert_int_equal((int)number_at(two, "updates"), STEPS);
        assert_int_equal((int)number_at(two, "samples_applied"), (int)number_at(ring, "samples_applied"));
        assert_true(number_at(two, "staleness.max") == 0);
        /* between hosts, all of it by sockets: two leaders have the model once each way */
        const double between = 2 * 2 * STEPS * MODEL_BYTES;
        if (i == 0) {
            assert_true(fabs(payload - number_at(two, "theory_bytes")) <= 0.001 * payload);
            assert_true(fabs(wire - between) <= 0.01 * between);
            promise("hierarchical, 2 played hosts x 2 ranks: ring within 1e-4 after %d steps (test loss "
                    "%.7f, %.7f); "
                    "payload/theory %.4f; %.3f of the ring's bytes cross sockets",
                    STEPS, number_at(two, "test_loss"), number_at(ring, "test_loss"),
                    payload / number_at(two, "theory_bytes"), wire / number_at(ring, "wire_bytes"));
        }
        snprintf(hash[i], sizeof hash[i], "%s", text_at(two, "params_sha256"));
        json_decref(two);
    }
    assert_string_equal(hash[0], hash[1]); /* with two ranks a host, one order of sums */
    json_decref(ring);
}

/* The mean of one host is the mean of its ranks, bit for bit: of 3 samples a rank, and a ragged end. */
static void test_one_host(void **state)
{
    (void)state;
    static const char job[] = "--device=ref --model=mlp --data=synthetic --limit-train-samples=103 "
                              "--limit-test-samples=8 --steps=40 --batch-size=4 --lr=0.02 --momentum=0.9";
    for (int w = 2; w <= 4; w += 2) {
        const char *ring = train_hash(60, "-n %d --strategy=ring %s", w, job);
        assert_string_equal(ring, train_hash(60, "-n %d --strategy=hierarchical %s", w, job));
        if (w == 2) /* more ranks over TCP add in the ring's order */
            assert_string_equal(ring, train_hash(60, "-n 2 --strategy=hierarchical --transport=tcp %s", job));
        promise("hierarchical on one host, W = %d, ragged: the bytes of ring: %.8s..", w, ring);
    }
}

static void test_bound(void **state)
{
    (void)state;
    json_t *r = play("hierarchical:bound=1", "--straggler=2:3 --lr-scale=linear");
    assert_int_equal((int)number_at(r, "updates"), 2 * STEPS);
    assert_true(number_at(r, "max_clocks_ahead") <= 1);
    assert_true(number_at(r, "staleness.max") <= 3);
    assert_true(number_at(r, "samples_per_update") == 2 * number_at(r, "batch_size")); /* of one host */
    assert_true(number_at(r, "lr") == 0.02);                                           /* not scaled */
    promise("hierarchical:bound=1, one of 2 hosts slow: at most %.0f clock ahead, staleness at most %.0f",
            number_at(r, "max_clocks_ahead"), number_at(r, "staleness.max"));
    json_decref(r);
}

/* ---- grouped ---- */

/* One group of all ranks, over any transport. */
static void test_one_group(void **state)
{
    (void)state;
    static const char *const ways[] = {"-n 1", "-n 2", "-n 3", "-n 3 --transport=tcp",
                                       "-n 4 --allreduce=naive"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const char *ring = train_hash(60, "%s --strategy=ring " JOB, ways[i]);
        assert_string_equal(ring, train_hash(60, "%s --strategy=grouped:period=3 " JOB, ways[i]));
        assert_string_equal(ring, train_hash(60, "%s --strategy=grouped --groups=1 " JOB, ways[i]));
        if (i == 2)
            promise("grouped with one group: the bytes of ring, W = 1 to 4, nesterov, ragged: %.8s..", ring);
    }
}

/* Without --groups each host is a group, and a grouping counts by its meaning, not its spelling. Groups of
 * two have one order of sums, so their transport does not show. */
static void test_two_groups(void **state)
{
    (void)state;
    static const struct {
        const char *played, *run;
    } same[] = {{"", "--groups=0-1;2-3"},
                {"--groups=2 --transport=tcp", "--groups=3,2;1,0"},
                {"--groups=0,2;1,3", "--groups=1,3;0,2"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *two = play("grouped:period=4", same[i].played);
        const double payload = number_at(two, "payload_bytes"), theory = number_at(two, "theory_bytes");
        assert_true(fabs(theory - STEPS * 2 * RANKS * (1 + 1.5 / 4) * MODEL_BYTES) < 2);
        assert_true(fabs(payload - theory) <= 0.001 * theory);
        assert_string_equal(text_at(two, "groups"), i < 2 ? "0-1;2-3" : "0,2;1,3");
        assert_int_equal((int)number_at(two, "updates"), STEPS);
        assert_string_equal(
            text_at(two, "params_sha256"),
            train_hash(60, "-n 4 --strategy=grouped:period=4 --transport=tcp %s " JOB, same[i].run));
        if (i == 0) { /* of two of eight averagings in shared memory, all of the world's on sockets */
            const double between = 2 * RANKS * 1.5 / 4 * STEPS * MODEL_BYTES,
                         wire = number_at(two, "wire_bytes");
            assert_true(fabs(wire - between) <= 0.01 * between);
            promise("grouped:period=4, 2 played hosts x 2 ranks: payload/theory %.4f, %.3f of the ring's "
                    "bytes cross "
                    "sockets",
                    payload / theory, wire / (2 * RANKS * 1.5 * STEPS * MODEL_BYTES));
        }
        json_decref(two);
    }
}

/* Averaged at every step, with equally many samples on all ranks: the weights of ring, but for rounding. */
static void test_period_of_one(void **state)
{
    (void)state;
    static const char even[] = "-n 4 --device=ref --model=mlp --data=synthetic --limit-train-samples=128 "
                               "--limit-test-samples=64 --steps=10 --batch-size=4 --momentum=0.9";
    json_t *ring = train(60, "--strategy=ring %s", even);
    json_t *two = train(60, "--strategy=grouped:period=1 --groups=2 %s", even);
    json_t *apart = train(60, "--strategy=grouped:period=0 --groups=2 %s", even);
    near(two, ring, "test_loss", 1e-5);
    near(two, ring, "train_loss", 1e-5);
    assert_true(fabs(number_at(apart, "test_loss") - number_at(ring, "test_loss")) >
                1e-3 * number_at(ring, "test_loss"));
    json_decref(apart);
    json_decref(two);
    json_decref(ring);
}

/* The first ranks of groups average among themselves, over any transport: a plugin's two levels, without a
 * server. */
static void test_leaders(void **state)
{
    (void)state;
    static const char even[] = "-n 4 --device=ref --model=mlp --data=synthetic --limit-train-samples=128 "
                               "--limit-test-samples=64 --steps=10 --batch-size=4 --momentum=0.9";
    static const char *const ways[] = {"--groups=2", "--groups=0,3;1,2 --transport=tcp",
                                       "--groups=0;1-3 --net=rate:1GB", "--groups=0-1;2;3 --allreduce=naive"};
    json_t *ring = train(60, "--strategy=ring %s", even);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        json_t *two =
            train(60, "--strategy=" EN_BUILD_DIR "/test/plugins/zoo.so@two-level %s %s", ways[i], even);
        near(two, ring, "test_loss", 1e-5);
        near(two, ring, "train_loss", 1e-5);
        json_decref(two);
    }
    json_decref(ring);
}

/* ---- hybrid ---- */

static void test_hybrid_bytes(void **state)
{
    (void)state;
    static const char *const ways[] = {"", "--transport=tcp"};
    for (int w = 2; w <= 3; w++)
        for (int i = 0; i < 2; i++) {
            json_t *r = train(60, "-n %d --strategy=hybrid:ps=fc1.* --shards=2 %s " JOB, w, ways[i]);
            const double payload = number_at(r, "payload_bytes"), theory = number_at(r, "theory_bytes");
            if (!(fabs(payload - theory) <= 0.001 * theory))
                fail_msg("W = %d %s: %.0f bytes, theory_bytes %.0f", w, ways[i], payload, theory);
            assert_int_equal((int)number_at(r, "updates"), STEPS);
            assert_int_equal((int)number_at(r, "samples_applied"), (int)number_at(r, "samples_computed"));
            promise("bytes, hybrid %s, W = %d: payload/theory %.4f", i == 0 ? "shm" : "tcp", w,
                    payload / theory);
            json_decref(r);
        }
}

/* Whatever the figures say, the bytes are the same; and rank 0 logs the decision once. */
static void test_hybrid_auto(void **state)
{
    (void)state;
    const char *ring = train_hash(60, "-n 2 --strategy=ring " JOB);
    assert_string_equal(ring, train_hash(60, "-n 2 --strategy=hybrid:auto " JOB));
    process p;
    process_start(&p, "entrain", NULL, "run -n 2 --threads=1 --strategy=hybrid:auto " JOB);
    assert_int_equal(process_wait(&p, 60), 0);
    if (process_names(&p, "buckets", "server", "ms") != 1)
        fail_msg("hybrid does not say once what it decided:\n%s", process_err(&p));
}

/* ---- what is refused ---- */

static void refused(const char *flags, const char *first, const char *second)
{
    process p;
    process_start(&p, "entrain", NULL, "run -n 2 --threads=1 --quiet %s " JOB, flags);
    const int code = process_wait(&p, 60);
    if (code == 0 || process_says(&p, first, second) < 1)
        fail_msg("%s: exit %d, expected \"%s\" and \"%s\":\n%s", flags, code, first, second, process_err(&p));
}

static void test_refused(void **state)
{
    (void)state;
    refused("--strategy=hybrid:ps=nothing", "ps=nothing", "fc2.weight");
    refused("--strategy=hybrid:ps=fc1.*,auto", "ps=fc1.*", "--strategy=hybrid:auto");
    refused("--strategy=hybrid:bound=1", "bound", "hybrid");
    refused("--strategy=hierarchical:bound=-2", "bound", "-2");
    refused("--strategy=hierarchical --on-worker-loss=continue", "--on-worker-loss=continue", "hierarchical");
    refused("--strategy=hierarchical --assign=claim", "hierarchical", "--assign=fixed");
}

/* ---- deaths ---- */

static void kill_one(const char *strategy, int victim, const char *name)
{
    process all[RANKS + 1];
    start(all, strategy, LONG_JOB);
    wait_for_line(&all[0], "Train Epoch", 60);
    const double begin = now_seconds();
    process_kill(&all[victim], SIGKILL);
    for (int i = 0; i < RANKS + needs_psd(strategy); i++) {
        if (i == victim) continue;
        const int code = process_wait(&all[i], 20);
        if (code != 1)
            fail_msg("%s: %s ended with %d:\n%s", strategy, all[i].name, code, process_err(&all[i]));
        if (process_says(&all[i], name, SAYS_DIED) != 1)
            fail_msg("%s: %s should name \"%s\" once:\n%s", strategy, all[i].name, name,
                     process_err(&all[i]));
    }
    process_wait(&all[victim], 5);
    process_nobody_left(5);
    promise("%s on 2 played hosts: %sis killed, all others name it and end after %.2f s", strategy, name,
            now_seconds() - begin);
}

static void test_killed(void **state)
{
    (void)state;
    kill_one("hierarchical", 0, "rank 0 "); /* a leader */
    kill_one("hierarchical", 2, "rank 2 "); /* the other one */
    kill_one("hierarchical", 3, "rank 3 "); /* behind it */
    kill_one("hierarchical", PSD, "psd ");
    kill_one("hierarchical:bound=2", 1, "rank 1 ");
    kill_one("hybrid:ps=*", 1, "rank 1 ");
    kill_one("grouped:period=3", 0, "rank 0 ");
    kill_one("grouped:period=0", 3, "rank 3 "); /* of a group that rank 0 never meets */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_hosts),   cmocka_unit_test(test_one_host),
        cmocka_unit_test(test_bound),       cmocka_unit_test(test_one_group),
        cmocka_unit_test(test_two_groups),  cmocka_unit_test(test_period_of_one),
        cmocka_unit_test(test_leaders),     cmocka_unit_test(test_hybrid_bytes),
        cmocka_unit_test(test_hybrid_auto), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_killed)};
    return system_main(tests);
}
