/* leader_connection.c - used by all files of the leader: send a message to a member, close its connection,
 * write a journal entry, end the run for all. The other files of the leader call this one; it calls none of
 * them. */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/leader_state.h"

static const int64_t linger_ns = ENI_SECOND;      /* how long a leaving connection may take to close */
static const int64_t goodbye_ns = 2 * ENI_SECOND; /* how long all may take together after the run has ended */

/* ---- one connection ---- */

void eni_connection_put(eni_connection *connection, const eni_message *message)
{
    if (connection->stream != EN_OK || connection->is_write_closed) return;
    connection->stream = eni_message_put(&connection->link, message);
    connection->is_write_closed = eni_link_flush(&connection->link) != EN_OK;
}

void eni_connection_leave(eni_connection *connection)
{
    connection->stage = CONNECTION_LEAVING;
    connection->leave_ns = eni_now_ns() + linger_ns;
}

bool eni_leader_refuse(eni_connection *connection, en_status status, const char *format, ...)
{
    eni_message refused = {.type = ENI_CTL_REFUSED, .status = (uint32_t)status};
    va_list args;
    va_start(args, format);
    vsnprintf(refused.reason, sizeof refused.reason, format, args);
    va_end(args);
    eni_log_every(connection->refusals, ENI_LOG_WARN, "leader", "refused a member: %s", refused.reason);
    eni_connection_put(connection, &refused);
    eni_connection_leave(connection);
    return false;
}

bool eni_leader_knows(const eni_leader *leader, eni_connection *connection, const eni_token *token)
{
    if (eni_token_equal(token, &leader->config.token)) return true;
    return eni_leader_refuse(connection, EN_EDENIED,
                             "the job token is not this run's: it is another user's, or an old one");
}

void eni_connection_free(eni_connection *connection)
{
    eni_link_fini(&connection->link);
    if (connection->process_fd >= 0) close(connection->process_fd);
    if (!connection->is_in_world) eni_peer_fini(&connection->peer);
    eni_free(connection->key_values);
    *connection = (eni_connection){.link.fd = -1, .process_fd = -1};
}

/* ---- members ---- */

eni_leader_member *eni_leader_member_of(eni_leader *leader, const eni_connection *connection)
{
    for (int32_t i = 0; i < leader->nmembers; i++)
        if (leader->members[i].connection == connection) return &leader->members[i];
    return NULL;
}

void eni_leader_member_put(eni_leader_member *member, const eni_message *message)
{
    if (member->connection != NULL) eni_connection_put(member->connection, message);
}

bool eni_leader_has_own_member(const eni_leader *leader)
{
    for (size_t i = 0; i < leader->nconnections && leader->config.rank >= 0; i++) {
        const eni_connection *connection = &leader->connections[i];
        if (connection->stage != CONNECTION_JOINED && connection->stage != CONNECTION_ACTIVE) continue;
        if (connection->peer.pid == getpid() && connection->peer.born == leader->status.born) return true;
    }
    return false;
}

/* ---- the run ends ---- */

/* Sends the last message to all that can still receive it, and stops serving. */
void eni_leader_end(eni_leader *leader, en_status status, const char *reason, const eni_message *last)
{
    pthread_mutex_lock(&leader->lock);
    leader->end.status = status;
    snprintf(leader->end.outcome.reason, sizeof leader->end.outcome.reason, "%s", reason);
    pthread_mutex_unlock(&leader->lock);
    leader->stage = LEADER_ENDING;
    leader->when.end_ns = eni_now_ns() + goodbye_ns;
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        if (connection->stage != CONNECTION_JOINED && connection->stage != CONNECTION_ACTIVE) continue;
        if (last != NULL) eni_connection_put(connection, last);
        eni_connection_leave(connection);
    }
}

void eni_leader_finish(eni_leader *leader, en_status status, const char *reason)
{
    if (leader->stage == LEADER_ENDING) return;
    eni_message ended = {.type = ENI_CTL_ENDED, .status = (uint32_t)status};
    snprintf(ended.reason, sizeof ended.reason, "%s", reason);
    if (!eni_leader_has_own_member(leader)) eni_error("leader", "the run ends: %s", reason);
    eni_leader_end(leader, status, reason, &ended);
}

en_status eni_leader_write(eni_leader *leader, eni_entry_kind kind, int32_t rank, uint64_t number,
                           uint64_t value)
{
    const eni_leader_config *config = &leader->config;
    eni_entry entry = {.kind = kind, .rank = rank, .number = number, .value = value};
    en_status st = config->journal == NULL ? EN_OK : config->journal(config->user, &entry);
    if (st != EN_OK) eni_leader_finish(leader, st, "the leader cannot write its journal");
    return st;
}
