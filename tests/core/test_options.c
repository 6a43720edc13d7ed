/* test_options.c - what was given, what holds, and what is refused with which words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/options.h"
#include "tests/heard.h"

static const en_option table[] = {
    {.size = sizeof(en_option), .type = EN_OPT_INT, .key = "bound", .help = "b", .value = 3, .max = INFINITY},
    {.size = sizeof(en_option),
     .type = EN_OPT_REAL,
     .key = "alpha",
     .help = "a",
     .value = 0.1,
     .min = -1,
     .max = 1},
    {.size = sizeof(en_option), .type = EN_OPT_BOOL, .key = "round", .help = "r"},
    {.size = sizeof(en_option), .type = EN_OPT_TEXT, .key = "codec", .help = "c", .text = "none"},
    {0},
};
static const en_strategy strategy = {.name = "toy", .options = table};
static heard said;

static void canonical_is(const char *given, const char *expected)
{
    eni_options *options = NULL;
    assert_int_equal(eni_options_new(&strategy, given, &options), EN_OK);
    assert_string_equal(eni_options_canonical(options), expected);
    eni_options_free(options);
}

static void one_text_for_one_meaning(void **state)
{
    (void)state;
    canonical_is(NULL, "bound=3,alpha=0.1,round=0,codec=none");
    canonical_is("", "bound=3,alpha=0.1,round=0,codec=none");
    canonical_is("alpha=1e-1,bound=3.0", "bound=3,alpha=0.1,round=0,codec=none");
    canonical_is("round:on, codec: topk,bound:inf,alpha=-0.0", "bound=inf,alpha=0,round=1,codec=topk");
    canonical_is("round", "bound=3,alpha=0.1,round=1,codec=none");
    canonical_is("alpha=1,round,bound=2", "bound=2,alpha=1,round=1,codec=none");
    canonical_is("alpha=0.30000000000000004", "bound=3,alpha=0.30000000000000004,round=0,codec=none");
}

static void the_canonical_text_reads_back(void **state)
{
    (void)state;
    canonical_is("bound=7,alpha=0.25,round=1,codec=a:b", "bound=7,alpha=0.25,round=1,codec=a:b");
}

static void values_by_key(void **state)
{
    (void)state;
    eni_options *options = NULL;
    assert_int_equal(eni_options_new(&strategy, "round=yes,bound=12", &options), EN_OK);
    assert_true(eni_options_num(options, "bound", 1) == 12);
    assert_true(eni_options_num(options, "alpha", 1) == 0.1);
    assert_true(eni_options_num(options, "round", 1) == 1);
    assert_string_equal(eni_options_text(options, "codec"), "none");
    assert_true(eni_options_num(options, "period", 1) == 0);
    assert_false(eni_options_has(options, "period", false));
    assert_string_equal(eni_options_text(options, "bound"), "");
    assert_false(eni_options_has(options, "bound", true));
    assert_true(eni_options_has(options, "bound", false) && eni_options_has(options, "codec", true));
    assert_false(eni_options_has(NULL, "bound", false));
    eni_options_free(options);
}

static void refuses(const char *given, const char *first, const char *second)
{
    eni_options *options = NULL;
    said.text[0] = 0;
    assert_int_equal(eni_options_new(&strategy, given, &options), EN_EINVAL);
    assert_null(options);
    if (!strstr(said.text, first) || !strstr(said.text, second))
        fail_msg("%s: '%s' lacks '%s' or '%s'", given, said.text, first, second);
}

static void what_is_refused(void **state)
{
    (void)state;
    refuses("bond=3", "bond", "nearest is bound");
    refuses("bound=2.5", "bound", "0 .. inf, default 3");
    refuses("bound=-1", "'-1'", "0 .. inf");
    refuses("alpha=2", "'2'", "-1 .. 1, default 0.1");
    refuses("alpha=nan", "'nan'", "-1 .. 1");
    refuses("alpha=0.1x", "'0.1x'", "-1 .. 1");
    refuses("alpha=", "''", "-1 .. 1");
    refuses("round=maybe", "'maybe'", "default off");
    refuses("bound=1,bound=2", "bound", "twice");
    refuses("bound", "'bound'", "key=value");
    refuses("round,round=off", "round", "twice");
    refuses("=3", "'=3'", "key=value");
    refuses("bound=1,", "toy", "comma");
    char long_one[400];
    snprintf(long_one, sizeof long_one, "codec=%0300d", 0);
    refuses(long_one, "306 characters", "at most 255");
}

/* ---- values by the number of workers ---- */

static const en_option by_workers[] = {
    {sizeof(en_option), EN_OPT_INT, "threshold", "t", 2, 1, INFINITY, "2W"},
    {sizeof(en_option), EN_OPT_REAL, "alpha", "a", 0.9, 1e-6, 0.999999, "0.9/W"},
    {0},
};
static const en_strategy by_w = {.name = "by-w", .options = by_workers};

static void is_of_workers(const char *given, const char *canonical, double threshold_of_4, double alpha_of_4)
{
    char shown[128];
    eni_options *options = NULL;
    assert_int_equal(eni_options_new(&by_w, given, &options), EN_OK);
    assert_string_equal(eni_options_canonical(options), canonical);
    assert_true(eni_options_num(options, "threshold", 4) == threshold_of_4);
    assert_true(eni_options_num(options, "alpha", 4) == alpha_of_4);
    eni_options_free(options);
    eni_option_describe(&by_workers[1], shown, sizeof shown);
    assert_non_null(strstr(shown, "default 0.9/W"));
}

static void some_values_follow_the_workers(void **state)
{
    (void)state;
    static const char *const bad[] = {"threshold=0W",  "threshold=0",   "threshold=1.5W", "threshold=2/W",
                                      "threshold=2WW", "threshold=-2W", "alpha=2/W",      "alpha=0.1W",
                                      "alpha=0/W",     "alpha=/W",      "alpha=1",        "threshold="};
    is_of_workers("", "threshold=2W,alpha=0.9/W", 8, 0.9 / 4);
    is_of_workers("threshold=W,alpha=0.5", "threshold=W,alpha=0.5", 4, 0.5);
    is_of_workers("threshold=inf,alpha=0.5/W", "threshold=inf,alpha=0.5/W", INFINITY, 0.125);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        eni_options *options = NULL;
        if (eni_options_new(&by_w, bad[i], &options) == EN_OK) fail_msg("%s was accepted", bad[i]);
    }
    refuses("bound=2W", "'2W'", "default 3"); /* not declared by W */
}

static void none_are_declared(void **state)
{
    (void)state;
    const en_strategy plain = {.name = "plain"};
    eni_options *options = NULL;
    assert_int_equal(eni_options_new(&plain, "", &options), EN_OK);
    assert_string_equal(eni_options_canonical(options), "");
    eni_options_free(options);
    assert_int_equal(eni_options_new(&plain, "x=1", &options), EN_EINVAL);
    assert_non_null(strstr(said.text, "plain"));
}

/* An option called `bound` means nothing by its name. */
static void a_flag_says_that_options_withdraw_another(void **state)
{
    (void)state;
    static const struct {
        uint32_t flags;
        const char *given;
        bool is_synchronous;
    } of[] = {{EN_SYNCHRONOUS, "bound=1", true},
              {EN_SYNCHRONOUS | EN_SYNCHRONOUS_BY_DEFAULT, "", true},
              {EN_SYNCHRONOUS | EN_SYNCHRONOUS_BY_DEFAULT, "bound=3,codec=none,round=off", true},
              {EN_SYNCHRONOUS | EN_SYNCHRONOUS_BY_DEFAULT, "bound=1", false},
              {EN_SYNCHRONOUS | EN_SYNCHRONOUS_BY_DEFAULT, "codec=topk", false},
              {EN_SYNCHRONOUS_BY_DEFAULT, "", false},
              {0, "", false}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const en_strategy toy = {.name = "toy", .options = table, .flags = of[i].flags};
        eni_options *options = NULL;
        assert_int_equal(eni_options_new(&toy, of[i].given, &options), EN_OK);
        assert_int_equal(eni_options_are_synchronous(&toy, options), of[i].is_synchronous);
        assert_int_equal(eni_options_are_synchronous(&toy, NULL), (of[i].flags & EN_SYNCHRONOUS) != 0);
        eni_options_free(options);
    }
}

static void distance_counts_edits(void **state)
{
    (void)state;
    assert_int_equal(eni_edit_distance("", ""), 0);
    assert_int_equal(eni_edit_distance("ring", "ring"), 0);
    assert_int_equal(eni_edit_distance("ring", "rnig"), 1);
    assert_int_equal(eni_edit_distance("ring", "rings"), 1);
    assert_int_equal(eni_edit_distance("ps-sync", "ps-async"), 1);
    assert_int_equal(eni_edit_distance("", "abc"), 3);
}

static void what_is_text(void **state)
{
    (void)state;
    static const char *const good[] = {"", "a b", "caf\xc3\xa9", "\xe2\x80\xa6", "\xf0\x9f\x98\x80"};
    static const char *const bad[] = {"a\nb",
                                      "\x1b[2J",
                                      "\x7f",
                                      "caf\xe9",
                                      "\xc3",
                                      "\xc0\xaf",
                                      "\xe0\x80\xaf",
                                      "\xed\xa0\x80",
                                      "\xf4\x90\x80\x80",
                                      "\x80",
                                      "\xc2\x9b"
                                      "2J"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(eni_is_text(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(eni_is_text(bad[i]));
}

static void a_guess_is_near(void **state)
{
    (void)state;
    static const struct {
        const char *word, *known;
        bool is_near;
    } guesses[] = {{"rong", "ring", true},
                   {"sp", "ps", true},
                   {"momentun", "momentum", true},
                   {"lrate", "lr", true},
                   {"strat", "strategy", true},
                   {"trian", "train", true},
                   {"sp", "ssp", true},
                   {"sp", "solo", false},
                   {"lrate", "trace", false},
                   {"predict", "psd", false},
                   {"zzzzqq", "ring", false},
                   {"l", "lr", true},
                   {"s", "strategy", false},
                   {"", "lr", false}};
    for (size_t i = 0; i < sizeof guesses / sizeof *guesses; i++)
        if (eni_is_nearer(guesses[i].word, guesses[i].known, NULL) != guesses[i].is_near)
            fail_msg("%s for %s", guesses[i].known, guesses[i].word);
    assert_true(eni_is_nearer("lr-sched", "lr-schedule", "lr"));
    assert_false(eni_is_nearer("lr-sched", "lr", "lr-schedule") || eni_is_nearer("rong", "ring", "rung"));
}

int main(void)
{
    eni_log_set_sink(hear, &said);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_text_for_one_meaning),
        cmocka_unit_test(the_canonical_text_reads_back),
        cmocka_unit_test(values_by_key),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(some_values_follow_the_workers),
        cmocka_unit_test(none_are_declared),
        cmocka_unit_test(a_flag_says_that_options_withdraw_another),
        cmocka_unit_test(distance_counts_edits),
        cmocka_unit_test(what_is_text),
        cmocka_unit_test(a_guess_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
