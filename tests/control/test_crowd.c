/* test_crowd.c - silent connections take all of the leader's slots, again and again; members join
 * nevertheless. A leader without a descriptor for a member accepts it later. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
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

/* A process of its own: a member needs descriptors, too. */
static pid_t fork_member(crew *c, int listener, int go)
{
    char byte;
    const pid_t pid = fork();
    if (pid != 0) return pid;
    close(listener);
    eni_log_set_level(-1);
    crew_hand *hand = &c->hand[0];
    if (read(go, &byte, 1) != 1 || eni_member_open(&hand->config, &hand->member) != EN_OK) _exit(1);
    _exit(eni_member_bye(hand->member, crew_soon()) == EN_OK ? 0 : 1);
}

static double cpu_ms(void)
{
    struct timespec used;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used), 0);
    return (double)used.tv_sec * 1e3 + (double)used.tv_nsec * 1e-6;
}

static void a_leader_without_descriptors_waits(void **state)
{
    (void)state;
    crew c;
    struct rlimit before;
    int go[2], taken[256], n = 0, status;
    crew_init(&c, 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){256, before.rlim_max}), 0);
    assert_int_equal(pipe(go), 0);
    c.config.listen_fd = crew_listen(&c);
    const pid_t pid = fork_member(&c, c.config.listen_fd, go[0]);
    assert_true(crew_start(&c));
    while ((taken[n] = dup(go[0])) >= 0)
        n++;
    assert_int_equal(write(go[1], "g", 1), 1);
    assert_true(crew_await_logged("the leader of this run*256*ulimit -n"));
    const double used_ms = cpu_ms();
    eni_sleep_until(eni_now_ns() + 500 * ENI_MILLI); /* and uses next to none */
    assert_true(cpu_ms() - used_ms < 100);
    assert_int_equal(crew_count("accept failed") + crew_count("ulimit -n"), 1);
    while (n > 0)
        close(taken[--n]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_OK);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    close(go[0]);
    close(go[1]);
    crew_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_leader_without_descriptors_waits),
                                       cmocka_unit_test(silent_unauthenticated_do_not_keep_members_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
