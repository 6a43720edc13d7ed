/* test_stop.c - an early end in good order: every rank ends before the same step, claims end, goodbyes are
 * sent. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"
#include "runtime/control/member_state.h"

/* Promise: All ranks save before the same step when a signal asks for a checkpoint. */

enum { RANKS = 3 };

/* Ranks that train in step: none begins step s + 1 before all have begun step s. */
typedef struct trainer {
    eni_member *member;
    atomic_uint_fast64_t *steps; /* (RANKS) begun so far, by rank */
    int rank;
    pthread_t thread;
    en_status status;
    uint64_t end;
    _Atomic uint64_t saved; /* the last step before which it saves, + 1 */
    uint64_t nsaved;
} trainer;

static bool all_have(const trainer *t, uint64_t step)
{
    for (int r = 0; r < RANKS; r++)
        if (atomic_load(&t->steps[r]) < step) return false;
    return true;
}

static void *train(void *argument)
{
    trainer *t = argument;
    for (t->end = 0;; t->end++) {
        t->status = eni_member_enter(t->member, t->end);
        if (t->status != EN_OK) return NULL;
        if (eni_member_saves(t->member, t->end, false)) {
            t->nsaved++;
            atomic_store(&t->saved, t->end + 1);
        }
        eni_member_note(t->member, (int64_t)t->end, "forward");
        atomic_store(&t->steps[t->rank], t->end + 1);
        while (!all_have(t, t->end + 1) && eni_member_status(t->member) == EN_OK)
            poll(NULL, 0, t->rank); /* ranks of different speed */
    }
}

static void all_end_before_the_same_step(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        crew c;
        char why[ENI_REASON_MAX];
        atomic_uint_fast64_t steps[RANKS] = {0};
        trainer t[RANKS];
        crew_init(&c, RANKS);
        assert_true(crew_start(&c));
        crew_join(&c, 0, RANKS);
        for (int r = 0; r < RANKS; r++) {
            t[r] = (trainer){.member = c.hand[r].member, .steps = steps, .rank = r};
            pthread_create(&t[r].thread, NULL, train, &t[r]);
        }
        while (atomic_load(&steps[0]) < (uint64_t)round)
            poll(NULL, 0, 1);
        if (round % 2 == 0)
            eni_member_stop(c.hand[1].member, "Ctrl-C");
        else
            eni_leader_stop_run(c.leader, "entrain stop");
        for (int r = 0; r < RANKS; r++) {
            pthread_join(t[r].thread, NULL);
            assert_int_equal(t[r].status, EN_ESTOP);
            assert_int_equal(t[r].end, t[0].end);
            assert_int_equal(eni_member_stop_step(c.hand[r].member), t[0].end);
            snprintf(why, sizeof why, "%s", eni_member_outcome(c.hand[r].member).stop_why);
            assert_true(why[0] != '\0');
            assert_non_null(strstr(why, round % 2 == 0 ? "Ctrl-C" : "entrain stop"));
        }
        snprintf(why, sizeof why, "%s", eni_leader_outcome(c.leader).stop_why);
        assert_true(why[0] != '\0');
        assert_string_equal(why, round % 2 == 0 ? "Ctrl-C, at rank 1" : "entrain stop");
        assert_true(crew_bye(&c)); /* a good end */
        crew_fini(&c);
    }
}

/* A signal to all of them is one request; the run goes on, unless it ends at the same moment. */
static void all_save_before_the_same_step(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        crew c;
        atomic_uint_fast64_t steps[RANKS] = {0};
        trainer t[RANKS];
        crew_init(&c, RANKS);
        assert_true(crew_start(&c));
        crew_join(&c, 0, RANKS);
        for (int r = 0; r < RANKS; r++) {
            t[r] = (trainer){.member = c.hand[r].member, .steps = steps, .rank = r};
            pthread_create(&t[r].thread, NULL, train, &t[r]);
        }
        while (atomic_load(&steps[0]) < 5)
            poll(NULL, 0, 1);
        for (int r = 0; r < RANKS; r++)
            eni_member_save(c.hand[r].member);
        const int64_t deadline = crew_soon();
        for (int r = 0; r < RANKS && round > 0; r++)
            while (atomic_load(&t[r].saved) == 0 && eni_now_ns() < deadline)
                poll(NULL, 0, 1);
        const uint64_t then = atomic_load(&steps[0]);
        while (round > 0 && atomic_load(&steps[0]) < then + 5 && eni_now_ns() < deadline)
            poll(NULL, 0, 1);
        assert_true(round == 0 || atomic_load(&steps[0]) >= then + 5);
        eni_member_stop(c.hand[0].member, "enough");
        for (int r = 0; r < RANKS; r++) {
            pthread_join(t[r].thread, NULL);
            assert_int_equal(t[r].end, t[0].end);
            assert_int_equal(t[r].saved, t[0].saved);
            assert_int_equal(t[r].nsaved, t[0].nsaved);
            assert_true(t[r].nsaved == 1 || (round == 0 && t[r].nsaved == 0)); /* it ends there */
        }
        assert_true(crew_bye(&c));
        crew_fini(&c);
    }
}

/* A psd that was killed had informed rank 0 only, and the next one is first asked to stop: a rank that knows
 * of a step to save saves there, with all others. */
static void a_save_that_one_knows_of_is_all_ranks(void **state)
{
    (void)state;
    for (int64_t entered = 3; entered <= 4; entered++) { /* rank 0 has yet to reach it, or waits there */
        crew c;
        crew_init(&c, RANKS);
        assert_true(crew_start(&c));
        crew_join(&c, 0, RANKS);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(eni_member_enter(c.hand[r].member, r == 0 ? (uint64_t)entered : 3), EN_OK);
        atomic_store(&c.hand[0].member->stop.save_step, 4);
        eni_member_stop(c.hand[1].member, "enough");
        const int64_t deadline = crew_soon();
        for (int r = 0; r < RANKS; r++) {
            while (eni_member_stop_step(c.hand[r].member) == ENI_STEP_NEVER && eni_now_ns() < deadline)
                poll(NULL, 0, 1);
            assert_int_equal(eni_member_stop_step(c.hand[r].member), entered + 1);
            assert_true(eni_member_saves(c.hand[r].member, 4, false));
        }
        assert_true(crew_bye(&c));
        crew_fini(&c);
    }
}

/* A run that claims continues its claims, and rank 0 is informed once. */
static void a_run_that_claims_saves_too(void **state)
{
    (void)state;
    crew c;
    uint64_t index;
    crew_init(&c, 2);
    c.config.budget = 1000000;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    eni_member_save(c.hand[1].member);
    const int64_t deadline = crew_soon();
    bool saves = false;
    while (!saves && eni_now_ns() < deadline) {
        assert_int_equal(eni_member_claim(c.hand[0].member, &index, deadline), EN_OK);
        saves = eni_member_saves(c.hand[0].member, 0, true);
    }
    assert_true(saves);
    assert_false(eni_member_saves(c.hand[0].member, 0, true));
    assert_int_equal(eni_member_claim(c.hand[1].member, &index, deadline), EN_OK);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void claims_end(void **state)
{
    (void)state;
    crew c;
    uint64_t index;
    crew_init(&c, 2);
    c.config.budget = 1000000;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    assert_int_equal(eni_member_claim(c.hand[0].member, &index, crew_soon()), EN_OK);
    assert_int_equal(eni_member_stop_step(c.hand[0].member), ENI_STEP_NEVER);
    eni_member_stop(c.hand[0].member, "enough");
    eni_member_stop(c.hand[1].member, "enough");
    assert_int_equal(eni_member_claim(c.hand[0].member, &index, crew_soon()), EN_ESTOP);
    en_status st;
    int64_t deadline = crew_soon();
    while ((st = eni_member_claim(c.hand[1].member, &index, deadline)) == EN_OK) {
    }
    assert_int_equal(st, EN_ESTOP);
    assert_true(index < 999999);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* Ctrl-C at one rank: first in good order; when that takes too long all waits are woken. */
static void the_user_is_heard_in_good_order_first(void **state)
{
    (void)state;
    crew c;
    int user = eventfd(0, EFD_CLOEXEC);
    char why[ENI_REASON_MAX];
    crew_init(&c, 2);
    c.hand[0].config.abort_fd = user;
    c.hand[0].config.stop_grace_ns = 400 * ENI_MILLI;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    assert_int_equal(c.hand[0].status, EN_OK);
    int64_t begin = eni_now_ns();
    assert_int_equal(eventfd_write(user, 1), 0);
    assert_true(crew_await_logged("ends early*interrupted by the user, at rank 0"));
    do {
        snprintf(why, sizeof why, "%s", eni_member_outcome(c.hand[1].member).stop_why);
        poll(NULL, 0, 1);
    } while (why[0] == '\0' && eni_now_ns() < begin + 10 * ENI_SECOND);
    assert_string_equal(why, "interrupted by the user, at rank 0");
    assert_int_equal(eni_member_enter(c.hand[1].member, 0), EN_ESTOP);
    assert_int_equal(eni_member_status(c.hand[0].member), EN_OK);
    struct pollfd set = {eni_member_fd(c.hand[0].member), POLLIN, 0};
    assert_int_equal(poll(&set, 1, 60000), 1);
    assert_true(eni_now_ns() - begin >= 400 * ENI_MILLI);
    assert_int_equal(eni_member_gather(c.hand[0].member, "x", NULL, 0, NULL, crew_soon()), EN_EINTR);
    eni_member_abort(c.hand[0].member, "interrupted by the user");
    assert_int_equal(eni_member_verdict(c.hand[1].member, crew_soon()), EN_EPEER);
    assert_true(crew_logged("rank 0 (pid ")); /* aborted, not dead */
    assert_int_equal(crew_count(" died"), 0);
    close(user);
    crew_fini(&c);
}

static void *open_hand(void *argument)
{
    crew_hand *hand = argument;
    hand->status = eni_member_open(&hand->config, &hand->member);
    return NULL;
}

static void a_run_that_has_not_begun_ends_at_once(void **state)
{
    (void)state;
    crew c;
    int user = eventfd(0, EFD_CLOEXEC);
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    c.hand[0].config.abort_fd = user;
    c.hand[0].config.notice_ns = 50 * ENI_MILLI;
    pthread_create(&c.hand[0].thread, NULL, open_hand, &c.hand[0]);
    assert_true(crew_await_logged("1 of 2 ranks")); /* so it waits for the other */
    assert_int_equal(eventfd_write(user, 1), 0);
    pthread_join(c.hand[0].thread, NULL);
    assert_int_equal(c.hand[0].status, EN_EINTR);
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    assert_true(crew_logged("rank 0 *: interrupted by the user"));
    assert_int_equal(crew_count(" died"), 0);
    close(user);
    crew_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_end_before_the_same_step),
                                       cmocka_unit_test(all_save_before_the_same_step),
                                       cmocka_unit_test(a_save_that_one_knows_of_is_all_ranks),
                                       cmocka_unit_test(a_run_that_claims_saves_too),
                                       cmocka_unit_test(claims_end),
                                       cmocka_unit_test(the_user_is_heard_in_good_order_first),
                                       cmocka_unit_test(a_run_that_has_not_begun_ends_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
