/* test_storm.c - strategies under faults: thousands of seeds, each its own mixture of lost, doubled and
 * delayed messages, cut links, stores and ranks that die and come back. `test_sim_storm SEEDS [FIRST]` tries
 * more of them. */
#include <inttypes.h>
#include <time.h>

#include "runtime/sim/faults/faults.h"
#include "tests/strategies/sim_rig.h"

/* Promise: Client and store survive lost messages, dead stores and dead ranks. */

static uint64_t seeds = 500, first = 1; /* a strategy */

static const struct {
    const char *spec;
    eni_promise promise;
} all[] = {
    {"ps-sync", ENI_PROMISE_EXACT},
    {"ps-async", ENI_PROMISE_AT_ONCE},
    {"ssp:bound=0", ENI_PROMISE_AT_ONCE},
    {"ssp:bound=1", ENI_PROMISE_AT_ONCE},
    {"ssp:bound=2", ENI_PROMISE_AT_ONCE},
    {"ssp:bound=3", ENI_PROMISE_AT_ONCE},
    {"hierarchical", ENI_PROMISE_ENDS},
    {"hierarchical:bound=2", ENI_PROMISE_ENDS},
    {"ringmaster:threshold=2", ENI_PROMISE_MAY_DROP},
    {"easgd:period=2", ENI_PROMISE_ENDS},
    {"easgd:period=1,momentum=0.9", ENI_PROMISE_ENDS},
    {"dc-asgd", ENI_PROMISE_AT_ONCE},
    {"dc-asgd:adaptive", ENI_PROMISE_AT_ONCE},
    {"softsync", ENI_PROMISE_ENDS},
    {"softsync:splits=2,rate=none", ENI_PROMISE_EXACT},
    {"softsync:rate=none", ENI_PROMISE_AT_ONCE},
    {"delay-adaptive", ENI_PROMISE_ENDS},
    {"delay-adaptive:power=0", ENI_PROMISE_AT_ONCE},
    {RIG_ZOO "softsync:quorum=2", ENI_PROMISE_EXACT},
    {RIG_ZOO "backup:quorum=2", ENI_PROMISE_MAY_DROP},
    {RIG_ZOO "late", ENI_PROMISE_MAY_DROP},
    {RIG_ZOO "hier", ENI_PROMISE_ENDS},
};

typedef struct subject {
    const en_strategy *strategy;
    eni_options *options;
} subject;

static subject find(const char *spec)
{
    char word[ENI_PLUGIN_WORD_MAX];
    const char *given;
    subject s;
    assert_int_equal(eni_plugin_split("--strategy", spec, word, &given), EN_OK);
    s.strategy = rig_strategy(word);
    assert_int_equal(eni_options_new(s.strategy, given, &s.options), EN_OK);
    return s;
}

static void promises_hold_under_faults(void **state)
{
    (void)state;
    uint64_t failed = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const subject s = find(all[i].spec);
        eni_fault_stats f = {0};
        const clock_t begin = clock();
        for (uint64_t seed = first; seed < first + seeds; seed++)
            failed +=
                eni_fault_test(NULL, s.strategy, s.options, all[i].spec, all[i].promise, seed, &f) != EN_OK;
        printf("PROMISE storm: %s, %" PRIu64 " seeds in %.1f s: %" PRIu64 " messages, %" PRIu64
               " lost, %" PRIu64 " doubled, %" PRIu64 " late; %" PRIu64 " stores and %" PRIu64
               " ranks died\n",
               s.strategy->name, seeds, (double)(clock() - begin) / CLOCKS_PER_SEC, f.messages,
               f.dropped + f.cut + f.stale, f.doubled, f.delayed, f.store_deaths, f.rank_deaths);
        assert_true(f.store_deaths > seeds && f.replays > seeds && f.saves > seeds); /* there were faults */
        assert_true(s.strategy->flags & (EN_SYNCHRONOUS | EN_LEADERS_ARE_CLIENTS) ||
                    f.rank_deaths > seeds / 4);
        eni_options_free(s.options);
    }
    assert_int_equal(failed, 0);
}

static void a_seed_is_a_fault_plan(void **state)
{
    (void)state;
    const subject s = find("ssp:bound=1");
    for (uint64_t seed = 1; seed < 20; seed++) {
        eni_fault_stats a = {0}, b = {0};
        for (int i = 0; i < 2; i++)
            assert_int_equal(eni_fault_test(NULL, s.strategy, s.options, "ssp:bound=1", ENI_PROMISE_AT_ONCE,
                                            seed, i ? &b : &a),
                             EN_OK);
        assert_memory_equal(&a, &b, sizeof a);
    }
    eni_options_free(s.options);
}

static void keep_last(void *user, int level, const char *subsystem, const char *text)
{
    (void)level;
    snprintf(user, 512, "%s: %s", subsystem, text);
}

/* Backup workers drop what comes late, so "exact" must fail, and the line must repeat it. */
static void a_broken_promise_says_how_to_see_it_again(void **state)
{
    (void)state;
    const subject s = find(RIG_ZOO "backup:quorum=2");
    char said[512] = "", line[512];
    eni_fault_stats f = {0};
    uint64_t seed = 0;
    eni_log_set_sink(keep_last, said);
    en_status st = EN_OK;
    while (st == EN_OK && ++seed < 100)
        st = eni_fault_test(NULL, s.strategy, s.options, "SPEC", ENI_PROMISE_EXACT, seed, &f);
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(st, EN_EBUG);
    snprintf(line, sizeof line,
             "repeat: entrain sim --storm --seed=%" PRIu64 " --strategy=SPEC --promise=exact", seed);
    if (!strstr(said, line)) fail_msg("'%s' does not say '%s'", said, line);
    eni_options_free(s.options);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promises_hold_under_faults),
        cmocka_unit_test(a_seed_is_a_fault_plan),
        cmocka_unit_test(a_broken_promise_says_how_to_see_it_again),
    };
    if (argc > 1) seeds = strtoull(argv[1], NULL, 10);
    if (argc > 2) first = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
