/* test_leader.c - admission and refusals; claims and gathers over all ranks. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "crew.h"

static void everyone_learns_of_everyone(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        crew c;
        char socket_name[CREW_MAX][16];
        eni_key_value member_data[CREW_MAX], same[] = {{"lr", "0.01"}, {"model", "convnet"}};
        crew_init(&c, n);
        for (int r = 0; r < n; r++) {
            snprintf(socket_name[r], sizeof socket_name[r], "socket-%d", r);
            member_data[r] = (eni_key_value){"socket", socket_name[r]};
            c.hand[r].config.key_values = same;
            c.hand[r].config.nkey_values = 2;
            c.hand[r].config.member_data = &member_data[r];
            c.hand[r].config.nmember_data = 1;
        }
        assert_true(crew_start(&c));
        crew_join(&c, 0, n);
        for (int r = 0; r < n; r++) {
            assert_int_equal(c.hand[r].status, EN_OK);
            const eni_world_info *world = eni_member_world(c.hand[r].member);
            assert_int_equal(world->rank, r);
            assert_int_equal(world->nranks, n);
            assert_int_equal(world->epoch, 1);
            assert_int_equal(world->incarnation, 1);
            assert_int_equal(world->leader.rank, -1);
            assert_int_equal(world->leader.pid, getpid());
            assert_string_equal(eni_key_value_find(world->key_values, world->nkey_values, "model"),
                                "convnet");
            for (int p = 0; p < n; p++) {
                assert_int_equal(world->peers[p].rank, p);
                assert_string_equal(world->peers[p].host_id, "h/1");
                assert_string_equal(eni_key_value_find(world->peers[p].member_data, 1, "socket"),
                                    socket_name[p]);
            }
        }
        assert_true(crew_bye(&c));
        crew_fini(&c);
    }
}

static void ranks_are_assigned_where_none_is_given(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 3);
    c.hand[0].config.rank = -1;
    c.hand[1].config.rank = 1;
    c.hand[2].config.rank = -1;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 3);
    int a = eni_member_world(c.hand[0].member)->rank, b = eni_member_world(c.hand[2].member)->rank;
    assert_int_equal(a + b, 2);
    assert_true(a != b && a != 1);
    assert_int_equal(eni_member_world(c.hand[1].member)->rank, 1);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* One member that must be refused, with this status and these words in its own log; the run can still
 * begin. */
static void refused(crew *c, int hand, en_status status, const char *words)
{
    crew_join(c, hand, 1);
    assert_int_equal(c->hand[hand].status, status);
    assert_true(crew_logged(words));
}

static void unauthenticated_and_mistakes_are_refused(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 1);
    c.hand[1].config.token.bytes[7] ^= 1;
    c.hand[2].config.nranks = 2;
    c.hand[3].config.rank = 1;
    assert_true(crew_start(&c));
    refused(&c, 1, EN_EDENIED, "member: *token");
    refused(&c, 2, EN_EINVAL, "worker*--world-size=2*leader 1");
    refused(&c, 3, EN_EINVAL, "rank 1 *world of 1");
    crew_join(&c, 0, 1);
    assert_int_equal(c.hand[0].status, EN_OK);
    c.hand[4].config.rank = 0;
    refused(&c, 4, EN_EINVAL, "all its 1 rank");
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void a_rank_joins_once(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 2);
    c.config.join_ns = 2 * ENI_SECOND;
    c.hand[1].config.rank = 0;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2); /* one of them is refused at once, the other when the time is up */
    en_status a = c.hand[0].status, b = c.hand[1].status;
    assert_true((a == EN_EINVAL && b == EN_ETIMEOUT) || (a == EN_ETIMEOUT && b == EN_EINVAL));
    assert_true(crew_logged("rank 0 *pid "));
    crew_fini(&c);
}

static void a_missing_rank_is_named(void **state)
{
    (void)state;
    crew c;
    char reason[ENI_REASON_MAX];
    crew_init(&c, 3);
    c.config.join_ns = 2 * ENI_SECOND;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    assert_int_equal(c.hand[0].status, EN_ETIMEOUT);
    assert_int_equal(c.hand[1].status, EN_ETIMEOUT);
    assert_true(crew_logged("member: *2 of 3 ranks*missing rank 2*2 s"));
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_ETIMEOUT);
    assert_true(eni_leader_is_over(c.leader));
    snprintf(reason, sizeof reason, "%s", eni_leader_outcome(c.leader).reason);
    assert_true(crew_has(reason, "2 of 3 ranks*missing rank 2*2 s"));
    crew_fini(&c);
}

static void a_difference_is_named_to_all(void **state)
{
    (void)state;
    static const eni_key_value first[] = {{"lr", "0.01"}, {"seed", "1"}},
                               second[] = {{"lr", "0.1"}, {"seed", "1"}},
                               extra[] = {{"lr", "0.01"}, {"seed", "1"}, {"nesterov", "on"}},
                               inserted[] = {{"lr", "0.01"}, {"eps", "2"}, {"seed", "7"}};
    const struct {
        const eni_key_value *key_values;
        size_t n;
        const char *words;
    } cases[] = {{second, 2, "lr *rank 0 *0.01*rank 1 *0.1"},
                 {second + 1, 1, "lr *rank 0 *0.01*rank 1 *none"},
                 {extra, 3, "nesterov *rank 0 *none*rank 1 *on"},
                 {inserted, 3, "eps *rank 0 *none*rank 1 *2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        crew c;
        crew_init(&c, 2);
        c.hand[0].config.key_values = first;
        c.hand[0].config.nkey_values = 2;
        c.hand[1].config.key_values = cases[i].key_values;
        c.hand[1].config.nkey_values = cases[i].n;
        assert_true(crew_start(&c));
        crew_join(&c, 0, 2);
        assert_int_equal(c.hand[0].status, EN_EMISMATCH);
        assert_int_equal(c.hand[1].status, EN_EMISMATCH);
        assert_true(crew_logged(cases[i].words));
        assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EMISMATCH);
        crew_fini(&c);
    }
}

/* Lists that are long and alike at first are shown from where they differ. */
static void a_late_difference_is_shown(void **state)
{
    (void)state;
    char list[2][400];
    const eni_key_value buckets[2] = {{"buckets", list[0]}, {"buckets", list[1]}};
    crew c;
    crew_init(&c, 2);
    for (int r = 0; r < 2; r++) {
        size_t used = 0;
        for (int i = 0; i < 60; i++)
            used +=
                (size_t)snprintf(list[r] + used, sizeof list[r] - used, "%s%d", i > 0 ? "," : "", 1000 + i);
        snprintf(list[r] + used, sizeof list[r] - used, ",7%d", r);
        c.hand[r].config.key_values = &buckets[r];
        c.hand[r].config.nkey_values = 1;
    }
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    assert_int_equal(c.hand[0].status, EN_EMISMATCH);
    assert_true(crew_logged("buckets *rank 0 has ..70, rank 1 has ..71"));
    crew_fini(&c);
}

static const eni_key_value shards[] = {{"shard0", "tcp://127.0.0.1:1"}};

static en_status configure(void *user, const eni_world_info *world, eni_terms *terms)
{
    const char *batch = eni_key_value_find(world->key_values, world->nkey_values, "batches");
    if (batch == NULL) {
        snprintf(terms->reason, sizeof terms->reason, "psd wants to know the batches");
        return EN_EINVAL;
    }
    terms->budget = batch[0] == '7' ? 7 : 0;
    terms->member_data = shards;
    terms->nmember_data = 1;
    *(const eni_world_info **)user = world;
    return EN_OK;
}

static void on_world_decides_before_anyone_is_in(void **state)
{
    (void)state;
    const eni_key_value batches[] = {{"batches", "7"}};
    for (int has_batches = 0; has_batches < 2; has_batches++) {
        crew c;
        const eni_world_info *seen = NULL;
        crew_init(&c, 2);
        c.config.on_world = configure;
        c.config.user = &seen;
        for (int r = 0; r < 2 && has_batches; r++) {
            c.hand[r].config.key_values = batches;
            c.hand[r].config.nkey_values = 1;
        }
        assert_true(crew_start(&c));
        crew_join(&c, 0, 2);
        assert_int_equal(c.hand[1].status, has_batches ? EN_OK : EN_EINVAL);
        if (has_batches) {
            const eni_world_info *world = eni_member_world(c.hand[1].member);
            assert_int_equal(world->budget, 7);
            assert_string_equal(
                eni_key_value_find(world->leader.member_data, world->leader.nmember_data, "shard0"),
                shards[0].value);
            assert_true(crew_bye(&c));
            assert_string_equal(eni_key_value_find(seen->key_values, seen->nkey_values, "batches"),
                                "7"); /* after all have left */
            assert_int_equal(seen->peers[1].rank, 1);
        } else {
            assert_true(crew_logged("psd wants to know the batches"));
        }
        crew_fini(&c);
    }
}

enum { BUDGET = 500 };

typedef struct claimer {
    eni_member *member;
    pthread_t thread;
    int times[BUDGET];
    en_status last;
} claimer;

static void *claim_all(void *argument)
{
    claimer *k = argument;
    uint64_t index;
    while ((k->last = eni_member_claim(k->member, &index, crew_soon())) == EN_OK)
        k->times[index < BUDGET ? index : 0]++; /* then one was claimed twice */
    return NULL;
}

static void every_micro_batch_is_claimed_once(void **state)
{
    (void)state;
    enum { RANKS = 3, CLAIMERS = 6 }; /* two threads in every rank */
    crew c;
    static claimer k[CLAIMERS];
    memset(k, 0, sizeof k);
    crew_init(&c, RANKS);
    c.config.budget = BUDGET;
    assert_true(crew_start(&c));
    crew_join(&c, 0, RANKS);
    for (int i = 0; i < CLAIMERS; i++) {
        k[i].member = c.hand[i % RANKS].member;
        pthread_create(&k[i].thread, NULL, claim_all, &k[i]);
    }
    for (int i = 0; i < CLAIMERS; i++)
        pthread_join(k[i].thread, NULL);
    for (int i = 0; i < CLAIMERS; i++)
        assert_int_equal(k[i].last, EN_ESTOP);
    for (int b = 0; b < BUDGET; b++) {
        int times = 0;
        for (int i = 0; i < CLAIMERS; i++)
            times += k[i].times[b];
        assert_int_equal(times, 1);
    }
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

typedef struct gatherer {
    eni_member *member;
    pthread_t thread;
    int rank, n;
    const char *tag;
    en_status status;
    bool is_right;
} gatherer;

/* Rank r sends r * 1000 bytes of value r. */
static void *gather_once(void *argument)
{
    gatherer *g = argument;
    static uint8_t bytes[CREW_MAX][8000];
    eni_blobs blobs;
    memset(bytes[g->rank], g->rank, sizeof bytes[g->rank]);
    g->status =
        eni_member_gather(g->member, g->tag, bytes[g->rank], (size_t)g->rank * 1000, &blobs, crew_soon());
    if (g->status != EN_OK) return NULL;
    g->is_right = blobs.count == (size_t)g->n + 1 && blobs.blob[g->n].bytes == 5 &&
                  memcmp(blobs.blob[g->n].data, "total", 5) == 0;
    for (int r = 0; r < g->n; r++)
        g->is_right = g->is_right && blobs.blob[r].bytes == (size_t)r * 1000 &&
                      (r == 0 || blobs.blob[r].data[999] == r);
    eni_blobs_fini(&blobs);
    return NULL;
}

static void add_total(void *user, const char *tag, const eni_blob *blobs, size_t count, eni_blob *own_out)
{
    (void)blobs;
    (void)tag;
    *(int *)user += (int)count;
    *own_out = (eni_blob){(const uint8_t *)"total", 5};
}

static void gather_all(crew *c, gatherer *g, const char *tag, const char *other_tag)
{
    for (int r = 0; r < c->n; r++) {
        g[r] = (gatherer){.member = c->hand[r].member, .rank = r, .n = c->n, .tag = r == 0 ? tag : other_tag};
        pthread_create(&g[r].thread, NULL, gather_once, &g[r]);
    }
    for (int r = 0; r < c->n; r++)
        pthread_join(g[r].thread, NULL);
}

static void all_get_all_blobs(void **state)
{
    (void)state;
    crew c;
    gatherer g[CREW_MAX];
    int asked = 0;
    crew_init(&c, 4);
    c.config.on_gather = add_total;
    c.config.user = &asked;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 4);
    for (int round = 0; round < 3; round++) {
        gather_all(&c, g, "hash", "hash");
        for (int r = 0; r < 4; r++)
            assert_true(g[r].status == EN_OK && g[r].is_right);
    }
    assert_true(crew_bye(&c));
    crew_fini(&c);
    assert_int_equal(asked, 12);
}

static void gathers_out_of_order_end_the_run(void **state)
{
    (void)state;
    crew c;
    gatherer g[CREW_MAX];
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    gather_all(&c, g, "hash", "loss");
    assert_int_equal(g[0].status, EN_EMISMATCH);
    assert_int_equal(g[1].status, EN_EMISMATCH);
    assert_true(crew_logged("'hash'") && crew_logged("'loss'"));
    crew_fini(&c);
}

static void a_gather_that_cannot_end_ends_the_run(void **state)
{
    (void)state;
    crew c;
    eni_blobs blobs;
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    assert_int_equal(eni_member_bye(c.hand[1].member, crew_soon()), EN_OK);
    assert_int_equal(eni_member_gather(c.hand[0].member, "hash", "x", 1, &blobs, crew_soon()), EN_EMISMATCH);
    assert_true(crew_logged("rank 0 *gather 'hash'*left"));
    crew_fini(&c);
}

static void samples_are_summed(void **state)
{
    (void)state;
    crew c;
    crew_init(&c, 2);
    c.config.peer_timeout_ns = 2 * ENI_SECOND; /* heartbeats every half a second */
    for (int r = 0; r < 2; r++)
        c.hand[r].config.peer_timeout_ns = 2 * ENI_SECOND;
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    eni_member_note_samples(c.hand[0].member, 640);
    eni_member_note_samples(c.hand[1].member, 60);
    int64_t deadline = crew_soon();
    while (eni_leader_samples(c.leader) != 700 && eni_now_ns() < deadline)
        poll(NULL, 0, 5);
    assert_int_equal(eni_leader_samples(c.leader), 700);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* An invalid score does not end the run: it is dropped, with one message. */
static void a_score_that_cannot_be_is_ignored(void **state)
{
    (void)state;
    crew c;
    const eni_score bad = {.step = 3, .total = 8, .covered = 9},
                    good = {.step = 4, .total = 8, .covered = 4, .hits = 2, .loss = 1.5};
    eni_score sum = {0};
    crew_init(&c, 2);
    assert_true(crew_start(&c));
    crew_join(&c, 0, 2);
    for (int i = 0; i < 3; i++)
        eni_member_tell_score(c.hand[1].member, &bad);
    for (int r = 0; r < 2; r++)
        eni_member_tell_score(c.hand[r].member, &good);
    const int64_t deadline = crew_soon();
    while (!eni_member_next_score(c.hand[0].member, &sum) && eni_now_ns() < deadline)
        poll(NULL, 0, 5);
    assert_true(sum.step == 4 && sum.covered == 8 && sum.hits == 4 && sum.loss == 3);
    assert_int_equal(crew_count("more samples"), 1);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

static void an_interrupt_ends_waiting_not_the_run(void **state)
{
    (void)state;
    crew c;
    int interrupt = eventfd(1, EFD_CLOEXEC);
    crew_init(&c, 1);
    assert_true(crew_start(&c));
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), interrupt), EN_EINTR);
    assert_int_equal(eni_leader_wait(c.leader, eni_now_ns(), -1), EN_ETIMEOUT);
    assert_false(eni_leader_is_over(c.leader));
    crew_join(&c, 0, 1);
    assert_int_equal(c.hand[0].status, EN_OK);
    eni_leader_abort(c.leader, "interrupted by the user");
    assert_int_equal(eni_member_verdict(c.hand[0].member, crew_soon()), EN_EPEER);
    assert_true(crew_logged("member: *interrupted by the user"));
    assert_int_equal(eni_leader_wait(c.leader, crew_soon(), -1), EN_EPEER);
    close(interrupt);
    crew_fini(&c);
}

static void garbage_is_turned_away(void **state)
{
    (void)state;
    crew c;
    static const char *const garbage[] = {"GET / HTTP/1.1\r\n\r\n", "\1\0\0\0\x91", "\2\0\0\0\x91\3",
                                          "\0\0\0\0"};
    static const size_t lengths[] = {18, 5, 6, 4};
    crew_init(&c, 1);
    assert_true(crew_start(&c));
    for (size_t i = 0; i < 4; i++) {
        int fd;
        char answer[2048];
        assert_int_equal(eni_tcp_connect(eni_leader_address(c.leader), crew_soon(), -1, &fd), EN_OK);
        assert_int_equal(eni_tcp_send(fd, garbage[i], lengths[i], crew_soon(), -1), EN_OK);
        size_t n = 1;
        en_status st = EN_OK;
        while (st == EN_OK) { /* it may say why, and then it closes */
            assert_int_equal(eni_tcp_wait(fd, POLLIN, crew_soon(), -1), EN_OK);
            st = eni_tcp_recv_some(fd, answer, sizeof answer, &n);
        }
        assert_int_equal(st, EN_EPEER);
        close(fd);
    }
    crew_join(&c, 0, 1); /* and the run still works */
    assert_int_equal(c.hand[0].status, EN_OK);
    assert_true(crew_bye(&c));
    crew_fini(&c);
}

/* poll(2) refuses more descriptors than may be open: reported at once, not by every round of the loop. */
static void too_few_files_are_refused(void **state)
{
    (void)state;
    struct rlimit before, few;
    crew c;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){64, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    crew_init(&c, 2);
    assert_true(crew_start(&c)); /* the soft limit is ours to raise */
    crew_join(&c, 0, 2);
    assert_true(crew_bye(&c));
    assert_int_equal(crew_count("poll failed"), 0);
    crew_fini(&c);
    pid_t pid = fork(); /* the hard one cannot be raised again */
    assert_true(pid >= 0);
    if (pid == 0) {
        few = (struct rlimit){64, 64};
        setrlimit(RLIMIT_NOFILE, &few);
        crew_init(&c, 2);
        bool is_refused = !crew_start(&c) && crew_logged("the leader of this run*64*ulimit -n ");
        _exit(is_refused ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everyone_learns_of_everyone),
                                       cmocka_unit_test(ranks_are_assigned_where_none_is_given),
                                       cmocka_unit_test(unauthenticated_and_mistakes_are_refused),
                                       cmocka_unit_test(a_rank_joins_once),
                                       cmocka_unit_test(a_missing_rank_is_named),
                                       cmocka_unit_test(a_difference_is_named_to_all),
                                       cmocka_unit_test(a_late_difference_is_shown),
                                       cmocka_unit_test(on_world_decides_before_anyone_is_in),
                                       cmocka_unit_test(every_micro_batch_is_claimed_once),
                                       cmocka_unit_test(all_get_all_blobs),
                                       cmocka_unit_test(gathers_out_of_order_end_the_run),
                                       cmocka_unit_test(a_gather_that_cannot_end_ends_the_run),
                                       cmocka_unit_test(samples_are_summed),
                                       cmocka_unit_test(a_score_that_cannot_be_is_ignored),
                                       cmocka_unit_test(an_interrupt_ends_waiting_not_the_run),
                                       cmocka_unit_test(garbage_is_turned_away),
                                       cmocka_unit_test(too_few_files_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
