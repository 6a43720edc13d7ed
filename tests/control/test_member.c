/* test_member.c - deaths: of a member by SIGKILL, of a silent one, of the leader; and the message about each.
 * Victims are processes of their own, forked before any thread exists; survivors are threads of the test. */
#include <poll.h>
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
#include "core/log.h"
#include "crew.h"

static const int64_t silence_ns = 2 * ENI_SECOND;

/* Starts ranks 0 and 2 here and rank 1 as a victim. */
static pid_t start_with_victim(crew *c, const char *host_id)
{
    int ready;
    crew_init(c, 3);
    c->hand[1].config.host_id = host_id;
    c->config.peer_timeout_ns = silence_ns;
    for (int r = 0; r < 3; r++)
        c->hand[r].config.peer_timeout_ns = silence_ns;
    int listener = crew_listen(c);
    pid_t pid = crew_fork_victim(c, 1, listener, false, &ready);
    c->config.listen_fd = listener;
    assert_true(crew_start(c));
    c->hand[3] = c->hand[2]; /* threads of hands 0 and 3 */
    c->hand[2].config.rank = 0;
    crew_join(c, 2, 2);
    assert_int_equal(c->hand[2].status, EN_OK);
    assert_int_equal(c->hand[3].status, EN_OK);
    assert_int_equal(crew_await_ready(c, ready), 0);
    return pid;
}

/* Both survivors and the leader name the same victim in the same words. */
static void assert_named(crew *c, pid_t pid, const char *cause)
{
    char text[ENI_REASON_MAX], first[ENI_REASON_MAX];
    assert_int_equal(eni_leader_wait(c->leader, crew_soon(), -1), EN_EPEER);
    snprintf(first, sizeof first, "%s", eni_leader_outcome(c->leader).reason);
    for (int h = 2; h < 4; h++) {
        eni_member *member = c->hand[h].member;
        assert_int_equal(eni_member_verdict(member, crew_soon()), EN_EPEER);
        assert_true(eni_member_outcome(member).has_death);
        const eni_death death = eni_member_outcome(member).death;
        assert_int_equal(death.rank, 1);
        assert_int_equal(death.pid, pid);
        assert_int_equal(death.step, 41);
        assert_string_equal(death.phase, "backward");
        assert_string_equal(death.host, "h");
        snprintf(text, sizeof text, "%s", eni_member_outcome(member).reason);
        assert_string_equal(text, first);
    }
    assert_non_null(strstr(first, cause));
    assert_non_null(strstr(first, "at step 41 in backward"));
}

static void a_killed_rank_is_named_to_all(void **state)
{
    (void)state;
    crew c;
    eni_blobs blobs;
    pid_t pid = start_with_victim(&c, "h/1");
    kill(pid, SIGKILL);
    /* A survivor that waits in a gather is woken. */
    assert_int_equal(eni_member_gather(c.hand[2].member, "x", "", 0, &blobs, crew_soon()), EN_EPEER);
    assert_named(&c, pid, "connection closed"); /* not by silence */
    uint64_t index;
    assert_int_equal(eni_member_claim(c.hand[3].member, &index, crew_soon()), EN_EPEER);
    assert_int_equal(eni_member_bye(c.hand[3].member, crew_soon()), EN_EPEER);
    crew_fini(&c);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_silent_rank_is_named_to_all(void **state)
{
    (void)state;
    crew c;
    static const char *const cases[][2] = {{"h/1", "was stopped (SIGSTOP or Ctrl-Z) for "},
                                           {"far/2", "silent for "}}; /* not visible from here */
    for (size_t i = 0; i < 2; i++) {
        const int64_t begin = eni_now_ns();
        pid_t pid = start_with_victim(&c, cases[i][0]);
        kill(pid, SIGSTOP);
        assert_named(&c, pid, cases[i][1]);
        const double seconds = crew_await_number(cases[i][1]);
        assert_true(seconds >= (double)silence_ns / 1e9 &&
                    seconds <= (double)(eni_now_ns() - begin) / 1e9 + 0.05);
        crew_fini(&c);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
    }
}

/* The leader as a process, which is killed here. */
static pid_t fork_leader(crew *c, int listener)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    eni_log_set_level(-1);
    c->config.listen_fd = listener;
    if (eni_leader_start(&c->config, &c->leader) != EN_OK) _exit(1);
    eni_leader_wait(c->leader, crew_soon(), -1);
    eni_leader_stop(c->leader);
    _exit(0);
}

static void leader_dies(int signal, int32_t leader_rank, const char *words)
{
    crew c;
    crew_init(&c, 2);
    c.config.rank = leader_rank;
    for (int r = 0; r < 2; r++)
        c.hand[r].config.peer_timeout_ns = silence_ns;
    int listener = crew_listen(&c);
    pid_t pid = fork_leader(&c, listener);
    close(listener);
    crew_join(&c, 0, 2);
    assert_int_equal(c.hand[0].status, EN_OK);
    kill(pid, signal);
    for (int r = 0; r < 2; r++) {
        struct pollfd set = {eni_member_fd(c.hand[r].member), POLLIN, 0};
        assert_int_equal(poll(&set, 1, 60000), 1);
        assert_int_equal(eni_member_status(c.hand[r].member), EN_EPEER);
        assert_true(eni_member_outcome(c.hand[r].member).has_death);
        const eni_death death = eni_member_outcome(c.hand[r].member).death;
        assert_int_equal(death.rank, leader_rank);
        assert_int_equal(death.pid, pid);
    }
    assert_true(crew_logged(words));
    crew_fini(&c);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void the_leaders_death_is_noticed(void **state)
{
    (void)state;
    leader_dies(SIGKILL, -1, "the run is broken*psd (pid ");
    leader_dies(SIGKILL, 0, "the run is broken*rank 0 (pid ");
    leader_dies(SIGSTOP, -1, "psd (pid *SIGSTOP");
}

static void an_abort_is_named_to_all(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    eni_member_abort(c.hand[1].member, "the loss is not finite at step 7");
    eni_member_close(c.hand[1].member);
    c.hand[1].member = NULL;
    assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EPEER);
    assert_false(eni_member_outcome(c.hand[0].member).has_death);
    assert_true(crew_logged("rank 1 *: the loss is not finite at step 7"));
    crew_fini(&c);
}

static void a_closed_member_is_a_death_but_not_after_bye(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 3);
    assert_true(crew_start(&c));
    crew_join(&c, 0, 3);
    assert_int_equal(eni_member_bye(c.hand[2].member, crew_soon()), EN_OK);
    eni_member_close(c.hand[2].member);
    c.hand[2].member = NULL;
    assert_int_equal(eni_member_verdict(c.hand[0].member, eni_now_ns() + 150 * ENI_MILLI), EN_ETIMEOUT);
    eni_member_close(c.hand[1].member);
    c.hand[1].member = NULL;
    assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EPEER);
    assert_true(eni_member_outcome(c.hand[0].member).has_death);
    const eni_death death = eni_member_outcome(c.hand[0].member).death;
    assert_int_equal(death.rank, 1);
    crew_fini(&c);
}

static void joining_can_be_interrupted_and_late(void **state)
{
    (void)state;
    crew c;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    c.hand[0].config.join_deadline_ns = eni_now_ns() + 100 * ENI_MILLI;
    crew_join(&c, 0, 1);
    assert_int_equal(c.hand[0].status, EN_ETIMEOUT);
    assert_int_equal(write(ends[1], "x", 1), 1);
    c.hand[1].config.abort_fd = ends[0];
    crew_join(&c, 1, 1);
    assert_int_equal(c.hand[1].status, EN_EINTR);
    close(ends[0]);
    close(ends[1]);
    crew_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_killed_rank_is_named_to_all),
                                       cmocka_unit_test(a_silent_rank_is_named_to_all),
                                       cmocka_unit_test(the_leaders_death_is_noticed),
                                       cmocka_unit_test(an_abort_is_named_to_all),
                                       cmocka_unit_test(a_closed_member_is_a_death_but_not_after_bye),
                                       cmocka_unit_test(joining_can_be_interrupted_and_late)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
