/* test_newcomers.c - ranks that join a running run: which rank they get, when they are admitted, and
 * refusals; and how one leaves. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"
#include "runtime/control/ask.h"

/* Promise: A newcomer gets a rank number of its own, joins between gathers, and leaves in good order; one with
 * other flags is refused. */

enum { FIRST = 2, PLACES = 3, BUDGET = 100 };

static en_status allow(void *user, const eni_world_info *world, eni_terms *terms)
{
    (void)user, (void)world;
    terms->goes_on = true;
    return EN_OK;
}

static void open_run(crew *c, int nplaces)
{
    crew_init(c, nplaces > 0 ? PLACES * ENI_RANKS_PER_PLACE : FIRST);
    c->config.nfirst = FIRST;
    c->config.nplaces = nplaces;
    c->config.budget = BUDGET;
    c->config.on_world = allow;
    for (int h = FIRST; h < CREW_MAX; h++)
        c->hand[h].config.rank = ENI_RANK_NEW;
    assert_true(crew_start(c));
    crew_join(c, 0, FIRST);
    for (int h = 0; h < FIRST; h++)
        assert_int_equal(c->hand[h].status, EN_OK);
}

/* As after the gathers of the start. */
static void train(crew *c)
{
    for (int h = 0; h < FIRST; h++)
        assert_true(crew_note(c, h, 0, "forward"));
}

static void come(crew *c, int hand, int rank)
{
    crew_join(c, hand, 1);
    assert_int_equal(c->hand[hand].status, EN_OK);
    assert_int_equal(eni_member_world(c->hand[hand].member)->rank, rank);
}

static void refused(crew *c, int hand, en_status status, const char *sentence)
{
    crew_join(c, hand, 1);
    assert_int_equal(c->hand[hand].status, status);
    assert_true(crew_logged(sentence));
}

static void *gather(void *hand)
{
    crew_hand *h = hand;
    h->status = eni_member_gather(h->member, "trained", "x", 1, NULL, crew_soon());
    return NULL;
}

static void gather_all(crew *c, const int *hands, int n)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&c->hand[hands[i]].thread, NULL, gather, &c->hand[hands[i]]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(c->hand[hands[i]].thread, NULL);
    for (int i = 0; i < n; i++)
        assert_int_equal(c->hand[hands[i]].status, EN_OK);
}

static void expect_presence(crew *c, int hand, size_t at, eni_presence_kind kind, int rank)
{
    eni_presence_event p;
    const int64_t deadline = crew_soon();
    while (!eni_member_presence(c->hand[hand].member, at, &p)) {
        assert_true(eni_now_ns() < deadline);
        poll(NULL, 0, 2);
    }
    assert_int_equal(p.kind, kind);
    assert_int_equal(p.rank, rank);
}

/* ---- joining ------------------------------------------------------------------------------------------- */

static void one_gets_the_next_rank_and_takes_part(void **state)
{
    (void)state;
    crew c;
    uint64_t index[3];
    open_run(&c, PLACES);
    gather_all(&c, (int[]){0, 1}, 2);
    train(&c);
    come(&c, 2, 2);
    const eni_world_info *world = eni_member_world(c.hand[2].member);
    assert_int_equal(world->nranks, PLACES * ENI_RANKS_PER_PLACE);
    assert_int_equal(world->budget, BUDGET);
    assert_int_equal(world->peers[1].pid, world->leader.pid);
    assert_int_equal(world->peers[3].pid, 0);
    assert_true(eni_member_came_after(c.hand[2].member) >= 0);
    assert_int_equal(eni_member_came_after(c.hand[1].member), -1);
    for (int h = 0; h < FIRST; h++)
        expect_presence(&c, h, 0, ENI_CAME, 2);
    for (int h = 0; h < 3; h++)
        assert_int_equal(eni_member_claim(c.hand[h].member, &index[h], crew_soon()), EN_OK);
    assert_true(index[0] == 0 && index[1] == 1 && index[2] == 2);
    gather_all(&c, (int[]){0, 1, 2}, 3); /* the others' second, its own first */
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* While the others are at the start, or in a gather, it waits. */
static void one_that_comes_early_waits(void **state)
{
    (void)state;
    crew c;
    open_run(&c, PLACES);
    c.hand[2].config.join_deadline_ns = eni_now_ns() - ENI_SECOND + 200 * ENI_MILLI; /* a second of grace */
    crew_join(&c, 2, 1);
    assert_int_equal(c.hand[2].status, EN_ETIMEOUT);
    train(&c);
    assert_int_equal(pthread_create(&c.hand[0].thread, NULL, gather, &c.hand[0]), 0);
    assert_true(crew_note(&c, 1, 1, "forward"));
    assert_int_equal(pthread_create(&c.hand[1].thread, NULL, gather, &c.hand[1]), 0);
    come(&c, 3, 2); /* after the gather, whose number is not its own */
    pthread_join(c.hand[0].thread, NULL);
    pthread_join(c.hand[1].thread, NULL);
    gather_all(&c, (int[]){0, 1, 3}, 3);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* Their connections are also needed by the run's own ranks. */
static void no_more_wait_than_there_are_places(void **state)
{
    (void)state;
    crew c;
    int waited = 0;
    open_run(&c, PLACES);
    for (int h = FIRST; h < FIRST + PLACES + 1; h++)
        c.hand[h].config.join_deadline_ns = eni_now_ns() - ENI_SECOND + 500 * ENI_MILLI;
    crew_join(&c, FIRST, PLACES + 1);
    for (int h = FIRST; h < FIRST + PLACES + 1; h++)
        waited += c.hand[h].status == EN_ETIMEOUT;
    assert_int_equal(waited, PLACES);
    assert_true(crew_logged("3 newcomers*3 seats"));
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void a_rank_is_never_given_twice(void **state)
{
    (void)state;
    crew c;
    open_run(&c, PLACES);
    train(&c);
    for (int rank = 2; rank < 6; rank++) {
        come(&c, rank, rank);
        refused(&c, 7, EN_EINVAL, "3 seats*--max-workers");
        eni_member_close(c.hand[rank].member); /* without a goodbye */
        c.hand[rank].member = NULL;
        expect_presence(&c, 0, (size_t)(2 * (rank - 2) + 1), ENI_LOST, rank);
    }
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* ---- leaving on request ---- */

static en_status ask_to_leave(const crew *c, int rank, char why_out[ENI_REASON_MAX])
{
    return eni_ask(eni_leader_address(c->leader), &c->config.token, ENI_ASK_LEAVE, rank, crew_soon(),
                   why_out);
}

static void stays(const crew *c, int rank, const char *words)
{
    char why[ENI_REASON_MAX];
    assert_int_equal(ask_to_leave(c, rank, why), EN_EINVAL);
    if (!crew_has(why, words)) fail_msg("\"%s\", not: %s", why, words);
}

static void *claim(void *hand)
{
    crew_hand *h = hand;
    uint64_t index;
    h->status = eni_member_claim(h->member, &index, crew_soon());
    return NULL;
}

/* It keeps its claims, and gets no more. */
static void expect_no_more(crew *c, int hand)
{
    const int64_t deadline = crew_soon();
    while (!eni_member_is_leaving(c->hand[hand].member)) {
        assert_true(eni_now_ns() < deadline);
        poll(NULL, 0, 2);
    }
    claim(&c->hand[hand]);
    assert_int_equal(c->hand[hand].status, EN_ESTOP);
}

static void one_that_is_asked_to_leaves(void **state)
{
    (void)state;
    crew c;
    char why[ENI_REASON_MAX];
    open_run(&c, PLACES);
    stays(&c, 2, "it has no such rank");
    train(&c);
    come(&c, 2, 2);
    stays(&c, 0, "rank 0 *entrain stop");
    stays(&c, -1, "it has no such rank");
    stays(&c, 3, "it has no such rank");
    claim(&c.hand[2]);
    assert_int_equal(c.hand[2].status, EN_OK);
    assert_int_equal(ask_to_leave(&c, 2, why), EN_OK);
    stays(&c, 2, "already asked");
    expect_no_more(&c, 2);
    refused(&c, 3, EN_EINVAL, "3 seats*--max-workers"); /* until it has left */
    assert_int_equal(pthread_create(&c.hand[0].thread, NULL, gather, &c.hand[0]), 0);
    assert_int_equal(eni_member_bye(c.hand[2].member, crew_soon()), EN_OK);
    gather_all(&c, (int[]){1}, 1); /* the others do not wait for it */
    pthread_join(c.hand[0].thread, NULL);
    assert_int_equal(c.hand[0].status, EN_OK);
    for (int h = 0; h < FIRST; h++)
        expect_presence(&c, h, 1, ENI_WENT, 2);
    stays(&c, 2, "already left");
    come(&c, 4, 3);
    claim(&c.hand[0]);
    assert_int_equal(c.hand[0].status, EN_OK);
    gather_all(&c, (int[]){0, 1, 4}, 3);
    eni_member_close(c.hand[2].member);
    c.hand[2].member = NULL;
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* A newcomer that leaves on its own, as on SIGTERM; and the run goes on. */
static void a_newcomer_that_wants_to_leaves(void **state)
{
    (void)state;
    crew c;
    open_run(&c, PLACES);
    train(&c);
    come(&c, 2, 2);
    eni_member_stop(c.hand[2].member, "Ctrl-C");
    expect_no_more(&c, 2);
    assert_int_equal(eni_member_bye(c.hand[2].member, crew_soon()), EN_OK);
    expect_presence(&c, 0, 1, ENI_WENT, 2);
    gather_all(&c, (int[]){0, 1}, 2);
    eni_member_close(c.hand[2].member);
    c.hand[2].member = NULL;
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* ---- refused ------------------------------------------------------------------------------------------- */

static void who_does_not_fit_is_refused(void **state)
{
    (void)state;
    crew c;
    uint64_t index;
    static const eni_key_value run[] = {{"lr", "0.1"}, {"resume", "from the start"}, {"budget", "100"}},
                               other[] = {{"lr", "0.2"}, {"resume", "from the start"}, {"budget", "100"}},
                               later[] = {{"lr", "0.1"}, {"resume", "of another file"}, {"budget", "50"}};
    crew_init(&c, PLACES * ENI_RANKS_PER_PLACE);
    c.config.nfirst = FIRST;
    c.config.nplaces = PLACES;
    c.config.budget = 3;
    c.config.on_world = allow;
    for (int h = 0; h < CREW_MAX; h++) {
        c.hand[h].config.key_values = h == 2 ? other : h == 3 ? later : run;
        c.hand[h].config.nkey_values = 3;
        if (h >= FIRST) c.hand[h].config.rank = ENI_RANK_NEW;
    }
    c.hand[4].config.rank = 2;
    c.hand[5].config.nranks = 4;
    c.hand[6].config.token.bytes[3] ^= 1;
    assert_true(crew_start(&c));
    crew_join(&c, 0, FIRST);
    train(&c);
    refused(&c, 2, EN_EMISMATCH, "lr *the run has 0.1");
    refused(&c, 4, EN_EINVAL, "ranks are 0 to 1*--rank=new");
    refused(&c, 5, EN_EINVAL, "newcomer*--max-workers=1*run --max-workers=3");
    refused(&c, 6, EN_EDENIED, "token");
    come(&c, 3, 2); /* the start of the run does not matter to it */
    while (eni_member_claim(c.hand[0].member, &index, crew_soon()) == EN_OK) {
    }
    refused(&c, 7, EN_EINVAL, "ending*micro-batches");
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void a_run_without_places_takes_nobody(void **state)
{
    (void)state;
    crew c;
    open_run(&c, 0);
    train(&c);
    c.hand[2].config.nranks = PLACES * ENI_RANKS_PER_PLACE;
    refused(&c, 2, EN_EINVAL, "newcomers*--max-workers=N");
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_gets_the_next_rank_and_takes_part),
                                       cmocka_unit_test(one_that_comes_early_waits),
                                       cmocka_unit_test(no_more_wait_than_there_are_places),
                                       cmocka_unit_test(a_rank_is_never_given_twice),
                                       cmocka_unit_test(one_that_is_asked_to_leaves),
                                       cmocka_unit_test(a_newcomer_that_wants_to_leaves),
                                       cmocka_unit_test(who_does_not_fit_is_refused),
                                       cmocka_unit_test(a_run_without_places_takes_nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
