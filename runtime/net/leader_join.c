/* leader_join.c - the leader until WELCOME: who may come in, and do they agree. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/net/leader_state.h"

/* Every rank's in its first life; the leader's world carries it, so that psd knows whom to expect. */
enum { FIRST_INCARNATION = 1 };

void eni_leader_refuse(eni_seat *seat, en_status status, const char *reason)
{
    eni_message refused = {.type = ENI_CTL_REFUSED, .status = (uint32_t)status};
    snprintf(refused.reason, sizeof refused.reason, "%s", reason);
    eni_warn("leader", "refused a member: %s", reason);
    eni_seat_put(seat, &refused);
    eni_seat_leave(seat);
}

static void refuse(eni_seat *seat, en_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void refuse(eni_seat *seat, en_status status, const char *format, ...)
{
    char reason[ENI_REASON_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    eni_leader_refuse(seat, status, reason);
}

static eni_seat *find_rank(eni_leader *leader, int32_t rank)
{
    for (size_t i = 0; i < leader->nseats; i++)
        if (leader->seats[i].stage == SEAT_JOINED && leader->seats[i].peer.rank == rank)
            return &leader->seats[i];
    return NULL;
}

static int32_t count_joined(const eni_leader *leader)
{
    int32_t n = 0;
    for (size_t i = 0; i < leader->nseats; i++)
        n += leader->seats[i].stage == SEAT_JOINED;
    return n;
}

/* The checks of one JOIN, in the order in which they may be told to a stranger: the token first. Returns
 * whether the seat may stay. */
static bool check_join(eni_leader *leader, eni_seat *seat, const eni_message *join)
{
    int32_t nranks = leader->config.nranks;
    eni_seat *other = join->rank < 0 ? NULL : find_rank(leader, join->rank);
    if (!eni_token_equal(&join->token, &leader->config.token))
        refuse(seat, EN_EDENIED,
               "the job token is not this run's: it was started by someone else, or is an old one");
    else if (join->nranks != nranks)
        refuse(seat, EN_EINVAL, "a worker was told --world-size=%d, the leader %d", join->nranks, nranks);
    else if (join->rank >= nranks)
        refuse(seat, EN_EINVAL, "rank %d does not exist in a world of %d: ranks are 0 to %d", join->rank,
               nranks, nranks - 1);
    else if (leader->stage != LEADER_JOINING)
        refuse(seat, EN_EINVAL, "the run has all its %d ranks and has begun", nranks);
    else if (other != NULL)
        refuse(seat, EN_EINVAL, "rank %d is already here: pid %lld on host %s", join->rank,
               (long long)other->peer.pid, other->peer.host);
    else if (count_joined(leader) == nranks)
        refuse(seat, EN_EINVAL, "all %d ranks are already here", nranks);
    else
        return true;
    return false;
}

void eni_leader_join(eni_leader *leader, eni_seat *seat, const eni_message *join)
{
    if (!check_join(leader, seat, join)) return;
    if (eni_peer_init(&seat->peer, join) != EN_OK || eni_pairs_take(&join->pairs, &seat->pairs) != EN_OK) {
        refuse(seat, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    seat->npairs = join->pairs.n;
    seat->stage = SEAT_JOINED;
    eni_debug("leader", "rank %d joined: pid %lld on host %s", join->rank, (long long)join->pid, join->host);
}

void eni_leader_unjoin(eni_leader *leader, eni_seat *seat)
{
    (void)leader;
    eni_warn("leader", "rank %d (pid %lld on host %s) left before all ranks were there", seat->peer.rank,
             (long long)seat->peer.pid, seat->peer.host);
    eni_seat_free(seat);
}

/* Gives the ranks that asked for none the free ones, in seat order, and fills by_rank. */
static void assign_ranks(eni_leader *leader)
{
    int32_t rank = 0;
    for (size_t i = 0; i < leader->nseats; i++) {
        eni_seat *seat = &leader->seats[i];
        if (seat->stage != SEAT_JOINED) continue;
        if (seat->peer.rank < 0) {
            while (find_rank(leader, rank) != NULL)
                rank++;
            seat->peer.rank = rank;
        }
        leader->by_rank[seat->peer.rank] = seat;
    }
}

/* Compares a rank's pairs with rank 0's. On a difference writes the sentence and returns false. */
static bool compare_pairs(const eni_seat *first, const eni_seat *seat, char reason_out[ENI_REASON_MAX])
{
    const eni_seat *sides[2] = {first, seat};
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < sides[side]->npairs; i++) {
            const char *key = sides[side]->pairs[i].key;
            const char *a = eni_pair_find(first->pairs, first->npairs, key);
            const char *b = eni_pair_find(seat->pairs, seat->npairs, key);
            if (a != NULL && b != NULL && strcmp(a, b) == 0) continue;
            snprintf(reason_out, ENI_REASON_MAX, "%.60s differs: rank 0 has %.150s, rank %d has %.150s", key,
                     a == NULL ? "none" : a, seat->peer.rank, b == NULL ? "none" : b);
            return false;
        }
    return true;
}

static bool compare_all(eni_leader *leader, char reason_out[ENI_REASON_MAX])
{
    for (int32_t r = 1; r < leader->config.nranks; r++)
        if (!compare_pairs(leader->by_rank[0], leader->by_rank[r], reason_out)) return false;
    return true;
}

/* Moves what all have said into the world, which outlives their connections. */
static void make_world(eni_leader *leader)
{
    const eni_leader_config *config = &leader->config;
    for (int32_t r = 0; r < config->nranks; r++) {
        eni_seat *seat = leader->by_rank[r];
        leader->peers[r] = seat->peer;
        if (r > 0) eni_free((void *)(uintptr_t)seat->pairs);
        seat->is_in_world = true;
    }
    leader->world = (eni_world_info){
        .rank = -1,
        .incarnation = FIRST_INCARNATION,
        .nranks = config->nranks,
        .epoch = config->epoch,
        .budget = config->budget,
        .peers = leader->peers,
        .leader = {.rank = config->rank, .pid = getpid(), .host = config->host, .host_id = config->host_id},
        .pairs = leader->by_rank[0]->pairs,
        .npairs = leader->by_rank[0]->npairs};
    leader->terms = (eni_terms){.budget = config->budget};
}

static void set_text(char *out, size_t capacity, const char *text)
{
    snprintf(out, capacity, "%s", text);
}

/* PEER for every rank, then WELCOME. */
static void welcome(eni_leader *leader, eni_seat *seat)
{
    const eni_leader_config *config = &leader->config;
    for (int32_t r = 0; r < config->nranks; r++) {
        const eni_peer *peer = &leader->peers[r];
        eni_message m = {.type = ENI_CTL_PEER, .rank = r, .pid = peer->pid};
        set_text(m.host, sizeof m.host, peer->host);
        set_text(m.host_id, sizeof m.host_id, peer->host_id);
        m.privates = (eni_pair_list){peer->privates, peer->nprivates, {NULL, 0}};
        eni_seat_put(seat, &m);
    }
    const eni_peer *self = &leader->world.leader;
    eni_message m = {.type = ENI_CTL_WELCOME,
                     .index = (uint64_t)seat->peer.rank,
                     .nranks = config->nranks,
                     .epoch = config->epoch,
                     .incarnation = FIRST_INCARNATION,
                     .budget = leader->terms.budget,
                     .rank = self->rank,
                     .pid = self->pid};
    set_text(m.host, sizeof m.host, self->host);
    set_text(m.host_id, sizeof m.host_id, self->host_id);
    m.privates = (eni_pair_list){self->privates, self->nprivates, {NULL, 0}};
    seat->stage = SEAT_ACTIVE;
    seat->heard_ns = eni_now_ns();
    eni_seat_put(seat, &m);
}

/* Everyone is there: compare, ask on_world, let them in. */
static void begin(eni_leader *leader)
{
    const eni_leader_config *config = &leader->config;
    char reason[ENI_REASON_MAX];
    assign_ranks(leader);
    if (!compare_all(leader, reason)) {
        eni_leader_finish(leader, EN_EMISMATCH, reason);
        return;
    }
    make_world(leader);
    en_status st =
        config->on_world == NULL ? EN_OK : config->on_world(config->user, &leader->world, &leader->terms);
    if (st != EN_OK) {
        const char *why = leader->terms.reason[0] != '\0' ? leader->terms.reason : en_status_str(st);
        eni_leader_finish(leader, st, why);
        return;
    }
    leader->world.budget = leader->terms.budget;
    leader->world.leader.privates = leader->terms.privates;
    leader->world.leader.nprivates = leader->terms.nprivates;
    leader->stage = LEADER_RUNNING;
    leader->looked_ns = eni_now_ns(); /* on_world may have taken its time */
    for (int32_t r = 0; r < config->nranks; r++)
        welcome(leader, leader->by_rank[r]);
    eni_debug("leader", "%d ranks are in", config->nranks);
}

/* "have 2 of 3 ranks, missing rank 2 after 30 s" */
static void give_up(eni_leader *leader)
{
    int32_t nranks = leader->config.nranks, have = count_joined(leader), named = 0, anonymous = 0;
    for (size_t i = 0; i < leader->nseats; i++)
        anonymous += leader->seats[i].stage == SEAT_JOINED && leader->seats[i].peer.rank < 0;
    char reason[ENI_REASON_MAX];
    size_t at = (size_t)snprintf(reason, sizeof reason, "have %d of %d ranks", have, nranks);
    for (int32_t r = 0; r < nranks && anonymous == 0 && at < sizeof reason - 64; r++)
        if (find_rank(leader, r) == NULL)
            at += (size_t)snprintf(reason + at, sizeof reason - at, "%s%d",
                                   named++ == 0 ? ", missing rank " : ", ", r);
    snprintf(reason + at, sizeof reason - at, " after %.3g s", (double)leader->config.join_ns / 1e9);
    eni_leader_finish(leader, EN_ETIMEOUT, reason);
}

void eni_leader_tick_join(eni_leader *leader, int64_t now_ns)
{
    if (count_joined(leader) == leader->config.nranks)
        begin(leader);
    else if (now_ns >= leader->join_deadline_ns)
        give_up(leader);
}
