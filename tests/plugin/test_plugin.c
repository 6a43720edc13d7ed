/* test_plugin.c - tables of a file are found, completed or refused, here as networks: tests/spec/test_strategies.c has what a
 * strategy's file can do wrong, tests/ops/test_device.c what a device's can. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/log.h"
#include "entrain/graph.h"
#include "plugin/plugin.h"
#include "tests/heard.h"
#include "tests/mentions.h"

#define FILES EN_BUILD_DIR "/test/plugins/networks"

ENI_PLUGIN_KIND(en_network, EN_NETWORK, offsetof(en_network, next), .what = "model", .plural = "models",
                .options = offsetof(en_network, options), .next = offsetof(en_network, next), .name_max = 16,
                .remedy = "build it");

static heard said;

static void refuses(const char *word, en_status expected, const char *words)
{
    const void *table;
    assert_int_equal(eni_plugin_find(&kind, word, &table), expected);
    if (!mentions(said.text, words)) fail_msg("%s: '%s' does not say '%s'", word, said.text, words);
}

static void a_file_gives_its_first_table_or_the_one_named(void **state)
{
    (void)state;
    const void *first, *second;
    assert_int_equal(eni_plugin_find(&kind, FILES "1.so", &first), EN_OK);
    assert_string_equal(((const en_network *)first)->name, "first");
    assert_int_equal(eni_plugin_find(&kind, FILES "1.so@last", &second), EN_OK);
    assert_string_equal(((const en_network *)second)->name, "last");
    refuses(FILES "1.so@lost", EN_ENOENT, "networks1.so|model lost|nearest is last");
    refuses(FILES "1.so@qqqq", EN_ENOENT, "model qqqq|`entrain models " FILES "1.so`");
}

static void a_table_that_ends_early_is_completed(void **state)
{
    (void)state;
    const void *first;
    assert_int_equal(eni_plugin_load(&kind, FILES "1.so", &first), EN_OK);
    const en_network *last = eni_plugin_next(&kind, first);
    assert_ptr_equal(((const en_network *)first)->next, last);
    assert_int_equal(last->size, sizeof *last);
    assert_null(last->next);
    assert_null(eni_plugin_next(&kind, last));
    assert_string_equal(last->options[0].key, "depth");
}

static void what_cannot_be_used_is_refused(void **state)
{
    (void)state;
    refuses(FILES "2.so", EN_EINVAL, "networks2.so|first");
    refuses(FILES "3.so", EN_EINVAL, "option stem|model last");
    refuses(EN_BUILD_DIR "/plugins/strategy_solo.so", EN_EFORMAT,
            "en_network_entry|EN_EXPORT const en_network *en_network_entry(uint32_t");
    refuses("nowhere.so", EN_ENOENT, "./nowhere.so|No such file or directory|build it");
}

int main(void)
{
    eni_log_set_sink(hear, &said);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_gives_its_first_table_or_the_one_named),
        cmocka_unit_test(a_table_that_ends_early_is_completed),
        cmocka_unit_test(what_cannot_be_used_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
