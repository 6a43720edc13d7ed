/* test_step_alloc.c - the step path allocates nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/allocations.h"
#include "tests/ops/trial.h"

/* Counts what a step of every op allocates, once the first steps are over. */
static allocations count_steps(const eni_device *device)
{
    int n;
    const en_op *ops = trial_ops(&n);
    allocations sum = {0};
    for (int i = 0; i < n; i++) {
        trial t;
        trial_init(&t, device, &ops[i], 2);
        trial_run(&t);
        allocations_begin();
        trial_run(&t);
        trial_run(&t);
        const allocations some = allocations_end();
        sum.own += some.own;
        sum.foreign += some.foreign;
        sum.freed += some.freed;
        if (some.largest > sum.largest) sum.largest = some.largest;
        trial_fini(&t);
    }
    return sum;
}

static void the_hook_counts(void **state)
{
    (void)state;
    allocations_begin();
    void *volatile memory = malloc(10);
    free(memory);
    memory = aligned_alloc(64, 64);
    free(memory);
    const allocations some = allocations_end();
    assert_int_equal(some.own, 2);
    assert_int_equal(some.freed, 2);
    assert_int_equal(some.largest, 64);
}

static void ref_allocates_nothing(void **state)
{
    (void)state;
    eni_device ref;
    assert_int_equal(eni_device_open("ref", "", 1, &ref), EN_OK);
    const allocations some = count_steps(&ref);
    eni_device_close(&ref);
    assert_int_equal(some.own + some.foreign, 0);
}

/* oneDNN keeps the arguments of a call in a small hash map that lives as long as the call: no way around it
 * in its API. Nothing may be large (scratch, buffers) and nothing may stay. */
static void cpu_keeps_nothing(void **state)
{
    (void)state;
    eni_device cpu;
    if (!open_cpu(&cpu, 1)) skip();
    const allocations some = count_steps(&cpu);
    eni_device_close(&cpu);
    print_message("oneDNN: %ld small allocations in all, the largest of %ld bytes\n", some.foreign + some.own,
                  some.largest);
    assert_int_equal(some.own + some.foreign, some.freed);
    assert_true(some.largest <= 512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_hook_counts),
                                       cmocka_unit_test(ref_allocates_nothing),
                                       cmocka_unit_test(cpu_keeps_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
