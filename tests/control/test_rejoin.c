/* test_rejoin.c - psd is killed and comes back: every micro-batch is claimed once, every gather is complete,
 * whatever was under way. Leaders are processes, forked by one without threads; their journal is in shared
 * memory. */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "crew.h"
#include "runtime/control/ask.h"
#include "runtime/net/process.h"

enum { RANKS = 3, MOST = 6 /* where ranks come and go */, BUDGET = 6000, GATHERS = 400, KILLS = 6 };

/* The state that leaders leave to the next one, and to the test. */
typedef struct journal {
    eni_revived_rank rank[MOST];
    int64_t pid[RANKS], training_ns;
    uint64_t born[RANKS];
    uint64_t claimed, stop_step;
    uint32_t epoch;
    uint32_t dies_at;                     /* the leader is killed after an entry of this kind; 0: never */
    atomic_int nwritten, is_there, ended; /* ended: 1 + the status */
    bool is_broken;
} journal;

/* ---- the leader's process ---- */

static en_status write_entry(void *user, const eni_entry *entry)
{
    journal *j = user;
    if (j->is_broken) return EN_EIO;
    eni_revived_rank *rank = &j->rank[entry->rank];
    switch (entry->kind) {
    case ENI_ENTRY_CLAIM:
        rank->claim_number = entry->number;
        rank->claim_index = entry->value;
        if (entry->value != UINT64_MAX && entry->value >= j->claimed) j->claimed = entry->value + 1;
        break;
    case ENI_ENTRY_LEFT: rank->has_left = true; break;
    case ENI_ENTRY_BYE: rank->has_said_bye = true; break;
    case ENI_ENTRY_LEAVE: rank->is_leaving = true; break;
    case ENI_ENTRY_TRAIN: j->training_ns = (int64_t)entry->value; break;
    case ENI_ENTRY_CAME:
        rank->came = (int64_t)entry->value;
        rank->born = entry->number;
        break;
    default: j->stop_step = entry->value;
    }
    atomic_fetch_add(&j->nwritten, 1);
    if (entry->kind != j->dies_at) return EN_OK;
    j->dies_at = 0;
    raise(SIGKILL);
    return EN_OK;
}

static en_status note_world(void *user, const eni_world_info *world, eni_terms *terms)
{
    journal *j = user;
    terms->goes_on = world->nranks == MOST;
    for (int r = 0; r < RANKS; r++) {
        j->pid[r] = world->peers[r].pid;
        j->born[r] = world->peers[r].born;
    }
    j->epoch = world->epoch;
    return EN_OK;
}

static void lead(crew *c, journal *j)
{
    eni_peer peers[MOST];
    for (int r = 0; r < MOST; r++)
        peers[r] = r < RANKS ? (eni_peer){r, j->pid[r], j->born[r], .host = "h", .host_id = "h/1"}
                             : (eni_peer){.rank = r, .host = "", .host_id = ""};
    eni_revived revived = {.peers = peers,
                           .rank = j->rank,
                           .epoch = j->epoch,
                           .incarnation = 1,
                           .claimed = j->claimed,
                           .stop_step = j->stop_step,
                           .training_ns = j->training_ns};
    eni_log_set_level(-1);
    c->config.journal = write_entry;
    c->config.on_world = note_world;
    c->config.user = j;
    c->config.budget = BUDGET;
    c->config.server_timeout_ns = 20 * ENI_SECOND;
    if (j->epoch > 0) c->config.revived = &revived;
    if (eni_leader_start(&c->config, &c->leader) != EN_OK) _exit(1);
    atomic_store(&j->is_there, 1);
    en_status st = eni_leader_wait(c->leader, eni_now_ns() + 60 * ENI_SECOND, -1);
    atomic_store(&j->ended, 1 + st);
    eni_leader_stop(c->leader);
    _exit(0);
}

/* Forks a leader for each 's' that it reads, and answers with its pid. Ends with the pipe. */
static void fork_leaders(crew *c, journal *j, int orders, int answers)
{
    char order;
    signal(SIGCHLD, SIG_IGN);
    while (read(orders, &order, 1) == 1) {
        pid_t pid = fork();
        if (pid == 0) lead(c, j);
        if (write(answers, &pid, sizeof pid) != sizeof pid) break;
    }
    _exit(0);
}

typedef struct stage {
    crew c;
    journal *j;
    int orders, answers;
    pid_t forker, leader;
} stage;

static void start_leader(stage *s)
{
    atomic_store(&s->j->is_there, 0);
    assert_int_equal(write(s->orders, "s", 1), 1);
    assert_int_equal(read(s->answers, &s->leader, sizeof s->leader), sizeof s->leader);
}

/* The last of the first ranks is another process if `victim` is not NULL. nranks MOST: others may join
 * later. */
static void open_stage_with(stage *s, int nranks, pid_t *victim)
{
    int orders[2], answers[2], ready = -1;
    const int own = victim == NULL ? RANKS : RANKS - 1;
    memset(s, 0, sizeof *s);
    s->j = mmap(NULL, sizeof *s->j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s->j != MAP_FAILED);
    s->j->stop_step = ENI_STEP_NEVER;
    crew_init(&s->c, nranks);
    s->c.config.nfirst = RANKS;
    s->c.config.nplaces = nranks > RANKS ? RANKS + 1 : 0;
    for (int r = 0; r < CREW_MAX; r++) {
        s->c.hand[r].config.server_timeout_ns = 10 * ENI_SECOND;
        if (r >= RANKS) s->c.hand[r].config.rank = ENI_RANK_NEW;
    }
    s->c.config.listen_fd = crew_listen(&s->c); /* held here too: connecting works without a leader */
    if (victim != NULL) *victim = crew_fork_victim(&s->c, own, s->c.config.listen_fd, false, &ready);
    assert_true(pipe(orders) == 0 && pipe(answers) == 0);
    s->forker = fork();
    if (s->forker == 0) {
        close(orders[1]);
        fork_leaders(&s->c, s->j, orders[0], answers[1]);
    }
    close(orders[0]);
    close(answers[1]);
    s->orders = orders[1];
    s->answers = answers[0];
    start_leader(s);
    crew_join(&s->c, 0, own);
    for (int r = 0; r < own; r++)
        assert_int_equal(s->c.hand[r].status, EN_OK);
    if (victim != NULL) assert_true(crew_await_ready(&s->c, ready) == 0);
}

static void open_stage(stage *s)
{
    open_stage_with(s, RANKS, NULL);
}

static void close_stage(stage *s)
{
    crew_fini(&s->c);
    kill(s->leader, SIGKILL);
    close(s->c.config.listen_fd);
    close(s->orders);
    close(s->answers);
    assert_int_equal(waitpid(s->forker, NULL, 0), s->forker);
    munmap(s->j, sizeof *s->j);
}

/* ---- the work ---- */

typedef struct hand {
    eni_member *member;
    pthread_t thread;
    int rank, times[BUDGET], bad, ngathers;
    atomic_int progress;
    en_status status;
} hand;

static void check_blobs(hand *h, int i, eni_blobs *blobs)
{
    for (int r = 0; r < RANKS; r++) {
        int value = -1;
        if (blobs->blob[r].bytes == sizeof value) memcpy(&value, blobs->blob[r].data, sizeof value);
        h->bad += value != r * 100000 + i;
    }
    eni_blobs_fini(blobs);
}

static void *work(void *argument)
{
    hand *h = argument;
    uint64_t index;
    for (int i = 0; i < GATHERS; i++) {
        int value = h->rank * 100000 + i;
        eni_blobs blobs;
        for (int k = 0; k < 4; k++) {
            h->status = eni_member_claim(h->member, &index, crew_soon());
            if (h->status != EN_OK) return NULL;
            if (index < BUDGET) h->times[index]++;
        }
        h->status = eni_member_gather(h->member, i % 2 == 0 ? "even" : "odd", &value, sizeof value, &blobs,
                                      crew_soon());
        if (h->status != EN_OK) return NULL;
        check_blobs(h, i, &blobs);
        h->ngathers++;
        atomic_fetch_add(&h->progress, 1);
    }
    while ((h->status = eni_member_claim(h->member, &index, crew_soon())) == EN_OK)
        if (index < BUDGET) h->times[index]++;
    return NULL;
}

static void everything_happens_once(void **state)
{
    (void)state;
    static hand hands[RANKS];
    stage s;
    uint32_t epoch;
    open_stage(&s);
    for (int r = 0; r < RANKS; r++) {
        hands[r] = (hand){.member = s.c.hand[r].member, .rank = r};
        pthread_create(&hands[r].thread, NULL, work, &hands[r]);
    }
    for (int k = 0; k < KILLS; k++) {
        int from = atomic_load(&s.j->nwritten), more = 50 + 131 * k;
        int64_t deadline = crew_soon();
        while (atomic_load(&s.j->nwritten) < from + more && eni_now_ns() < deadline)
            poll(NULL, 0, 0); /* a random moment */
        kill(s.leader, SIGKILL);
        start_leader(&s);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(hands[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(hands[r].status, EN_ESTOP);
        assert_int_equal(hands[r].ngathers, GATHERS);
        assert_int_equal(hands[r].bad, 0);
    }
    for (int b = 0; b < BUDGET; b++) {
        int times = 0;
        for (int r = 0; r < RANKS; r++)
            times += hands[r].times[b];
        assert_int_equal(times, 1);
    }
    for (int r = 0; r < RANKS; r++) {
        int64_t soon = crew_soon(); /* the last leader may have come when all was done */
        while (eni_member_generation(hands[r].member) < KILLS && eni_now_ns() < soon)
            poll(NULL, 0, 1);
        assert_int_equal(eni_member_generation(hands[r].member), KILLS);
        assert_int_equal(eni_member_leader(hands[r].member, &epoch)->pid, s.leader);
        assert_int_equal(epoch, 1 + KILLS);
        assert_int_equal(eni_member_bye(hands[r].member, crew_soon()), EN_OK);
    }
    int64_t deadline = crew_soon();
    while (atomic_load(&s.j->ended) == 0 && eni_now_ns() < deadline)
        poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&s.j->ended), 1 + EN_OK);
    close_stage(&s);
}

/* An early end that was requested without a leader is carried out by the next one. */
static void an_early_end_outlives_the_leader(void **state)
{
    (void)state;
    stage s;
    open_stage(&s);
    kill(s.leader, SIGKILL);
    assert_true(crew_await_logged("psd (pid *up to 10 s"));
    for (int64_t deadline = crew_soon();
         eni_now_ns() < deadline && !eni_member_away_since(s.c.hand[1].member);)
        poll(NULL, 0, 1);
    assert_true(eni_member_away_since(s.c.hand[1].member) > 0);
    assert_int_equal(eni_member_status(s.c.hand[1].member), EN_OK);
    eni_member_stop(s.c.hand[1].member, "Ctrl-C");
    start_leader(&s);
    assert_true(crew_await_logged("Ctrl-C, at rank 1"));
    assert_true(crew_logged("psd is back*pid "));
    for (int r = 0; r < RANKS; r++) {
        for (int64_t deadline = crew_soon();
             eni_now_ns() < deadline && eni_member_stop_step(s.c.hand[r].member) == ENI_STEP_NEVER;)
            poll(NULL, 0, 1);
        assert_int_equal(eni_member_enter(s.c.hand[r].member, 0), EN_ESTOP);
        assert_int_equal(eni_member_bye(s.c.hand[r].member, crew_soon()), EN_OK);
    }
    close_stage(&s);
}

/* psd is killed between recording a goodbye and answering it. */
static void a_goodbye_is_answered_in_the_next_life(void **state)
{
    (void)state;
    stage s;
    open_stage(&s);
    kill(s.leader, SIGKILL);
    for (int64_t deadline = crew_soon();
         eni_now_ns() < deadline && !eni_member_away_since(s.c.hand[0].member);)
        poll(NULL, 0, 1);
    assert_int_equal(eni_member_bye(s.c.hand[0].member, eni_now_ns()), EN_ETIMEOUT); /* sent, not answered */
    s.j->rank[0].has_said_bye = true;
    start_leader(&s);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(eni_member_bye(s.c.hand[r].member, crew_soon()), EN_OK);
    int64_t deadline = crew_soon();
    while (atomic_load(&s.j->ended) == 0 && eni_now_ns() < deadline)
        poll(NULL, 0, 1);
    assert_int_equal(atomic_load(&s.j->ended), 1 + EN_OK);
    close_stage(&s);
}

/* A rank that computes for long has rejoined, which ends the wait of those that have sent BYE. */
static void a_goodbye_waits_for_the_return_of_others_only(void **state)
{
    (void)state;
    stage s;
    pid_t last;
    open_stage_with(&s, RANKS, &last);
    kill(last, SIGSTOP);
    kill(s.leader, SIGKILL);
    for (int r = 0; r < RANKS - 1; r++) {
        for (int64_t deadline = crew_soon();
             eni_now_ns() < deadline && !eni_member_away_since(s.c.hand[r].member);)
            poll(NULL, 0, 1);
        assert_int_equal(eni_member_bye(s.c.hand[r].member, eni_now_ns()), EN_ETIMEOUT);
    }
    start_leader(&s);
    for (int r = 0; r < RANKS - 1; r++)
        for (int64_t deadline = crew_soon();
             eni_now_ns() < deadline && eni_member_generation(s.c.hand[r].member) == 0;)
            poll(NULL, 0, 1);
    kill(last, SIGCONT);
    for (int r = 0; r < RANKS - 1; r++)
        assert_int_equal(eni_member_bye(s.c.hand[r].member, crew_soon()), EN_OK);
    kill(last, SIGKILL);
    assert_int_equal(waitpid(last, NULL, 0), last);
    close_stage(&s);
}

static void a_life_after_everyone_has_left_ends(void **state)
{
    (void)state;
    crew c;
    eni_revived_rank ranks[RANKS];
    eni_peer peers[RANKS];
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (eni_revived_rank){.has_said_bye = true};
        peers[r] = (eni_peer){.rank = r, .pid = 1, .host = "h", .host_id = "h/1"};
    }
    const eni_revived revived = {
        .peers = peers, .rank = ranks, .epoch = 1, .incarnation = 1, .stop_step = ENI_STEP_NEVER};
    crew_init(&c, RANKS);
    c.config.revived = &revived;
    c.config.server_timeout_ns = 200 * ENI_MILLI;
    assert_true(crew_start(&c));
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_OK);
    crew_fini(&c);
}

/* ---- ranks that come and go ---- */

static void kill_leader(stage *s)
{
    kill(s->leader, SIGKILL);
    start_leader(s);
}

/* It dies after it has written such an entry, and comes back. */
static void await_death_of_leader(stage *s)
{
    for (int64_t deadline = crew_soon(); s->j->dies_at != 0; poll(NULL, 0, 1))
        assert_true(eni_now_ns() < deadline);
    start_leader(s);
}

/* Rank 0 knows exactly these events, in any order. */
static void expect_presence(stage *s, const eni_presence_event *expected, size_t n)
{
    eni_presence_event p;
    for (int64_t deadline = crew_soon(); !eni_member_presence(s->c.hand[0].member, n - 1, &p);
         poll(NULL, 0, 1))
        assert_true(eni_now_ns() < deadline);
    for (size_t i = 0; i < n; i++) {
        size_t at = 0;
        while (eni_member_presence(s->c.hand[0].member, at, &p) &&
               !(p.kind == expected[i].kind && p.rank == expected[i].rank))
            at++;
        if (at >= n) fail_msg("rank 0 has not heard of rank %d, %d", expected[i].rank, (int)expected[i].kind);
    }
    assert_false(eni_member_presence(s->c.hand[0].member, n, &p));
}

static void train(stage *s, int own)
{
    for (int r = 0; r < own; r++)
        eni_member_note(s->c.hand[r].member, 0, "forward");
}

static void come(stage *s, int h, en_status status)
{
    crew_join(&s->c, h, 1);
    assert_int_equal(s->c.hand[h].status, status);
}

static void *say_bye(void *argument)
{
    crew_hand *h = argument;
    h->status = eni_member_bye(h->member, crew_soon());
    return NULL;
}

/* psd is killed after it has recorded that a rank joined, was asked to leave, has left or was lost, and
 * before it sent that to any rank. */
static void what_was_written_is_told_in_the_next_life(void **state)
{
    (void)state;
    stage s;
    char why[ENI_REASON_MAX];
    uint64_t index;
    open_stage_with(&s, MOST, NULL);
    train(&s, RANKS);
    come(&s, 3, EN_OK);
    const int64_t came_after = eni_member_came_after(s.c.hand[3].member);
    s.j->dies_at = ENI_ENTRY_LEAVE;
    assert_int_not_equal(
        eni_ask(&s.c.hand[0].config.leader, &s.c.config.token, ENI_ASK_LEAVE, 3, crew_soon(), why), EN_OK);
    await_death_of_leader(&s);
    for (int64_t deadline = crew_soon(); !eni_member_is_leaving(s.c.hand[3].member); poll(NULL, 0, 1))
        assert_true(eni_now_ns() < deadline);
    assert_int_equal(eni_member_claim(s.c.hand[3].member, &index, crew_soon()), EN_ESTOP);
    s.j->dies_at = ENI_ENTRY_BYE;
    pthread_create(&s.c.hand[3].thread, NULL, say_bye, &s.c.hand[3]);
    await_death_of_leader(&s);
    pthread_join(s.c.hand[3].thread, NULL);
    assert_int_equal(s.c.hand[3].status, EN_OK);
    expect_presence(&s, (eni_presence_event[]){{ENI_CAME, 3}, {ENI_WENT, 3}}, 2);
    come(&s, 4, EN_OK); /* its clock is that of the run, whoever leads it */
    assert_true(eni_member_came_after(s.c.hand[4].member) > came_after);
    /* A newcomer does not wait for it, and an absent rank is not lost yet. */
    for (int64_t deadline = crew_soon(); eni_member_away_since(s.c.hand[2].member) != 0; poll(NULL, 0, 1))
        assert_true(eni_now_ns() < deadline);
    s.j->dies_at = ENI_ENTRY_LEFT;
    eni_member_close(s.c.hand[2].member); /* without a goodbye */
    s.c.hand[2].member = NULL;
    await_death_of_leader(&s);
    expect_presence(&s, (eni_presence_event[]){{ENI_CAME, 3}, {ENI_WENT, 3}, {ENI_CAME, 4}, {ENI_LOST, 2}},
                    4);
    assert_true(eni_member_has_left(s.c.hand[0].member, 2, NULL));
    kill_leader(&s); /* no event is repeated */
    for (int r = 0; r < 2; r++)
        assert_int_equal(eni_member_claim(s.c.hand[r].member, &index, crew_soon()), EN_OK);
    expect_presence(&s, (eni_presence_event[]){{ENI_CAME, 3}, {ENI_WENT, 3}, {ENI_CAME, 4}, {ENI_LOST, 2}},
                    4);
    close_stage(&s);
}

/* A newcomer waits for an absent rank that may not have begun to train, but not for one that has. That one's
 * seat is kept until it is lost: at once if its process has ended, though no connection breaks. */
static void a_rank_that_is_not_back_holds_newcomers_at_the_start_only(void **state)
{
    (void)state;
    stage s;
    pid_t last;
    open_stage_with(&s, MOST, &last); /* it reports that it is in a step */
    kill(last, SIGSTOP);
    kill_leader(&s);
    train(&s, RANKS - 1);
    s.c.hand[3].config.join_deadline_ns = eni_now_ns() - ENI_SECOND + 600 * ENI_MILLI; /* a second of grace */
    come(&s, 3, EN_ETIMEOUT);
    kill(last, SIGCONT);
    come(&s, 4, EN_OK);
    eni_member_stop(s.c.hand[4].member, "Ctrl-C");
    say_bye(&s.c.hand[4]);
    assert_int_equal(s.c.hand[4].status, EN_OK);
    kill(last, SIGSTOP);
    kill_leader(&s);
    come(&s, 5, EN_OK);
    s.c.hand[6].config.join_deadline_ns = eni_now_ns() - ENI_SECOND + 200 * ENI_MILLI;
    come(&s, 6, EN_ETIMEOUT); /* and is not refused: a seat may become free */
    const int64_t killed_ns = eni_now_ns();
    kill(last, SIGKILL);
    come(&s, 7, EN_OK);
    assert_true(eni_now_ns() - killed_ns < 5 * ENI_SECOND); /* of the 20 s that it is waited for */
    expect_presence(
        &s, (eni_presence_event[]){{ENI_CAME, 3}, {ENI_WENT, 3}, {ENI_CAME, 4}, {ENI_LOST, 2}, {ENI_CAME, 5}},
        5);
    assert_int_equal(waitpid(last, NULL, 0), last);
    close_stage(&s);
}

static void timeout_ends(void **state)
{
    (void)state;
    stage s;
    char line[160];
    uint64_t index;
    open_stage(&s);
    for (int r = 0; r < RANKS; r++)
        eni_member_close(s.c.hand[r].member);
    memset(s.j, 0, sizeof *s.j);
    s.j->stop_step = ENI_STEP_NEVER;
    kill(s.leader, SIGKILL);
    start_leader(&s);
    for (int r = 0; r < RANKS; r++)
        s.c.hand[r].config.server_timeout_ns = 300 * ENI_MILLI;
    crew_join(&s.c, 0, RANKS);
    kill(s.leader, SIGKILL);
    assert_int_equal(eni_member_claim(s.c.hand[0].member, &index, crew_soon()), EN_EPEER);
    assert_true(eni_member_outcome(s.c.hand[0].member).has_death);
    const eni_death death = eni_member_outcome(s.c.hand[0].member).death;
    assert_int_equal(death.rank, -1);
    snprintf(line, sizeof line, "psd (pid %d on host h) *connection closed*0.3 s", (int)s.leader);
    assert_true(crew_logged(line));
    close_stage(&s);
}

/* A psd that was started again without its folder does not report a rank's death, but the missing folder. */
static void a_leader_without_memory_is_told_apart(void **state)
{
    (void)state;
    stage s;
    uint64_t index;
    open_stage(&s);
    memset(s.j, 0, sizeof *s.j); /* the folder is lost */
    s.j->stop_step = ENI_STEP_NEVER;
    kill(s.leader, SIGKILL);
    start_leader(&s);
    assert_int_not_equal(eni_member_claim(s.c.hand[0].member, &index, crew_soon()), EN_OK);
    assert_true(crew_logged("rank 0 *psd*--state=FOLDER"));
    close_stage(&s);
}

/* A claim that is not in the journal could be answered twice: the run ends instead. */
static void a_journal_that_cannot_be_written_ends_the_run(void **state)
{
    (void)state;
    stage s;
    uint64_t index;
    open_stage(&s);
    assert_int_equal(eni_member_claim(s.c.hand[0].member, &index, crew_soon()), EN_OK);
    s.j->is_broken = true;
    assert_int_equal(eni_member_claim(s.c.hand[0].member, &index, crew_soon()), EN_EIO);
    assert_true(crew_logged("the run is broken*journal"));
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_happens_once),
        cmocka_unit_test(an_early_end_outlives_the_leader),
        cmocka_unit_test(a_goodbye_is_answered_in_the_next_life),
        cmocka_unit_test(a_goodbye_waits_for_the_return_of_others_only),
        cmocka_unit_test(a_life_after_everyone_has_left_ends),
        cmocka_unit_test(what_was_written_is_told_in_the_next_life),
        cmocka_unit_test(a_rank_that_is_not_back_holds_newcomers_at_the_start_only),
        cmocka_unit_test(timeout_ends),
        cmocka_unit_test(a_leader_without_memory_is_told_apart),
        cmocka_unit_test(a_journal_that_cannot_be_written_ends_the_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
