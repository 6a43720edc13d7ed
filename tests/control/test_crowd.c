/* test_crowd.c - connections that say nothing take every connection at the leader, again and again; the
 * members come in all the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"
#include "runtime/net/tcp.h"

enum { CROWD = 300 }; /* the leader has 64 connections for unauthenticated peers */

static void silent_unauthenticated_do_not_keep_members_out(void **state)
{
    (void)state;
    crew c;
    int newcomer[CROWD];
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    for (int i = 0; i < CROWD; i++)
        assert_int_equal(eni_tcp_connect(eni_leader_address(c.leader), crew_soon(), -1, &newcomer[i]), EN_OK);
    int64_t begin = eni_now_ns();
    crew_join(&c, 0, 2);
    assert_int_equal(c.hand[0].status, EN_OK);
    assert_int_equal(c.hand[1].status, EN_OK);
    assert_true(eni_now_ns() - begin <
                4 * ENI_SECOND); /* not by waiting until the unauthenticated peers' time is up */
    for (int i = 0; i < CROWD; i++)
        close(newcomer[i]);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(silent_unauthenticated_do_not_keep_members_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
