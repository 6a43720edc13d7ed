/* test_launched.c - `entrain run .. -- PROGRAM`: a program of the user's as the ranks of a run that our launcher starts. */
#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/run.h"

/* Promise: `entrain run -- PROGRAM` gives the bytes of the program `worker`, and ends all that a killed rank has started.
 * Promise: Ctrl-C ends a program without a signal handler in good order, under `entrain run`.
 * Promise: A program that is killed three times and resumes each time from a checkpoint ends with the bytes of an undisturbed
 *          run, its memories (a generator of each rank, counters) included. */

#define TRAINS EN_BUILD_DIR "/test_job_trains"
#define LINE   EN_BUILD_DIR "/examples/rank_line"
#define FLAGS  " --batch-size=6 --lr=0.02 --momentum=0.9 --nesterov --epochs=2"

static void test_the_workers_bytes(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync", "hybrid"};
    (void)state;
    const char *expected = train_hash(GUARD, "-n 2 --strategy=ring --device=ref --model=mlp " MADE_UP FLAGS);
    for (size_t i = 0; i < 3; i++) {
        char out[128], path[160];
        process p;
        snprintf(out, sizeof out, "%s/launched-%zu", system_folder(), i);
        process_start(&p, "entrain", NULL,
                      "run -n 2 --strategy=%s --quiet --out=%s" FLAGS " -- " TRAINS " writes epochs=7",
                      strategies[i], out); /* what the launcher was told wins */
        if (process_wait(&p, GUARD) != 0) fail_msg("%s:\n%s", strategies[i], process_err(&p));
        snprintf(path, sizeof path, "%s/result.json", out);
        json_t *result = json_load_file(path, 0, NULL);
        char hashes[HASHES];
        hashes_of(result, hashes);
        assert_string_equal(hashes, expected);
        json_decref(result);
    }
    promise("entrain run -n 2 -- a program: the worker's bytes under ring, ps-sync, hybrid");
}

/* Rank 0's output goes through; the others' is in a file. Settings of the program count where the launcher was told none. */
static void test_output(void **state)
{
    char out[128], path[160], text[200] = "";
    process p;
    (void)state;
    snprintf(out, sizeof out, "%s/output", system_folder());
    process_start(&p, "entrain", NULL,
                  "run -n 2 --strategy=ps-async --out=%s --quiet -- " LINE " steps=40 lr=0.1", out);
    assert_int_equal(process_wait(&p, GUARD), 0);
    assert_non_null(strstr(process_out(&p), "y = "));
    snprintf(path, sizeof path, "%s/rank-1.log", out);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    assert_int_equal(strncmp(text, "y = ", 4), 0);
    fclose(file);
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, NULL);
    assert_true(number_at(result, "updates") == 80);
    json_decref(result);
}

/* Each ends with `code` in time, and says all words in one line. */
static void refused(const char *command, int code, const char *first, const char *second)
{
    process p;
    process_start(&p, "entrain", NULL, "run -n 2 --quiet %s", command);
    const int got = process_wait(&p, GUARD);
    if (got != code || process_says(&p, first, second) == 0)
        fail_msg("run %s ended with %d:\n%s", command, got, process_err(&p));
    process_nobody_left(GUARD);
}

static void test_wrong_use(void **state)
{
    (void)state;
    refused("-- true", 1, "before the end of the run", "exit code 0");
    refused("-- /no/such/program", 2, "/no/such/program", "could not be executed");
    refused("--model=mlp -- " LINE, 2, "--model", "omit it");
    refused("--straggler=2:3 -- " LINE, 2, "--straggler", "outside this run");
    refused("--clip-norm=1 --strategy=ps-async -- " LINE, 2, "clip-norm=1", "strategy=ring or solo");
    refused("extra -- " LINE, 2, "unexpected argument", "extra");
    refused("-- " LINE " stratgy=ring", 2, "stratgy", "strategy");
}

/* A slow rank of a program sleeps in begin .. finish, and changes no bytes. */
static void test_a_straggler(void **state)
{
    char out[128], path[160], hashes[2][HASHES];
    process p;
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        snprintf(out, sizeof out, "%s/straggler-%d", system_folder(), slow);
        process_start(
            &p, "entrain", NULL,
            "run -n 2 --strategy=ring --quiet --batch-size=6 --lr=0.02 --epochs=30 --straggler=1:%d --out=%s "
            "-- " TRAINS " writes",
            slow ? 4 : 1, out);
        if (process_wait(&p, GUARD) != 0) fail_msg("%s", process_err(&p));
        snprintf(path, sizeof path, "%s/result.json", out);
        json_t *result = json_load_file(path, 0, NULL);
        const json_t *list = json_object_get(result, "stragglers"), *entry = json_array_get(list, 0);
        hashes_of(result, hashes[slow]);
        assert_int_equal(json_array_size(list), slow);
        if (slow) {
            const double factor = number_at(entry, "factor_measured");
            assert_true(number_at(entry, "rank") == 1 && number_at(entry, "factor") == 4);
            if (!(factor > 3))
                fail_msg("the straggler came out as %.2f", factor); /* more on a busy machine */
            promise("--straggler=1:4 of a program came out as %.2f", factor);
        }
        json_decref(result);
    }
    assert_string_equal(hashes[0], hashes[1]);
}

/* The rank is a grandchild, and has a child of its own, which holds all of its descriptors. */
static void test_a_killed_rank(void **state)
{
    char script[160];
    process p;
    (void)state;
    snprintf(script, sizeof script, "%s/ranks.sh", system_folder());
    FILE *file = fopen(script, "w");
    assert_non_null(file);
    fprintf(file,
            "sleep 300 &\n" LINE " steps=1000000000 lr=0.001 &\necho pid $! >&2\n[ $MASTER_PORT -gt 0 ] && "
            "echo master $MASTER_ADDR >&2\n"
            "[ $RANK = 1 ] && echo $! >%s.pid\nwait $!\n",
            script);
    fclose(file);
    process_start(&p, "entrain", NULL, "run -n 2 --strategy=ring --log-every=10 -- /bin/sh %s", script);
    wait_for_line(&p, "Train Epoch", GUARD);
    strcat(script, ".pid");
    file = fopen(script, "r");
    int pid = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%d", &pid), 1);
    fclose(file);
    stopwatch watch = stopwatch_start();
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(process_wait(&p, GUARD), 1);
    const double took = stopwatch_read(&watch);
    stopwatch_expect(&watch, took, 3 * SLOWNESS, "the end of the run");
    assert_true(process_says(&p, "rank 1", SAYS_DIED) > 0);
    assert_true(process_says(&p, "master", "127.0.0.1") >
                0);             /* for a torch.distributed of the program's own */
    process_nobody_left(GUARD); /* both sleeps, too */
    promise("a rank behind a shell is killed: named, and all that it started ended in %.2f s", took);
}

/* It exits with 0 before the end, dies with a child that holds its descriptors, joins twice: within 2 s it is named, and nothing
 * is left. */
static void test_ends_in_the_middle(void **state)
{
    static const char *const ends[][3] = {{"exits", "rank 1", "exit code 0"},
                                          {"dies", "rank 1", SAYS_DIED},
                                          {"twice", "token", "a process joins its run once"}};
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        process p;
        process_start(&p, "entrain", NULL, "run -n 2 --strategy=ring --steps=1000000 -- " TRAINS " %s",
                      ends[i][0]);
        wait_for_line(&p, "all-reduce", GUARD);
        stopwatch watch = stopwatch_start();
        const int code = process_wait(&p, GUARD);
        const double took = stopwatch_read(&watch);
        stopwatch_expect(&watch, took, 2 * SLOWNESS, "the end of the run");
        if (code != 1 || process_says(&p, ends[i][1], ends[i][2]) == 0)
            fail_msg("%s: exit %d\n%s", ends[i][0], code, process_err(&p));
        process_nobody_left(GUARD);
        promise("a program that %s: named in %.2f s", i == 2 ? "joins twice" : ends[i][0], took);
    }
}

/* Rank 0 computes, and learns nothing in a call: its watching thread tells the launcher, which ends both. */
static void test_closes_and_lives_on(void **state)
{
    process p;
    (void)state;
    process_start(&p, "entrain", NULL, "run -n 2 --strategy=ring --steps=1000000 -- " TRAINS " closes");
    wait_for_line(&p, "all-reduce", GUARD);
    stopwatch watch = stopwatch_start();
    wait_for_line(&p, "gave up", GUARD);
    const double named = stopwatch_read(&watch);
    stopwatch_expect(&watch, named, 3 * SLOWNESS, "the name of the rank that closed");
    const int code = process_wait(&p, GUARD);
    stopwatch_expect(&watch, stopwatch_read(&watch), 15 * SLOWNESS, "the end of the run");
    if (code != 1 || process_says(&p, "rank 1", "closed its rank") == 0 ||
        process_says(&p, "rank 1", "gave up") == 0)
        fail_msg("exit %d\n%s", code, process_err(&p));
    process_nobody_left(GUARD);
    promise("a program that closes its rank and lives on, while the other is in a long step: named in %.2f s",
            named);
}

/* The program has no signal handler, and SIGTERM would kill it. */
static void test_interrupted(void **state)
{
    static const char *const strategies[] = {"ring", "ps-sync"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char out[128], path[160];
        process p;
        snprintf(out, sizeof out, "%s/interrupted-%zu", system_folder(), i);
        process_start(&p, "entrain", NULL,
                      "run -n 2 --strategy=%s --log-every=10 --out=%s -- " LINE " steps=1000000000 lr=0.001",
                      strategies[i], out);
        wait_for_line(&p, "Train Epoch", GUARD);
        process_kill(&p, SIGINT);
        const int code = process_wait(&p, GUARD);
        if (code != 128 + SIGINT) fail_msg("exit %d\n%s", code, process_err(&p));
        snprintf(path, sizeof path, "%s/result.json", out);
        json_t *result = json_load_file(path, 0, NULL);
        if (result == NULL) fail_msg("no result:\n%s", process_err(&p));
        assert_string_equal(text_at(result, "exit"), "interrupted");
        json_decref(result);
        process_nobody_left(GUARD);
    }
    promise(
        "Ctrl-C under entrain run: a C program without a handler ends with a result, under ring and ps-sync");
}

/* ---- resuming ---- */

/* The samples of the newest checkpoint; 0 without one. */
static long newest_in(const char *out)
{
    glob_t found;
    char pattern[200];
    snprintf(pattern, sizeof pattern, "%s/checkpoints/checkpoint-*.safetensors", out);
    const int n = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    const long samples = n > 0 ? atol(strstr(found.gl_pathv[n - 1], "checkpoint-") + 11) : 0;
    globfree(&found);
    return samples;
}

#define LONG                                                                                                 \
    "run -n 2 --strategy=%s --quiet --batch-size=6 --lr=0.02 --momentum=0.9 --nesterov --epochs=20 "         \
    "--checkpoint-every=100 "

/* Killed with all that it started at a random moment behind a new checkpoint, and resumed; so many times. */
static json_t *killed_and_resumed(const char *strategy, const char *how, int times, process *last)
{
    char out[128], path[160];
    int kills = 0;
    snprintf(out, sizeof out, "%s/resumed-%.7s-%s", system_folder(), strategy, how);
    for (; kills < times; kills++) {
        process_start(last, "entrain", NULL, LONG "--out=%s --resume=auto -- " TRAINS " %s", strategy, out,
                      how);
        const long before = newest_in(out);
        for (const double until = now_seconds() + GUARD; newest_in(out) == before && now_seconds() < until;)
            usleep(2000);
        usleep((useconds_t)random() % 8000);
        process_kill(last, SIGKILL);
        if (process_wait(last, GUARD) == 0) break; /* too late */
        process_nobody_left(GUARD);
        assert_true(newest_in(out) > before);
    }
    assert_true(kills > 0);
    process_start(last, "entrain", NULL, LONG "--out=%s --resume=auto -- " TRAINS " %s", strategy, out, how);
    if (process_wait(last, GUARD) != 0) fail_msg("%s", process_err(last));
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, NULL);
    assert_true(json_array_size(json_object_get(result, "resumed_from")) == (size_t)kills);
    return result;
}

static void expect_resumed(const char *strategy, const char *how, int times, const char *expected)
{
    process p;
    char hashes[HASHES];
    json_t *result = killed_and_resumed(strategy, how, times, &p);
    hashes_of(result, hashes);
    assert_string_equal(hashes, expected);
    json_decref(result);
}

static void test_resumed(void **state)
{
    (void)state;
    const char *expected = train_hash(GUARD, "-n 2 --strategy=ring --device=ref --model=mlp " MADE_UP
                                             " --batch-size=6 --lr=0.02 "
                                             "--momentum=0.9 --nesterov --epochs=20");
    expect_resumed("ring", "writes", 1, expected);
    expect_resumed("ps-sync", "writes", 1, expected);
    promise("a program is killed and resumed from a checkpoint: the bytes of the undisturbed worker");
}

static void test_memories_are_resumed(void **state)
{
    char out[128], path[160], expected[HASHES];
    process p;
    (void)state;
    snprintf(out, sizeof out, "%s/undisturbed", system_folder());
    process_start(&p, "entrain", NULL, LONG "--out=%s -- " TRAINS " noisy", "ring", out);
    if (process_wait(&p, GUARD) != 0) fail_msg("%s", process_err(&p));
    snprintf(path, sizeof path, "%s/result.json", out);
    json_t *result = json_load_file(path, 0, NULL);
    hashes_of(result, expected);
    assert_non_null(json_object_get(result, "buffers_sha256"));
    json_decref(result);
    expect_resumed("ring", "noisy", 3, expected);
    expect_resumed("ps-sync", "noisy", 3, expected);
    promise("a program with a generator of each rank and counters is killed three times and resumed: the "
            "weights and "
            "memories of the undisturbed run, under ring and ps-sync");

    result = killed_and_resumed("ps-async", "counts", 1, &p); /* as much work; rank 0's memories go on */
    assert_true(number_at(result, "samples_applied") >= 20 * 103 - 6 &&
                number_at(result, "samples_applied") <= 20 * 103 + 6);
    assert_true(process_says(&p, "begins with", "steps") > 0 &&
                process_says(&p, "begins with", " 0 steps") == 0);
    json_decref(result);
    process_start(&p, "entrain", NULL, LONG "--out=%s-each -- " TRAINS " noisy", "ps-async", out);
    assert_int_equal(process_wait(&p, GUARD), 1);
    assert_true(process_says(&p, "EN_MEMORY_EACH", "no common step") > 0);
}

int main(void)
{
    const struct CMUnitTest launched[] = {cmocka_unit_test(test_wrong_use),
                                          cmocka_unit_test(test_a_straggler),
                                          cmocka_unit_test(test_output),
                                          cmocka_unit_test(test_the_workers_bytes),
                                          cmocka_unit_test(test_a_killed_rank),
                                          cmocka_unit_test(test_ends_in_the_middle),
                                          cmocka_unit_test(test_closes_and_lives_on),
                                          cmocka_unit_test(test_interrupted),
                                          cmocka_unit_test(test_resumed),
                                          cmocka_unit_test(test_memories_are_resumed)};
    return system_main(launched);
}
