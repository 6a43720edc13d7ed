/* test_fiber.c - fibers keep their place and their locals, and an overflow of their stack is a fault. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/sim/fiber.h"

typedef struct counter {
    eni_fiber *fiber;
    int value;
} counter;

static void count_to_ten(void *user)
{
    counter *c = user;
    for (int i = 1; i <= 10; i++) {
        volatile int mine[64];
        mine[63] = i;
        c->value = i;
        eni_fiber_leave(c->fiber);
        assert_int_equal(mine[63], i);
    }
}

static void interleave(void **state)
{
    (void)state;
    enum { FIBERS = 50 };
    counter c[FIBERS] = {{NULL, 0}};
    eni_stacks *stacks;
    assert_int_equal(eni_stacks_open(FIBERS, 64 * 1024, &stacks), EN_OK);
    for (int i = 0; i < FIBERS; i++)
        c[i].fiber = eni_fiber_new(stacks, i, count_to_ten, &c[i]);
    for (int turn = 1; turn <= 10; turn++)
        for (int i = 0; i < FIBERS; i++) {
            eni_fiber_resume(c[i].fiber);
            assert_int_equal(c[i].value, turn);
            assert_int_equal(eni_fiber_has_ended(c[i].fiber), 0);
        }
    for (int i = 0; i < FIBERS; i++) {
        if (i % 2 == 0) { /* the others are freed in the middle */
            eni_fiber_resume(c[i].fiber);
            assert_int_equal(eni_fiber_has_ended(c[i].fiber), 1);
        }
        eni_fiber_free(c[i].fiber);
    }
    c[1] = (counter){eni_fiber_new(stacks, 1, count_to_ten, &c[1]), 0}; /* the stack serves another one */
    for (int turn = 1; turn <= 10; turn++)
        eni_fiber_resume(c[1].fiber);
    assert_int_equal(c[1].value, 10);
    eni_fiber_free(c[1].fiber);
    eni_stacks_close(stacks);
}

static int dig(volatile char *above, int depth)
{
    volatile char room[4096];
    room[0] = above[0];
    return depth == 0 ? room[0] : dig(room, depth - 1) + room[0];
}

static void fall_through(void *user)
{
    volatile char start = (char)(user != NULL);
    (void)dig(&start, 100000);
}

static void overflow_is_a_fault(void **state)
{
    (void)state;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        eni_stacks *stacks;
        signal(SIGSEGV, SIG_DFL);
        if (eni_stacks_open(2, 64 * 1024, &stacks) == EN_OK)
            eni_fiber_resume(eni_fiber_new(stacks, 1, fall_through, NULL));
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(interleave), cmocka_unit_test(overflow_is_a_fault)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
