/* leader_join.c - checks one JOIN by its own content, and reports who is still missing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

static const int64_t notice_again_ns = 30 * ENI_SECOND;

/* ---- one JOIN ---- */

/* Checks that apply to every JOIN, in an order safe to reveal to an unauthenticated peer: the token first. */
static bool check_numbers(eni_leader *leader, eni_connection *connection, const eni_message *join)
{
    const int32_t nranks = leader->config.nranks, first = eni_leader_first_ranks(leader);
    const int32_t nservers = eni_leader_servers_expected(leader) + 1;
    const bool is_newcomer = join->server == 0 && join->rank == ENI_RANK_NEW && join->incarnation == 0;
    if (!eni_leader_knows(leader, connection, &join->token)) return false;
    if (is_newcomer && leader->config.nplaces == 0)
        return eni_leader_refuse(connection, EN_EINVAL,
                                 "this run accepts no newcomers: it was started without --max-workers=N");
    if (is_newcomer && join->nranks != nranks)
        return eni_leader_refuse(connection, EN_EINVAL,
                                 "a newcomer has --max-workers=%d, the run --max-workers=%d",
                                 join->nranks / ENI_RANKS_PER_PLACE, leader->config.nplaces);
    if (join->nranks != nranks)
        return eni_leader_refuse(connection, EN_EINVAL, "a %s has --world-size=%d, the leader %d",
                                 join->server > 0 ? "server" : "worker", join->nranks, nranks);
    if (join->server == 0 && join->rank >= (join->incarnation != 0 ? nranks : first))
        return eni_leader_refuse(
            connection, EN_EINVAL, "rank %d does not exist in a world of %d: ranks are 0 to %d%s", join->rank,
            first, first - 1, leader->config.nplaces > 0 ? "; a later one must use --rank=new" : "");
    if (join->server > 0 && join->nservers != nservers)
        return eni_leader_refuse(connection, EN_EINVAL, "psd %d has --servers=%d, the leader %d",
                                 join->server, join->nservers, nservers);
    if (join->server >= nservers)
        return eni_leader_refuse(connection, EN_EINVAL, "psd %d does not exist among %d servers",
                                 join->server, nservers);
    return true;
}

/* A process that joins a running run must be a missing member, and the same one as before. */
static bool check_return(eni_leader *leader, eni_connection *connection, const eni_message *join)
{
    const int32_t nranks = eni_leader_first_ranks(leader);
    char who[32], reason[ENI_REASON_MAX];
    if (join->server == 0 && (join->incarnation == 0 || join->rank < 0))
        return eni_leader_refuse(connection, EN_EINVAL, "the run has all its %d rank%s and has begun", nranks,
                                 nranks == 1 ? "" : "s");
    const eni_leader_member *member = &leader->members[eni_leader_index_of(leader, join->server, join->rank)];
    eni_peer_name(eni_leader_member_number(leader, member), who);
    if ((member->stage == MEMBER_GONE || member->stage == MEMBER_LEFT) &&
        join->incarnation == leader->world.incarnation) {
        /* Its goodbye was recorded, but not answered. */
        eni_connection_put(connection, &(eni_message){.type = ENI_CTL_BYE});
        eni_connection_leave(connection);
        return false;
    }
    if (join->incarnation != 0 && join->incarnation != leader->world.incarnation)
        return eni_leader_refuse(connection, EN_EINVAL,
                                 "%s belongs to another run, or to an earlier incarnation of this one", who);
    if (member->stage != MEMBER_MISSING || member->connection != NULL)
        return eni_leader_refuse(connection, EN_EINVAL,
                                 "%s cannot join again: it is connected, has left, or was lost", who);
    if (join->server == 0 && join->number > member->claims)
        return eni_leader_refuse(
            connection, EN_EMISMATCH,
            "%s holds micro-batches that the restarted psd does not know of: its journal is older", who);
    if (join->server == 0 &&
        !eni_leader_compare(leader->world.key_values, leader->world.nkey_values, connection, "psd", reason))
        return eni_leader_refuse(connection, EN_EMISMATCH, "%s", reason);
    return true;
}

static bool check_place(eni_leader *leader, eni_connection *connection, const eni_message *join)
{
    const int32_t nranks = eni_leader_first_ranks(leader);
    if (leader->config.revived != NULL || leader->stage == LEADER_RUNNING)
        return check_return(leader, connection, join);
    if (join->incarnation != 0 && join->server == 0)
        return eni_leader_refuse(connection, EN_EINVAL,
                                 "rank %d rejoins a psd that does not know its run: this psd was started "
                                 "without the --state=FOLDER of the one that died",
                                 join->rank);
    char who[32];
    const int32_t number = join->server > 0 ? -1 - join->server : join->rank;
    const bool has_number = join->server > 0 || join->rank >= 0;
    const eni_connection *other = has_number ? eni_leader_find_joined(leader, number) : NULL;
    eni_peer_name(number, who);
    if (leader->stage != LEADER_JOINING)
        return eni_leader_refuse(connection, EN_EINVAL, "the run has all its %d rank%s and has begun", nranks,
                                 nranks == 1 ? "" : "s");
    if (other != NULL)
        return eni_leader_refuse(connection, EN_EINVAL, "%s is already here: pid %" PRId64 " on host %s", who,
                                 other->peer.pid, other->peer.host);
    if (join->server == 0 && eni_leader_count_joined(leader, false) == nranks)
        return eni_leader_refuse(
            connection, EN_EINVAL,
            nranks == 1 ? "the one rank is already here" : "all %d ranks are already here", nranks);
    return true;
}

/* Copies its peer and key-values from the JOIN; the checks may need them, and free them with the
 * connection. */
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

/* Names and values go into logs and files, so no member may insert lines of its own. */
static bool check_text(eni_connection *connection)
{
    for (size_t i = 0; i < connection->nkey_values; i++) {
        const eni_key_value *said = &connection->key_values[i];
        const bool is_name = eni_is_text(said->key);
        if (is_name && eni_is_text(said->value)) continue;
        return eni_leader_refuse(
            connection, EN_EINVAL,
            "the %s \"%.120s\" contains a control character, or is not UTF-8: use another %s",
            is_name ? "value of" : "name", said->key, is_name ? "one" : "name");
    }
    return true;
}

/* Waiting newcomers use connections that the run's own ranks need: at most as many may wait as there are
 * seats. */
static bool may_wait(const eni_leader *leader, eni_connection *connection)
{
    int32_t waiting = 0;
    for (size_t i = 0; i < leader->nconnections; i++)
        waiting += leader->connections[i].stage == CONNECTION_JOINED && leader->connections[i].is_newcomer;
    if (leader->stage == LEADER_ENDING) return eni_leader_refuse(connection, EN_EINVAL, "the run is ending");
    if (waiting >= leader->config.nplaces)
        return eni_leader_refuse(connection, EN_EINVAL, "%d newcomers already wait, and the run has %d seats",
                                 waiting, leader->config.nplaces);
    return true;
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
    /* So that it can name us if we end before WELCOME. */
    eni_message introduction = {.type = ENI_CTL_LEADER};
    const eni_peer self = eni_leader_own_peer(leader);
    eni_message_set_peer(&introduction, &self);
    eni_connection_put(connection, &introduction);
    eni_debug("leader", "rank %d joined: pid %" PRId64 " on host %s", connection->peer.rank, join->pid,
              join->host);
    if (connection->is_newcomer) return; /* admitted once the others train */
    if (leader->config.revived != NULL || leader->stage == LEADER_RUNNING)
        eni_leader_return(leader, connection);
}

/* ---- while members are missing ---- */

void eni_leader_have(const eni_leader *leader, char text_out[ENI_REASON_MAX])
{
    const int32_t nranks = eni_leader_first_ranks(leader);
    int32_t named = 0, anonymous = 0, servers = eni_leader_servers_expected(leader);
    for (size_t i = 0; i < leader->nconnections; i++)
        anonymous += leader->connections[i].stage == CONNECTION_JOINED &&
                     !leader->connections[i].is_newcomer && leader->connections[i].peer.rank == ENI_RANK_NONE;
    snprintf(text_out, ENI_REASON_MAX, "%d of %d ranks are here", eni_leader_count_joined(leader, false),
             nranks);
    for (int32_t r = 0; r < nranks && anonymous == 0 && strlen(text_out) < ENI_REASON_MAX - 128; r++)
        if (eni_leader_find_joined(leader, r) == NULL)
            eni_text_add(text_out, ENI_REASON_MAX, "%s%d", named++ == 0 ? ", missing rank " : ", ", r);
    for (int32_t k = 1; k <= servers && strlen(text_out) < ENI_REASON_MAX - 64; k++)
        if (eni_leader_find_joined(leader, -1 - k) == NULL)
            eni_text_add(text_out, ENI_REASON_MAX, ", missing psd %d", k);
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

/* psd logs itself whom it waits for; a leader inside rank 0 has a member that does. */
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
                       eni_leader_count_joined(leader, false) == eni_leader_first_ranks(leader) &&
                       eni_leader_count_joined(leader, true) == eni_leader_servers_expected(leader);
    if (is_complete)
        eni_leader_begin(leader);
    else if (now_ns >= leader->when.join_deadline_ns)
        give_up(leader);
    else if (leader->stage == LEADER_JOINING)
        say_who_is_missing(leader, now_ns);
}
