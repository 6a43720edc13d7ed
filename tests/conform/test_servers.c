/* test_servers.c - the references of strategies with a server, on runs that were computed by hand from the papers. */
#include "tests/conform/trace.h"

/* Promise: The reference of each strategy with a server agrees with a run that was computed by hand. */

#define FIRST_TWO "step 0 0 0 0; step 1 0 1 0;"
#define PUSH(rank, version, base, after)                                                                     \
    "push " #rank " " #version " " #base "; reply " #rank " " #after "; taken " #rank " " #after

static const hand_trace traces[] = {
    /* w: 0, -0.5, -1.5 */
    {"ps-async",
     "",
     2,
     {1, 2, 4},
     FIRST_TWO PUSH(0, 0, 0, 1) " 1;" PUSH(1, 1, 0, 2) " 1; gone 1; step 0 1 2 -0.5;" PUSH(0, 2, 1,
                                                                                           3) " 1; gone 0",
     -3.5},
    /* bound 0: rank 0 waits for rank 1; both go on from w = -1.5 */
    {"ssp",
     "bound=0",
     2,
     {1, 2, 4, 2},
     FIRST_TWO "push 0 0 0; taken 0 1 1; push 1 1 0; reply 0 2; reply 1 2; taken 1 2 1;"
               "step 0 1 2 -1.5; step 1 1 3 -1.5; push 0 2 2; taken 0 3 1; push 1 3 2; reply 0 4; reply 1 4; "
               "taken 1 4 1; gone 0; gone 1",
     -4.5},
    /* bound 1, and rank 1 ends: nobody is slower, so rank 0 goes on */
    {"ssp",
     "bound=1",
     2,
     {1, 2, 4},
     FIRST_TWO PUSH(0, 0, 0, 1) " 1; step 0 1 2 -0.5; push 0 1 1; taken 0 2 1;"
                                "push 1 2 0; reply 0 3; reply 1 3; taken 1 3 1; gone 1; gone 0",
     -3.5},
    /* the mean of 1 and 3, then a round of one */
    {"ps-sync",
     "",
     2,
     {1, 3, 4},
     FIRST_TWO "push 0 0 0; taken 0 0 1; push 1 0 0; reply 0 1; reply 1 1; taken 1 1 1; gone 1;"
               "step 0 1 2 -1;" PUSH(0, 1, 1, 2) " 1; gone 0",
     -3},
    /* threshold 1: what is stale is ignored */
    {"ringmaster",
     "threshold=1",
     2,
     {1, 2, 4, 8},
     FIRST_TWO PUSH(0, 0, 0, 1) " 1; step 0 1 2 -0.5;" PUSH(
         1, 1, 0, 1) " nan;"
                     "step 1 1 3 -0.5;" PUSH(0, 1, 1, 2) " 1;" PUSH(1, 2, 1, 2) " nan; gone 0; gone 1",
     -2.5},
    /* four updates later, of two workers: the gradient of 4 counts half. -2 - 0.5 * 0.5 * 4 */
    {"delay-adaptive",
     "",
     2,
     {1, 4, 1, 1, 1},
     FIRST_TWO PUSH(0, 0, 0, 1) " 1; step 0 1 2 -0.5;" PUSH(
         0, 1, 1, 2) " 1;"
                     "step 0 2 3 -1;" PUSH(0, 2, 2, 3) " 1; step 0 3 4 -1.5;" PUSH(0, 3, 3, 4) " 1;" PUSH(
                         1, 4, 0, 5) " 0.5; gone 0; gone 1",
     -3},
    /* pairs, answered at once: (1 + 3) / 2, then (6 + 2) / 2 although 2 was computed on version 0 */
    {"softsync",
     "splits=1",
     2,
     {1, 3, 2, 6},
     FIRST_TWO PUSH(0, 0, 0, 0) " 1;" PUSH(1, 0, 0, 1) " 1; step 0 1 2 0; step 1 1 3 -1;" PUSH(
         1, 1, 1, 1) " 1;" PUSH(0, 1, 0, 2) " 1; gone 0; gone 1",
     -3},
    /* three updates later: the gradient of 6 counts a third */
    {"softsync",
     "splits=2",
     2,
     {1, 6, 1, 1},
     FIRST_TWO PUSH(0, 0, 0, 1) " 1; step 0 1 2 -0.5;" PUSH(
         0, 1, 1, 2) " 1;"
                     "step 0 2 3 -1;" PUSH(0, 2, 2, 3) " 1;" PUSH(1, 3, 0, 4) " 0.333333333; gone 0; gone 1",
     -2.5},
    /* 2 + 1 * 2 * 2 * (-0.5 - 0) = 0; then w is what rank 0 was sent */
    {"dc-asgd",
     "lambda=1",
     2,
     {1, 2, 2},
     FIRST_TWO PUSH(0, 0, 0, 1) " 1;" PUSH(1, 1, 0, 2) " 1; gone 1; step 0 1 2 -0.5;" PUSH(0, 2, 1,
                                                                                           3) " 1; gone 0",
     -1.5},
    /* s = 0.05, then 0.2475; lambda = 2 / 0.49749382; 2 + lambda * 4 * (-0.5) = -6.0403006 */
    {"dc-asgd",
     "adaptive=on",
     2,
     {1, 2},
     FIRST_TWO PUSH(0, 0, 0, 1) " 1;" PUSH(1, 1, 0, 2) " 1; gone 0; gone 1",
     2.5201503},
    /* exchanges in steps 0 and 2: x = -1 and centre 0 meet at -0.5; then x - 0.5 * 2 */
    {"easgd",
     "alpha=0.5,period=2",
     1,
     {1, 1, 2, 1},
     "step 0 0 0 0;" PUSH(0, 0, 0, 1) " nan; step 0 1 1 -0.5; step 0 2 2 -1;" PUSH(
         0, 1, 1, 2) " nan; step 0 3 3 -1.5; gone 0",
     -0.5},
    /* v: -0.5, -0.75, -1.375; x: -0.5, -1.25, (-0.625) -2; gradients at x + v / 2 */
    {"easgd",
     "alpha=0.5,period=2,momentum=0.5",
     1,
     {1, 1, 2, 1},
     "step 0 0 0 0;" PUSH(0, 0, 0, 1) " nan; step 0 1 1 -0.75;"
                                      "step 0 2 2 -1.625;" PUSH(0, 1, 1,
                                                                2) " nan; step 0 3 3 -2.6875; gone 0",
     -0.625},
};

static void as_computed_by_hand(void **state)
{
    (void)state;
    hand_agrees(traces, sizeof traces / sizeof *traces);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_computed_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
