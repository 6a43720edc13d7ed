/* test_arrivals.c - a recorded order is read as it was written, and a file that is not one, or not whole, is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "run/arrivals.h"
#include "tests/heard.h"

static char folder[] = "/tmp/entrain_XXXXXX", path[64];
static heard said;

static const eni_arrivals about = {
    .shard = 3, .nshards = 4, .nranks = 300, .nbuckets = 70, .elements = 1u << 30};

static void what_was_written_is_read(void **state)
{
    static const eni_arrival events[] = {{.rank = 299, .bucket = 69},
                                         {.bucket = ENI_ARRIVAL_TIMER},
                                         {.rank = 0, .bucket = 0},
                                         {.rank = 299, .bucket = ENI_ARRIVAL_END}};
    enum { EVENTS = sizeof events / sizeof *events, TIMES = 1000 };
    eni_arrivals_file file;
    eni_arrivals read;
    (void)state;
    assert_int_equal(eni_arrivals_create(folder, &about, &file), EN_OK);
    for (int i = 0; i < TIMES * EVENTS; i++) {
        eni_arrival a = events[i % EVENTS];
        a.ns = eni_now_ns();
        eni_arrivals_add(&file, a);
    }
    assert_int_equal(eni_arrivals_close(&file), EN_OK);
    assert_int_equal(eni_arrivals_read(folder, 3, &read), EN_OK);
    assert_int_equal(read.shard, 3);
    assert_int_equal(read.nshards, 4);
    assert_int_equal(read.nranks, 300);
    assert_int_equal(read.nbuckets, 70);
    assert_int_equal(read.elements, 1u << 30);
    assert_int_equal(read.n, TIMES * EVENTS);
    for (int i = 0; i < TIMES * EVENTS; i++) {
        assert_int_equal(read.item[i].rank, events[i % EVENTS].rank);
        assert_int_equal(read.item[i].bucket, events[i % EVENTS].bucket);
        assert_true(read.item[i].ns >= (i > 0 ? read.item[i - 1].ns : 0));
    }
    eni_arrivals_fini(&read);
}

#define HEAD "entrain arrivals 1: shard 3 of 4, 3 ranks, 2 buckets of 10 elements\n"

static void what_is_not_one_is_refused(void **state)
{
    static const char *const files[][2] = {
        {"", "does not begin"},
        {"hello\n", "does not begin"},
        {"entrain arrivals 2: shard 3 of 4, 3 ranks, 2 buckets of 10 elements\n", "does not begin"},
        {HEAD, "line 2"},
        {HEAD "1 0 0\n", "line 3"},
        {HEAD "1 0 0\n2 events\n", "line 3"},
        {HEAD "1 3 0\n1 events\n", "line 2"},
        {HEAD "1 0 2\n1 events\n", "line 2"},
        {HEAD "1 0 -4\n1 events\n", "line 2"},
        {HEAD "1 0 end\n1 events\n", "line 2"},
        {HEAD "1 0 0 0\n1 events\n", "line 2"},
        {HEAD "1 0\n1 events\n", "line 2"},
        {HEAD "2 0 0\n1 0 0\n2 events\n", "line 3"},
        {HEAD "1 2 -3\n1 events\n", "rank 2 joined later or was lost"}};
    (void)state;
    eni_log_set_sink(hear, &said);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        eni_arrivals read;
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        fputs(files[i][0], file);
        fclose(file);
        if (eni_arrivals_read(folder, 3, &read) != EN_EINVAL || strstr(said.text, files[i][1]) == NULL ||
            strstr(said.text, path) == NULL)
            fail_msg("\"%s\": %s", files[i][0], said.text);
    }
    remove(path);
    eni_arrivals none = {0};
    assert_int_equal(eni_arrivals_read(folder, 3, &none), EN_ENOENT);
    assert_non_null(strstr(said.text, "--record-order"));
    eni_arrivals_fini(&none);
    eni_log_set_sink(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_written_is_read),
                                       cmocka_unit_test(what_is_not_one_is_refused)};
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/arrivals-3.txt", folder);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
