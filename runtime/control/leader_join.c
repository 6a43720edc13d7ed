/* leader_join.c - who may come in, and when: at the start, while the run goes on, and back after a psd was restarted.
 *
 * A first incarnation: every JOIN is checked by itself and its sender waits. When all are there the leader
 * compares what they say, lets its own process and then the other servers open what they have, and welcomes
 * all. A revived leader knows the world from the previous incarnation, and welcomes each as it comes back. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

/* Every rank's in its first incarnation; the leader's world carries it, so that psd knows whom to expect. */
enum { FIRST_EPOCH = 1, FIRST_INCARNATION = 1 };
static const int64_t serve_ns = 30 * ENI_SECOND; /* how long servers may take to open their shards */
static const int64_t notice_again_ns = 30 * ENI_SECOND;

/* ---- refusing ---- */

void eni_leader_refuse(eni_connection *connection, en_status status, const char *format, ...)
{
    eni_message refused = {.type = ENI_CTL_REFUSED, .status = (uint32_t)status};
    va_list args;
    va_start(args, format);
    vsnprintf(refused.reason, sizeof refused.reason, format, args);
    va_end(args);
    eni_log_every(connection->refusals, ENI_LOG_WARN, "leader", "refused a member: %s", refused.reason);
    eni_connection_put(connection, &refused);
    eni_connection_leave(connection);
}

/* ---- who has joined ---- */

static int32_t servers_expected(const eni_leader *leader)
{
    return leader->nmembers - leader->config.nranks;
}

/* Of a server (0: of a rank) among the members. */
static int32_t place_of(const eni_leader *leader, int32_t server, int32_t rank)
{
    return server > 0 ? leader->config.nranks + server - 1 : rank;
}

/* Who waits under that number: a rank, or server -1 - number. */
static const eni_connection *find_joined(const eni_leader *leader, int32_t number)
{
    for (size_t i = 0; i < leader->nconnections; i++)
        if (leader->connections[i].stage == CONNECTION_JOINED && leader->connections[i].peer.rank == number)
            return &leader->connections[i];
    return NULL;
}

static int32_t count_joined(const eni_leader *leader, bool is_server)
{
    int32_t n = 0;
    for (size_t i = 0; i < leader->nconnections; i++)
        n += leader->connections[i].stage == CONNECTION_JOINED && !leader->connections[i].is_newcomer &&
             (leader->connections[i].server > 0) == is_server;
    return n;
}

/* ---- agreement ---- */

/* How the others began is nothing to a newcomer: it gets the weights and the micro-batches of now. */
static bool is_of_the_start(const char *key)
{
    return strcmp(key, "resume") == 0 || strcmp(key, "budget") == 0 || strcmp(key, "world-size") == 0;
}

/* Says the first key whose values differ. Both sides' keys are walked: none may be extra. */
static bool compare(const eni_key_value *ours, size_t nours, const eni_connection *connection,
                    const char *whose, char reason_out[ENI_REASON_MAX])
{
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < (side == 0 ? nours : connection->nkey_values); i++) {
            const char *key = side == 0 ? ours[i].key : connection->key_values[i].key;
            const char *a = eni_key_value_find(ours, nours, key);
            const char *b = eni_key_value_find(connection->key_values, connection->nkey_values, key);
            if (a != NULL && b != NULL && strcmp(a, b) == 0) continue;
            if (connection->is_newcomer && is_of_the_start(key)) continue;
            char who[32] = "the newcomer";
            if (!connection->is_newcomer) eni_peer_name(connection->peer.rank, who);
            snprintf(reason_out, ENI_REASON_MAX, "%.60s differs: %s has %.150s, %s has %.150s", key, whose,
                     a == NULL ? "none" : a, who, b == NULL ? "none" : b);
            return false;
        }
    return true;
}

/* ---- letting in ---- */

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

/* The leader's own member data, then those of servers 1, 2, .. False: the run has ended. */
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

/* All servers serve: the ranks that wait get in, and those that come later at once. */
static void run(eni_leader *leader)
{
    if (!merge_member_data(leader)) return;
    leader->stage = LEADER_RUNNING;
    for (int32_t i = 0; i < leader->nmembers; i++) {
        eni_leader_member *member = &leader->members[i];
        if (member->connection != NULL && member->connection->stage == CONNECTION_JOINED)
            welcome(leader, member);
    }
    eni_debug("leader", "%d ranks are in", leader->config.nranks);
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

/* A server's shards are open: the last one lets everybody in; one that came back tells everybody where. */
void eni_leader_ready(eni_leader *leader, eni_connection *connection, const eni_message *m)
{
    eni_leader_member *member = eni_leader_member_of(leader, connection);
    const eni_key_value *member_data;
    if (member == NULL || connection->server == 0 || member->is_ready) {
        eni_leader_lost(leader, connection, "it sent a message that was not due");
        return;
    }
    if (eni_key_values_take(&m->member_data, &member_data) != EN_OK) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    eni_free((void *)(uintptr_t)member->member_data);
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

/* Gives the ranks that asked for none the free ones, in connection order, and everyone his place. */
static void assign_ranks(eni_leader *leader)
{
    int32_t rank = 0;
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        if (connection->stage != CONNECTION_JOINED || connection->is_newcomer) continue;
        if (connection->peer.rank == ENI_RANK_NONE) {
            while (find_joined(leader, rank) != NULL)
                rank++;
            connection->peer.rank = rank;
        }
        leader->members[place_of(leader, connection->server, connection->peer.rank)].connection = connection;
    }
}

static eni_peer own_peer(const eni_leader *leader)
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
                                     .leader = own_peer(leader),
                                     .key_values = key_values,
                                     .nkey_values = nkey_values};
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
    leader->world.budget = leader->terms.budget;
    leader->world.leader.member_data = leader->terms.member_data;
    leader->world.leader.nmember_data = leader->terms.nmember_data;
    leader->when.looked_ns = eni_now_ns(); /* it may have taken its time */
    return true;
}

/* Nobody has come as this rank so far. False: the run has ended. */
static bool leave_empty(eni_leader *leader, int32_t rank)
{
    const eni_peer nobody = {.rank = rank, .host = "", .host_id = ""};
    leader->members[rank].stage = MEMBER_LOST;
    if (eni_peer_copy(&leader->peers[rank], &nobody) == EN_OK) return true;
    eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
    return false;
}

/* What all have said moves into the world, which outlives their connections. */
static void begin(eni_leader *leader)
{
    char reason[ENI_REASON_MAX];
    assign_ranks(leader);
    eni_connection *first = leader->members[0].connection;
    for (int32_t r = 1; r < eni_leader_first_ranks(leader); r++)
        if (!compare(first->key_values, first->nkey_values, leader->members[r].connection, "rank 0",
                     reason)) {
            eni_leader_finish(leader, EN_EMISMATCH, reason);
            return;
        }
    for (int32_t i = 0; i < leader->nmembers; i++) {
        eni_connection *connection = leader->members[i].connection;
        if (connection == NULL && !leave_empty(leader, i)) return;
        if (connection == NULL) continue;
        leader->peers[i] = connection->peer;
        connection->is_in_world = true;
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
static void connection_member(eni_leader *leader, eni_connection *connection)
{
    const int32_t place = place_of(leader, connection->server, connection->peer.rank);
    eni_leader_member *member = &leader->members[place];
    member->connection = connection;
    member->step = -1;
    member->phase[0] = '\0';
    if (connection->server > 0) { /* perhaps another process than before; a rank is always the same one */
        eni_peer_fini(&leader->peers[place]);
        leader->peers[place] = connection->peer;
        connection->is_in_world = true;
        member->is_ready = false;
        put_serve(leader, member);
        return;
    }
    if (place >= eni_leader_first_ranks(leader)) { /* of one that came late the state has the number only */
        eni_peer_fini(&leader->peers[place]);
        leader->peers[place] = connection->peer;
        connection->is_in_world = true;
    }
    if (leader->stage != LEADER_RUNNING) return;
    welcome(leader, member);
    eni_leader_check_end(leader); /* others may have said goodbye, and waited for this one */
}

/* ---- newcomers ---- */

/* Whether it may come now; one that never may is told so. The place of a rank that may be lost may become free. */
static bool has_place(const eni_leader *leader, eni_connection *connection)
{
    const int32_t living = eni_leader_count_living(leader);
    int32_t missing = 0;
    char reason[ENI_REASON_MAX];
    for (int32_t r = 0; r < leader->ncame; r++)
        missing += leader->members[r].stage == MEMBER_MISSING;
    if (atomic_load_explicit(&leader->claimed, memory_order_relaxed) >= leader->terms.budget ||
        eni_leader_is_stopping(leader))
        eni_leader_refuse(connection, EN_EINVAL,
                          "the run is ending: all its micro-batches are given out, or it was stopped");
    else if (living - missing >= leader->config.nplaces)
        eni_leader_refuse(connection, EN_EINVAL,
                          "all %d places of the run are taken: wait for one to become free, or start the "
                          "run with a larger --max-workers",
                          leader->config.nplaces);
    else if (leader->ncame >= leader->config.nranks)
        eni_leader_refuse(connection, EN_EINVAL,
                          "%d workers have come to this run, and that is all that can: %d for each of "
                          "--max-workers=%d",
                          leader->ncame, ENI_RANKS_PER_PLACE, leader->config.nplaces);
    else if (!compare(leader->world.key_values, leader->world.nkey_values, connection, "the run", reason))
        eni_leader_refuse(connection, EN_EMISMATCH, "%s", reason);
    else
        return living < leader->config.nplaces;
    return false;
}

/* It gets the next rank, and has done the gathers that the others have done. */
static void admit(eni_leader *leader, eni_connection *connection, uint64_t gathers)
{
    const int32_t rank = leader->ncame;
    const eni_peer *peer = &connection->peer;
    const uint64_t born =
        connection->process_fd >= 0 ? peer->born : 0; /* that we see: of this host and pid namespace */
    eni_leader_member *member = &leader->members[rank];
    if (eni_leader_write(leader, ENI_ENTRY_CAME, rank, born, (uint64_t)peer->pid) != EN_OK) return;
    leader->ncame++;
    connection->peer.rank = rank;
    connection->done = gathers;
    eni_peer_fini(&leader->peers[rank]);
    leader->peers[rank] = connection->peer;
    connection->is_in_world = true;
    member->connection = connection;
    welcome(leader, member);
    eni_message came = {.type = ENI_CTL_CAME};
    eni_message_set_peer(&came, &connection->peer);
    for (int32_t r = 0; r < rank; r++)
        if (leader->members[r].stage == MEMBER_HERE) eni_leader_member_put(&leader->members[r], &came);
    if (!eni_leader_has_own_member(leader))
        eni_info("leader", "rank %d has come: pid %" PRId64 " on host %s", rank, connection->peer.pid,
                 connection->peer.host);
}

/* Nobody is in a gather of the start any more: a newcomer has none behind it that another rank could still be in. */
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

/* Those that wait get in once all have begun to train, and while no gather is under way: the first one that they take part
 * in is the one behind it. A rank that a psd waits for which came back has done the same gathers, so nobody waits for it. */
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

/* ---- one JOIN ---- */

/* What holds for every JOIN, in the order in which it may be told to an unauthenticated peer: the token
 * first. */
static bool check_numbers(eni_leader *leader, eni_connection *connection, const eni_message *join)
{
    const int32_t nranks = leader->config.nranks, first = eni_leader_first_ranks(leader);
    const bool is_newcomer = join->server == 0 && join->rank == ENI_RANK_NEW && join->incarnation == 0;
    if (!eni_token_equal(&join->token, &leader->config.token))
        eni_leader_refuse(
            connection, EN_EDENIED,
            "the job token is not this run's: it was started by someone else, or is an old one");
    else if (is_newcomer && leader->config.nplaces == 0)
        eni_leader_refuse(connection, EN_EINVAL,
                          "this run takes no newcomers: it was started without --max-workers=N");
    else if (is_newcomer && join->nranks != nranks)
        eni_leader_refuse(connection, EN_EINVAL,
                          "a newcomer was told --max-workers=%d, the run --max-workers=%d",
                          join->nranks / ENI_RANKS_PER_PLACE, leader->config.nplaces);
    else if (join->nranks != nranks)
        eni_leader_refuse(connection, EN_EINVAL, "a %s was told --world-size=%d, the leader %d",
                          join->server > 0 ? "server" : "worker", join->nranks, nranks);
    else if (join->server == 0 && join->rank >= (join->incarnation != 0 ? nranks : first))
        eni_leader_refuse(
            connection, EN_EINVAL, "rank %d does not exist in a world of %d: ranks are 0 to %d%s", join->rank,
            first, first - 1, leader->config.nplaces > 0 ? ", and one that comes later is --rank=new" : "");
    else if (join->server > 0 && join->nservers != servers_expected(leader) + 1)
        eni_leader_refuse(connection, EN_EINVAL, "psd %d was told --servers=%d, the leader %d", join->server,
                          join->nservers, servers_expected(leader) + 1);
    else if (join->server > servers_expected(leader))
        eni_leader_refuse(connection, EN_EINVAL, "psd %d does not exist among %d servers", join->server,
                          servers_expected(leader) + 1);
    else
        return true;
    return false;
}

/* A process that comes while the run goes on: it must be one that is missing, and the one that it was. */
static bool check_return(eni_leader *leader, eni_connection *connection, const eni_message *join)
{
    const int32_t nranks = eni_leader_first_ranks(leader);
    char who[32], reason[ENI_REASON_MAX];
    if (join->server == 0 && (join->incarnation == 0 || join->rank < 0)) {
        eni_leader_refuse(connection, EN_EINVAL, "the run has all its %d rank%s and has begun", nranks,
                          nranks == 1 ? "" : "s");
        return false;
    }
    const eni_leader_member *member = &leader->members[place_of(leader, join->server, join->rank)];
    eni_peer_name(eni_leader_member_number(leader, member), who);
    if ((member->stage == MEMBER_GONE || member->stage == MEMBER_LEFT) &&
        join->incarnation == leader->world.incarnation) {
        eni_connection_put(
            connection, &(eni_message){.type = ENI_CTL_BYE}); /* its goodbye was written down, not answered */
        eni_connection_leave(connection);
        return false;
    }
    if (join->incarnation != 0 && join->incarnation != leader->world.incarnation)
        eni_leader_refuse(connection, EN_EINVAL, "%s comes back from another run or another life of it", who);
    else if (member->stage != MEMBER_MISSING || member->connection != NULL)
        eni_leader_refuse(connection, EN_EINVAL, "%s cannot join again: it is here, has left, or was lost",
                          who);
    else if (join->server == 0 && join->number > member->claims)
        eni_leader_refuse(
            connection, EN_EMISMATCH,
            "%s was given micro-batches that the restarted psd does not know of: its journal is older", who);
    else if (join->server == 0 &&
             !compare(leader->world.key_values, leader->world.nkey_values, connection, "psd", reason))
        eni_leader_refuse(connection, EN_EMISMATCH, "%s", reason);
    else
        return true;
    return false;
}

static bool check_place(eni_leader *leader, eni_connection *connection, const eni_message *join)
{
    const int32_t nranks = eni_leader_first_ranks(leader);
    if (leader->config.revived != NULL || leader->stage == LEADER_RUNNING)
        return check_return(leader, connection, join);
    if (join->incarnation != 0 && join->server == 0) {
        eni_leader_refuse(
            connection, EN_EINVAL,
            "rank %d comes back to a psd that knows nothing of its run: this one was started anew, "
            "without the --state=FOLDER of the psd that died",
            join->rank);
        return false;
    }
    const eni_connection *other = NULL;
    if (join->server > 0)
        other = find_joined(leader, -1 - join->server);
    else if (join->rank >= 0)
        other = find_joined(leader, join->rank);
    if (leader->stage != LEADER_JOINING)
        eni_leader_refuse(connection, EN_EINVAL, "the run has all its %d rank%s and has begun", nranks,
                          nranks == 1 ? "" : "s");
    else if (other != NULL && join->server > 0)
        eni_leader_refuse(connection, EN_EINVAL, "psd %d is already here: pid %" PRId64 " on host %s",
                          join->server, other->peer.pid, other->peer.host);
    else if (other != NULL)
        eni_leader_refuse(connection, EN_EINVAL, "rank %d is already here: pid %" PRId64 " on host %s",
                          join->rank, other->peer.pid, other->peer.host);
    else if (join->server == 0 && count_joined(leader, false) == nranks)
        eni_leader_refuse(connection, EN_EINVAL,
                          nranks == 1 ? "the one rank is already here" : "all %d ranks are already here",
                          nranks);
    else
        return true;
    return false;
}

/* What it said of itself, copied; the checks may need it, and free it with the connection. */
static en_status take_join(eni_connection *connection, const eni_message *join)
{
    if (eni_peer_init(&connection->peer, join) != EN_OK) return EN_ENOMEM;
    if (eni_key_values_take(&join->key_values, &connection->key_values) != EN_OK) return EN_ENOMEM;
    connection->nkey_values = join->key_values.n;
    connection->server = join->server;
    connection->is_newcomer = join->server == 0 && join->rank == ENI_RANK_NEW && join->incarnation == 0;
    connection->incarnation = join->incarnation;
    connection->done = join->done;
    connection->peer.rank = join->rank >= 0 ? join->rank : ENI_RANK_NONE;
    if (join->server > 0) connection->peer.rank = -1 - join->server;
    return EN_OK;
}

/* Names and values go into logs and files, so no member may write lines of its own there. */
static bool check_text(eni_connection *connection)
{
    for (size_t i = 0; i < connection->nkey_values; i++) {
        const eni_key_value *said = &connection->key_values[i];
        const bool is_name = eni_is_text(said->key);
        if (is_name && eni_is_text(said->value)) continue;
        eni_leader_refuse(connection, EN_EINVAL,
                          "the %s \"%.120s\" has a control character, or is not UTF-8: give it another %s",
                          is_name ? "value of" : "name", said->key, is_name ? "one" : "name");
        return false;
    }
    return true;
}

/* Those that wait have connections, which the run's own ranks must find free: no more than there are places. */
static bool may_wait(const eni_leader *leader, eni_connection *connection)
{
    int32_t waiting = 0;
    for (size_t i = 0; i < leader->nconnections; i++)
        waiting += leader->connections[i].stage == CONNECTION_JOINED && leader->connections[i].is_newcomer;
    if (leader->stage == LEADER_ENDING)
        eni_leader_refuse(connection, EN_EINVAL, "the run is ending");
    else if (waiting >= leader->config.nplaces)
        eni_leader_refuse(connection, EN_EINVAL, "%d newcomers wait already, and the run has %d places",
                          waiting, leader->config.nplaces);
    else
        return true;
    return false;
}

void eni_leader_join(eni_leader *leader, eni_connection *connection, const eni_message *join)
{
    if (!check_numbers(leader, connection, join)) return;
    if (take_join(connection, join) != EN_OK) {
        eni_leader_refuse(connection, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    if (!check_text(connection)) return;
    if (connection->is_newcomer ? !may_wait(leader, connection) : !check_place(leader, connection, join))
        return;
    connection->stage = CONNECTION_JOINED;
    if (strcmp(join->host_id, leader->config.host_id) == 0 && join->pid != getpid())
        connection->process_fd = eni_process_watch(join->pid, join->born);
    eni_message introduction = {.type =
                                    ENI_CTL_LEADER}; /* so that it can name us when we end before WELCOME */
    const eni_peer self = own_peer(leader);
    eni_message_set_peer(&introduction, &self);
    eni_connection_put(connection, &introduction);
    eni_debug("leader", "rank %d joined: pid %" PRId64 " on host %s", connection->peer.rank, join->pid,
              join->host);
    if (connection->is_newcomer) return; /* it is let in when the others train */
    if (leader->config.revived != NULL || leader->stage == LEADER_RUNNING)
        connection_member(leader, connection);
}

/* ---- while not all are there ---- */

void eni_leader_have(const eni_leader *leader, char text_out[ENI_REASON_MAX])
{
    const int32_t nranks = eni_leader_first_ranks(leader);
    int32_t named = 0, anonymous = 0;
    int32_t servers = servers_expected(leader);
    for (size_t i = 0; i < leader->nconnections; i++)
        anonymous += leader->connections[i].stage == CONNECTION_JOINED &&
                     !leader->connections[i].is_newcomer && leader->connections[i].peer.rank == ENI_RANK_NONE;
    size_t at = (size_t)snprintf(text_out, ENI_REASON_MAX, "%d of %d ranks are here",
                                 count_joined(leader, false), nranks);
    for (int32_t r = 0; r < nranks && anonymous == 0 && at < ENI_REASON_MAX - 128; r++)
        if (find_joined(leader, r) == NULL)
            at += (size_t)snprintf(text_out + at, ENI_REASON_MAX - at, "%s%d",
                                   named++ == 0 ? ", missing rank " : ", ", r);
    for (int32_t k = 1; k <= servers && at < ENI_REASON_MAX - 64; k++)
        if (find_joined(leader, -1 - k) == NULL)
            at += (size_t)snprintf(text_out + at, ENI_REASON_MAX - at, ", missing psd %d", k);
}

static void give_up(eni_leader *leader)
{
    char have[ENI_REASON_MAX], reason[ENI_REASON_MAX];
    if (leader->stage == LEADER_JOINING)
        eni_leader_have(leader, have);
    else
        snprintf(have, sizeof have, "not all servers opened their shards");
    snprintf(reason, sizeof reason, "%.400s after %.3g s", have,
             (double)(leader->when.join_deadline_ns - leader->when.started_ns) / 1e9);
    eni_leader_finish(leader, EN_ETIMEOUT, reason);
}

/* psd says itself whom it waits for; a leader inside rank 0 has a member that does. */
static void say_who_is_missing(eni_leader *leader, int64_t now_ns)
{
    char have[ENI_REASON_MAX];
    if (leader->config.rank >= 0 || now_ns < leader->when.next_notice_ns) return;
    leader->when.next_notice_ns = now_ns + notice_again_ns;
    eni_leader_have(leader, have);
    eni_info("leader", "%s after %.1f s; giving up in %.0f s", have,
             (double)(now_ns - leader->when.started_ns) / 1e9,
             (double)(leader->when.join_deadline_ns - now_ns) / 1e9);
}

void eni_leader_tick_join(eni_leader *leader, int64_t now_ns)
{
    bool is_complete = leader->stage == LEADER_JOINING &&
                       count_joined(leader, false) == eni_leader_first_ranks(leader) &&
                       count_joined(leader, true) == servers_expected(leader);
    if (is_complete)
        begin(leader);
    else if (now_ns >= leader->when.join_deadline_ns)
        give_up(leader);
    else if (leader->stage == LEADER_JOINING)
        say_who_is_missing(leader, now_ns);
}
