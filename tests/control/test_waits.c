/* test_waits.c - long waits are explained, and one that cannot end is found; a slow rank is not stuck. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"

/* Promise: A long wait is explained, and ranks that wait for each other end the run. */

/* Heartbeats and explanations after half a second, a deadlock after three times as long. */
static void start(crew *c, int n)
{
    crew_init(c, n);
    c->config.peer_timeout_ns = 2 * ENI_SECOND;
    c->config.deadlock_ns = 1500 * ENI_MILLI;
    for (int r = 0; r < n; r++) {
        c->hand[r].config.peer_timeout_ns = 2 * ENI_SECOND;
        c->hand[r].config.notice_ns = 500 * ENI_MILLI;
    }
}

static void join(crew *c, int n)
{
    assert_true(crew_start(c));
    crew_join(c, 0, n);
    for (int r = 0; r < n; r++)
        assert_int_equal(c->hand[r].status, EN_OK);
}

static void end_waits(crew *c, int n)
{
    for (int r = 0; r < n; r++)
        eni_member_wait_end(c->hand[r].member);
    assert_true(crew_bye(c));
    crew_fini(c);
}

/* The sentence is logged, and its time is right. */
static void assert_waited(const char *sentence, int64_t begin_ns)
{
    const double seconds = crew_await_number(sentence);
    assert_true(seconds >= 0.5 && seconds <= (double)(eni_now_ns() - begin_ns) / 1e9 + 0.05);
}

static void it_is_said_who_waits_for_whom(void **state)
{
    (void)state;
    crew c;
    char line[256];
    start(&c, 4);
    join(&c, 4);
    assert_true(crew_note(&c, 3, 412, "forward"));
    const int64_t begin = eni_now_ns();
    for (int r = 0; r < 3; r++) {
        eni_member_note(c.hand[r].member, 412, "exchange");
        eni_member_wait_begin(c.hand[r].member, "all-reduce", "fc2.weight", 4000000, 3);
    }
    assert_waited("step 412 all-reduce #3 (fc2.weight, 4.0 MB): 3 of 4 ranks; waiting ", begin);
    snprintf(line, sizeof line, " s for rank 3 (host h, pid %d): alive, in forward\n", (int)getpid());
    assert_true(crew_logged(line));
    assert_int_equal(eni_member_status(c.hand[0].member), EN_OK); /* it is not an error */
    end_waits(&c, 3);
}

/* One is a step behind, and itself waits for another. */
static void a_chain_of_waits_is_told(void **state)
{
    (void)state;
    crew c;
    start(&c, 3);
    join(&c, 3);
    assert_true(crew_note(&c, 0, 9, "exchange") && crew_note(&c, 1, 8, "exchange"));
    assert_true(crew_note(&c, 2, 7, "checkpoint"));
    const int64_t begin = eni_now_ns();
    eni_member_wait_begin(c.hand[1].member, "push-pull", "conv1.weight", 2000, 1);
    assert_waited("step 8 push-pull #1 (conv1.weight, 2.0 kB): 2 of 3 ranks; waiting ", begin);
    assert_true(crew_logged("alive, in checkpoint of step 7"));
    eni_member_wait_begin(c.hand[0].member, "push-pull", "conv1.weight", 2000, 1);
    assert_waited("step 9 push-pull #1 (conv1.weight, 2.0 kB): 1 of 3 ranks; waiting ", begin);
    assert_true(crew_logged("alive, itself waiting in step 8 push-pull #1 (conv1.weight, 2.0 kB); rank 2 "));
    end_waits(&c, 2);
}

typedef struct gatherer {
    eni_member *member;
    const char *tag;
    pthread_t thread;
    en_status status;
} gatherer;

static void *gather(void *argument)
{
    gatherer *g = argument;
    g->status = eni_member_gather(g->member, g->tag, NULL, 0, NULL, crew_soon());
    return NULL;
}

static void a_gather_waits_for_who_evaluates(void **state)
{
    (void)state;
    crew c;
    start(&c, 2);
    join(&c, 2);
    gatherer g = {.member = c.hand[0].member, .tag = "trained"};
    assert_true(crew_note(&c, 0, 7, "finish") && crew_note(&c, 1, 6, "evaluation"));
    const int64_t begin = eni_now_ns();
    pthread_create(&g.thread, NULL, gather, &g);
    assert_waited("step 7 gather (trained): 1 of 2 ranks; waiting ", begin);
    assert_true(crew_logged("alive, in evaluation of step 6"));
    assert_int_equal(eni_member_gather(c.hand[1].member, "trained", NULL, 0, NULL, crew_soon()), EN_OK);
    pthread_join(g.thread, NULL);
    assert_int_equal(g.status, EN_OK);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void a_stopped_rank_is_told_from_a_slow_one(void **state)
{
    (void)state;
    crew c;
    int ready;
    start(&c, 2);
    c.config.peer_timeout_ns = c.hand[0].config.peer_timeout_ns = c.hand[1].config.peer_timeout_ns =
        4 * ENI_SECOND;
    int listener = crew_listen(&c);
    pid_t pid = crew_fork_victim(&c, 1, listener, false, &ready);
    c.config.listen_fd = listener;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 1);
    assert_int_equal(crew_await_ready(&c, ready), 0);
    kill(pid, SIGSTOP);
    gatherer g = {.member = c.hand[0].member, .tag = "x"};
    pthread_create(&g.thread, NULL, gather, &g);
    bool is_said = crew_await_logged(": stopped (SIGSTOP or Ctrl-Z)\n"); /* while it may still go on */
    en_status st = eni_member_status(c.hand[0].member);
    pthread_join(g.thread, NULL);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(is_said);
    assert_int_equal(st, EN_OK);
    assert_int_equal(g.status, EN_EPEER); /* after the peer timeout */
    assert_true(crew_await_number(" was stopped (SIGSTOP or Ctrl-Z) for ") >= 4);
    crew_fini(&c);
}

/* ---- waits that cannot end ---- */

static void a_skipped_exchange_is_found(void **state)
{
    (void)state;
    crew c;
    char reason[ENI_REASON_MAX];
    start(&c, 3);
    join(&c, 3);
    for (int r = 0; r < 2; r++) {
        eni_member_note(c.hand[r].member, 5, "exchange");
        eni_member_wait_begin(c.hand[r].member, "all-reduce", "fc1.weight", 1000, (uint32_t)(2 - r));
    }
    eni_member_note(c.hand[2].member, 6, "finish");
    assert_int_equal(eni_member_gather(c.hand[2].member, "trained", NULL, 0, NULL, crew_soon()),
                     EN_EMISMATCH);
    assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EMISMATCH);
    snprintf(reason, sizeof reason, "%s", eni_member_outcome(c.hand[0].member).reason);
    assert_true(crew_has(reason, "exchange*rank 0 in step 5 all-reduce #2 (fc1.weight, 1.0 kB), "
                                 "rank 1 in step 5 all-reduce #1 (fc1.weight, 1.0 kB), "
                                 "rank 2 in step 6 gather (trained)"));
    crew_fini(&c);
}

static void waiting_for_one_who_has_left_is_found(void **state)
{
    (void)state;
    crew c;
    start(&c, 2);
    join(&c, 2);
    assert_int_equal(eni_member_bye(c.hand[1].member, crew_soon()), EN_OK);
    eni_member_note(c.hand[0].member, 3, "exchange");
    eni_member_wait_begin(c.hand[0].member, "all-reduce", "b", 100, 1);
    assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EMISMATCH);
    assert_true(crew_logged("rank 0 in step 3 all-reduce #1 (b, 0.1 kB), rank 1 *left"));
    crew_fini(&c);
}

/* It is not found within more than twice the time of a deadlock. */
static void assert_goes_on(crew *c)
{
    assert_int_equal(eni_member_verdict(c->hand[0].member, eni_now_ns() + 3500 * ENI_MILLI), EN_ETIMEOUT);
}

static void slow_is_not_stuck(void **state)
{
    (void)state;
    enum { ALL_AT_ONE_PLACE, ONE_COMPUTES, EMULATED_NETWORK, CASES };
    for (int which = 0; which < CASES; which++) {
        crew c;
        start(&c, 2);
        for (int r = 0; r < 2; r++)
            c.hand[r].config.is_slowed = which == EMULATED_NETWORK;
        join(&c, 2);
        for (int r = 0; r < 2; r++) {
            uint32_t number = which == ALL_AT_ONE_PLACE ? 1 : (uint32_t)r + 1;
            eni_member_note(c.hand[r].member, 5, r == 0 ? "exchange" : "checkpoint");
            if (r == 0 || which != ONE_COMPUTES)
                eni_member_wait_begin(c.hand[r].member, "all-reduce", "w", 1000, number);
        }
        assert_goes_on(&c);
        end_waits(&c, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_is_said_who_waits_for_whom),
                                       cmocka_unit_test(a_chain_of_waits_is_told),
                                       cmocka_unit_test(a_gather_waits_for_who_evaluates),
                                       cmocka_unit_test(a_stopped_rank_is_told_from_a_slow_one),
                                       cmocka_unit_test(a_skipped_exchange_is_found),
                                       cmocka_unit_test(waiting_for_one_who_has_left_is_found),
                                       cmocka_unit_test(slow_is_not_stuck)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
