/* test_loss.c - deaths that a closed connection alone does not show: before WELCOME, with the connection held
 * open elsewhere, and those that the run survives. */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
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
#include "runtime/net/process.h"

static void bury(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void *open_hand(void *argument)
{
    crew_hand *hand = argument;
    hand->status = eni_member_open(&hand->config, &hand->member);
    return NULL;
}

/* A rank dies while another has yet to join. */
static void die_in_join(int32_t leader_rank)
{
    crew c;
    char line[128];
    int ready;
    crew_init(&c, 3);
    eni_log_set_level(ENI_LOG_DEBUG);
    c.config.rank = leader_rank;
    int listener = crew_listen(&c);
    pid_t pid = crew_fork_victim(&c, 1, listener, false, &ready);
    close(ready);
    c.config.listen_fd = listener;
    assert_true(crew_start(&c));
    pthread_create(&c.hand[0].thread, NULL, open_hand, &c.hand[0]);
    assert_true(crew_await_logged("rank 0 joined"));
    assert_true(crew_await_logged("rank 1 joined"));
    kill(pid, SIGKILL);
    pthread_join(c.hand[0].thread, NULL);
    assert_int_equal(c.hand[0].status, EN_EPEER);
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    assert_true(eni_leader_outcome(c.leader).has_death);
    const eni_death death = eni_leader_outcome(c.leader).death;
    assert_int_equal(death.rank, 1);
    assert_int_equal(death.pid, pid);
    assert_string_equal(death.phase, "join");
    snprintf(line, sizeof line, "rank 1 (pid %d on host h) died in join: its connection closed", (int)pid);
    assert_true(crew_logged(line));
    /* One line per process: a leader inside rank 0 leaves it to its own member. */
    assert_int_equal(crew_count(line), leader_rank == 0 ? 1 : 2);
    crew_fini(&c);
    bury(pid);
}

static void a_death_before_welcome_ends_the_run(void **state)
{
    (void)state;
    die_in_join(-1);
    die_in_join(0);
}

static void the_leaders_death_before_welcome_is_named(void **state)
{
    (void)state;
    crew c;
    char line[128];
    crew_init(&c, 2);
    int listener = crew_listen(&c);
    pid_t pid = fork();
    if (pid == 0) {
        eni_log_set_level(-1);
        c.config.listen_fd = listener;
        if (eni_leader_start(&c.config, &c.leader) != EN_OK) _exit(1);
        for (;;)
            pause();
    }
    close(listener);
    c.hand[0].config.notice_ns = 50 * ENI_MILLI;
    pthread_create(&c.hand[0].thread, NULL, open_hand, &c.hand[0]);
    assert_true(crew_await_logged("1 of 2 ranks*missing rank 1")); /* so it has joined */
    kill(pid, SIGKILL);
    pthread_join(c.hand[0].thread, NULL);
    assert_int_equal(c.hand[0].status, EN_EPEER);
    snprintf(line, sizeof line, "psd (pid %d on host h) died in join: its connection closed", (int)pid);
    assert_true(crew_logged(line));
    crew_fini(&c);
    bury(pid);
}

/* Ranks 0 and 2 here, rank 1 a process. */
static pid_t start_three(crew *c, bool is_held, pid_t *holder)
{
    int ready;
    for (int r = 0; r < 3; r++)
        c->hand[r].config.peer_timeout_ns = c->config.peer_timeout_ns = 4 * ENI_SECOND;
    int listener = crew_listen(c);
    pid_t pid = crew_fork_victim(c, 1, listener, is_held, &ready);
    c->config.listen_fd = listener;
    assert_true(crew_start(c));
    c->hand[3] = c->hand[2]; /* threads of hands 0 and 3 would not be neighbours otherwise */
    c->hand[2].config.rank = 0;
    crew_join(c, 2, 2);
    *holder = crew_await_ready(c, ready);
    assert_int_equal(c->hand[2].status, EN_OK);
    assert_int_equal(c->hand[3].status, EN_OK);
    return pid;
}

static void a_death_behind_an_open_connection_is_seen(void **state)
{
    (void)state;
    crew c;
    pid_t holder;
    crew_init(&c, 3);
    pid_t pid = start_three(&c, true, &holder);
    assert_true(holder > 0);
    int64_t begin = eni_now_ns();
    kill(pid, SIGKILL);
    en_status st = eni_member_verdict(c.hand[2].member, crew_soon());
    kill(holder, SIGKILL);
    assert_int_equal(st, EN_EPEER);
    assert_true(eni_now_ns() - begin < 2 * ENI_SECOND); /* before it is silent for 4 s */
    assert_true(crew_logged("step 41 in backward*process ended"));
    crew_fini(&c);
    bury(pid);
}

static void count_left(void *user, int32_t rank)
{
    atomic_int *left = user;
    if (rank == 1) atomic_fetch_add(left, 1);
}

typedef struct gatherer {
    eni_member *member;
    pthread_t thread;
    en_status status;
    eni_blobs blobs;
} gatherer;

static void *gather(void *argument)
{
    gatherer *g = argument;
    g->status = eni_member_gather(g->member, "x", "blob", 4, &g->blobs, crew_soon());
    return NULL;
}

static en_status go_on(void *user, const eni_world_info *world, eni_terms *terms)
{
    (void)user;
    (void)world;
    terms->goes_on = true;
    terms->budget = 5;
    return EN_OK;
}

static void a_run_may_go_on_without_a_rank(void **state)
{
    (void)state;
    crew c;
    pid_t holder;
    atomic_int left = 0;
    uint64_t index;
    eni_death death;
    crew_init(&c, 3);
    c.config.on_world = go_on;
    c.config.on_left = count_left;
    c.config.user = &left;
    pid_t pid = start_three(&c, false, &holder);
    gatherer g[2] = {{.member = c.hand[2].member}, {.member = c.hand[3].member}};
    pthread_create(&g[0].thread, NULL, gather, &g[0]); /* one waits already, one comes later */
    kill(pid, SIGKILL);
    assert_true(crew_await_logged("connection closed*the run goes on"));
    pthread_create(&g[1].thread, NULL, gather, &g[1]);
    for (int i = 0; i < 2; i++) {
        pthread_join(g[i].thread, NULL);
        assert_int_equal(g[i].status, EN_OK);
        assert_int_equal(g[i].blobs.count, 4);
        assert_int_equal(g[i].blobs.blob[0].bytes, 4);
        assert_int_equal(g[i].blobs.blob[1].bytes, 0); /* the lost one's */
        assert_int_equal(g[i].blobs.blob[2].bytes, 4);
        eni_blobs_fini(&g[i].blobs);
        assert_true(eni_member_has_left(g[i].member, 1, &death));
        assert_int_equal(death.pid, pid);
        assert_int_equal(death.step, 41);
        assert_false(eni_member_has_left(g[i].member, 0, NULL));
        assert_int_equal(eni_member_status(g[i].member), EN_OK);
    }
    assert_int_equal(atomic_load(&left), 1);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(eni_member_claim(g[i % 2].member, &index, crew_soon()), EN_OK);
        assert_int_equal(index, i);
    }
    assert_true(crew_bye(&c)); /* the goodbyes count the living */
    crew_fini(&c);
    bury(pid);
}

/* It may not have sent what the others need to begin. */
static void a_death_before_the_first_step_ends_the_run(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 3);
    c.config.on_world = go_on;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 3);
    eni_member_close(c.hand[1].member);
    c.hand[1].member = NULL;
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    assert_int_equal(eni_member_verdict(c.hand[2].member, crew_soon()), EN_EPEER);
    crew_fini(&c);
}

static void the_last_rank_cannot_be_done_without(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 3);
    c.config.on_world = go_on;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 3);
    assert_true(crew_note(&c, 1, 0, "forward")); /* an earlier death ends the run */
    assert_int_equal(eni_member_bye(c.hand[0].member, crew_soon()), EN_OK);
    eni_member_close(c.hand[1].member);
    c.hand[1].member = NULL;
    assert_true(crew_await_logged("the run goes on"));
    eni_member_close(c.hand[2].member);
    c.hand[2].member = NULL;
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    crew_fini(&c);
}

/* Rank 0 keeps the curve and the result, whether it dies or aborts. */
static void the_first_rank_cannot_give_up_alone(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 3);
    c.config.on_world = go_on;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 3);
    assert_true(crew_note(&c, 2, 0, "forward"));
    eni_member_abort(c.hand[2].member, "no room");
    assert_true(crew_await_logged("no room; *the run goes on"));
    eni_member_abort(c.hand[0].member, "no room for the result");
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    assert_int_equal(eni_member_verdict(c.hand[1].member, crew_soon()), EN_EPEER);
    assert_true(crew_logged("the run is broken*rank 0 (pid "));
    crew_fini(&c);
}

/* A goodbye while the leader looks for the cause of an abort does not make the run successful. */
static void a_goodbye_does_not_hide_an_abort(void **state)
{
    (void)state;
    crew c;
    uint64_t index;
    crew_init(&c, 2);
    c.config.budget = 1;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    eni_member_abort(c.hand[1].member, "no room");
    /* The answer shows that the leader has read the abort. */
    assert_int_equal(eni_member_claim(c.hand[0].member, &index, crew_soon()), EN_OK);
    assert_int_equal(eni_member_bye(c.hand[0].member, crew_soon()), EN_EPEER);
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    crew_fini(&c);
}

static void a_process_is_known_by_its_birth(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        for (;;)
            pause();
    }
    uint64_t born = eni_process_born(pid);
    assert_true(born > 0);
    assert_int_equal(eni_process_look(pid, born), ENI_PROCESS_RUNS);
    assert_int_equal(eni_process_look(pid, born + 1), ENI_PROCESS_ENDED); /* another process with that pid */
    assert_int_equal(eni_process_look(pid, 0), ENI_PROCESS_UNKNOWN);
    assert_int_equal(eni_process_watch(pid, born + 1), -1);
    int fd = eni_process_watch(pid, born);
    assert_true(fd >= 0);
    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    assert_int_equal(eni_process_look(pid, born), ENI_PROCESS_STOPPED);
    struct pollfd set = {fd, POLLIN, 0};
    assert_int_equal(poll(&set, 1, 0), 0);
    kill(pid, SIGKILL);
    assert_int_equal(poll(&set, 1, 60000), 1);
    assert_int_equal(eni_process_look(pid, born), ENI_PROCESS_ENDED); /* a zombie */
    close(fd);
    bury(pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_process_is_known_by_its_birth),
                                       cmocka_unit_test(a_death_before_welcome_ends_the_run),
                                       cmocka_unit_test(the_leaders_death_before_welcome_is_named),
                                       cmocka_unit_test(a_death_behind_an_open_connection_is_seen),
                                       cmocka_unit_test(a_run_may_go_on_without_a_rank),
                                       cmocka_unit_test(a_death_before_the_first_step_ends_the_run),
                                       cmocka_unit_test(the_last_rank_cannot_be_done_without),
                                       cmocka_unit_test(the_first_rank_cannot_give_up_alone),
                                       cmocka_unit_test(a_goodbye_does_not_hide_an_abort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
