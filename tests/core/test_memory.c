/* test_memory.c - aligned, zeroed, and an error instead of an abort when there is none. */
#include "core/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "core/log.h"

/* Counts what is logged, so that no test prints errors that it provokes. */
static void count_errors(void *user, int level, const char *subsystem, const char *text)
{
    (void)subsystem, (void)text;
    if (level == ENI_LOG_ERROR) ++*(int *)user;
}

/* The heap hands out used memory first, so zeroing shows. */
static void test_aligned_and_zeroed(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100003};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            unsigned char *memory = eni_alloc(sizes[i]);
            assert_non_null(memory);
            assert_int_equal((uintptr_t)memory % ENI_LINE, 0);
            for (size_t k = 0; k < sizes[i]; k++)
                if (memory[k] != 0) fail_msg("byte %zu of %zu is %d", k, sizes[i], memory[k]);
            memset(memory, 0xff, sizes[i]);
            eni_free(memory);
        }
}

static void test_overflow_is_an_error(void **state)
{
    (void)state;
    int errors = 0;
    eni_log_set_sink(count_errors, &errors);
    assert_null(eni_alloc_array(SIZE_MAX / 2 + 1, 2));
    assert_null(eni_alloc_array(3, SIZE_MAX / 2));
    assert_null(eni_alloc(SIZE_MAX)); /* rounding up to a line would wrap */
    assert_null(eni_alloc(SIZE_MAX - ENI_LINE + 2));
    eni_log_set_sink(NULL, NULL);
    assert_int_equal(errors, 4);
}

static void test_array(void **state)
{
    (void)state;
    double *array = eni_alloc_array(1000, sizeof *array);
    assert_non_null(array);
    for (int i = 0; i < 1000; i++)
        assert_true(array[i] == 0);
    array[999] = 1;
    eni_free(array);
    void *none = eni_alloc_array(0, 8);
    assert_non_null(none);
    eni_free(none);
    eni_free(NULL);
}

static void test_a_growing_array(void **state)
{
    (void)state;
    int32_t *item = NULL;
    uint32_t room = 0;
    int errors = 0, moves = 0;
    for (int32_t i = 0; i < 1000; i++) {
        const uint32_t before = room;
        assert_int_equal(eni_grow((void **)&item, &room, (uint32_t)i + 1, sizeof *item), EN_OK);
        moves += room != before;
        item[i] = i;
    }
    for (int32_t i = 0; i < 1000; i++)
        assert_int_equal(item[i], i);
    assert_true(room >= 1000 && moves <= 8); /* 8, 16, .. 1024 */
    assert_int_equal(eni_grow((void **)&item, &room, 5000, sizeof *item), EN_OK);
    assert_true(room >= 5000 && item[999] == 999);
    const uint32_t kept = room;
    eni_log_set_sink(count_errors, &errors);
    assert_int_equal(eni_grow((void **)&item, &room, UINT32_MAX, SIZE_MAX / UINT32_MAX), EN_ENOMEM);
    eni_log_set_sink(NULL, NULL);
    assert_true(errors == 1 && room == kept && item[999] == 999);
    eni_free(item);
}

static void test_strdup_is_a_copy(void **state)
{
    (void)state;
    char text[] = "ring";
    char *copy = eni_strdup(text), *empty = eni_strdup("");
    assert_non_null(copy);
    assert_non_null(empty);
    text[0] = 'X';
    assert_string_equal(copy, "ring");
    assert_string_equal(empty, "");
    eni_free(copy);
    eni_free(empty);
}

static void test_round_up(void **state)
{
    (void)state;
    assert_int_equal(eni_round_up(0, 64), 0);
    assert_int_equal(eni_round_up(1, 64), 64);
    assert_int_equal(eni_round_up(64, 64), 64);
    assert_int_equal(eni_round_up(65, 64), 128);
    assert_int_equal(eni_round_up(7, 3), 9);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Pages that the system cleared and mapped for four blocks of 1 MiB, written and freed. */
static long faults_of_a_round(void)
{
    enum { BLOCKS = 4, BYTES = 1 << 20 };
    struct rusage before, after;
    void *block[BLOCKS];
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = malloc(BYTES);
        assert_non_null(block[i]);
        memset(block[i], 1, BYTES);
        __asm__ volatile("" : : "r"(block[i]) : "memory"); /* or the compiler leaves it out */
    }
    for (int i = 0; i < BLOCKS; i++)
        free(block[i]);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
}

/* Last, for it cannot be taken back. */
static void test_kept_memory_is_not_mapped_again(void **state)
{
    (void)state;
    faults_of_a_round();
    assert_true(faults_of_a_round() > 900); /* else there would be nothing to gain */
    eni_memory_keep();
    faults_of_a_round();
    long faults = 0;
    for (int round = 0; round < 20; round++)
        faults += faults_of_a_round();
    assert_true(faults < 64);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aligned_and_zeroed),
        cmocka_unit_test(test_overflow_is_an_error),
        cmocka_unit_test(test_array),
        cmocka_unit_test(test_a_growing_array),
        cmocka_unit_test(test_strdup_is_a_copy),
        cmocka_unit_test(test_round_up),
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_kept_memory_is_not_mapped_again), /* the heap must be glibc's */
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
