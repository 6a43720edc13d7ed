/* test_misuse.c - strategies that break the contract in a real run: it fails, it says who did what and where,
 * and nothing crashes. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

#define PLUGIN EN_BUILD_DIR "/test/plugins/misuse.so"
#define JOB                                                                                                  \
    "run -n 2 --device=ref --model=toy --threads=1 --quiet --steps=5 --batch-size=2 --assign=fixed "         \
    "--log-level=warn"

enum { WITHIN = 20 };

typedef struct misdeed {
    int deed;
    const char *place, *words; /* of one line */
} misdeed;

static void expect(const char *strategy, const misdeed *m)
{
    process p;
    process_start(&p, "entrain", NULL, JOB " --strategy=%s:deed=%d", strategy, m->deed);
    int code = process_wait(&p, WITHIN);
    if ((code != 1 && code != 2) || process_says(&p, m->place, m->words) < 1 ||
        process_says(&p, "", "died") != 0)
        fail_msg("%s, deed %d: exit %d; a line with \"%s\" and \"%s\" is expected:\n%s", strategy, m->deed,
                 code, m->place, m->words, process_err(&p));
    process_nobody_left(WITHIN);
}

static void test_in_a_worker(void **state)
{
    (void)state;
    static const misdeed all[] = {
        {1, "submit of misuse (rank 1, step 2, bucket 0)", "waits for request 123456"},
        {2, "eval of misuse (rank", "returned 99"},
        {3, "submit of misuse (rank 1, step 2, bucket 0)", "lin"},
        {4, "submit of misuse (rank 1, step 2, bucket 0)", "only the host may say"},
        {5, "submit of misuse (rank 1, step 2, bucket 0)", "for EN_GROUP"},
        {6, "submit of misuse (rank 1, step 2, bucket 0)", "the word 77"},
        {7, "submit of misuse (rank 1, step 2, bucket 0)", "not the host's"},
        {8, "submit of misuse (rank 1, step 2, bucket 0)", "without a key"},
        {10, "submit of misuse (rank 1, step 2, bucket 0) failed: 14", "cannot do that"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        expect(PLUGIN, &all[i]);
    json_decref(train(WITHIN, "-n 2 --device=ref --model=toy --steps=5 --strategy=" PLUGIN ":deed=9"));
    promise(
        "a worker half that breaks the contract: %d of %d named with hook, rank, step and bucket, no crash",
        (int)(sizeof all / sizeof *all), (int)(sizeof all / sizeof *all));
}

static void test_in_psd(void **state)
{
    (void)state;
    static const misdeed all[] = {
        {1, "on_push of misuse-store (shard 0, bucket 0", "peer vector 0 of client 1000"},
        {2, "on_push of misuse-store (shard 0, bucket 0", "once"},
        {3, "on_push of misuse-store (shard 0, bucket 0", "step with a partition"},
        {4, "on_push of misuse-store (shard 0, bucket 0", "the word 77"},
        {5, "on_push of misuse-store (shard 0, bucket 0", "without its message"},
        {6, "on_push of misuse-store (shard 0, bucket 0", "only the host may say"},
        {7, "on_pull of misuse-store (shard 0, bucket 0", "returned 99"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        expect(PLUGIN "@misuse-store", &all[i]);
    promise("a store half that breaks the contract: %d of %d named with hook, shard and bucket, no crash",
            (int)(sizeof all / sizeof *all), (int)(sizeof all / sizeof *all));
}

/* ---- a plugin that ends the process, with the exit code of success ---- */

enum { EXIT = 20, LEAVE, ALL_LEAVE };

static void must_fail(process *p, const char *what, const char *who, const char *why)
{
    const int code = process_wait(p, WITHIN);
    if (code == 0 || code > 128 || process_says(p, who, why) < 1)
        fail_msg("%s: exit %d; a line with \"%s\" and \"%s\" is expected:\n%s", what, code, who, why,
                 process_err(p));
}

static void test_exit_in_a_run(void **state)
{
    (void)state;
    static const struct {
        const char *half;
        int deed;
        const char *who, *why;
    } all[] = {{"", EXIT, "rank 1 (pid", "at step 2"},
               {"", EXIT, "rank 1 (pid", "a plugin called exit with 0"},
               {"", LEAVE, "rank 1 (pid", "ended with exit code 0 in the middle of the run"},
               {"", ALL_LEAVE, "rank ", "ended with exit code 0 in the middle of the run"},
               {"@misuse-store", EXIT, "psd (pid", "a plugin called exit with 0"},
               {"@misuse-store", LEAVE, "psd (pid", "ended with exit code 0 in the middle of the run"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char what[64];
        process p;
        snprintf(what, sizeof what, "run, half \"%s\", deed %d", all[i].half, all[i].deed);
        process_start(&p, "entrain", NULL, JOB " --strategy=" PLUGIN "%s:deed=%d", all[i].half, all[i].deed);
        must_fail(&p, what, all[i].who, all[i].why);
        process_nobody_left(WITHIN);
    }
    promise("exit(0) and _exit(0) in a hook of a rank and of psd: entrain run fails, and names who it was");
}

#define BY_HAND                                                                                              \
    "--device=ref --model=toy --threads=1 --quiet --steps=5 --batch-size=2 --assign=fixed --log-level=warn"

static void psd_by_hand(int deed)
{
    process psd, rank[2];
    int port = 0;
    process_start(&psd, "psd", NULL,
                  "--log-level=warn --world-size=2 --listen=tcp://127.0.0.1:0 --strategy=" PLUGIN
                  "@misuse-store:deed=%d",
                  deed);
    const char *line = wait_for_line(&psd, "--server=", WITHIN);
    assert_int_equal(sscanf(strstr(line, "--server="), "--server=tcp://127.0.0.1:%d", &port), 1);
    for (int r = 0; r < 2; r++)
        process_start(&rank[r], "worker", NULL,
                      BY_HAND " --strategy=" PLUGIN "@misuse-store:deed=%d --rank=%d --world-size=2 "
                              "--server=tcp://127.0.0.1:%d",
                      deed, r, port);
    for (int r = 0; r < 2; r++)
        must_fail(&rank[r], "a rank whose psd has exited", "psd (pid", "died");
    if (deed == EXIT) must_fail(&psd, "psd itself", "psd (pid", "a plugin called exit with 0");
    if (deed == LEAVE) assert_int_equal(process_wait(&psd, WITHIN), 0); /* nobody can know */
}

static void test_exit_by_hand(void **state)
{
    (void)state;
    for (int deed = EXIT; deed <= LEAVE; deed++) {
        const int port = free_port();
        process rank[2];
        for (int r = 0; r < 2; r++)
            process_start(&rank[r], "worker", NULL,
                          BY_HAND " --strategy=" PLUGIN
                                  ":deed=%d --rank=%d --world-size=2 --rendezvous=tcp://127.0.0.1:%d",
                          deed, r, port);
        must_fail(&rank[0], "by hand, the other rank", "rank 1 (pid", "died");
        if (deed == EXIT)
            must_fail(&rank[1], "by hand, the rank itself", "rank 1 (pid", "a plugin called exit with 0");
        if (deed == LEAVE) assert_int_equal(process_wait(&rank[1], WITHIN), 0); /* nobody can know */
        psd_by_hand(deed);
    }
    promise("the same by hand: whoever is left names it, and so does the process itself if it can");
}

static void test_exit_in_sim(void **state)
{
    (void)state;
    static const char *const halves[] = {"", "@misuse-store"};
    for (int h = 0; h < 2; h++)
        for (int deed = EXIT; deed <= LEAVE; deed++) {
            process p;
            process_start(&p, "entrain", NULL, "sim --workers=2 --steps=5 --strategy=" PLUGIN "%s:deed=%d",
                          halves[h], deed);
            must_fail(&p, "sim", "the simulation (pid", "ended with exit code 0 before it was over");
            process_nobody_left(WITHIN);
        }
    promise("exit(0) and _exit(0) in a hook under entrain sim: a sentence and not 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_a_worker), cmocka_unit_test(test_in_psd),
                                       cmocka_unit_test(test_exit_in_a_run),
                                       cmocka_unit_test(test_exit_by_hand),
                                       cmocka_unit_test(test_exit_in_sim)};
    return system_main(tests);
}
