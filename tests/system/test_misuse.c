/* test_misuse.c - strategies that break the contract in a real run: it fails, it says who did what and where,
 * and nothing crashes. */
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"
#include "tests/system/side_by_side.h"

/* Promise: A plugin that breaks the contract is named and crashes nothing. */

#define PLUGIN EN_BUILD_DIR "/test/plugins/misuse.so"
#define JOB                                                                                                  \
    "run -n 2 --device=ref --model=toy --threads=1 --quiet --steps=5 --batch-size=2 --assign=fixed "         \
    "--log-level=warn"

typedef struct misdeed {
    int deed;
    const char *place, *words; /* of one line */
} misdeed;

/* That nobody is told no more than that. */
static void says_what(const process *p)
{
    if (process_says(p, "internal invariant", "") > 0)
        fail_msg("it does not say what is wrong:\n%s", process_err(p));
}

static void expect(const char *strategy, const misdeed *m)
{
    process p;
    process_start(&p, "entrain", NULL, JOB " --strategy=%s:deed=%d", strategy, m->deed);
    int code = process_wait(&p, GUARD);
    if ((code != 1 && code != 2) || process_says(&p, m->place, m->words) < 1 ||
        process_says(&p, "", "died") != 0)
        fail_msg("%s, deed %d: exit %d; a line with \"%s\" and \"%s\" is expected:\n%s", strategy, m->deed,
                 code, m->place, m->words, process_err(&p));
    says_what(&p);
    process_nobody_left(GUARD);
}

static void in_a_worker(const void *misdeeds, size_t i)
{
    expect(PLUGIN, (const misdeed *)misdeeds + i);
}

static void in_psd(const void *misdeeds, size_t i)
{
    expect(PLUGIN "@misuse-store", (const misdeed *)misdeeds + i);
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
        {10, "submit of misuse (rank 1, step 2, bucket 0) failed: ", "cannot do that"}};
    side_by_side(sizeof all / sizeof *all, in_a_worker, all);
    json_decref(train(GUARD, "-n 2 --device=ref --model=toy --steps=5 --strategy=" PLUGIN ":deed=9"));
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
    side_by_side(sizeof all / sizeof *all, in_psd, all);
    promise("a store half that breaks the contract: %d of %d named with hook, shard and bucket, no crash",
            (int)(sizeof all / sizeof *all), (int)(sizeof all / sizeof *all));
}

/* ---- a student's mistakes: the same sentence in a run and in virtual time ---- */

typedef struct mistake {
    const char *half;
    int deed;
    const char *begin, *words; /* the sentence begins so, and has these */
} mistake;

/* The sentence, from `begin` on, with every number as '#': sizes, versions and who came first differ. */
static void sentence_of(process *p, const mistake *m, char *text, size_t bytes)
{
    const int code = process_wait(p, GUARD);
    says_what(p);
    const char *all = process_err(p), *from = strstr(all, m->begin);
    if (code == 0 || code > 2 || from == NULL)
        fail_msg("misuse%s:deed=%d: exit %d; \"%s\" is expected:\n%s", m->half, m->deed, code, m->begin, all);
    size_t n = 0;
    for (; *from != '\0' && *from != '\n' && n + 1 < bytes; from++) {
        const int is_digit = *from >= '0' && *from <= '9';
        if (!is_digit || n == 0 || text[n - 1] != '#') text[n++] = is_digit ? '#' : *from;
    }
    text[n] = '\0';
    if (strstr(text, m->words) == NULL) fail_msg("misuse%s:deed=%d: %s", m->half, m->deed, text);
}

static void same_sentence(const void *mistakes, size_t i)
{
    const mistake *m = (const mistake *)mistakes + i;
    char in_run[600], in_sim[600];
    process p;
    process_start(&p, "entrain", NULL, JOB " --strategy=" PLUGIN "%s:deed=%d", m->half, m->deed);
    sentence_of(&p, m, in_run, sizeof in_run);
    process_nobody_left(GUARD);
    process_start(&p, "entrain", NULL, "sim --workers=2 --steps=5 --strategy=" PLUGIN "%s:deed=%d", m->half,
                  m->deed);
    sentence_of(&p, m, in_sim, sizeof in_sim);
    /* of two ranks that disagree, whoever finds it names himself first */
    if (strcmp(m->begin, "rank ") != 0) assert_string_equal(in_run, in_sim);
}

static void test_same_sentence(void **state)
{
    (void)state;
    static const mistake all[] = {
        {"", 3, "submit of misuse (rank 1, step 2, bucket 0)", "lin"},
        {"", 7, "submit of misuse (rank 1, step 2, bucket 0)", "not the host's"},
        {"", 8, "submit of misuse (rank 1, step 2, bucket 0)", "without a key"},
        {"", 14, "submit of misuse (rank 1, step 2, bucket 0)", "called num for 'period', which its table"},
        {"", 15, "submit of misuse (rank 1, step 2, bucket 0)",
         "called coll on bucket # with operation #, which there is not"},
        {"", 16, "misuse (rank 1) called coll on a thread of its own", "on the thread that calls the hook"},
        {"", 11, "misuse (rank ", "has not changed the weights in # steps, though gradients were not #"},
        {"", 12, "misuse (rank ", "has started # operations that it never waited for, first the all-reduce"},
        {"", 13, "rank ", "broadcast of bucket # (weights, # elements of float#) in step #"},
        {"@misuse-replicated", 0, "misuse-replicated says EN_REPLICATED", "end with different weights"},
        {"@misuse-store", 2, "on_push of misuse-store (shard 0, bucket 0, version ", "once"},
        {"@misuse-store", 7, "on_pull of misuse-store (shard 0, bucket 0, version ", "returned #"},
        {"@misuse-store", 8, "on_pull of misuse-store (shard 0, bucket 0, version ",
         "holds every client's call"},
        {"@misuse-store", 9, "on_push of misuse-store (shard 0, bucket 0, version ", "not called touch"},
        {"@misuse-store", 10, "on_push of misuse-store (shard 0, bucket 0, version ", "that is not finite"},
        {"@misuse-store", 11, "misuse-store has not changed the weights of any rank", "on_push or on_timer"}};
    side_by_side(sizeof all / sizeof *all, same_sentence, all);
    promise("%d mistakes of a student: the same sentence in entrain run and in entrain sim",
            (int)(sizeof all / sizeof *all));
}

/* Rank 0's second step takes 9 virtual seconds, and is held until rank 1 has done its first. */
static void test_held_in_sim(void **state)
{
    (void)state;
    process p;
    process_start(&p, "entrain", NULL,
                  "sim --workers=2 --steps=3 --compute=fixed:3s --straggler=1:4 --strategy=ssp:bound=0");
    assert_int_equal(process_wait(&p, GUARD), 0);
    if (process_says(&p, "on_pull of ssp (shard 0, bucket ", "not held: rank 1 at clock 0") < 1)
        fail_msg("a call held for 9 s should be named:\n%s", process_err(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_a_worker), cmocka_unit_test(test_in_psd),
                                       cmocka_unit_test(test_same_sentence),
                                       cmocka_unit_test(test_held_in_sim)};
    return system_main(tests);
}
