/* test_merge_trace.c - merges the parts of a trace: every event once, dropped ones added up. */
#include "cli/launcher/launch.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/trace.h"

static struct scene {
    char dir[32], path[64], said[512];
} s;

static void listen_in(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem;
    snprintf(s.said, sizeof s.said, "%s", text);
}

static int setup(void **state)
{
    (void)state;
    s = (struct scene){.dir = "/tmp/entrain-merge-XXXXXX"};
    if (mkdtemp(s.dir) == NULL) return -1;
    snprintf(s.path, sizeof s.path, "%s/trace.json", s.dir);
    eni_log_set_sink(listen_in, NULL);
    return 0;
}

static const char *part(const char *suffix)
{
    static char path[96];
    snprintf(path, sizeof path, "%s%s", s.path, suffix);
    return path;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"", ".rank1", ".rank2", ".psd", ".psd1"};
    for (int i = 0; i < 5; i++)
        unlink(part(suffixes[i]));
    eni_log_set_sink(NULL, NULL);
    return rmdir(s.dir); /* fails if anything else was left */
}

/* A part as a worker leaves it: `spans` of them, with room for `room`. */
static void leave(const char *suffix, const char *role, int pid, uint64_t spans, uint64_t room)
{
    eni_trace *trace = eni_trace_new(role, pid, room);
    assert_non_null(trace);
    for (uint64_t i = 0; i < spans; i++)
        eni_trace_span(trace, 0, "work", (int64_t)i, (int64_t)i + 1, (int64_t)i, -1, 0);
    assert_int_equal(eni_trace_write(trace, part(suffix)), EN_OK);
    eni_trace_free(trace);
}

static void leave_text(const char *suffix, const char *text)
{
    FILE *file = fopen(part(suffix), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int is_there(const char *suffix)
{
    return access(part(suffix), F_OK) == 0;
}

/* Events (not names) of process `pid`. */
static int count_of(const json_t *merged, int pid)
{
    int count = 0;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(merged, "traceEvents"), i, event) count +=
        json_integer_value(json_object_get(event, "pid")) == pid &&
        strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0;
    return count;
}

/* Names of rows of process `pid`. */
static int rows_of(const json_t *merged, int pid)
{
    int count = 0;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(merged, "traceEvents"), i, event) count +=
        json_integer_value(json_object_get(event, "pid")) == pid &&
        strcmp(json_string_value(json_object_get(event, "name")), "thread_name") == 0;
    return count;
}

static void test_all_parts(void **state)
{
    (void)state;
    leave("", "rank 0", 0, 3, 10);
    leave(".rank1", "rank 1", 1, 7, 5);
    leave(".rank2", "rank 2", 2, 4, 10);
    leave(".psd", "psd", 1000, 9, 8);
    leave(".psd1", "psd 1", 1001, 6, 10);
    assert_int_equal(eni_merge_trace(s.path, 3, 2), EN_OK);
    json_t *merged = json_load_file(s.path, 0, NULL);
    assert_non_null(merged);
    assert_int_equal(count_of(merged, 0), 3);
    assert_int_equal(count_of(merged, 1), 5);
    assert_int_equal(count_of(merged, 2), 4);
    assert_int_equal(count_of(merged, 1000), 8);
    assert_int_equal(count_of(merged, 1001), 6);
    for (int pid = 0; pid < 3; pid++)
        assert_int_equal(rows_of(merged, pid), 1);
    assert_int_equal(rows_of(merged, 1000), 1);
    assert_int_equal(json_integer_value(json_object_get(merged, "dropped")), 2 + 1);
    json_decref(merged);
    assert_false(is_there(".rank1") || is_there(".rank2") || is_there(".psd") || is_there(".psd1"));
}

static void test_missing_parts_are_fine(void **state)
{
    (void)state;
    leave("", "rank 0", 0, 3, 10);
    leave(".rank2", "rank 2", 2, 4, 10); /* rank 2 of an earlier run with more workers */
    assert_int_equal(eni_merge_trace(s.path, 2, 1), EN_OK);
    json_t *merged = json_load_file(s.path, 0, NULL);
    assert_int_equal(count_of(merged, 0), 3);
    assert_int_equal(count_of(merged, 2), 0); /* not of this run, and left alone */
    json_decref(merged);
    assert_true(is_there(".rank2"));
}

/* A part that cannot be read fails the merge and destroys nothing. */
static void test_damaged_parts_are_kept(void **state)
{
    (void)state;
    static const char *const damaged[] = {"{\"traceEvents\": [", "", "{}", "{\"traceEvents\": 3}"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        leave("", "rank 0", 0, 3, 10);
        leave(".rank1", "rank 1", 1, 4, 10);
        leave_text(".rank2", damaged[i]);
        s.said[0] = 0;
        assert_int_equal(eni_merge_trace(s.path, 3, 1), EN_EFORMAT);
        assert_non_null(strstr(s.said, ".rank2"));
        assert_true(is_there(".rank1") && is_there(".rank2"));
        json_t *own = json_load_file(s.path, 0, NULL);
        assert_int_equal(count_of(own, 0), 3);
        json_decref(own);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_parts_are_fine, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_parts_are_kept, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
