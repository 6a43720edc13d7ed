/* test_record.c - metrics-RANK.jsonl: one valid object a line, whatever the numbers. */
#include "rank/record.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/heard.h"

static char dir[] = "/tmp/entrain-record-XXXXXX";

static void path_of(int rank, char path[64])
{
    snprintf(path, 64, "%s/metrics-%d.jsonl", dir, rank);
}

static void test_lines(void **state)
{
    (void)state;
    static const float losses[] = {2.302585f, NAN, INFINITY, -INFINITY, 0};
    eni_recorder *recorder = NULL;
    assert_int_equal(eni_recorder_open(dir, 3, 0, 0, &recorder), EN_OK);
    for (int i = 0; i < 5; i++) {
        eni_step s = {.t = 0.5 * i,
                      .step = (uint64_t)i,
                      .epoch = 1,
                      .samples = UINT64_C(1) << 40,
                      .nsamples = 64,
                      .update = 7,
                      .base_version = 6,
                      .loss = losses[i],
                      .accuracy = i == 0 ? 0.25 : (double)losses[i],
                      .lr = 0.01f,
                      .step_ns = 1000,
                      .data_ns = 1,
                      .compute_ns = 2,
                      .send_ns = 3,
                      .wait_ns = 4,
                      .update_ns = 5,
                      .payload_bytes = 8,
                      .wire_bytes = 9,
                      .staleness = 123456};
        eni_recorder_add(recorder, &s);
    }
    eni_recorder_add(NULL, &(eni_step){0});
    assert_int_equal(eni_recorder_close(recorder), EN_OK);
    assert_int_equal(eni_recorder_close(NULL), EN_OK);
    char path[64], line[4096];
    path_of(3, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int i = 0; i < 5; i++) {
        json_error_t error;
        assert_non_null(fgets(line, sizeof line, file));
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (o == NULL) fail_msg("line %d: %s", i + 1, error.text);
        /* the keys that architecture section 7 promises */
        static const char *const keys[] = {"schema",     "t",        "step",         "epoch",
                                           "samples",    "update",   "base_version", "loss",
                                           "accuracy",   "lr",       "step_ns",      "data_ns",
                                           "compute_ns", "send_ns",  "wait_ns",      "payload_bytes",
                                           "wire_bytes", "staleness"};
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (json_object_get(o, keys[k]) == NULL) fail_msg("no %s", keys[k]);
        const json_t *loss = json_object_get(o, "loss");
        if (isfinite(losses[i])) /* nine digits bring a float back exactly */
            assert_true((float)json_number_value(loss) == losses[i]);
        else
            assert_true(json_is_null(loss));
        const json_t *accuracy = json_object_get(o, "accuracy");
        assert_true(i == 0 ? json_number_value(accuracy) == 0.25 : i == 4 || json_is_null(accuracy));
        assert_int_equal(json_integer_value(json_object_get(o, "step")), i);
        assert_int_equal(json_integer_value(json_object_get(o, "samples")), INT64_C(1) << 40);
        assert_int_equal(json_integer_value(json_object_get(o, "wait_ns")), 4);
        assert_int_equal(json_integer_value(json_object_get(o, "update")), 7);
        assert_int_equal(json_integer_value(json_object_get(o, "base_version")), 6);
        assert_int_equal(json_integer_value(json_object_get(o, "wire_bytes")), 9);
        json_decref(o);
    }
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
    unlink(path);
}

/* More than the buffer holds: every line arrives whole. */
static void test_many(void **state)
{
    (void)state;
    eni_recorder *recorder = NULL;
    assert_int_equal(eni_recorder_open(dir, 0, 0, 0, &recorder), EN_OK);
    for (int i = 0; i < 2000; i++)
        eni_recorder_add(recorder, &(eni_step){.step = (uint64_t)i, .loss = 0.5f});
    assert_int_equal(eni_recorder_close(recorder), EN_OK);
    char path[64], line[4096];
    path_of(0, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int n = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_int_equal(json_integer_value(json_object_get(o, "step")), n++);
        json_decref(o);
    }
    fclose(file);
    unlink(path);
    assert_int_equal(n, 2000);
}

static void test_failures(void **state)
{
    (void)state;
    char path[64];
    heard said = {0};
    eni_recorder *recorder = NULL;
    eni_log_set_sink(hear, &said);
    assert_int_equal(eni_recorder_open("/nonexistent", 0, 0, 0, &recorder), EN_EIO);
    assert_non_null(strstr(said.text, "/nonexistent/metrics-0.jsonl"));
    path_of(1, path); /* somebody else's link */
    assert_int_equal(symlink("/dev/null", path), 0);
    said.text[0] = 0;
    assert_int_equal(eni_recorder_open(dir, 1, 0, 0, &recorder), EN_EIO);
    assert_non_null(strstr(said.text, path));
    unlink(path);
    said.text[0] = 0; /* a file that cannot grow, as on a disk without room */
    struct rlimit before, none;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(eni_recorder_open(dir, 1, 0, 0, &recorder), EN_OK);
    eni_recorder_add(recorder, &(eni_step){.step = 1});
    const en_status closed = eni_recorder_close(recorder);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0); /* what is printed may go to a file */
    assert_int_equal(closed, EN_EIO);
    unlink(path);
    assert_non_null(strstr(said.text, path));
    said.text[0] = 0; /* a write that failed long ago: errno is that of another call */
    FILE *full = fopen("/dev/full", "w");
    assert_true(fputc('a', full) == 'a' && fflush(full) == EOF);
    errno = ENOTSOCK;
    assert_int_equal(eni_record_close("record", "old", full), EN_EIO);
    eni_log_set_sink(NULL, NULL);
    assert_true(strstr(said.text, "old is incomplete") != NULL && strstr(said.text, "ocket") == NULL);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir); /* fails if a test left a file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
