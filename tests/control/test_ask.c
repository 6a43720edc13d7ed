/* test_ask.c - a request for other workers: the leader ends the run early and in good order, with time for
 * it, or says why not; the token is required. */
#include "runtime/control/ask.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "crew.h"

/* Promise: A request to change the number of workers is refused without the token or for an impossible
 * number, and the run goes on undisturbed. */

enum { RANKS = 3 };

static struct {
    int32_t workers;
    char why[ENI_REASON_MAX];
} resized;

static void on_resize(void *user, int32_t workers, const char *why)
{
    (void)user;
    resized.workers = workers;
    snprintf(resized.why, sizeof resized.why, "%s", why);
}

static void begin(crew *c, eni_worker_range elastic)
{
    memset(&resized, 0, sizeof resized);
    crew_init(c, RANKS);
    c->config.elastic = elastic;
    c->config.on_resize = on_resize;
    assert_true(crew_start(c));
}

static en_status ask(const crew *c, eni_ask_kind kind, int64_t number, char why_out[ENI_REASON_MAX])
{
    return eni_ask(eni_leader_address(c->leader), &c->config.token, kind, number, crew_soon(), why_out);
}

static void it_ends_in_good_order(void **state)
{
    (void)state;
    for (int change = -1; change <= 1; change += 2) {
        crew c;
        char why[ENI_REASON_MAX];
        begin(&c, (eni_worker_range){2, 4, 12});
        crew_join(&c, 0, RANKS);
        assert_int_equal(ask(&c, ENI_ASK_RESIZE, change, why), EN_OK);
        for (int r = 0; r < RANKS; r++) {
            uint64_t step = 0;
            while (eni_member_enter(c.hand[r].member, step) == EN_OK)
                step++;
            assert_int_equal(step, eni_member_stop_step(c.hand[r].member));
            const eni_run_outcome outcome = eni_member_outcome(c.hand[r].member);
            assert_true(outcome.has_time);
            assert_true(crew_has(outcome.stop_why,
                                 change > 0 ? "4 workers*entrain join" : "2 workers*entrain leave"));
        }
        assert_int_equal(resized.workers, RANKS + change);
        assert_string_equal(resized.why, eni_leader_outcome(c.leader).stop_why);
        assert_int_equal(ask(&c, ENI_ASK_RESIZE, change, why), EN_EINVAL); /* once is enough */
        assert_non_null(strstr(why, "ending"));
        assert_true(crew_bye(&c));
        crew_fini(&c);
    }
}

/* Two workers cannot share five samples: a second one leaves too, and both sides say so. */
static void more_leave_than_were_asked(void **state)
{
    (void)state;
    crew c;
    char why[ENI_REASON_MAX];
    begin(&c, (eni_worker_range){1, 4, 5});
    crew_join(&c, 0, RANKS);
    assert_int_equal(ask(&c, ENI_ASK_RESIZE, -1, why), EN_OK);
    assert_true(crew_has(why, "1 worker;*2 workers*5 samples*--global-batch-size"));
    for (int r = 0; r < RANKS; r++)
        for (uint64_t step = 0; eni_member_enter(c.hand[r].member, step) == EN_OK;)
            step++;
    assert_int_equal(resized.workers, 1);
    assert_true(crew_has(resized.why, "2 workers*entrain leave*; 2 workers"));
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void the_run_ends(void **state)
{
    (void)state;
    crew c;
    char why[ENI_REASON_MAX];
    begin(&c, (eni_worker_range){0});
    assert_int_equal(ask(&c, ENI_ASK_STOP, 0, why), EN_EINVAL);
    assert_non_null(strstr(why, "not all"));
    crew_join(&c, 0, RANKS);
    assert_int_equal(ask(&c, ENI_ASK_STOP, 0, why), EN_OK);
    for (int r = 0; r < RANKS; r++) {
        for (uint64_t step = 0; eni_member_enter(c.hand[r].member, step) == EN_OK;)
            step++;
        const eni_run_outcome outcome = eni_member_outcome(c.hand[r].member);
        assert_true(!outcome.has_time && crew_has(outcome.stop_why, "Ctrl-C"));
    }
    assert_int_equal(resized.workers, 0);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void expect_refused(const crew *c, eni_ask_kind kind, int64_t number, const char *words)
{
    char why[ENI_REASON_MAX];
    assert_int_equal(ask(c, kind, number, why), EN_EINVAL);
    if (!crew_has(why, words)) fail_msg("\"%s\", not: %s", why, words);
    assert_int_equal(resized.workers, 0);
}

static void what_cannot_be_is_said(void **state)
{
    crew c;
    char why[ENI_REASON_MAX];
    (void)state;
    begin(&c, (eni_worker_range){3, 6, 12});
    expect_refused(&c, ENI_ASK_RESIZE, 1, "not all");
    crew_join(&c, 0, RANKS);
    expect_refused(&c, ENI_ASK_RESIZE, 4, "--elastic=3..6");
    expect_refused(&c, ENI_ASK_RESIZE, 2, "5 workers*12 samples");
    expect_refused(&c, ENI_ASK_RESIZE, -1, "12 samples*3, 4, 6");
    expect_refused(&c, ENI_ASK_LEAVE, 1, "--max-workers");
    const eni_token other = {{1}};
    assert_int_equal(eni_ask(eni_leader_address(c.leader), &other, ENI_ASK_RESIZE, 1, crew_soon(), why),
                     EN_EDENIED);
    assert_non_null(strstr(why, "token"));
    assert_true(crew_bye(&c)); /* the run was not affected */
    crew_fini(&c);
    begin(&c, (eni_worker_range){0});
    crew_join(&c, 0, RANKS);
    expect_refused(&c, ENI_ASK_RESIZE, 1, "--elastic=MIN..MAX");
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_ends_in_good_order), cmocka_unit_test(the_run_ends),
        cmocka_unit_test(more_leave_than_were_asked), cmocka_unit_test(what_cannot_be_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
