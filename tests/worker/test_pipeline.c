/* test_pipeline.c - the two schedules, for all numbers of stages and chunks up to 8: what each stage does, in which
 * order, how much it keeps, and how long it waits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/parallel/pipeline.h"

enum { MOST = 8 };

static const eni_pipeline_kind kinds[] = {ENI_1F1B, ENI_GPIPE};

/* Calls check(kind, S, M) for all of them. */
static void for_all(void (*check)(eni_pipeline_kind kind, int nstages, int nchunks))
{
    for (int k = 0; k < 2; k++)
        for (int nstages = 1; nstages <= MOST; nstages++)
            for (int nchunks = 1; nchunks <= MOST; nchunks++)
                check(kinds[k], nstages, nchunks);
}

/* Every chunk goes forward once and backward once, in ascending order, and not back before it went forward. */
static void check_turns(eni_pipeline_kind kind, int nstages, int nchunks)
{
    for (int s = 0; s < nstages; s++) {
        eni_turn turns[2 * MOST];
        int next[2] = {0, 0}, most = 0;
        assert_int_equal(eni_pipeline_turns(kind, nstages, nchunks, s, turns), 2 * nchunks);
        for (int i = 0; i < 2 * nchunks; i++) {
            assert_int_equal(turns[i].chunk, next[turns[i].is_backward]);
            next[turns[i].is_backward]++;
            assert_true(next[0] >= next[1]);
            if (next[0] - next[1] > most) most = next[0] - next[1];
        }
        assert_int_equal(next[0], nchunks);
        assert_int_equal(next[1], nchunks);
        const int least = nchunks < nstages - s ? nchunks : nstages - s;
        assert_int_equal(most, kind == ENI_GPIPE ? nchunks : least);
        assert_int_equal(eni_pipeline_in_flight(kind, nstages, nchunks, s), most);
    }
}

static void test_turns(void **state)
{
    (void)state;
    for_all(check_turns);
}

/* Rounds of one turn each: a stage takes its next one if what it needs was done in an earlier round. With turns that
 * all last equally long that is the schedule in time, and it ends. */
static int rounds(eni_pipeline_kind kind, int nstages, int nchunks)
{
    eni_turn turns[MOST][2 * MOST];
    int at[MOST] = {0}, done[MOST][2] = {{0}}, round = 0, left = 2 * nchunks * nstages;
    for (int s = 0; s < nstages; s++)
        (void)eni_pipeline_turns(kind, nstages, nchunks, s, turns[s]);
    for (; left > 0; round++) {
        int before[MOST][2];
        for (int s = 0; s < nstages; s++)
            before[s][0] = done[s][0], before[s][1] = done[s][1];
        assert_true(round < 4 * MOST * MOST); /* else it is stuck */
        for (int s = 0; s < nstages; s++) {
            if (at[s] == 2 * nchunks) continue;
            const eni_turn *turn = &turns[s][at[s]];
            const int is_ready = turn->is_backward ? s == nstages - 1 || before[s + 1][1] > turn->chunk
                                                   : s == 0 || before[s - 1][0] > turn->chunk;
            if (!is_ready) continue;
            done[s][turn->is_backward]++;
            at[s]++;
            left--;
        }
    }
    return round;
}

/* (S-1) / (M+S-1), exactly. */
static void check_bubble(eni_pipeline_kind kind, int nstages, int nchunks)
{
    const double times[][2] = {{1, 1}, {1, 2}, {3, 1}};
    assert_int_equal(rounds(kind, nstages, nchunks), 2 * (nchunks + nstages - 1));
    for (int t = 0; t < 3; t++) {
        double f[MOST], b[MOST], bubble, seconds;
        for (int s = 0; s < nstages; s++) {
            f[s] = times[t][0];
            b[s] = times[t][1];
        }
        assert_int_equal(eni_pipeline_play(kind, nstages, nchunks, f, b, &bubble, &seconds), EN_OK);
        assert_true(fabs(seconds - (nchunks + nstages - 1) * (f[0] + b[0])) < 1e-9);
        assert_true(fabs(bubble - (double)(nstages - 1) / (nchunks + nstages - 1)) < 1e-12);
        assert_true(fabs(bubble - eni_pipeline_bubble(nstages, nchunks)) < 1e-12);
    }
}

static void test_bubble(void **state)
{
    (void)state;
    for_all(check_bubble);
}

/* One stage three times as slow: the others wait for it. Two chunks by hand: F of 1 and 3, B the same.
 *     stage 0   F0 F1 . . . . . B0 B1            forward 0-1, 1-2; backward 7-8, 13-14
 *     stage 1      F0 F0 F0 B0 B0 B0 F1 ..       1-4, 4-7, 7-10, 10-13 */
static void test_unequal(void **state)
{
    (void)state;
    const double f[] = {1, 3}, b[] = {1, 3};
    double bubble, seconds;
    assert_int_equal(eni_pipeline_play(ENI_1F1B, 2, 2, f, b, &bubble, &seconds), EN_OK);
    assert_true(fabs(seconds - 14) < 1e-12);
    assert_true(fabs(bubble - (1 - 16.0 / 28)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns), cmocka_unit_test(test_bubble),
                                       cmocka_unit_test(test_unequal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
