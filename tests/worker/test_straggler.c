/* test_straggler.c - a slow rank is slow by its factor, and by the same seed in the same way. */
#include "worker/straggler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/core/clock.h"

/* What was asked of the clock so far: slept already, or still owed. */
static int64_t due(const eni_straggler *s)
{
    return s->slept_ns + s->owed_ns;
}

enum { STEPS = 10, PIECES = 10 };
static const int64_t took_ns = 400 * ENI_MICRO;

static void run(eni_straggler *s, int64_t due_out[STEPS * PIECES])
{
    for (int step = 0; step < STEPS; step++) {
        eni_straggler_begin_step(s, (uint64_t)step);
        for (int i = 0; i < PIECES; i++) {
            eni_straggler_after(s, took_ns);
            due_out[step * PIECES + i] = due(s);
        }
    }
}

static void test_mean_and_spread(void **state)
{
    (void)state;
    eni_straggler s = {.factor = 3, .seed = 5, .rank = 1};
    int64_t sums[STEPS * PIECES], last = 0, least = INT64_MAX, most = 0, begin = eni_now_ns();
    run(&s, sums);
    int64_t elapsed = eni_now_ns() - begin;
    for (int i = 0; i < STEPS * PIECES; i++) {
        int64_t piece = sums[i] - last;
        last = sums[i];
        least = piece < least ? piece : least;
        most = piece > most ? piece : most;
    }
    /* (factor - 1) x took, times a factor in [0.9, 1.1]; over 100 draws the mean is within 2 % */
    const double expected = 2.0 * (double)took_ns;
    assert_true((double)least >= 0.9 * expected - 1 && (double)most <= 1.1 * expected + 1);
    assert_true((double)(most - least) > 0.1 * expected); /* it does vary */
    assert_true(fabs((double)last / (STEPS * PIECES) / expected - 1) < 0.02);
    /* and it was really slept, but for what is below a timer's resolution */
    assert_true(s.owed_ns < 200 * ENI_MICRO);
    assert_true(s.slept_ns > 0 && elapsed >= s.slept_ns);
}

static void test_repeatable(void **state)
{
    (void)state;
    eni_straggler a = {.factor = 1.5, .seed = 5, .rank = 1}, b = a;
    int64_t first[STEPS * PIECES], second[STEPS * PIECES];
    run(&a, first);
    run(&b, second);
    assert_memory_equal(first, second, sizeof first);
}

static void test_seed_rank_and_step_matter(void **state)
{
    (void)state;
    eni_straggler s[4] = {{.factor = 1.5, .seed = 5, .rank = 1},
                          {.factor = 1.5, .seed = 6, .rank = 1},
                          {.factor = 1.5, .seed = 5, .rank = 2},
                          {.factor = 1.5, .seed = 5, .rank = 1}};
    for (int i = 0; i < 4; i++) {
        eni_straggler_begin_step(&s[i], i == 3 ? 1 : 0);
        eni_straggler_after(&s[i], 100 * ENI_MICRO);
    }
    for (int i = 1; i < 4; i++)
        assert_true(due(&s[i]) != due(&s[0]));
}

/* Short debts are collected: each alone is below what a sleep resolves. */
static void test_short_pieces_add_up(void **state)
{
    (void)state;
    eni_straggler s = {.factor = 2, .seed = 1};
    eni_straggler_after(&s, 50 * ENI_MICRO);
    assert_int_equal(s.slept_ns, 0);
    assert_true(s.owed_ns > 0);
    for (int i = 0; i < 10; i++)
        eni_straggler_after(&s, 50 * ENI_MICRO);
    assert_true(s.slept_ns >= 200 * ENI_MICRO);
    assert_true(fabs((double)due(&s) / (11 * 50e3) - 1) < 0.1);
}

static void test_factor_one_never_sleeps(void **state)
{
    (void)state;
    static const double factors[] = {1, 0.5, 0};
    for (int i = 0; i < 3; i++) {
        eni_straggler s = {.factor = factors[i], .seed = 5};
        eni_straggler_begin_step(&s, 3);
        eni_straggler_after(&s, 3600 * ENI_SECOND);
        assert_int_equal(s.slept_ns, 0);
        assert_int_equal(s.owed_ns, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_and_spread),           cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_seed_rank_and_step_matter), cmocka_unit_test(test_short_pieces_add_up),
        cmocka_unit_test(test_factor_one_never_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
