/* test_misuse.c - strategies that break the contract in a real run: the run fails, a line names hook, rank, step and
 * bucket, and nothing crashes. */
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

/* No line that says nothing but this. */
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
    if ((code != 1 && code != 2) || process_names(&p, m->place, m->words, "") < 1 ||
        process_says(&p, "", SAYS_DIED) != 0)
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
    static const misdeed all[] = {{1, "submit of misuse (rank 1, step 2, bucket 0)", "123456"},
                                  {2, "eval of misuse (rank", "returned 99"},
                                  {3, "submit of misuse (rank 1, step 2, bucket 0)", "called lin"},
                                  {4, "submit of misuse (rank 1, step 2, bucket 0)", "returned 12"},
                                  {5, "submit of misuse (rank 1, step 2, bucket 0)", "EN_GROUP"},
                                  {6, "submit of misuse (rank 1, step 2, bucket 0)", "77"},
                                  {7, "submit of misuse (rank 1, step 2, bucket 0)", "called step"},
                                  {8, "submit of misuse (rank 1, step 2, bucket 0)", "called num"},
                                  {10, "submit of misuse (rank 1, step 2, bucket 0)", "status 14"}};
    side_by_side(sizeof all / sizeof *all, in_a_worker, all);
    json_decref(train(GUARD, "-n 2 --device=ref --model=toy --steps=5 --strategy=" PLUGIN ":deed=9"));
    promise(
        "a worker half that breaks the contract: %d of %d named with hook, rank, step and bucket, no crash",
        (int)(sizeof all / sizeof *all), (int)(sizeof all / sizeof *all));
}

static void test_in_psd(void **state)
{
    (void)state;
    static const misdeed all[] = {{1, "on_push of misuse-store (shard 0, bucket 0", "1000"},
                                  {2, "on_push of misuse-store (shard 0, bucket 0", "called absorb"},
                                  {3, "on_push of misuse-store (shard 0, bucket 0", "called step"},
                                  {4, "on_push of misuse-store (shard 0, bucket 0", "77"},
                                  {5, "on_push of misuse-store (shard 0, bucket 0", "called answer"},
                                  {6, "on_push of misuse-store (shard 0, bucket 0", "returned 12"},
                                  {7, "on_pull of misuse-store (shard 0, bucket 0", "returned 99"}};
    side_by_side(sizeof all / sizeof *all, in_psd, all);
    promise("a store half that breaks the contract: %d of %d named with hook, shard and bucket, no crash",
            (int)(sizeof all / sizeof *all), (int)(sizeof all / sizeof *all));
}

/* ---- a student's mistakes: the same sentence in a run and in virtual time ---- */

typedef struct mistake {
    const char *half;
    int deed;
    const char *begin, *words; /* how the sentence begins, and words that it has */
} mistake;

/* The sentence, from `begin` on, with every number as '#': sizes, versions and the order of ranks differ. */
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
    /* two ranks that disagree: the one that finds it names itself first */
    if (strcmp(m->begin, "rank ") != 0) assert_string_equal(in_run, in_sim);
}

static void test_same_sentence(void **state)
{
    (void)state;
    static const mistake all[] = {
        {"", 3, "submit of misuse (rank 1, step 2, bucket 0)", "called lin"},
        {"", 7, "submit of misuse (rank 1, step 2, bucket 0)", "called step"},
        {"", 8, "submit of misuse (rank 1, step 2, bucket 0)", "called num"},
        {"", 14, "submit of misuse (rank 1, step 2, bucket 0)", "'period'"},
        {"", 15, "submit of misuse (rank 1, step 2, bucket 0)", "EN_ALLREDUCE"},
        {"", 16, "misuse (rank 1) called coll", "thread"},
        {"", 17, "submit of misuse (rank 1, step 2, bucket 0)", "wait in finish"},
        {"", 18, "submit of misuse (rank 1, step 2, bucket 0)", "on which its all-reduce works"},
        {"", 19, "submit of misuse (rank 1, step 2, bucket 0)", "after mean_step"},
        {"", 20, "submit of misuse (rank 1, step 2, bucket 0)", "EN_REQS"},
        {"@misuse-rounds", 0, "misuse-rounds sets EN_SYNCHRONOUS", "when all have pushed"},
        {"@misuse-apart", 0, "misuse-apart (rank ", "EN_SYNCHRONOUS"},
        {"", 11, "misuse (rank ", "bucket->param"},
        {"", 12, "misuse (rank ", "all-reduce of bucket #"},
        {"", 13, "rank ", "broadcast of bucket #"},
        {"@misuse-replicated", 0, "misuse-replicated ", "EN_REPLICATED"},
        {"@misuse-store", 2, "on_push of misuse-store (shard 0, bucket 0, version ", "called absorb"},
        {"@misuse-store", 7, "on_pull of misuse-store (shard 0, bucket 0, version ", "returned #"},
        {"@misuse-store", 8, "on_pull of misuse-store (shard 0, bucket 0, version ", "timer"},
        {"@misuse-store", 9, "on_push of misuse-store (shard 0, bucket 0, version ", "touch"},
        {"@misuse-store", 10, "on_push of misuse-store (shard 0, bucket 0, version ", "finite"},
        {"@misuse-store", 11, "misuse-store ", "on_timer"}};
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
    if (process_says(&p, "on_pull of ssp (shard 0, bucket ", "rank 1") < 1)
        fail_msg("a call held for 9 s should be named:\n%s", process_err(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_a_worker), cmocka_unit_test(test_in_psd),
                                       cmocka_unit_test(test_same_sentence),
                                       cmocka_unit_test(test_held_in_sim)};
    return system_main(tests);
}
