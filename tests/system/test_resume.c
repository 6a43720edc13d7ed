/* test_resume.c - a run that was killed at any moment and is resumed ends with the bytes of one that was not.
 *
 *     test_resume [SEEDS]          three kills in a row for each seed and mode; 2 by default
 *
 * There is a checkpoint at every step, so that kills fall into writes, renames and removals too. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/resumed.h"

/* Promise: A run that is killed at any moment and resumed ends with the undisturbed bytes.
 * Promise: SIGUSR1 and SIGUSR2, to the launcher or to all, save a checkpoint; this run and one resumed
 * there end as undisturbed. */

#define HYBRID "--strategy=hybrid:ps=fc1.* --bucket-cap-mb=0.1"

static int seeds = 2;
static char localsgd[128], zero1[128]; /* plugins */
static json_t *undisturbed;            /* eval.jsonl of the run that was not killed */

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

/* ---- kills ---- */

/* But for the moment on the clock, which differs between any two runs. */
static void expect_same_point(const json_t *found, const json_t *expected)
{
    static const char *const keys[] = {"samples", "test_loss", "test_accuracy"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (number_at(found, keys[i]) != number_at(expected, keys[i]))
            fail_msg("a resumed run has the point %s, an undisturbed one %s", json_dumps(found, 0),
                     json_dumps(expected, 0));
}

/* Every step once in metrics-RANK.jsonl, in order, and every point once in eval.jsonl. */
static void expect_one_run(const char *out, int nranks, uint64_t steps)
{
    char path[200];
    for (int r = 0; r < nranks; r++) {
        snprintf(path, sizeof path, "%s/metrics-%d.jsonl", out, r);
        json_t *lines = read_lines(path);
        if (json_array_size(lines) != steps)
            fail_msg("%s has %zu lines, not %d", path, json_array_size(lines), (int)steps);
        for (size_t i = 0; i < steps; i++)
            assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, i), "step")), i);
        json_decref(lines);
    }
    snprintf(path, sizeof path, "%s/eval.jsonl", out);
    json_t *points = read_lines(path);
    json_int_t last = 0;
    for (size_t i = 0; i < json_array_size(points); i++) {
        json_int_t samples = json_integer_value(json_object_get(json_array_get(points, i), "samples"));
        assert_true(samples > last);
        last = samples;
        expect_same_point(json_array_get(points, i), json_array_get(undisturbed, i));
    }
    assert_int_equal(last, SAMPLES);
    assert_int_equal(json_array_size(points), 5); /* every 100 samples, and the end */
    json_decref(points);
}

/* Killed three times in a row, at checkpoints drawn from the seed. The first life is slow, so that it does
 * not end before; in the quick ones after it kills meet writes, renames and removals. */
static void kill_and_resume(const char *flags, const char *resumed_flags, const char *expected, int nranks,
                            uint64_t seed)
{
    char out[160], slow[1024 + sizeof SLOWLY], text[1024], again[1024];
    uint64_t random = seed, at = 0;
    int kills = 0;
    process p;
    folder_for(out, "killed");
    snprintf(text, sizeof text, "%s --eval-every=100 --checkpoint-every=%d --resume=auto", flags, EVERY);
    snprintf(again, sizeof again, "%s --eval-every=100 --checkpoint-every=%d --resume=auto", resumed_flags,
             EVERY);
    snprintf(slow, sizeof slow, SLOWLY "%s", text);
    for (int i = 0; i < 3; i++) {
        at += 1 + draw(&random, 120);
        begin_run(&p, out, i == 0 ? slow : i == 1 ? again : text);
        kills += wait_for_checkpoint(&p, out, at);
        kill_everything(&p);
        at = newest_checkpoint(out);
    }
    assert_true(kills > 0);
    json_decref(finish_run(out, expected, again));
    json_t *r = finish_run(out, expected, again); /* what is finished stays as it is */
    assert_true(json_array_size(json_object_get(r, "resumed_from")) >= 1);
    assert_int_equal((int)number_at(r, "samples_applied"), SAMPLES);
    assert_int_equal((int)number_at(r, "samples_computed"), SAMPLES);
    assert_int_equal((int)number_at(r, "updates"), (int)number_at(r, "steps"));
    expect_one_run(out, nranks, (uint64_t)number_at(r, "steps"));
    json_decref(r);
}

static const char *common = COMMON;

static void mode(const char *name, int nranks, const char *flags, const char *other)
{
    char text[512], resumed[512];
    snprintf(text, sizeof text, "-n %d %s %s", nranks, flags, common);
    snprintf(resumed, sizeof resumed, "-n %d %s %s", nranks, other, common);
    const char *expected = train_hash(60, "%s --eval-every=100", text);
    char path[200];
    snprintf(path, sizeof path, "%s/eval.jsonl", train_out());
    json_decref(undisturbed);
    undisturbed = read_lines(path);
    for (int seed = 1; seed <= seeds; seed++)
        kill_and_resume(text, resumed, expected, nranks, (uint64_t)seed);
    promise("%s, %d worker(s): killed %d x 3 times at random, resumed: sha256 %.8s.. as undisturbed", name,
            nranks, seeds, expected);
}

static void test_solo(void **state)
{
    (void)state;
    mode("solo", 1, "--strategy=solo", "--strategy=solo");
}

static void test_ring(void **state)
{
    (void)state;
    mode("ring direct, then tcp", 2, "--strategy=ring --allreduce=direct", "--strategy=ring --transport=tcp");
    mode("ring over tcp", 3, "--strategy=ring --allreduce=ring --transport=tcp",
         "--strategy=ring --allreduce=ring --transport=tcp");
}

static void test_ps_sync(void **state)
{
    (void)state;
    mode("ps-sync, 1 then 3 shards", 2, "--strategy=ps-sync --shards=1", "--strategy=ps-sync --shards=3");
    mode("hierarchical, 1 then 2 shards", 2, "--strategy=hierarchical", "--strategy=hierarchical --shards=2");
    mode("hybrid, 1 then 3 shards", 2, HYBRID " --shards=1", HYBRID " --shards=3 --transport=tcp");
    mode("ps-sync over tcp, 3 then 2 shards", 2, "--strategy=ps-sync --shards=3 --transport=tcp",
         "--strategy=ps-sync --shards=2 --bucket-cap-mb=0.2");
}

/* Two slots, and a number of steps, on which every later step depends. */
static void test_adamw(void **state)
{
    (void)state;
    common = WITHOUT_OPTIMIZER
        "--optimizer=adamw --lr=0.002 --weight-decay=0.02 --decay=weights --lr-schedule=multistep "
        "--lr-milestones=1epoch,3epochs";
    mode("ring with adamw, direct, then tcp", 2, "--strategy=ring --allreduce=direct",
         "--strategy=ring --transport=tcp");
    mode("ps-sync with adamw, 1 then 3 shards", 2, "--strategy=ps-sync --shards=1",
         "--strategy=ps-sync --shards=3");
    mode("hybrid with adamw, 1 then 3 shards", 2, HYBRID " --shards=1", HYBRID " --shards=3");
    common = COMMON;
}

/* Running statistics, which evaluation depends on and no step does. */
static void test_statistics(void **state)
{
    (void)state;
    /* What is drawn for images depends on their epoch, which a resumed run begins in its middle. */
    common = OF_ANY_MODEL "--model=resnet18:width=2 --augment=crop:28:4,flip --loader-threads=2 " NESTEROV;
    mode("resnet18, solo of 2 micro-batches", 1, "--strategy=solo --accumulate=2",
         "--strategy=solo --accumulate=2");
    mode("resnet18, ring", 2, "--strategy=ring --allreduce=direct", "--strategy=ring --transport=tcp");
    common = OF_ANY_MODEL "--bn-stats=mean --model=resnet18:width=2 " NESTEROV; /* of each rank's own */
    mode("resnet18, ring, mean of statistics", 2, "--strategy=ring", "--strategy=ring");
    common = OF_ANY_MODEL "--bn-stats=recompute:16 --model=resnet18:width=2 " NESTEROV;
    mode("resnet18, ps-sync, 1 then 3 shards, recomputed statistics", 2, "--strategy=ps-sync --shards=1",
         "--strategy=ps-sync --shards=3");
    common = COMMON;
}

static void test_localsgd(void **state)
{
    char flags[200];
    (void)state;
    snprintf(flags, sizeof flags, "--strategy=%s:period=5", localsgd);
    mode("local SGD (weights per rank)", 2, flags, flags);
    snprintf(flags, sizeof flags, "--strategy=%s:period=5 --transport=tcp", localsgd);
    mode("local SGD over tcp", 3, flags, flags);
}

static void test_groups(void **state)
{
    (void)state;
    static const char flags[] = "--strategy=grouped:period=5 --groups=0,2;1";
    mode("grouped (weights per group)", 3, flags, flags);
}

/* ---- one file, many runs ---- */

/* Each rank keeps its part of the optimizer's slots; the file has them whole. */
static void test_sharded_optimizer(void **state)
{
    char flags[200];
    (void)state;
    snprintf(flags, sizeof flags, "--strategy=%s", zero1);
    mode("zero1 (slots in parts)", 3, flags, flags);
}

/* One process with batches of 8 goes on as two ranks with batches of 4: the same samples in every step. */
static void test_half_the_batch_on_two_ranks(void **state)
{
    char out[160], path[256], second[160], text[700];
    process p;
    (void)state;
    half_way(out, "-n 1 --strategy=solo " COMMON " --batch-size=8", 150);
    path_of_newest(out, path);
    folder_for(second, "halved");
    snprintf(text, sizeof text, "-n 2 --strategy=ring " COMMON " --resume=%s", path);
    begin_run(&p, second, text);
    int code = process_wait(&p, 60);
    if (code != 0) fail_msg("%s: exit %d\n%s", text, code, process_err(&p));
    json_t *r = result_of(second);
    assert_int_equal((int)number_at(r, "samples_applied"), SAMPLES);
    assert_int_equal((int)number_at(r, "samples_computed"), SAMPLES);
    json_decref(r);
}

/* Statistics of two ranks, and one that goes on, or the same two: from the end of the run, so it is what they
 * begin with that is judged. */
static void test_statistics_of_another_number_of_ranks(void **state)
{
#define OF_MEAN                                                                                              \
    OF_ANY_MODEL "--bn-stats=mean --model=resnet18:width=2 --epochs=1 --checkpoint-every=1epoch " NESTEROV
    static const char *const flags[] = {"-n 2 --strategy=ring " OF_MEAN,
                                        "-n 1 --strategy=ring " OF_MEAN " --batch-size=8"};
    char out[160], path[256], second[160], text[700], wanted[HASHES], found[HASHES];
    process p;
    (void)state;
    folder_for(out, "two");
    begin_run(&p, out, flags[0]);
    int code = process_wait(&p, 60);
    if (code != 0) fail_msg("%s: exit %d\n%s", flags[0], code, process_err(&p));
    json_t *r = result_of(out);
    hashes_of(r, wanted);
    json_decref(r);
    path_of_newest(out, path);
    for (int ranks = 2; ranks >= 1; ranks--) {
        folder_for(second, "fewer");
        snprintf(text, sizeof text, "%s --resume=%s", flags[2 - ranks], path);
        begin_run(&p, second, text);
        code = process_wait(&p, 60);
        const int said = process_says(&p, "running statistics of 2 ranks", "here is 1");
        if (code != 0 || said != (ranks == 1))
            fail_msg("%s: exit %d, %d warnings\n%s", text, code, said, process_err(&p));
        r = result_of(second);
        hashes_of(r, found);
        json_decref(r);
        assert_string_equal(wanted, found);
    }
    promise("--bn-stats=mean resumed with fewer ranks: a warning, and all begin with the mean");
}

/* Two micro-batches of one process, two ranks, a server: the same run in four ways, so any may go on. */
static void test_another_strategy_goes_on(void **state)
{
    char sharded[400];
    const char *const ways[] = {"-n 1 --strategy=solo --accumulate=2 " COMMON, "-n 2 --strategy=ring " COMMON,
                                "-n 2 --strategy=ps-sync --shards=2 " COMMON, sharded};
    char out[160], path[256], text[700];
    (void)state;
    snprintf(sharded, sizeof sharded, "-n 2 --strategy=%s " COMMON, zero1);
    const char *expected = train_hash(60, "%s", ways[0]);
    for (int from = 0; from < 4; from++) {
        half_way(out, ways[from], 150);
        path_of_newest(out, path);
        for (int to = 0; to < 4; to++) {
            char to_out[160];
            folder_for(to_out, "other");
            snprintf(text, sizeof text, "%s --resume=%s", ways[to], path);
            json_t *r = finish_run(to_out, expected, text);
            assert_string_equal(json_string_value(json_array_get(json_object_get(r, "resumed_from"), 0)),
                                path);
            json_decref(r);
        }
    }
    promise("a checkpoint of solo --accumulate=2, ring, ps-sync and zero1 is resumed by each of them: same "
            "bytes");
}

static void test_amounts_in_epochs(void **state)
{
    char out[160], path[200];
    uint64_t found[16];
    process p;
    (void)state;
    folder_for(out, "epochs");
    begin_run(&p, out, "-n 2 --strategy=ring " COMMON " --eval-every=2epochs --checkpoint-every=3epochs");
    assert_int_equal(process_wait(&p, 60), 0);
    assert_int_equal(list_checkpoints(out, found), 1);
    assert_int_equal(found[0], 3 * SAMPLES / 4);
    snprintf(path, sizeof path, "%s/eval.jsonl", out);
    json_t *points = read_lines(path);
    assert_int_equal(json_array_size(points), 2);
    assert_int_equal((int)number_at(json_array_get(points, 0), "samples"), SAMPLES / 2);
    json_decref(points);
}

/* ---- called off ---- */

static void test_ctrl_c_leaves_a_checkpoint(void **state)
{
    static const char *const ways[] = {"-n 2 --strategy=ring " COMMON, "-n 2 --strategy=hierarchical " COMMON,
                                       "-n 2 --strategy=ps-sync --shards=2 " COMMON};
    char out[160], text[512];
    process p;
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *expected = train_hash(60, "%s", ways[i]);
        folder_for(out, "stopped");
        snprintf(text, sizeof text, SLOWLY "%s --checkpoint-every=40", ways[i]);
        begin_run(&p, out, text);
        assert_int_equal(wait_for_checkpoint(&p, out, 40), 1);
        process_kill(&p, SIGINT);
        assert_int_equal(process_wait(&p, GUARD), 130);
        json_t *r = result_of(out);
        assert_string_equal(text_at(r, "exit"), "interrupted");
        char last[64];
        snprintf(last, sizeof last, "%012d", (int)number_at(r, "samples_applied"));
        assert_non_null(strstr(text_at(r, "checkpoints.last"), last));
        json_decref(r);
        snprintf(text, sizeof text, "%s --checkpoint-every=40 --resume=auto", ways[i]);
        json_decref(finish_run(out, expected, text));
    }
    promise("Ctrl-C: a checkpoint at the very step, and the resumed run ends with the undisturbed bytes");
}

/* Points of the curve that are still to be made whole would take longer than a run that is stopped has. */
static void test_points_do_not_delay_the_end(void **state)
{
    char out[160];
    process p;
    (void)state;
    for (int is_slow = 0; is_slow <= 1; is_slow++) {
        folder_for(out, "slow");
        process_start(&p, "entrain", NULL,
                      "run --threads=1 -n 2 --strategy=%s --out=%s --device=ref --model=mlp --log-every=50 "
                      "--data=synthetic --limit-train-samples=480 --limit-test-samples=20 --batch-size=4 "
                      "--max-samples=1000000 --eval-every=8 %s",
                      localsgd, out, is_slow ? "--net=rate:200mbit --checkpoint-every=1000000" : "");
        const double deadline = now_seconds() + 60 * SLOWNESS;
        while (process_says(&p, "Train Epoch: 3", "") == 0)
            if (poll(&(struct pollfd){.fd = p.pidfd, .events = POLLIN}, 1, 20) > 0 ||
                now_seconds() > deadline)
                fail_msg("it does not train\n%s", process_err(&p));
        process_kill(&p, SIGTERM);
        assert_int_equal(process_wait(&p, GUARD), 143);
        if (is_slow) {
            assert_true(newest_checkpoint(out) > 0);
        } else { /* its points are given up, and that is told */
            json_t *r = result_of(out);
            assert_true(number_at(r, "snapshots.taken") > 100);
            assert_true(number_at(r, "snapshots.left_out") == number_at(r, "snapshots.taken"));
            json_decref(r);
        }
    }
}

/* To the launcher and all below it, as Slurm's --signal sends it. */
static void signal_all(const process *p, int number)
{
    char path[64];
    int child;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)p->pid, (int)p->pid);
    FILE *children = fopen(path, "re");
    while (children != NULL && fscanf(children, "%d", &child) == 1)
        kill(child, number);
    if (children != NULL) fclose(children);
    kill(p->pid, number);
}

/* Before that a signal ends it. */
static int has_begun(const char *out)
{
    char path[200];
    snprintf(path, sizeof path, "%s/config.yaml", out);
    return access(path, F_OK) == 0;
}

static void test_a_signal_saves(void **state)
{
    static const char *const ways[] = {"-n 2 --strategy=ring " COMMON, "-n 2 --strategy=hierarchical " COMMON,
                                       "-n 2 --strategy=ps-sync --shards=2 " COMMON,
                                       "-n 2 --strategy=ssp:bound=2 " COMMON};
    enum { SSP = 3 };
    char out[160], text[1024];
    (void)state;
    for (int i = 0; i <= SSP; i++) {
        const char *expected = i < SSP ? train_hash(60, "%s", ways[i]) : NULL;
        uint64_t found[16];
        process p;
        folder_for(out, "signal");
        snprintf(text, sizeof text, SLOWLY "%s %s --checkpoint-every=1000000", ways[i],
                 i == SSP ? "--straggler=1:25" : "");
        begin_run(&p, out, text);
        const double deadline = now_seconds() + 60 * SLOWNESS;
        struct pollfd ended = {.fd = p.pidfd, .events = POLLIN};
        while (newest_checkpoint(out) == 0) { /* there is none before the ranks have met */
            if (has_begun(out) && i % 2 == 0) kill(p.pid, SIGUSR1);
            if (has_begun(out) && i % 2 == 1) signal_all(&p, SIGUSR2);
            if (poll(&ended, 1, 20) > 0 || now_seconds() > deadline)
                fail_msg("%s: no checkpoint\n%s", ways[i], process_err(&p));
        }
        assert_true(newest_checkpoint(out) < SAMPLES);
        assert_int_equal(poll(&ended, 1, 0), 0); /* it goes on */
        if (i > 0) {
            kill_everything(&p);
        } else { /* and ends as if nothing had been */
            assert_int_equal(process_wait(&p, 60), 0);
            char hashes[HASHES];
            json_t *r = result_of(out);
            hashes_of(r, hashes);
            assert_string_equal(hashes, expected);
            assert_true(number_at(r, "checkpoints.written") >= 1 && list_checkpoints(out, found) <= 2);
            json_decref(r);
            continue;
        }
        snprintf(text, sizeof text, "%s --checkpoint-every=40 --resume=auto", ways[i]);
        if (i < SSP) {
            json_decref(finish_run(out, expected, text));
            continue;
        }
        begin_run(&p, out, text);
        assert_int_equal(process_wait(&p, 60), 0);
    }
    process p;
    process_start(&p, "entrain", NULL, "run --threads=1 -n 2 --strategy=ring --out=%s " SLOWLY COMMON,
                  (folder_for(out, "none"), out));
    const double deadline = now_seconds() + 60 * SLOWNESS;
    while (process_says(&p, "without --checkpoint-every", "") == 0) {
        if (has_begun(out)) kill(p.pid, SIGUSR1);
        if (poll(&(struct pollfd){.fd = p.pidfd, .events = POLLIN}, 1, 20) > 0 || now_seconds() > deadline)
            fail_msg("nobody says that there is no checkpoint\n%s", process_err(&p));
    }
    assert_int_equal(process_wait(&p, 60), 0);
    promise("SIGUSR1 and SIGUSR2, to the launcher or to all: a checkpoint, the run goes on and ends as "
            "undisturbed, and "
            "so does one that is resumed there");
}

/* The work of an asynchronous run is that of an undisturbed one, to within a micro-batch. */
static void test_asynchronous_work_is_whole(void **state)
{
    static const char *const ways[] = {"-n 2 --strategy=ps-async " COMMON,
                                       "-n 2 --strategy=ssp:bound=2 " COMMON};
    char out[160], text[512];
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof text, "%s --straggler=1:25", ways[i]); /* nobody waits for rank 0 */
        half_way(out, text, 150);
        snprintf(text, sizeof text, "%s --checkpoint-every=40 --resume=auto", ways[i]);
        process p;
        begin_run(&p, out, text);
        int code = process_wait(&p, 60);
        if (code != 0) fail_msg("%s: exit %d\n%s", text, code, process_err(&p));
        json_t *r = result_of(out);
        double applied = number_at(r, "samples_applied");
        if (applied < SAMPLES || applied >= SAMPLES + 4) fail_msg("%s: %g samples applied", ways[i], applied);
        json_decref(r);
    }
    promise(
        "ps-async and ssp killed and resumed: the samples of an undisturbed run, to within a micro-batch");
}

static void test_plugins_are_built(void **state)
{
    (void)state;
    snprintf(localsgd, sizeof localsgd, "%s/localsgd.so", system_folder());
    snprintf(zero1, sizeof zero1, "%s/zero1.so", system_folder());
    build_plugin("examples/localsgd.c", localsgd);
    build_plugin("tests/strategies/zoo.c", zero1); /* its first is zero1 */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plugins_are_built),
                                       cmocka_unit_test(test_solo),
                                       cmocka_unit_test(test_ring),
                                       cmocka_unit_test(test_ps_sync),
                                       cmocka_unit_test(test_adamw),
                                       cmocka_unit_test(test_statistics),
                                       cmocka_unit_test(test_localsgd),
                                       cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_statistics_of_another_number_of_ranks),
                                       cmocka_unit_test(test_sharded_optimizer),
                                       cmocka_unit_test(test_half_the_batch_on_two_ranks),
                                       cmocka_unit_test(test_another_strategy_goes_on),
                                       cmocka_unit_test(test_amounts_in_epochs),
                                       cmocka_unit_test(test_ctrl_c_leaves_a_checkpoint),
                                       cmocka_unit_test(test_points_do_not_delay_the_end),
                                       cmocka_unit_test(test_a_signal_saves),
                                       cmocka_unit_test(test_asynchronous_work_is_whole)};
    if (argc > 1) seeds = atoi(argv[1]);
    return system_main(tests);
}
