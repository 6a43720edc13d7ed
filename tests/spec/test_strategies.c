/* test_strategies.c - built-ins by name, files by path, and one clear sentence for each file that is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/options.h"
#include "plugin/plugin.h"
#include "runtime/spec/strategies.h"
#include "tests/heard.h"

/* Promise: A plugin of ABI 1 is refused with both numbers; one of ABI 2 with a shorter table runs. */

#define PLUGINS EN_BUILD_DIR "/plugins"
#define BAD     EN_BUILD_DIR "/test/plugins/bad"

static heard said;

static void refuses(const char *word, en_status expected, const char *const *words)
{
    const en_strategy *strategy = NULL;
    said.text[0] = 0;
    assert_int_equal(eni_strategy_find(PLUGINS, word, &strategy), expected);
    assert_null(strategy);
    for (; *words; words++)
        if (!strstr(said.text, *words)) fail_msg("%s: '%s' does not say '%s'", word, said.text, *words);
}
#define REFUSES(word, status, ...) refuses(word, status, (const char *const[]){__VA_ARGS__, NULL})

static void split_takes_name_and_options(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"ssp:bound=3", "ssp", "bound=3"},
        {"ring", "ring", ""},
        {"./a:b/mine.so:period=8,x=y:z", "./a:b/mine.so", "period=8,x=y:z"},
        {"mine.so", "mine.so", ""},
        {"/a:b/c.so:file=/x/y:z", "/a:b/c.so", "file=/x/y:z"},
        {"ssp:file=/a:b", "ssp", "file=/a:b"}};
    char word[ENI_PLUGIN_WORD_MAX];
    const char *options;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(eni_plugin_split("--strategy", cases[i][0], word, &options), EN_OK);
        assert_string_equal(word, cases[i][1]);
        assert_string_equal(options, cases[i][2]);
    }
    assert_int_equal(eni_plugin_split("--strategy", "", word, &options), EN_EINVAL);
    assert_int_equal(eni_plugin_split("--strategy", ":bound=3", word, &options), EN_EINVAL);
}

static void a_path_is_told_from_a_name(void **state)
{
    (void)state;
    assert_true(eni_plugin_is_path("./mine.so"));
    assert_true(eni_plugin_is_path("mine.so"));
    assert_true(eni_plugin_is_path("folder/mine"));
    assert_true(eni_plugin_is_path("mine.so@second"));
    assert_false(eni_plugin_is_path("ps-sync"));
    assert_false(eni_plugin_is_path(".so"));
}

static void built_ins_are_found_by_name(void **state)
{
    (void)state;
    static const char *const names[] = {"solo",       "ring",           "ps-sync",  "ps-async", "ssp",
                                        "ringmaster", "delay-adaptive", "softsync", "dc-asgd",  "easgd",
                                        "local-sgd",  "grouped",        "slowmo",   "diloco",   "d-psgd"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const en_strategy *strategy = NULL, *again = NULL;
        assert_int_equal(eni_strategy_find(PLUGINS, names[i], &strategy), EN_OK);
        assert_string_equal(strategy->name, names[i]);
        assert_true(strategy->help && strategy->paper && strategy->theory);
        assert_int_equal(eni_strategy_find(PLUGINS, names[i], &again), EN_OK);
        assert_ptr_equal(strategy, again); /* never unloaded */
        if (i == 1) assert_non_null(strstr(strategy->paper, "Patarasuk & Yuan'09"));
    }
}

static void files_are_found_by_path(void **state)
{
    (void)state;
    const en_strategy *strategy = NULL;
    assert_int_equal(eni_strategy_find(NULL, PLUGINS "/localsgd.so", &strategy), EN_OK);
    assert_string_equal(strategy->name, "localsgd");
    assert_int_equal(eni_strategy_find(NULL, PLUGINS "/strategy_ps.so", &strategy), EN_OK);
    assert_string_equal(strategy->name, "ps-sync");
    assert_int_equal(eni_strategy_find(NULL, PLUGINS "/strategy_ps.so@ssp", &strategy), EN_OK);
    assert_string_equal(strategy->name, "ssp");
    assert_int_equal(chdir(PLUGINS), 0); /* without a slash: this folder, not the library path */
    assert_int_equal(eni_strategy_find(NULL, "localsgd.so", &strategy), EN_OK);
}

static void count(void *user, const en_strategy *strategy, const char *path)
{
    assert_non_null(strstr(path, "/strategy_"));
    assert_non_null(strategy->name);
    ++*(int *)user;
}

static void all_are_listed(void **state)
{
    (void)state;
    int n = 0;
    char text[1024];
    const en_strategy *ssp;
    assert_int_equal(eni_strategy_list(PLUGINS, count, &n), EN_OK);
    assert_int_equal(n,
                     17); /* solo, ring, 3 of ps, 2 of hosts, 4 asynchronous, easgd, 4 of local SGD, d-psgd */
    assert_int_equal(eni_strategy_find(PLUGINS, "ssp", &ssp), EN_OK);
    FILE *out = fmemopen(text, sizeof text, "w");
    eni_strategy_show(out, ssp);
    fclose(out);
    assert_non_null(strstr(text, "Ho'13"));
    assert_non_null(strstr(text, "bound"));
    assert_non_null(strstr(text, "whole number 0 .. inf, default 3"));
}

/* Built with a header whose tables end earlier: what lies behind them here is not theirs. */
static void shorter_tables_are_completed(void **state)
{
    (void)state;
    const en_strategy *first, *named;
    assert_int_equal(eni_strategy_find(PLUGINS, EN_BUILD_DIR "/test/plugins/short.so", &first), EN_OK);
    assert_string_equal(first->name, "short");
    assert_int_equal(first->size, sizeof(en_strategy));
    assert_non_null(first->submit);
    assert_null(first->on_member);
    assert_string_equal(first->options[0].key, "period");
    assert_true(first->options[0].value == 8 && first->options[0].max == 1e9);
    const en_option *other = eni_option_next(first->options); /* which is shorter than this host's, too */
    assert_string_equal(other->key, "other");
    assert_int_equal(eni_option_next(other)->size, 0);
    assert_string_equal(first->next->name, "whole");
    assert_null(first->next->next);
    assert_int_equal(eni_strategy_find(PLUGINS, EN_BUILD_DIR "/test/plugins/short.so@whole", &named), EN_OK);
    assert_int_equal(named->size, sizeof(en_strategy));
    assert_non_null(named->on_member);
}

static void names_that_are_none(void **state)
{
    (void)state;
    REFUSES("ps-asinc", EN_ENOENT, "ps-asinc", PLUGINS, "nearest is ps-async");
    REFUSES(PLUGINS "/strategy_ps.so@sp", EN_ENOENT, "no strategy sp", "nearest is ssp");
    int n = 0;
    assert_int_equal(eni_strategy_list("/nonexistent", count, &n), EN_ENOENT);
    assert_non_null(strstr(said.text, "/nonexistent"));
}

static void files_that_are_none(void **state)
{
    (void)state;
    REFUSES("/nonexistent/mine.so", EN_ENOENT, "/nonexistent/mine.so", "No such file");
    REFUSES(EN_SOURCE_DIR "/examples/localsgd.c", EN_EFORMAT, "2f 2a 20 6c", "cc -shared");
    REFUSES(BAD "1.so", EN_EVERSION, "bad1.so", "ABI 99", "2");
    REFUSES(BAD "2.so", EN_EVERSION, "24 bytes", "sizeof(en_strategy)");
    REFUSES(BAD "v1.so", EN_EVERSION, "badv1.so", "ABI 1", "2");
    REFUSES(BAD "3.so", EN_EINVAL, "'My Strategy'", "a-z");
    REFUSES(BAD "4.so", EN_EINVAL, "submit");
    REFUSES(BAD "5.so", EN_EFORMAT, "en_strategy_entry");
    REFUSES(BAD "6.so", EN_EINVAL, "256");
    REFUSES(BAD "7.so", EN_EVERSION, "0x40000000");
    REFUSES(BAD "8.so", EN_EINVAL, "option period", "default");
    REFUSES(BAD "10.so", EN_EINVAL, "option period", "bad10.so");
    REFUSES(BAD "11.so", EN_EINVAL, "EN_USES_GROUPS", "EN_SHARED_PARAMS");
    REFUSES(BAD "9.so", EN_EVERSION, "ABI 2");
}

int main(void)
{
    eni_log_set_sink(hear, &said);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_takes_name_and_options),
        cmocka_unit_test(a_path_is_told_from_a_name),
        cmocka_unit_test(built_ins_are_found_by_name),
        cmocka_unit_test(files_are_found_by_path),
        cmocka_unit_test(all_are_listed),
        cmocka_unit_test(shorter_tables_are_completed),
        cmocka_unit_test(names_that_are_none),
        cmocka_unit_test(files_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
