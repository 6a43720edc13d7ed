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
        {5, "submit of misuse (rank 1, step 2, bucket 0)", "changed"},
        {6, "submit of misuse (rank 1, step 2, bucket 0)", "changed"},
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
        {3, "on_push of misuse-store (shard 0, bucket 0", "step with a cell"},
        {4, "on_push of misuse-store (shard 0, bucket 0", "changed its cell"},
        {5, "on_push of misuse-store (shard 0, bucket 0", "changed its message"},
        {6, "on_push of misuse-store (shard 0, bucket 0", "only the host may say"},
        {7, "on_pull of misuse-store (shard 0, bucket 0", "returned 99"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        expect(PLUGIN "@misuse-store", &all[i]);
    promise("a store half that breaks the contract: %d of %d named with hook, shard and bucket, no crash",
            (int)(sizeof all / sizeof *all), (int)(sizeof all / sizeof *all));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_a_worker), cmocka_unit_test(test_in_psd)};
    return system_main(tests);
}
