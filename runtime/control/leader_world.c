/* leader_world.c - everyone is there: do they agree, what does the leader's process make of it, who gets in
 * when; and the same for a world that is known from the life before. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/leader_state.h"

/* Every rank's in its first life; the leader's world carries it, so that psd knows whom to expect. */
enum { FIRST_INCARNATION = 1 };
static const int64_t serve_ns = 30 * ENI_SECOND; /* how long servers may take to open their lanes */

static void set_text(char *out, size_t capacity, const char *text)
{
    snprintf(out, capacity, "%s", text);
}

/* ---- agreement ---- */

/* Says the first key whose values differ. Both sides' keys are walked: none may be extra. */
bool eni_leader_compare(const eni_pair *ours, size_t nours, const eni_seat *seat, const char *whose,
                        char reason_out[ENI_REASON_MAX])
{
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < (side == 0 ? nours : seat->npairs); i++) {
            const char *key = side == 0 ? ours[i].key : seat->pairs[i].key;
            const char *a = eni_pair_find(ours, nours, key);
            const char *b = eni_pair_find(seat->pairs, seat->npairs, key);
            if (a != NULL && b != NULL && strcmp(a, b) == 0) continue;
            snprintf(reason_out, ENI_REASON_MAX, "%.60s differs: %s has %.150s, rank %d has %.150s", key,
                     whose, a == NULL ? "none" : a, seat->peer.rank, b == NULL ? "none" : b);
            return false;
        }
    return true;
}

static bool compare_all(eni_leader *leader, char reason_out[ENI_REASON_MAX])
{
    const eni_seat *first = leader->mates[0].seat;
    for (int32_t r = 1; r < leader->config.nranks; r++)
        if (!eni_leader_compare(first->pairs, first->npairs, leader->mates[r].seat, "rank 0", reason_out))
            return false;
    return true;
}

/* ---- a first life ---- */

static bool is_taken(const eni_leader *leader, int32_t rank)
{
    for (size_t i = 0; i < leader->nseats; i++)
        if (leader->seats[i].stage == SEAT_JOINED && leader->seats[i].peer.rank == rank) return true;
    return false;
}

/* Gives the ranks that asked for none the free ones, in seat order, and everyone his place. */
static void assign_ranks(eni_leader *leader)
{
    int32_t rank = 0;
    for (size_t i = 0; i < leader->nseats; i++) {
        eni_seat *seat = &leader->seats[i];
        if (seat->stage != SEAT_JOINED) continue;
        if (seat->peer.rank == ENI_RANK_NONE) {
            while (is_taken(leader, rank))
                rank++;
            seat->peer.rank = rank;
        }
        int32_t place = seat->server > 0 ? leader->config.nranks + seat->server - 1 : seat->peer.rank;
        leader->mates[place].seat = seat;
    }
}

/* Moves what all have said into the world, which outlives their connections. */
static void make_world(eni_leader *leader)
{
    const eni_leader_config *config = &leader->config;
    for (int32_t i = 0; i < leader->nmates; i++) {
        eni_seat *seat = leader->mates[i].seat;
        leader->peers[i] = seat->peer;
        seat->is_in_world = true;
    }
    eni_seat *first = leader->mates[0].seat;
    leader->world = (eni_world_info){.rank = config->rank,
                                     .nranks = config->nranks,
                                     .nservers = config->nservers,
                                     .epoch = config->epoch,
                                     .incarnation = FIRST_INCARNATION,
                                     .budget = config->budget,
                                     .peers = leader->peers,
                                     .leader = {.rank = config->rank,
                                                .pid = getpid(),
                                                .born = leader->born,
                                                .host = config->host,
                                                .host_id = config->host_id},
                                     .pairs = first->pairs,
                                     .npairs = first->npairs};
    first->pairs = NULL;
    first->npairs = 0;
    leader->terms = (eni_terms){.budget = config->budget};
}

/* The leader's process opens what it has; false: it cannot, and all have been told. */
static bool open_world(eni_leader *leader)
{
    const eni_leader_config *config = &leader->config;
    en_status st =
        config->on_world == NULL ? EN_OK : config->on_world(config->user, &leader->world, &leader->terms);
    if (st != EN_OK) {
        const char *why = leader->terms.reason[0] != '\0' ? leader->terms.reason : en_status_str(st);
        eni_leader_finish(leader, st, why);
        return false;
    }
    leader->config.goes_on |= leader->terms.goes_on;
    leader->needs_first = leader->terms.goes_on;
    leader->world.budget = leader->terms.budget;
    leader->world.leader.privates = leader->terms.privates;
    leader->world.leader.nprivates = leader->terms.nprivates;
    leader->looked_ns = eni_now_ns(); /* it may have taken its time */
    return true;
}

/* ---- letting in ---- */

static eni_message leader_message(const eni_leader *leader, uint32_t type)
{
    const eni_peer *self = &leader->world.leader;
    eni_message m = {.type = type,
                     .nranks = leader->config.nranks,
                     .nservers = leader->config.nservers,
                     .epoch = leader->world.epoch,
                     .incarnation = leader->world.incarnation,
                     .budget = leader->terms.budget,
                     .rank = self->rank,
                     .pid = self->pid,
                     .born = self->born};
    set_text(m.host, sizeof m.host, self->host);
    set_text(m.host_id, sizeof m.host_id, self->host_id);
    m.privates = (eni_pair_list){self->privates, self->nprivates, {NULL, 0}};
    return m;
}

static void put_peers(eni_leader *leader, eni_seat *seat)
{
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_peer *peer = &leader->peers[r];
        eni_message m = {.type = ENI_CTL_PEER, .rank = r, .pid = peer->pid, .born = peer->born};
        set_text(m.host, sizeof m.host, peer->host);
        set_text(m.host_id, sizeof m.host_id, peer->host_id);
        m.privates = (eni_pair_list){peer->privates, peer->nprivates, {NULL, 0}};
        eni_seat_put(seat, &m);
    }
}

/* PEER for every rank unless it knows them, then WELCOME. */
static void welcome(eni_leader *leader, eni_mate *mate)
{
    eni_seat *seat = mate->seat;
    if (seat->incarnation == 0 && seat->server == 0) put_peers(leader, seat);
    eni_message m = leader_message(leader, ENI_CTL_WELCOME);
    m.to = eni_mate_number(leader, mate);
    seat->stage = SEAT_ACTIVE;
    seat->heard_ns = leader->moved_ns = eni_now_ns();
    mate->stage = MATE_HERE;
    mate->told = mate->done = seat->done;
    mate->has_wait = mate->has_paused = false;
    eni_seat_put(seat, &m);
    eni_leader_tell_stop(leader, mate);
}

static void put_serve(eni_leader *leader, eni_mate *mate)
{
    if (mate->seat->incarnation == 0) put_peers(leader, mate->seat);
    eni_message m = leader_message(leader, ENI_CTL_SERVE);
    m.pairs = (eni_pair_list){leader->world.pairs, leader->world.npairs, {NULL, 0}};
    eni_seat_put(mate->seat, &m);
}

/* The leader's own privates, then those of servers 1, 2, .. */
static en_status merge_privates(eni_leader *leader)
{
    size_t n = leader->terms.nprivates, at = n;
    for (int32_t i = leader->config.nranks; i < leader->nmates; i++)
        n += leader->mates[i].nprivates;
    eni_pair *all = eni_alloc_array(n + 1, sizeof *all);
    if (all == NULL) return EN_ENOMEM;
    if (at > 0) memcpy(all, leader->terms.privates, at * sizeof *all);
    for (int32_t i = leader->config.nranks; i < leader->nmates; at += leader->mates[i++].nprivates)
        if (leader->mates[i].nprivates > 0)
            memcpy(all + at, leader->mates[i].privates, leader->mates[i].nprivates * sizeof *all);
    eni_free(leader->privates);
    leader->privates = all;
    leader->world.leader.privates = all;
    leader->world.leader.nprivates = n;
    return EN_OK;
}

/* All servers serve: the ranks that wait get in, and those that come later at once. */
static void run(eni_leader *leader)
{
    if (merge_privates(leader) != EN_OK) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    leader->stage = LEADER_RUNNING;
    for (int32_t i = 0; i < leader->nmates; i++) {
        eni_mate *mate = &leader->mates[i];
        if (mate->seat != NULL && mate->seat->stage == SEAT_JOINED) welcome(leader, mate);
    }
    eni_debug("leader", "%d ranks are in", leader->config.nranks);
}

static bool all_ready(const eni_leader *leader)
{
    for (int32_t i = leader->config.nranks; i < leader->nmates; i++)
        if (!leader->mates[i].is_ready) return false;
    return true;
}

static void open_servers(eni_leader *leader)
{
    int64_t deadline_ns = eni_now_ns() + serve_ns;
    leader->stage = LEADER_SERVING;
    if (leader->join_deadline_ns < deadline_ns) leader->join_deadline_ns = deadline_ns;
    for (int32_t i = leader->config.nranks; i < leader->nmates; i++)
        if (leader->mates[i].seat != NULL) put_serve(leader, &leader->mates[i]);
    if (all_ready(leader)) run(leader);
}

void eni_leader_begin(eni_leader *leader)
{
    char reason[ENI_REASON_MAX];
    assign_ranks(leader);
    if (!compare_all(leader, reason)) {
        eni_leader_finish(leader, EN_EMISMATCH, reason);
        return;
    }
    make_world(leader);
    if (open_world(leader)) open_servers(leader);
}

/* A server's lanes are open: the last one lets everybody in; one that came back tells everybody where. */
void eni_leader_ready(eni_leader *leader, eni_seat *seat, const eni_message *m)
{
    eni_mate *mate = eni_leader_mate(leader, seat);
    const eni_pair *privates;
    if (mate == NULL || seat->server == 0 || mate->is_ready) {
        eni_leader_lost(leader, seat, "it sent a message that was not due");
        return;
    }
    if (eni_pairs_take(&m->privates, &privates) != EN_OK) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    eni_free((void *)(uintptr_t)mate->privates);
    mate->privates = privates;
    mate->nprivates = m->privates.n;
    mate->is_ready = true;
    if (leader->stage == LEADER_SERVING && all_ready(leader)) run(leader);
    if (leader->stage != LEADER_RUNNING || seat->stage != SEAT_JOINED) return;
    if (merge_privates(leader) != EN_OK) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    welcome(leader, mate);
    eni_message renewed = leader_message(leader, ENI_CTL_RENEWED);
    for (int32_t r = 0; r < leader->config.nranks; r++)
        if (eni_mate_lives(&leader->mates[r])) eni_mate_put(&leader->mates[r], &renewed);
}

/* ---- another life ---- */

/* A member that has come back, or a rank that came back while servers are still missing. */
void eni_leader_seat_mate(eni_leader *leader, eni_seat *seat)
{
    int32_t place = seat->server > 0 ? leader->config.nranks + seat->server - 1 : seat->peer.rank;
    eni_mate *mate = &leader->mates[place];
    mate->seat = seat;
    mate->step = -1;
    mate->phase[0] = '\0';
    if (seat->server > 0) { /* perhaps another process than before; a rank is always the same one */
        eni_peer_fini(&leader->peers[place]);
        leader->peers[place] = seat->peer;
        seat->is_in_world = true;
        mate->is_ready = false;
        put_serve(leader, mate);
    } else if (leader->stage == LEADER_RUNNING) {
        welcome(leader, mate);
        eni_leader_check_end(leader); /* others may have said goodbye, and waited for this one */
    }
}

static en_status copy_world(eni_leader *leader, const eni_revived *revived)
{
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        EN_TRY(eni_peer_copy(&leader->peers[r], &revived->peers[r]));
        eni_mate *mate = &leader->mates[r];
        mate->claims = revived->rank[r].claim_number;
        mate->claim_index = revived->rank[r].claim_index;
        mate->missing_ns = leader->started_ns;
        if (revived->rank[r].has_said_bye) mate->stage = MATE_GONE;
        if (revived->rank[r].has_left) mate->stage = MATE_LOST;
    }
    return eni_pairs_copy(revived->pairs, revived->npairs, &leader->world.pairs);
}

en_status eni_leader_revive(eni_leader *leader)
{
    const eni_leader_config *config = &leader->config;
    const eni_revived *revived = config->revived;
    EN_TRY(copy_world(leader, revived));
    leader->world.rank = config->rank;
    leader->world.nranks = config->nranks;
    leader->world.nservers = config->nservers;
    leader->world.epoch = revived->epoch + 1;
    leader->world.incarnation = revived->incarnation;
    leader->world.budget = config->budget;
    leader->world.peers = leader->peers;
    leader->world.leader = (eni_peer){.rank = config->rank,
                                      .pid = getpid(),
                                      .born = leader->born,
                                      .host = config->host,
                                      .host_id = config->host_id};
    leader->world.npairs = revived->npairs;
    leader->terms = (eni_terms){.budget = config->budget};
    atomic_store_explicit(&leader->claimed, revived->claimed, memory_order_relaxed);
    leader->stop_step = revived->stop_step;
    if (revived->stop_step != ENI_STEP_NEVER) leader->stop = STOP_CHOSEN;
    if (open_world(leader)) open_servers(leader);
    return EN_OK;
}
