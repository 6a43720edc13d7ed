/* test_schedule.c - the built-in strategies under 200 random schedules each, and plugins that are not what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "conform/conform.h"
#include "core/log.h"
#include "runtime/spec/strategies.h"

/* Promise: Every built-in strategy that has a reference is its paper's: 200 random schedules, every decision and weight. */

enum { SCHEDULES = 200 };
#define PLUGINS EN_BUILD_DIR "/plugins"
#define ZOO     EN_BUILD_DIR "/test/plugins/zoo.so@"

static uint64_t conforms(const char *plugin, const char *as, const char *options,
                         const char *reference_options, eni_judgement *j)
{
    char schedule[ENI_SCHEDULE_TEXT] = "";
    eni_conform_config config = {.options = options, .reference_options = reference_options};
    assert_int_equal(eni_strategy_find(PLUGINS, plugin, &config.strategy), EN_OK);
    config.reference = eni_reference_find(as != NULL ? as : config.strategy->name);
    *j = (eni_judgement){.agrees = true};
    assert_non_null(config.reference);
    uint64_t seed = 0;
    while (j->agrees && seed < SCHEDULES)
        assert_int_equal(eni_conform_run(&config, ++seed, schedule, j), EN_OK);
    if (!j->agrees) printf("%s: %s\n  %s\n", config.strategy->name, schedule, j->finding);
    return seed;
}

static int nstrategies;

static void conforms_built_in(void *user, const en_strategy *strategy, const char *path)
{
    eni_judgement j;
    (void)user, (void)path;
    if (eni_reference_find(strategy->name) == NULL) return;
    nstrategies++;
    conforms(strategy->name, NULL, NULL, NULL, &j);
    assert_true(j.agrees);
    assert_true(j.decisions > 1000 && j.vectors > 1000);
    assert_int_equal(j.defaults, 0);
}

static void built_in_strategies_are_their_papers(void **state)
{
    (void)state;
    assert_int_equal(eni_strategy_list(PLUGINS, conforms_built_in, NULL), EN_OK);
    assert_true(nstrategies >= 6);
    printf("PROMISE conform: %d strategies as in their papers under %d random schedules each\n", nstrategies,
           SCHEDULES);
}

/* The example, under its own options and under those of the schedules. */
static void the_example_is_local_sgd(void **state)
{
    (void)state;
    eni_judgement j;
    conforms(PLUGINS "/localsgd.so", "local-sgd", "period=3", NULL, &j);
    assert_true(j.agrees);
    conforms(PLUGINS "/localsgd.so", "local-sgd", NULL, NULL, &j);
    assert_true(j.agrees);
    conforms(PLUGINS "/localsgd.so", "local-sgd", "period=3", "period=4", &j);
    assert_false(j.agrees);
    assert_non_null(strstr(j.finding, "average"));
}

/* What a plugin says that it is, and what it does; found within a few schedules. */
static void impostors_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *plugin, *as, *words;
    } all[] = {{"ps-async", "ps-sync", "keeps it"},
               {"ps-async", "ssp", "answers"},
               {"ssp", "ps-async", "answers"},
               {"ps-sync", "ps-async", "applies it"},
               {"ring", "local-sgd", "begins step"},
               {"ps-async", "ringmaster", "drops it"},
               {"ps-async", "dc-asgd", "begins step"},
               {"ps-async", "delay-adaptive", "weighs the push"},
               {"ps-async", "easgd", "begins step"},
               {ZOO "softsync", "softsync", "the paper"},
               {ZOO "gossip", "d-psgd", "begins step"},
               {ZOO "late", "ps-async", "the paper"},
               {ZOO "stuck", "ps-async", "answers nobody"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        eni_judgement j;
        const uint64_t seeds = conforms(all[i].plugin, all[i].as, NULL, NULL, &j);
        if (j.agrees || seeds > 20 || strstr(j.finding, all[i].words) == NULL)
            fail_msg("%s as %s: \"%s\" expected: %s", all[i].plugin, all[i].as, all[i].words, j.finding);
    }
    printf("PROMISE conform: %d impostors found within 20 schedules\n", (int)(sizeof all / sizeof *all));
}

static void the_same_seed_is_the_same_run(void **state)
{
    (void)state;
    char first[ENI_SCHEDULE_TEXT], again[ENI_SCHEDULE_TEXT];
    eni_judgement a = {0}, b = {0};
    eni_conform_config config = {.reference = eni_reference_find("ssp")};
    assert_int_equal(eni_strategy_find(PLUGINS, "ssp", &config.strategy), EN_OK);
    assert_int_equal(eni_conform_run(&config, 7, first, &a), EN_OK);
    assert_int_equal(eni_conform_run(&config, 7, again, &b), EN_OK);
    assert_string_equal(first, again);
    assert_memory_equal(&a, &b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in_strategies_are_their_papers), cmocka_unit_test(the_example_is_local_sgd),
        cmocka_unit_test(impostors_are_found), cmocka_unit_test(the_same_seed_is_the_same_run)};
    eni_log_set_level(-1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
