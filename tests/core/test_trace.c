/* test_trace.c - what is written is JSON that a viewer takes, and nothing is lost silently. */
#include "core/trace.h"

#include <jansson.h>
#include <pthread.h>
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
#include "tests/heard.h"

/* Writes the trace to a file of its own and reads it back. */
static json_t *written(const eni_trace *trace)
{
    char path[] = "/tmp/entrain-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(eni_trace_write(trace, path), EN_OK);
    json_error_t error;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    unlink(path);
    if (json == NULL) fail_msg("line %d: %s", error.line, error.text);
    return json;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void test_spans(void **state)
{
    (void)state;
    eni_trace *trace = eni_trace_new("rank 3", 3, 8);
    assert_non_null(trace);
    /* a day since boot: single floats would round to milliseconds here */
    const int64_t day = INT64_C(86400) * 1000000000;
    eni_trace_span(trace, ENI_TRACE_COMPUTE, "forward", day + 1001, day + 3002, 7, -1, 0);
    eni_trace_span(trace, ENI_TRACE_COMM, "send", day, day, 8, 0, UINT64_C(1) << 40);
    json_t *json = written(trace), *events = json_object_get(json, "traceEvents");
    eni_trace_free(trace);
    assert_int_equal(json_array_size(events), 5); /* the names of the process and of two rows */
    const json_t *name = json_array_get(events, 0), *forward = json_array_get(events, 3),
                 *sent = json_array_get(events, 4);
    assert_string_equal(json_string_value(json_object_get(name, "ph")), "M");
    assert_string_equal(json_string_value(json_object_get(json_object_get(name, "args"), "name")), "rank 3");
    assert_string_equal(json_string_value(json_object_get(forward, "name")), "forward");
    assert_string_equal(json_string_value(json_object_get(forward, "ph")), "X");
    assert_true(number(forward, "pid") == 3 && number(forward, "tid") == ENI_TRACE_COMPUTE);
    assert_float_equal(number(forward, "ts"), (double)day / 1e3 + 1.001, 1e-3);
    assert_float_equal(number(forward, "dur"), 2.001, 1e-6);
    const json_t *args = json_object_get(forward, "args");
    assert_true(number(args, "step") == 7);
    assert_null(json_object_get(args, "bucket"));
    assert_null(json_object_get(args, "bytes"));
    args = json_object_get(sent, "args");
    assert_true(number(args, "bucket") == 0 && number(args, "bytes") == (double)(UINT64_C(1) << 40));
    assert_true(number(json, "dropped") == 0);
    json_decref(json);
}

/* Every row that is used has a name, once, and no other has one. */
static void test_rows_have_names(void **state)
{
    static const struct {
        int thread;
        const char *name;
    } rows[] = {{ENI_TRACE_COMPUTE, "compute"},        {ENI_TRACE_COMM, "comm"},
                {ENI_TRACE_LOADER, "loader"},          {ENI_TRACE_SHARD0, "shard 0"},
                {ENI_TRACE_SHARD0 + 255, "shard 255"}, {ENI_TRACE_STAGE0, "stage 0"},
                {ENI_TRACE_STAGE0 + 63, "stage 63"}};
    const size_t n = sizeof rows / sizeof *rows;
    (void)state;
    eni_trace *trace = eni_trace_new("rank 3", 3, 100);
    for (size_t i = 2 * n; i-- > 0;)
        eni_trace_span(trace, rows[i % n].thread, "work", 0, 1, 0, -1, 0);
    json_t *json = written(trace), *events = json_object_get(json, "traceEvents");
    eni_trace_free(trace);
    assert_int_equal(json_array_size(events), 1 + n + 2 * n);
    for (size_t i = 0; i < n; i++) {
        const json_t *event = json_array_get(events, 1 + i);
        assert_string_equal(json_string_value(json_object_get(event, "name")), "thread_name");
        assert_string_equal(json_string_value(json_object_get(event, "ph")), "M");
        assert_true(number(event, "pid") == 3 && number(event, "tid") == rows[i].thread);
        assert_string_equal(json_string_value(json_object_get(json_object_get(event, "args"), "name")),
                            rows[i].name);
    }
    json_decref(json);
}

static void test_empty(void **state)
{
    (void)state;
    eni_trace *trace = eni_trace_new("psd", 99, 0);
    assert_non_null(trace);
    json_t *json = written(trace);
    eni_trace_free(trace);
    assert_int_equal(json_array_size(json_object_get(json, "traceEvents")), 1);
    json_decref(json);
    eni_trace_span(NULL, 0, "nowhere", 0, 1, 0, 0, 0); /* records nothing */
    eni_trace_free(NULL);
}

enum { THREADS = 4, EACH = 1000, ROOM = 2500 };

static void *record(void *user)
{
    for (int i = 0; i < EACH; i++)
        eni_trace_span(user, ENI_TRACE_SHARD0, "work", i, i + 1, i, -1, 0);
    return NULL;
}

/* Four threads, less room than spans: what is kept and what was dropped add up. */
static void test_full_buffer_counts(void **state)
{
    (void)state;
    pthread_t thread[THREADS];
    eni_trace *trace = eni_trace_new("rank 0", 0, ROOM);
    assert_non_null(trace);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, record, trace), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    json_t *json = written(trace);
    eni_trace_free(trace);
    assert_int_equal(json_array_size(json_object_get(json, "traceEvents")), ROOM + 2);
    assert_true(number(json, "dropped") == THREADS * EACH - ROOM);
    json_decref(json);
}

static void test_a_file_that_cannot_be(void **state)
{
    (void)state;
    heard said = {0};
    eni_trace *trace = eni_trace_new("rank 0", 0, 1);
    assert_non_null(trace);
    eni_log_set_sink(hear, &said);
    assert_int_equal(eni_trace_write(trace, "/nonexistent/trace.json"), EN_EIO);
    assert_non_null(strstr(said.text, "/nonexistent/trace.json"));
    assert_int_equal(eni_trace_write(trace, "/dev/full"), EN_EIO);
    eni_log_set_sink(NULL, NULL);
    eni_trace_free(trace);
}

/* Somebody else's link in a folder that he may write to must not lead us to a file of ours. */
static void test_a_link_is_not_followed(void **state)
{
    (void)state;
    char target[] = "/tmp/entrain-trace-XXXXXX", link[64], text[8] = "";
    const int fd = mkstemp(target);
    assert_int_equal(write(fd, "kept", 4), 4);
    snprintf(link, sizeof link, "%s.link", target);
    assert_int_equal(symlink(target, link), 0);
    eni_trace *trace = eni_trace_new("rank 0", 0, 1);
    assert_int_equal(eni_trace_write(trace, link), EN_EIO);
    eni_trace_free(trace);
    assert_int_equal(pread(fd, text, sizeof text - 1, 0), 4);
    assert_string_equal(text, "kept");
    close(fd);
    unlink(link);
    unlink(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_rows_have_names),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_full_buffer_counts),
        cmocka_unit_test(test_a_file_that_cannot_be),
        cmocka_unit_test(test_a_link_is_not_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
