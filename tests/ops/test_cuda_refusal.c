/* test_cuda_refusal.c - the real cuda library on a machine without a GPU: it loads, and says no in one
 * sentence with a remedy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "ops/device.h"

static const char *folder = EN_BUILD_DIR "/plugins";
static char last_error[1024];
static int nerrors;

static void keep_error(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)subsystem;
    if (level > ENI_LOG_WARN) return;
    snprintf(last_error, sizeof last_error, "%s", text);
    nerrors++;
}

/* One sentence on one line, which ends with what to do. */
static void assert_refusal(en_status st)
{
    assert_int_equal(st, EN_EUNSUPPORTED);
    assert_int_equal(nerrors, 1);
    assert_null(strchr(last_error, '\n'));
    if (!strstr(last_error, "--device=cpu")) fail_msg("\"%s\" names no way out", last_error);
}

static void counting_says_why_there_is_none(void **state)
{
    (void)state;
    const en_device *table;
    int32_t n = -5;
    assert_int_equal(eni_device_load("cuda", folder, &table), EN_OK);
    assert_string_equal(table->name, "cuda");
    assert_int_equal(table->flags & EN_DEVICE_HOST, 0);
    assert_non_null(table->gpu);
    nerrors = 0;
    assert_refusal(table->gpu->count(eni_device_host(), &n));
    assert_int_equal(n, -5);
}

static void opening_says_the_same(void **state)
{
    (void)state;
    eni_device device = {0};
    nerrors = 0;
    assert_refusal(eni_device_open("cuda", folder, 1, &device));
    assert_null(device.ctx);
    nerrors = 0;
    assert_refusal(eni_device_open("cuda:3", folder, 1, &device));
    eni_device_close(&device);
}

static void every_function_of_the_tables_is_there(void **state)
{
    (void)state;
    const en_device *table;
    assert_int_equal(eni_device_load("cuda", folder, &table), EN_OK);
    const void *const *first = (const void *const *)&table->open, *const *last =
                                                                      (const void *const *)&table->gpu;
    for (const void *const *f = first; f <= last; f++)
        assert_non_null(*f);
    first = (const void *const *)&table->gpu->count;
    last = (const void *const *)&table->gpu->group_version;
    for (const void *const *f = first; f <= last; f++)
        assert_non_null(*f);
    assert_non_null(table->gpu->group_version());
}

static void what_asks_without_a_context_does_not_crash(void **state)
{
    (void)state;
    const en_device *table;
    assert_int_equal(eni_device_load("cuda", folder, &table), EN_OK);
    en_gpu_facts facts = {.size = sizeof facts};
    assert_int_equal(table->gpu->facts(eni_device_host(), 0, &facts), EN_EUNSUPPORTED);
}

int main(void)
{
    const en_device *table;
    int32_t n = 0;
    eni_log_set_sink(keep_error, NULL);
    if (access(EN_BUILD_DIR "/plugins/device_cuda.so", F_OK) != 0) {
        fprintf(stderr, "skipped: this build has no cuda device\n");
        return 77;
    }
    if (eni_device_load("cuda", folder, &table) == EN_OK &&
        table->gpu->count(eni_device_host(), &n) == EN_OK) {
        fprintf(stderr, "skipped: there is a GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counting_says_why_there_is_none),
        cmocka_unit_test(opening_says_the_same),
        cmocka_unit_test(every_function_of_the_tables_is_there),
        cmocka_unit_test(what_asks_without_a_context_does_not_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
