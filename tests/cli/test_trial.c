/* test_trial.c - the measurements of `entrain check -v` and `advise` with real workers: all requested figures, in order;
 * invalid requests are refused, and no process is left. */
#include "cli/trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "config/folders.h"
#include "core/log.h"
#include "runtime/collective/coll.h"

static struct scene {
    eni_config config;
    char plugins[4096], said[2048];
    eni_command_context context;
} s;

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    size_t used = strlen(s.said);
    snprintf(s.said + used, sizeof s.said - used, "%s\n", text);
}

static void set(const char *key, const char *value)
{
    assert_int_equal(eni_config_set(&s.config, key, value, "test"), EN_OK);
}

static int setup(void **state)
{
    (void)state;
    memset(&s, 0, sizeof s);
    assert_int_equal(eni_folder_plugins(s.plugins, sizeof s.plugins), EN_OK);
    assert_int_equal(eni_config_init(ENI_ADVISE, &s.config), EN_OK);
    set("device", "ref");
    set("model", "mlp");
    set("data", "synthetic");
    set("limit-train-samples", "64");
    set("limit-test-samples", "8");
    set("batch-size", "2");
    set("bucket-cap-mb", "0.05");
    assert_int_equal(eni_config_resolve(&s.config), EN_OK);
    s.context = (eni_command_context){.config = &s.config, .plugin_dir = s.plugins, .signal_fd = -1};
    eni_log_set_sink(listen_in, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    eni_log_set_sink(NULL, NULL);
    eni_config_fini(&s.config);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    return 0;
}

/* The last layers' buckets leave before the first ones', and all within the batch. */
static void buckets_leave_one_after_the_other(void **state)
{
    eni_measured m;
    (void)state;
    set("optimizer", "adam"); /* its first step is not a multiple of the gradient */
    set("net", "rate:1mbit"); /* nothing is exchanged: 700 kB would take seconds */
    for (int n = 1; n <= 2; n++) {
        assert_int_equal(eni_check_compute(&s.context, n, 1, &m), EN_OK);
        assert_true(m.nbuckets > 1);
        assert_true(m.compute > 0 && m.compute < 1 && m.update > 0);
        for (int i = 0; i < m.nbuckets; i++) {
            assert_true(m.bytes[i] > 0);
            assert_true(m.ready[i] > (i > 0 ? m.ready[i - 1] - 1e-9 : 0));
        }
        assert_true(m.ready[m.nbuckets - 1] <= 1);
    }
    assert_string_equal(s.said, "");
}

/* 4 KB, 16 KB, 64 KB, and the bytes that a rank sends of the last. Vectors may be larger than the model's. */
static void every_way_has_its_sizes(void **state)
{
    static const struct {
        const char *algorithm, *transport;
        double sent; /* by three ranks, in vectors */
    } ways[] = {
        {"direct", "auto", 4.0 / 3}, {"naive", "auto", 2}, {"ring", "tcp", 4.0 / 3}, {"naive", "tcp", 2}};
    (void)state;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        eni_measured m;
        assert_int_equal(
            eni_check_measure(&s.context, 3, ways[w].algorithm, ways[w].transport, NULL, "4096..65536", &m),
            EN_OK);
        assert_int_equal(m.allreduce.n, 3);
        for (int i = 0; i < 3; i++) {
            assert_true(m.allreduce.point[i].bytes == 4096 << 2 * i);
            assert_true(m.allreduce.point[i].seconds > 0 && m.allreduce.point[i].seconds < 1);
        }
        assert_int_equal(m.call.n, 0);
        assert_true(m.sent / 65536 > ways[w].sent - 0.01 && m.sent / 65536 < ways[w].sent + 0.01);
    }
    assert_string_equal(s.said, "");
}

static void copies_and_numbers(void **state)
{
    eni_measured m;
    double flag, move;
    eni_cost_numbers tcp;
    (void)state;
    for (int n = 1; n <= 2; n++) {
        assert_int_equal(eni_check_measure(&s.context, n, NULL, "auto", NULL, "copy", &m), EN_OK);
        assert_true(m.move > 0 && m.move < 1e-6 && m.sum > 0 && m.sum < 1e-6);
    }
    assert_int_equal(eni_check_numbers(&s.context, 2, &flag, &move, &tcp), EN_OK);
    assert_true(flag >= 0 && move >= 0 && tcp.alpha >= 0 && tcp.beta >= 0 && flag + move > 0 &&
                tcp.alpha + tcp.beta > 0);
}

static void wrong_questions_are_refused(void **state)
{
    static const char *const wrong[] = {"copies", "4096",   "2..64",
                                        "6..64",  "64..16", "8589934592..8589934592"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        eni_measured m;
        assert_int_equal(eni_check_measure(&s.context, 2, "ring", "tcp", NULL, wrong[i], &m), EN_EINVAL);
        assert_int_equal(m.allreduce.n, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(buckets_leave_one_after_the_other, setup, teardown),
        cmocka_unit_test_setup_teardown(every_way_has_its_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(copies_and_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_questions_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
