/* test_member_interrupt.c - a user ends one rank: its waits end at once, however long their deadline, and the
 * others still get the reason. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"

/* A deadline that is never reached. */
static int64_t never(void)
{
    return eni_now_ns() + 3600 * ENI_SECOND;
}

static void is_prompt(int64_t begin_ns)
{
    assert_true(eni_now_ns() - begin_ns < 5 * ENI_SECOND);
}

/* Two ranks; rank 0's signals are the descriptor returned. */
static int start_pair(crew *c)
{
    int signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(signal_fd >= 0);
    crew_init(c, 2);
    c->hand[0].config.abort_fd = signal_fd;
    assert_true(crew_start(c));
    crew_join(c, 0, 2);
    assert_int_equal(c->hand[0].status, EN_OK);
    assert_int_equal(c->hand[1].status, EN_OK);
    return signal_fd;
}

static void *send_signal(void *fd)
{
    eventfd_write(*(int *)fd, 1);
    return NULL;
}

static void a_gather_ends_when_the_user_says_so(void **state)
{
    (void)state;
    crew c;
    pthread_t user;
    int signal_fd = start_pair(&c);
    eni_member *member = c.hand[0].member;
    int64_t begin = eni_now_ns();
    assert_int_equal(pthread_create(&user, NULL, send_signal, &signal_fd), 0);
    assert_int_equal(eni_member_gather(member, "trained", NULL, 0, NULL, never()), EN_EINTR);
    pthread_join(user, NULL);
    struct pollfd woken = {eni_member_fd(member), POLLIN, 0};
    assert_int_equal(poll(&woken, 1, 5000), 1);
    assert_int_equal(eni_member_verdict(member, never()), EN_EINTR);
    assert_int_equal(eni_member_status(member), EN_OK); /* the run is whole: we can still speak */
    eni_member_abort(member, "interrupted by the user");
    en_status st = eni_member_gather(c.hand[1].member, "trained", NULL, 0, NULL, never());
    if (st == EN_OK) /* the leader read it before the abort, and had the other one's */
        st = eni_member_gather(c.hand[1].member, "trained again", NULL, 0, NULL, never());
    assert_int_equal(st, EN_EPEER);
    assert_false(eni_member_outcome(c.hand[1].member).has_death);
    assert_true(crew_logged("rank 0 *: interrupted by the user"));
    is_prompt(begin);
    crew_fini(&c);
    close(signal_fd);
}

static void claims_and_goodbyes_end_too(void **state)
{
    (void)state;
    crew c;
    uint64_t index;
    int signal_fd = start_pair(&c);
    eni_member *member = c.hand[0].member;
    eventfd_write(signal_fd, 1);
    assert_int_equal(eni_member_verdict(member, never()), EN_EINTR);
    assert_int_equal(eni_member_claim(member, &index, never()), EN_EINTR);
    assert_int_equal(eni_member_bye(member, never()), EN_EINTR);
    crew_fini(&c);
    close(signal_fd);
}

/* The leader does not answer after an abort: a loader that claims must not wait for it. */
static void who_has_left_is_not_made_to_wait(void **state)
{
    (void)state;
    crew c;
    uint64_t index;
    int signal_fd = start_pair(&c);
    int64_t begin = eni_now_ns();
    eni_member_abort(c.hand[0].member, "out of memory");
    assert_int_equal(eni_member_claim(c.hand[0].member, &index, never()), EN_EINTR);
    assert_int_equal(eni_member_gather(c.hand[0].member, "result", NULL, 0, NULL, never()), EN_EINTR);
    is_prompt(begin);
    crew_fini(&c);
    close(signal_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_gather_ends_when_the_user_says_so),
                                       cmocka_unit_test(claims_and_goodbyes_end_too),
                                       cmocka_unit_test(who_has_left_is_not_made_to_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
