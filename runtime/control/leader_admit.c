/* leader_admit.c - admission: at the start, while the run goes on, and again after psd was restarted.
 *
 * In a first incarnation all wait until the last one is there. Then the leader compares their key-values,
 * lets its own process and then the other servers open their shards, and welcomes all. A revived leader knows
 * the world from the previous incarnation, and welcomes each as it comes back. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/leader_state.h"

/* Those of every rank at first; the leader's world carries them, so that psd knows what to expect. */
enum { FIRST_EPOCH = 1, FIRST_INCARNATION = 1 };
static const int64_t serve_ns = 30 * ENI_SECOND; /* how long servers may take to open their shards */

/* ---- who has joined ---- */

int32_t eni_leader_servers_expected(const eni_leader *leader)
{
    return leader->nmembers - leader->config.nranks;
}

int32_t eni_leader_index_of(const eni_leader *leader, int32_t server, int32_t rank)
{
    return server > 0 ? leader->config.nranks + server - 1 : rank;
}

const eni_connection *eni_leader_find_joined(const eni_leader *leader, int32_t number)
{
    for (size_t i = 0; i < leader->nconnections; i++)
        if (leader->connections[i].stage == CONNECTION_JOINED && leader->connections[i].peer.rank == number)
            return &leader->connections[i];
    return NULL;
}

int32_t eni_leader_count_joined(const eni_leader *leader, bool is_server)
{
    int32_t n = 0;
    for (size_t i = 0; i < leader->nconnections; i++)
        n += leader->connections[i].stage == CONNECTION_JOINED && !leader->connections[i].is_newcomer &&
             (leader->connections[i].server > 0) == is_server;
    return n;
}

/* ---- agreement ---- */

/* The start of the run does not matter to a newcomer: it gets the current weights and micro-batches. */
static bool is_of_the_start(const char *key)
{
    return strcmp(key, "resume") == 0 || strcmp(key, "budget") == 0 || strcmp(key, "world-size") == 0;
}

/* The part of two long values from which they can be told apart: lists of buckets and of points begin alike. */
static size_t difference(const char *a, const char *b)
{
    size_t from = 0;
    for (size_t i = 0; a[i] == b[i] && a[i] != '\0'; i++)
        if (a[i] == ',') from = i + 1;
    return from > 80 ? from : 0;
}

/* Finds the first key whose values differ. Walks both sides' keys side by side: neither may have extra ones, and one that only
 * one side has comes before what follows from it, such as the places of later tensors. */
bool eni_leader_compare(const eni_key_value *ours, size_t nours, const eni_connection *connection,
                        const char *whose, char reason_out[ENI_REASON_MAX])
{
    const eni_key_value *theirs = connection->key_values;
    const size_t ntheirs = connection->nkey_values;
    for (size_t i = 0; i < nours || i < ntheirs; i++) {
        if (i < nours && i < ntheirs && strcmp(ours[i].key, theirs[i].key) == 0 &&
            strcmp(ours[i].value, theirs[i].value) == 0)
            continue;
        for (int look = 0; look < 4;
             look++) { /* ours and theirs: whether the other side has it; then the values */
            const bool is_ours = look % 2 == 0;
            if (i >= (is_ours ? nours : ntheirs)) continue;
            const char *key = is_ours ? ours[i].key : theirs[i].key;
            const char *a = eni_key_value_find(ours, nours, key),
                       *b = eni_key_value_find(theirs, ntheirs, key);
            const bool has_both = a != NULL && b != NULL;
            if (has_both && (look < 2 || strcmp(a, b) == 0)) continue;
            if (connection->is_newcomer && is_of_the_start(key)) continue;
            char who[32] = "the newcomer";
            if (!connection->is_newcomer) eni_peer_name(connection->peer.rank, who);
            const size_t from = has_both ? difference(a, b) : 0;
            const char *dots = from > 0 ? ".." : "";
            snprintf(reason_out, ENI_REASON_MAX, "%.120s differs: %s has %s%.150s, %s has %s%.150s", key,
                     whose, dots, a == NULL ? "none" : a + from, who, dots, b == NULL ? "none" : b + from);
            return false;
        }
    }
    return true;
}

/* ---- admission ---- */

/* Moves a connection's peer into the world, which outlives it. */
static void take_peer(eni_leader *leader, int32_t place, eni_connection *connection)
{
    eni_peer_fini(&leader->peers[place]);
    leader->peers[place] = connection->peer;
    connection->is_in_world = true;
}

static eni_message leader_message(const eni_leader *leader, uint32_t type)
{
    eni_message m = {.type = type,
                     .nranks = leader->config.nranks,
                     .nservers = leader->config.nservers,
                     .epoch = leader->world.epoch,
                     .incarnation = leader->world.incarnation,
                     .budget = leader->terms.budget};
    if (leader->when.training_ns != 0) m.waited_ns = eni_now_ns() - leader->when.training_ns;
    eni_message_set_peer(&m, &leader->world.leader);
    return m;
}

static void put_peers(eni_leader *leader, eni_connection *connection)
{
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        eni_message m = {.type = ENI_CTL_PEER};
        eni_message_set_peer(&m, &leader->peers[r]);
        eni_connection_put(connection, &m);
    }
}

/* PEER for every rank unless it knows them, then WELCOME. */
static void welcome(eni_leader *leader, eni_leader_member *member)
{
    eni_connection *connection = member->connection;
    if (connection->incarnation == 0 && connection->server == 0) put_peers(leader, connection);
    eni_message m = leader_message(leader, ENI_CTL_WELCOME);
    m.to = eni_leader_member_number(leader, member);
    m.done = connection->done;
    connection->stage = CONNECTION_ACTIVE;
    connection->heard_ns = leader->when.moved_ns = eni_now_ns();
    member->stage = MEMBER_HERE;
    member->told = member->done = connection->done;
    member->has_wait = member->has_paused = false;
    eni_connection_put(connection, &m);
    eni_leader_tell_stop(leader, member);
    if (member->is_leaving) eni_connection_put(connection, &(eni_message){.type = ENI_CTL_LEAVE});
    if (connection->incarnation != 0 && member == leader->members) eni_leader_tell_presence(leader);
}

static void put_serve(eni_leader *leader, eni_leader_member *member)
{
    if (member->connection->incarnation == 0) put_peers(leader, member->connection);
    eni_message m = leader_message(leader, ENI_CTL_SERVE);
    m.key_values = (eni_key_value_list){.pair = leader->world.key_values, .n = leader->world.nkey_values};
    eni_connection_put(member->connection, &m);
}

/* The leader's own member data, then those of servers 1, 2, .. False if the run has ended. */
static bool merge_member_data(eni_leader *leader)
{
    size_t n = leader->terms.nmember_data, at = n;
    for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
        n += leader->members[i].nmember_data;
    eni_key_value *all = eni_alloc_array(n + 1, sizeof *all);
    if (all == NULL) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return false;
    }
    if (at > 0) memcpy(all, leader->terms.member_data, at * sizeof *all);
    for (int32_t i = leader->config.nranks; i < leader->nmembers; at += leader->members[i++].nmember_data)
        if (leader->members[i].nmember_data > 0)
            memcpy(all + at, leader->members[i].member_data, leader->members[i].nmember_data * sizeof *all);
    eni_free(leader->member_data);
    leader->member_data = all;
    leader->world.leader.member_data = all;
    leader->world.leader.nmember_data = n;
    return true;
}

/* All servers serve: admits the waiting ranks; later ones are admitted at once. */
static void run(eni_leader *leader)
{
    if (!merge_member_data(leader)) return;
    leader->stage = LEADER_RUNNING;
    for (int32_t i = 0; i < leader->nmembers; i++) {
        eni_leader_member *member = &leader->members[i];
        if (member->connection != NULL && member->connection->stage == CONNECTION_JOINED)
            welcome(leader, member);
    }
    eni_debug("leader", "%d ranks have joined", leader->config.nranks);
}

static bool all_ready(const eni_leader *leader)
{
    for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
        if (!leader->members[i].is_ready) return false;
    return true;
}

static void open_servers(eni_leader *leader)
{
    int64_t deadline_ns = eni_now_ns() + serve_ns;
    leader->stage = LEADER_SERVING;
    if (leader->when.join_deadline_ns < deadline_ns) leader->when.join_deadline_ns = deadline_ns;
    for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
        if (leader->members[i].connection != NULL) put_serve(leader, &leader->members[i]);
    if (all_ready(leader)) run(leader);
}

/* A server's shards are open: after the last one all are admitted; the address of one that came back is sent
 * to all. */
void eni_leader_ready(eni_leader *leader, eni_connection *connection, const eni_message *m)
{
    eni_leader_member *member = eni_leader_member_of(leader, connection);
    const eni_key_value *member_data;
    if (member == NULL || connection->server == 0 || member->is_ready) {
        eni_leader_lost(leader, connection, "it sent an unexpected message");
        return;
    }
    if (eni_key_values_take(&m->member_data, &member_data) != EN_OK) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    eni_free(member->member_data);
    member->member_data = member_data;
    member->nmember_data = m->member_data.n;
    member->is_ready = true;
    if (leader->stage == LEADER_SERVING && all_ready(leader)) run(leader);
    if (leader->stage != LEADER_RUNNING || connection->stage != CONNECTION_JOINED) return;
    if (!merge_member_data(leader)) return;
    welcome(leader, member);
    eni_message renewed = leader_message(leader, ENI_CTL_RENEWED);
    for (int32_t r = 0; r < leader->config.nranks; r++)
        if (eni_leader_member_lives(&leader->members[r]))
            eni_leader_member_put(&leader->members[r], &renewed);
}

/* ---- a first incarnation ---- */

/* Gives free ranks to those that asked for none, in connection order, and each member its connection. */
static void assign_ranks(eni_leader *leader)
{
    int32_t rank = 0;
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        if (connection->stage != CONNECTION_JOINED || connection->is_newcomer) continue;
        if (connection->peer.rank == ENI_RANK_NONE) {
            while (eni_leader_find_joined(leader, rank) != NULL)
                rank++;
            connection->peer.rank = rank;
        }
        leader->members[eni_leader_index_of(leader, connection->server, connection->peer.rank)].connection =
            connection;
    }
}

eni_peer eni_leader_own_peer(const eni_leader *leader)
{
    const eni_leader_config *config = &leader->config;
    return (eni_peer){.rank = config->rank,
                      .pid = getpid(),
                      .born = leader->status.born,
                      .host = config->host,
                      .host_id = config->host_id};
}

static void make_world(eni_leader *leader, uint32_t epoch, uint64_t incarnation,
                       const eni_key_value *key_values, size_t nkey_values)
{
    const eni_leader_config *config = &leader->config;
    leader->world = (eni_world_info){.rank = config->rank,
                                     .nranks = config->nranks,
                                     .nservers = config->nservers,
                                     .epoch = epoch,
                                     .incarnation = incarnation,
                                     .budget = config->budget,
                                     .peers = leader->peers,
                                     .leader = eni_leader_own_peer(leader),
                                     .key_values = key_values,
                                     .nkey_values = nkey_values};
    leader->terms = (eni_terms){.budget = config->budget};
}

/* Lets the leader's process open its shards; false if it cannot, and all have been informed. */
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
    leader->world.budget = leader->terms.budget;
    leader->world.leader.member_data = leader->terms.member_data;
    leader->world.leader.nmember_data = leader->terms.nmember_data;
    leader->when.looked_ns = eni_now_ns(); /* it may have taken a while */
    return true;
}

/* This rank has not joined. False if the run has ended. */
static bool leave_empty(eni_leader *leader, int32_t rank)
{
    const eni_peer nobody = {.rank = rank, .host = "", .host_id = ""};
    leader->members[rank].stage = MEMBER_LOST;
    if (eni_peer_copy(&leader->peers[rank], &nobody) == EN_OK) return true;
    eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
    return false;
}

void eni_leader_begin(eni_leader *leader)
{
    char reason[ENI_REASON_MAX];
    assign_ranks(leader);
    eni_connection *first = leader->members[0].connection;
    for (int32_t r = 1; r < eni_leader_first_ranks(leader); r++)
        if (!eni_leader_compare(first->key_values, first->nkey_values, leader->members[r].connection,
                                "rank 0", reason)) {
            eni_leader_finish(leader, EN_EMISMATCH, reason);
            return;
        }
    for (int32_t i = 0; i < leader->nmembers; i++) {
        eni_connection *connection = leader->members[i].connection;
        if (connection == NULL && !leave_empty(leader, i)) return;
        if (connection == NULL) continue;
        take_peer(leader, i, connection);
    }
    make_world(leader, FIRST_EPOCH, FIRST_INCARNATION, first->key_values, first->nkey_values);
    first->key_values = NULL;
    first->nkey_values = 0;
    if (open_world(leader)) open_servers(leader);
}

/* ---- another incarnation ---- */

void eni_leader_revive(eni_leader *leader)
{
    const eni_revived *revived = leader->config.revived;
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        eni_leader_member *member = &leader->members[r];
        const eni_revived_rank *was = &revived->rank[r];
        eni_peer peer = revived->peers[r];
        if (r >= eni_leader_first_ranks(leader)) peer.pid = was->came;
        if (was->born != 0) { /* on this host */
            peer.born = was->born;
            peer.host = leader->config.host;
            peer.host_id = leader->config.host_id;
        }
        if (eni_peer_copy(&leader->peers[r], &peer) != EN_OK) {
            eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
            return;
        }
        if (peer.pid == 0) member->stage = MEMBER_LOST;
        if (peer.pid != 0 && r >= leader->ncame) leader->ncame = r + 1;
        member->claims = was->claim_number;
        member->claim_index = was->claim_index;
        member->is_leaving = was->is_leaving;
        member->missing_ns = leader->when.started_ns;
        if (was->has_said_bye) member->stage = was->is_leaving ? MEMBER_LEFT : MEMBER_GONE;
        if (was->has_left) member->stage = MEMBER_LOST;
    }
    make_world(leader, revived->epoch + 1, revived->incarnation, revived->key_values, revived->nkey_values);
    atomic_store_explicit(&leader->claimed, revived->claimed, memory_order_relaxed);
    leader->when.training_ns = revived->training_ns;
    leader->stop.step = revived->stop_step;
    if (revived->stop_step != ENI_STEP_NEVER) leader->stop.stage = STOP_CHOSEN;
    if (open_world(leader)) open_servers(leader);
}

/* A member that has come back, or a rank that came back while servers are still missing. */
void eni_leader_return(eni_leader *leader, eni_connection *connection)
{
    const int32_t place = eni_leader_index_of(leader, connection->server, connection->peer.rank);
    eni_leader_member *member = &leader->members[place];
    member->connection = connection;
    member->step = -1;
    member->phase[0] = '\0';
    /* A server may be another process than before; of a rank that joined late, the state has only the
     * number. */
    if (place >= eni_leader_first_ranks(leader)) take_peer(leader, place, connection);
    if (connection->server > 0) {
        member->is_ready = false;
        put_serve(leader, member);
        return;
    }
    if (leader->stage != LEADER_RUNNING) return;
    welcome(leader, member);
    eni_leader_check_end(leader); /* others may have sent BYE, and waited for this one */
}

/* ---- newcomers ---- */

/* Whether it may join now; refuses one that never may. A missing rank's seat may become free. */
static bool has_place(const eni_leader *leader, eni_connection *connection)
{
    const int32_t living = eni_leader_count_living(leader);
    int32_t missing = 0;
    char reason[ENI_REASON_MAX];
    for (int32_t r = 0; r < leader->ncame; r++)
        missing += leader->members[r].stage == MEMBER_MISSING;
    if (atomic_load_explicit(&leader->claimed, memory_order_relaxed) >= leader->terms.budget ||
        eni_leader_is_stopping(leader))
        return eni_leader_refuse(
            connection, EN_EINVAL,
            "the run is ending: all its micro-batches are handed out, or it was stopped");
    if (living - missing >= leader->config.nplaces)
        return eni_leader_refuse(connection, EN_EINVAL,
                                 "all %d seats of the run are taken: wait for a free one, or start the run "
                                 "with a larger --max-workers",
                                 leader->config.nplaces);
    if (leader->ncame >= leader->config.nranks)
        return eni_leader_refuse(
            connection, EN_EINVAL,
            "%d workers have joined this run over time, which is the limit: %d for each of --max-workers=%d",
            leader->ncame, ENI_RANKS_PER_PLACE, leader->config.nplaces);
    if (!eni_leader_compare(leader->world.key_values, leader->world.nkey_values, connection, "the run",
                            reason))
        return eni_leader_refuse(connection, EN_EMISMATCH, "%s", reason);
    return living < leader->config.nplaces;
}

/* Gives it the next rank, and counts the others' gathers as done. */
static void admit(eni_leader *leader, eni_connection *connection, uint64_t gathers)
{
    const int32_t rank = leader->ncame;
    const eni_peer *peer = &connection->peer;
    /* Visible to us: on this host and in this pid namespace. */
    const uint64_t born = connection->process_fd >= 0 ? peer->born : 0;
    eni_leader_member *member = &leader->members[rank];
    if (eni_leader_write(leader, ENI_ENTRY_CAME, rank, born, (uint64_t)peer->pid) != EN_OK) return;
    leader->ncame++;
    connection->peer.rank = rank;
    connection->done = gathers;
    take_peer(leader, rank, connection);
    member->connection = connection;
    welcome(leader, member);
    eni_message came = {.type = ENI_CTL_CAME};
    eni_message_set_peer(&came, &connection->peer);
    for (int32_t r = 0; r < rank; r++)
        if (leader->members[r].stage == MEMBER_HERE) eni_leader_member_put(&leader->members[r], &came);
    if (!eni_leader_has_own_member(leader))
        eni_info("leader", "rank %d has joined: pid %" PRId64 " on host %s", rank, connection->peer.pid,
                 connection->peer.host);
}

/* All have left the gathers of the start, so that a newcomer, which skips them, holds no rank up. */
static bool all_train(const eni_leader *leader)
{
    const int32_t first = eni_leader_first_ranks(leader);
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_leader_member *member = &leader->members[r];
        if (member->stage == MEMBER_MISSING ||
            (r < first && member->stage == MEMBER_HERE && member->step < 0))
            return false;
    }
    return true;
}

/* Admits waiting newcomers once all have begun to train, and while no gather is under way: the next gather is
 * their first. A rank that rejoins a restarted psd has done the same gathers, so it is not waited for. */
void eni_leader_tick_newcomers(eni_leader *leader, int64_t now_ns)
{
    uint64_t gathers;
    if (leader->when.training_ns == 0 && leader->config.nplaces > 0 && all_train(leader)) {
        if (eni_leader_write(leader, ENI_ENTRY_TRAIN, 0, 0, (uint64_t)now_ns) != EN_OK) return;
        leader->when.training_ns = now_ns;
    }
    for (size_t i = 0; i < leader->nconnections && leader->stage == LEADER_RUNNING; i++) {
        eni_connection *connection = &leader->connections[i];
        if (connection->stage != CONNECTION_JOINED || !connection->is_newcomer) continue;
        if (!has_place(leader, connection)) continue;
        if (leader->when.training_ns != 0 && eni_leader_is_between_gathers(leader, &gathers))
            admit(leader, connection, gathers);
    }
}
