/* test_arenas.c - psd's weights: workers can map them, but not write or resize them. */
#include "server/arenas.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "runtime/collective/arena.h"

enum { ELEMENTS = 5000 };

static void others_can_read_and_no_more(void **state)
{
    (void)state;
    eni_weights *weights;
    const size_t bytes = ELEMENTS * sizeof(float);
    assert_int_equal(eni_weights_open(ELEMENTS, &weights), EN_OK);
    const int fd = weights->fd;
    float *ours = weights->vector;
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(ours[i] == 0);
    ours[ELEMENTS - 1] = 1;
    const float *theirs = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(theirs != MAP_FAILED);
    assert_true(theirs[ELEMENTS - 1] == 1);
    ours[0] = 2;
    assert_true(theirs[0] == 2);
    assert_true(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    assert_int_not_equal(mprotect((void *)(uintptr_t)theirs, bytes, PROT_READ | PROT_WRITE), 0);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_not_equal(ftruncate(fd, 4096), 0);
    assert_int_not_equal(ftruncate(fd, 1 << 20), 0);
    eni_weights_close(weights);
    assert_true(theirs[0] == 2); /* a mapping stays valid */
    munmap((void *)(uintptr_t)theirs, bytes);
}

static void a_worker_takes_them(void **state)
{
    (void)state;
    eni_weights *weights;
    eni_arena *arena;
    assert_int_equal(eni_weights_open(ELEMENTS, &weights), EN_OK);
    assert_int_equal(eni_arena_open(ELEMENTS, 3, 1, &arena), EN_OK);
    assert_int_equal(eni_arena_cover(arena, ENI_SLOT_PARAM, weights->fd), EN_OK);
    weights->vector[17] = 3;
    assert_true(*eni_arena_at(arena, ENI_SLOT_PARAM, 17) == 3);
    eni_weights_close(weights);
    eni_arena_close(arena);
}

static void none(void **state)
{
    (void)state;
    eni_weights *weights;
    eni_log_set_level(-1);
    assert_int_equal(eni_weights_open(UINT64_MAX / 2 + 8, &weights), EN_ENOMEM);
    eni_log_set_level(ENI_LOG_INFO);
    eni_weights_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(others_can_read_and_no_more),
                                       cmocka_unit_test(a_worker_takes_them), cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
