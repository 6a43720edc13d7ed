/* test_straggler.c - a slow rank is slow by its factor, whatever others do, and by the same seed in the same
 * way. */
#include "rank/straggler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/clock.h"

/* Promise: A slow rank is slow by its factor, whatever other ranks do. */

enum { STEPS = 10, PIECES = 10 };
static const int64_t took_ns = 400 * ENI_MICRO;

/* A piece that took `cpu_ns` of a processor, and began so long ago. */
static void piece(eni_straggler *s, int64_t cpu_ns, int64_t ago_ns)
{
    eni_straggler_took(s, eni_now_ns() - ago_ns, cpu_ns);
}

/* The intended duration of pieces without wall time: slept already, or owed. */
static int64_t due(const eni_straggler *s)
{
    return s->wall_ns + s->owed_ns + s->carried_ns;
}

static void run(eni_straggler *s, int64_t due_out[STEPS * PIECES])
{
    for (int step = 0; step < STEPS; step++) {
        eni_straggler_begin_step(s, (uint64_t)step);
        for (int i = 0; i < PIECES; i++) {
            piece(s, took_ns, took_ns);
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
        int64_t one = sums[i] - last;
        last = sums[i];
        least = one < least ? one : least;
        most = one > most ? one : most;
    }
    /* factor x took, times a draw in [0.9, 1.1]; over 100 draws the mean is within 2 % */
    const double expected = 3.0 * (double)took_ns;
    assert_true((double)least >= 0.9 * expected - 1 && (double)most <= 1.1 * expected + 1);
    assert_true((double)(most - least) > 0.1 * expected); /* it does vary */
    assert_true(fabs((double)last / (STEPS * PIECES) / expected - 1) < 0.02);
    assert_int_equal(s.npieces, STEPS * PIECES);
    assert_true(s.took_ns == took_ns * STEPS * PIECES);
    /* and it was really slept, but for what is below a timer's resolution */
    assert_true(s.owed_ns < 50 * ENI_MICRO);
    assert_true(s.slept_ns > 0 && elapsed >= s.slept_ns);
    assert_true(fabs(eni_straggler_factor(&s) - (double)s.wall_ns / (double)s.took_ns) < 1e-12);
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
        piece(&s[i], 100 * ENI_MICRO, 100 * ENI_MICRO);
    }
    for (int i = 1; i < 4; i++)
        assert_true(due(&s[i]) != due(&s[0]));
}

/* 1 ms of computing that took 2 ms on the wall, because others had the core, still ends after 3 ms. */
static void test_what_others_do_changes_nothing(void **state)
{
    (void)state;
    eni_straggler s = {.factor = 3, .seed = 5};
    for (int i = 0; i < 20; i++)
        piece(&s, ENI_MILLI, 2 * ENI_MILLI);
    assert_int_equal(s.nlate, 0);
    assert_true(fabs((double)due(&s) / (20.0 * 3e6) - 1) < 0.05);
}

/* A piece that was too long by itself is counted, and later ones are shorter by as much, up to a limit. */
static void test_late_pieces_are_counted_and_taken_back(void **state)
{
    (void)state;
    eni_straggler s = {.factor = 3, .seed = 5};
    piece(&s, ENI_MILLI, 13 * ENI_MILLI); /* 10 ms late */
    assert_int_equal(s.nlate, 1);
    assert_int_equal(s.slept_ns, 0);
    for (int i = 0; i < 20; i++)
        piece(&s, ENI_MILLI, ENI_MILLI);
    assert_int_equal(s.nlate, 1);
    assert_true(fabs((double)due(&s) / (21.0 * 3e6) - 1) < 0.05);
    piece(&s, ENI_MILLI, 3600 * ENI_SECOND);
    assert_int_equal(s.nlate, 2);
    assert_true(s.carried_ns >= -100 * ENI_MILLI);
}

/* Short debts are collected: each alone is below what a sleep resolves. */
static void test_short_pieces_add_up(void **state)
{
    (void)state;
    eni_straggler s = {.factor = 2, .seed = 1};
    piece(&s, 10 * ENI_MICRO, 10 * ENI_MICRO);
    assert_int_equal(s.slept_ns, 0);
    for (int i = 0; i < 20; i++)
        piece(&s, 10 * ENI_MICRO, 10 * ENI_MICRO);
    assert_true(s.slept_ns >= 50 * ENI_MICRO);
    assert_true(fabs((double)due(&s) / (21 * 20e3) - 1) < 0.1);
}

/* The processor's time, not the wall's: what is slept in a piece is not computed. */
static void test_time_is_that_of_the_thread(void **state)
{
    (void)state;
    eni_straggler s = {.factor = 2, .seed = 1, .step = 2};
    const int64_t begin = eni_now_ns();
    eni_straggler_begins(&s);
    eni_sleep_until(begin + 20 * ENI_MILLI);
    eni_straggler_ends(&s, begin);
    assert_true(s.took_ns < 10 * ENI_MILLI);
    assert_int_equal(s.nlate, 1);
}

/* Computes for so long on the processor, as ends sees it. */
static void compute(eni_straggler *s, int64_t cpu_ns)
{
    const int64_t begin = eni_now_ns();
    eni_straggler_begins(s);
    const int64_t until = eni_thread_ns() + cpu_ns;
    while (eni_thread_ns() < until) {
    }
    eni_straggler_ends(s, begin);
}

/* The first step is taken awake, and is the sample; a piece that then takes twice as long, as one with cold caches
 * may, still ends as one that is awake. A shorter one counts as it is. */
static void test_a_piece_counts_as_it_is_awake(void **state)
{
    (void)state;
    eni_straggler s = {.factor = 3, .seed = 5};
    eni_straggler_begin_step(&s, 4);
    compute(&s, 2 * ENI_MILLI);
    assert_int_equal(s.slept_ns, 0);
    assert_true(s.owed_ns + s.wall_ns > 5 * ENI_MILLI); /* both: others may have had the core */
    const int64_t awake = s.samples[0].ns[0];
    assert_true(awake >= 2 * ENI_MILLI);
    eni_straggler_begin_step(&s, 5);
    assert_int_equal(s.owed_ns, 0); /* it is carried, and spread */
    int64_t before = s.took_ns;
    compute(&s, 4 * ENI_MILLI);
    assert_true(s.took_ns - before == awake);
    assert_int_equal(s.owed_ns, 0);
    if (s.carried_ns > -100 * ENI_MILLI) /* others had the core for less than is taken back */
        assert_true(fabs((double)due(&s) / (3.0 * (double)s.took_ns) - 1) < 0.1 + 1e-6);
    eni_straggler_begin_step(&s, 6);
    before = s.took_ns;
    compute(&s, ENI_MILLI);
    assert_true(s.took_ns - before < awake);
}

/* Each step sleeps for itself, those that are measured too; and of a step with samples nothing sleeps between its
 * first piece and the last but one. */
static void test_every_step_sleeps(void **state)
{
    (void)state;
    enum { OF_A_STEP = 3, LONG = 3 * ENI_STRAGGLER_EVERY + 2 };
    eni_straggler s = {.factor = 20, .seed = 5}; /* far from what others usually take */
    uint64_t late_until =
        0; /* a piece for which others left no time to sleep counts in its step and the next */
    for (uint64_t step = 0; step < LONG; step++) {
        const uint64_t turn = step % ENI_STRAGGLER_EVERY;
        const bool is_first = step == 0, is_ahead = turn == ENI_STRAGGLER_EVERY - 1, is_measured = turn == 0;
        const bool sleeps[OF_A_STEP] = {!is_measured, !is_measured && !is_ahead, !is_first && !is_ahead};
        eni_straggler_begin_step(&s, step);
        for (int i = 0; i < OF_A_STEP; i++) {
            const int64_t before = s.slept_ns, carried = s.carried_ns, begin = eni_now_ns();
            compute(&s, 100 * ENI_MICRO);
            if (eni_now_ns() - begin - (s.slept_ns - before) > 15 * 100 * ENI_MICRO) late_until = step + 2;
            assert_true(sleeps[i] || s.slept_ns == before);
            assert_true(!sleeps[i] || s.slept_ns > before || carried < 0 || step < late_until);
        }
    }
    for (int i = 0; i < OF_A_STEP; i++)
        assert_int_equal(s.samples[i].n, 4);
}

static void test_factor_one_never_sleeps(void **state)
{
    (void)state;
    static const double factors[] = {1, 0.5, 0};
    for (int i = 0; i < 3; i++) {
        eni_straggler s = {.factor = factors[i], .seed = 5};
        eni_straggler_begin_step(&s, 3);
        eni_straggler_begins(&s);
        piece(&s, 3600 * ENI_SECOND, 0);
        eni_straggler_ends(&s, 0);
        assert_int_equal(s.slept_ns, 0);
        assert_int_equal(s.npieces, 0);
        assert_int_equal(s.cpu_mark_ns, 0);
        assert_true(eni_straggler_factor(&s) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_and_spread),
        cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_seed_rank_and_step_matter),
        cmocka_unit_test(test_what_others_do_changes_nothing),
        cmocka_unit_test(test_late_pieces_are_counted_and_taken_back),
        cmocka_unit_test(test_short_pieces_add_up),
        cmocka_unit_test(test_time_is_that_of_the_thread),
        cmocka_unit_test(test_a_piece_counts_as_it_is_awake),
        cmocka_unit_test(test_every_step_sleeps),
        cmocka_unit_test(test_factor_one_never_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
