/* test_rounds.c - the references of strategies in rounds, on runs that were computed by hand from the papers. */
#include "tests/conform/trace.h"

/* Promise: The reference of each strategy in rounds agrees with a run that was computed by hand. */

#define TWO(step, a, b, x, y) "step 0 " #step " " #a " " #x "; step 1 " #step " " #b " " #y ";"

static const hand_trace traces[] = {
    {"ring", "", 2, {1, 3, 2, 2}, TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, -1, -1), -2},
    /* -0.5 and -1.5, then -1 and -2, whose mean is -1.5 */
    {"local-sgd",
     "period=2",
     2,
     {1, 3, 1, 1, 2, 2},
     TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, -0.5, -1.5) TWO(2, 4, 5, -1.5, -1.5),
     -2.5},
    {"grouped",
     "period=2",
     2,
     {1, 3, 1, 1, 2, 2},
     TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, -0.5, -1.5) TWO(2, 4, 5, -1.5, -1.5),
     -2.5},
    /* post-local: the mean after step 0, then after steps 2, 5, .., counted from the first of all */
    {"local-sgd",
     "period=3,start=1",
     2,
     {1, 3, 0, 4, 0, 0, 0, 0},
     TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, -1, -1) TWO(2, 4, 5, -1, -3) TWO(3, 6, 7, -2, -2),
     -2},
    /* means -1, -1.5, -3; u: 2, 2, 3 */
    {"slowmo",
     "period=1,beta=0.5",
     2,
     {1, 3, 1, 1, 2, 2, 0, 0},
     TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, -1, -1) TWO(2, 4, 5, -2, -2) TWO(3, 6, 7, -3.5, -3.5),
     NAN},
    /* Delta: 1, 0.5, 1; m: 1, 1, 1.5; theta: -1.5, -2.5, -4.25 */
    {"diloco",
     "period=1,lr=1,momentum=0.5",
     2,
     {1, 3, 1, 1, 2, 2, 0, 0},
     TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, -1.5, -1.5) TWO(2, 4, 5, -2.5, -2.5) TWO(3, 6, 7, -4.25, -4.25),
     NAN},
    /* the same without Nesterov: theta: -1, -2, -3.5 */
    {"diloco",
     "period=1,lr=1,momentum=0.5,nesterov=0",
     2,
     {1, 3, 1, 1, 2, 2, 0, 0},
     TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, -1, -1) TWO(2, 4, 5, -2, -2) TWO(3, 6, 7, -3.5, -3.5),
     NAN},
    /* 0, -1.5, -3 mix to -1.5, and each steps by its own gradient of before the mixing */
    {"d-psgd",
     "graph=ring",
     3,
     {0, 3, 6, 1, 0, 2, 0, 0, 0},
     "step 0 0 0 0; step 1 0 1 0; step 2 0 2 0; step 0 1 3 0; step 1 1 4 -1.5; step 2 1 5 -3;"
     "step 0 2 6 -2; step 1 2 7 -1.5; step 2 2 8 -2.5",
     -2},
    {"d-psgd",
     "graph=complete",
     2,
     {0, 4, 2, 0, 0, 0},
     TWO(0, 0, 1, 0, 0) TWO(1, 2, 3, 0, -2) TWO(2, 4, 5, -2, -1),
     -1.5},
    /* step 1 from the rank two before, step 2 from the rank before */
    {"d-psgd",
     "graph=exponential",
     4,
     {0, 2, 4, 6, 0, 0, 0, 4, 0, 0, 0, 0},
     "step 0 0 0 0; step 1 0 1 0; step 2 0 2 0; step 3 0 3 0; step 0 1 4 0; step 1 1 5 -1; step 2 1 6 -2; "
     "step 3 1 7 -3;"
     "step 0 2 8 -1; step 1 2 9 -2; step 2 2 10 -1; step 3 2 11 -4",
     -2},
};

static void as_computed_by_hand(void **state)
{
    (void)state;
    hand_agrees(traces, sizeof traces / sizeof *traces);
}

/* The direction of the exponential graph: rank 0 hears rank 3, not rank 1. */
static void exponential_has_a_direction(void **state)
{
    (void)state;
    hand_trace t = {"d-psgd",
                    "graph=exponential",
                    4,
                    {0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0},
                    "step 0 0 0 0; step 1 0 1 0; step 2 0 2 0; step 3 0 3 0; step 0 1 4 0; step 1 1 5 0; "
                    "step 2 1 6 0; step 3 1 7 -2;"
                    "step 0 2 8 0; step 1 2 9 -1; step 2 2 10 0; step 3 2 11 -1",
                    -0.5};
    assert_true(hand_judge(&t).agrees);
    t.model = -0.4;
    assert_false(hand_judge(&t).agrees);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_computed_by_hand),
                                       cmocka_unit_test(exponential_has_a_direction)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
