/* test_step_alloc.c - the step path allocates nothing. This program's malloc counts calls, also those of
 * the libraries it loads; they end in glibc's own functions. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/ops/trial.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

static atomic_int is_counting;
static atomic_long allocations, frees, largest;

static void count(size_t bytes)
{
    if (!is_counting) return;
    allocations++;
    if ((long)bytes > largest) largest = (long)bytes;
}

#pragma GCC visibility push(default) /* so that the libraries find these */

void *malloc(size_t bytes)
{
    count(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t size)
{
    count(n * size);
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t bytes)
{
    count(bytes);
    if (is_counting && old) frees++;
    return __libc_realloc(old, bytes);
}

void *memalign(size_t alignment, size_t bytes);
void *memalign(size_t alignment, size_t bytes)
{
    count(bytes);
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **memory_out, size_t alignment, size_t bytes)
{
    void *memory = memalign(alignment, bytes);
    if (!memory) return ENOMEM;
    *memory_out = memory;
    return 0;
}

void free(void *memory)
{
    if (is_counting && memory) frees++;
    __libc_free(memory);
}

#pragma GCC visibility pop

/* Counts what a step of every op allocates, once the first steps are over. */
static void count_steps(const eni_device *device)
{
    int n;
    const en_op *ops = trial_ops(&n);
    allocations = frees = largest = 0;
    for (int i = 0; i < n; i++) {
        trial t;
        trial_init(&t, device, &ops[i], 2);
        trial_run(&t);
        is_counting = 1;
        trial_run(&t);
        trial_run(&t);
        is_counting = 0;
        trial_fini(&t);
    }
}

static void the_hook_counts(void **state)
{
    (void)state;
    is_counting = 1;
    allocations = frees = 0;
    free(malloc(10));
    void *volatile memory = aligned_alloc(64, 64);
    free(memory);
    is_counting = 0;
    assert_int_equal(allocations, 2);
    assert_int_equal(frees, 2);
}

static void ref_allocates_nothing(void **state)
{
    (void)state;
    eni_device ref;
    assert_int_equal(eni_device_open("ref", "", 1, &ref), EN_OK);
    count_steps(&ref);
    eni_device_close(&ref);
    assert_int_equal(allocations, 0);
}

/* oneDNN keeps the arguments of a call in a small hash map that lives as long as the call: no way around it
 * in its API. Nothing may be large (scratch, buffers) and nothing may stay. */
static void cpu_keeps_nothing(void **state)
{
    (void)state;
    eni_device cpu;
    if (!open_cpu(&cpu, 1)) skip();
    count_steps(&cpu);
    eni_device_close(&cpu);
    print_message("oneDNN: %ld small allocations in all, the largest of %ld bytes\n", (long)allocations,
                  (long)largest);
    assert_int_equal(allocations, frees);
    assert_true(largest <= 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_hook_counts),
                                       cmocka_unit_test(ref_allocates_nothing),
                                       cmocka_unit_test(cpu_keeps_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
