/* test_jsonl.c - a resumed run's files are one run's: what a killed one wrote beyond its checkpoint goes. And numbers in files
 * are as short as they can be, and a file is read in blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/json.h"
#include "core/log.h"
#include "rank/record.h"

static char path[64];

static int make_file(void **state)
{
    (void)state;
    strcpy(path, "/tmp/entrain-test-lines-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

/* Writes `before`, resumes at `samples`, adds a line: the file must be `after`. */
static void expect_until(const char *before, uint64_t samples, double seconds, const char *after)
{
    char text[512] = "";
    FILE *file = fopen(path, "w");
    fputs(before, file);
    fclose(file);
    assert_int_equal(eni_jsonl_open(path, samples, seconds, &file), EN_OK);
    fputs("+", file);
    fclose(file);
    file = fopen(path, "r");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_string_equal(text, after);
}

static void expect(const char *before, uint64_t samples, const char *after)
{
    expect_until(before, samples, 0, after);
}

#define A "{\"step\":1,\"samples\":8,\"x\":1}\n"
#define B "{\"step\":2,\"samples\":16,\"nsamples\":99}\n"
#define C "{\"samples\":24}\n"

static void test_what_stays(void **state)
{
    (void)state;
    expect(A B C, 0, "+"); /* a new run */
    expect(A B C, 16, A B "+");
    expect(A B C, 15, A "+");
    expect(A B C, 7, "+");
    expect(A B C, 1000, A B C "+");
    expect(A B "{\"samples\":2", 1000, A B "+"); /* torn by a kill */
    expect(A B "{\"samples\":16}", 1000, A B "+");
    expect(A "\n" C, 1000, A "+");
    expect("", 16, "+");
}

#define EARLY "{\"t\":1.500000,\"samples\":8}\n"
#define LATE  "{\"samples\":16,\"t\":2.250001}\n"

/* Of a claimed batch the samples may be few, and the step after the checkpoint all the same. */
static void test_what_came_later_goes(void **state)
{
    (void)state;
    expect_until(EARLY LATE, 100, 0, EARLY LATE "+");
    expect_until(EARLY LATE, 100, 2.25, EARLY LATE "+"); /* as it was written, with six digits */
    expect_until(EARLY LATE, 100, 2.24, EARLY "+");
    expect_until(EARLY LATE, 10, 9, EARLY "+");
    expect_until(A LATE, 100, 1, A "+"); /* who has no time is not late */
}

static void test_a_file_that_is_not_there(void **state)
{
    (void)state;
    char other[80];
    FILE *file;
    snprintf(other, sizeof other, "%s.other", path);
    assert_int_equal(eni_jsonl_open(other, 16, 0, &file), EN_OK);
    fclose(file);
    unlink(other);
    eni_log_set_level(-1);
    assert_int_equal(eni_jsonl_open("/nowhere/at/all", 16, 0, &file), EN_EIO);
}

static void test_numbers_are_short(void **state)
{
    (void)state;
    uint64_t draw = 1;
    json_t *value = json_pack("{s:[f, f, f, f], s:i, s:b}", "0.69999999999999996 \"e-1\\", 0.7, 0.1 + 0.2,
                              300.0, -0.05, "whole", 7, "yes", 1);
    char *text = eni_json_dump(value, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(
        text, "{\"0.69999999999999996 \\\"e-1\\\\\":[0.7,0.30000000000000004,300.0,-0.05],\"whole\":7,"
              "\"yes\":true}");
    free(text);
    json_decref(value);
    value = json_array();
    for (int i = 0; i < 1000; i++) { /* any bits that are a number */
        double number;
        draw = draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(&number, &draw, sizeof number);
        json_array_append_new(value, json_real(isfinite(number) ? number : 0));
        json_array_append_new(value, json_real((double)(draw >> 40) / 1000));
        json_array_append_new(value, json_integer((json_int_t)draw));
    }
    text = eni_json_dump(value, JSON_INDENT(1));
    json_t *again = json_loads(text, 0, NULL);
    assert_true(json_equal(value, again) == 1);
    free(text);
    json_decref(again);
    json_decref(value);
}

/* System calls of this process that have read something; -1 where Linux does not count them. */
static long long reads(void)
{
    long long n = -1;
    char line[128];
    FILE *io = fopen("/proc/self/io", "r");
    while (io != NULL && fgets(line, sizeof line, io) != NULL)
        sscanf(line, "syscr: %lld", &n);
    if (io != NULL) fclose(io);
    return n;
}

/* A trace has megabytes. */
static void test_a_file_is_read_in_blocks(void **state)
{
    enum { NUMBERS = 10000, BLOCKS = 100 };
    json_error_t error;
    (void)state;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < NUMBERS; i++)
        fprintf(file, "%c%d", i == 0 ? '[' : ',', i);
    fputs("]", file);
    fclose(file);
    const long long before = reads();
    json_t *list = eni_json_file(path, &error);
    const long long after = reads();
    assert_int_equal(json_array_size(list), NUMBERS);
    json_decref(list);
    if (before < 0) skip();
    assert_in_range(after - before, 0, BLOCKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_stays), cmocka_unit_test(test_what_came_later_goes),
        cmocka_unit_test(test_a_file_that_is_not_there), cmocka_unit_test(test_numbers_are_short),
        cmocka_unit_test(test_a_file_is_read_in_blocks)};
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
