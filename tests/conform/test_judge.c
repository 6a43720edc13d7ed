/* test_judge.c - a run that differs from its paper in one event is found there, and told as a student needs it. */
#include "tests/conform/trace.h"

/* Promise: A run that differs from its paper in one event is found at that event. */

#define FIRST_TWO "step 0 0 0 0; step 1 0 1 0;"

typedef struct wrong {
    const char *strategy, *options, *lines;
    uint64_t event;
    const char *words[3];
} wrong;

static const wrong runs[] = {
    {"ringmaster",
     "threshold=1",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 1; push 1 1 0; reply 1 2; taken 1 2 1; gone 0; gone 1",
     5,
     {"rank 1 pushed", "applied with weight 1; the paper drops it", "delay 1 >= 1"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; reply 0 0; taken 0 0 1; gone 0; gone 1",
     2,
     {"kept for a later step; the paper applies it"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; reply 0 0; taken 0 0 nan; gone 0; gone 1",
     2,
     {"dropped; the paper applies it"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; taken 0 1 1; push 1 1 0; reply 0 2; reply 1 2; taken 1 2 1; gone 0; gone 1",
     2,
     {"answers nobody; the paper answers rank 0"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 1; step 0 1 2 -0.25; gone 0; gone 1",
     5,
     {"rank 0 begins step 1 with -0.25", "the paper has -0.5"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 0.5; step 0 1 2 -0.25; gone 0; gone 1",
     5,
     {"weighs the push of event 2 with 1, not 0.5"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 1; push 1 1 1; reply 1 2; taken 1 2 1; gone 0; gone 1",
     5,
     {"says base 1; the paper sent it version 0"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 1; step 1 1 2 0; gone 0; gone 1",
     5,
     {"rank 1 has made no call of bucket 0 in step 0"}},
    {"ssp",
     "bound=0",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 1; push 1 1 0; reply 1 2; taken 1 2 1; gone 0; gone 1",
     2,
     {"answers rank 0; the paper answers nobody", "rank 0 is at clock 1, the slowest at 0, bound 0"}},
    {"ps-sync",
     "",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 1; push 1 1 0; reply 1 2; taken 1 2 1; gone 0; gone 1",
     2,
     {"applied with weight 1; the paper keeps it for a later step"}},
    {"easgd",
     "period=2",
     "step 0 0 0 0; push 0 0 0; reply 0 1; taken 0 1 nan; step 0 1 1 -0.5; push 0 1 1; reply 0 2; taken 0 2 "
     "nan; gone 0",
     5,
     {"rank 0 calls the server in step 1; the paper does not"}},
    {"local-sgd",
     "period=1",
     FIRST_TWO "step 0 1 2 -0.5; step 1 1 3 -0.5",
     2,
     {"the paper has -0.75", "step 0 ends with an average"}},
    {"ps-async",
     "",
     FIRST_TWO "push 0 0 0; reply 0 1; taken 0 1 1; reply 1 1; gone 0; gone 1",
     5,
     {"rank 1 is answered by a timer"}},
    {"ring", "", FIRST_TWO "step 0 1 2 -0.75", 2, {"only 1 of 2 ranks take part in step 1"}},
};

static void found_at_the_event(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const wrong *w = &runs[i];
        const hand_trace t = {w->strategy,  w->options, w->strategy[0] == 'e' ? 1 : 2,
                              {1, 2, 1, 1}, w->lines,   NAN};
        const eni_judgement j = hand_judge(&t);
        if (j.agrees) fail_msg("%s, %s: agrees", w->strategy, w->lines);
        if (j.event != w->event)
            fail_msg("%s: found at %d, not %d: %s", w->strategy, (int)j.event, (int)w->event, j.finding);
        for (int k = 0; k < 3 && w->words[k] != NULL; k++)
            if (strstr(j.finding, w->words[k]) == NULL)
                fail_msg("%s: \"%s\" expected in: %s", w->strategy, w->words[k], j.finding);
        assert_true(j.before[ENI_FINDING_LINES - 1][0] != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(found_at_the_event)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
