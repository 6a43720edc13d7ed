/* leader.c - the leader's lifetime, its calls, its loop, and the members' messages in it; see leader.h. One
 * round of the loop: wait, read everything, serve broken connections first (so that a death is named before
 * the messages that it causes), then the rest. */
#include "runtime/control/leader.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

/* The entries of poll(2): these, then socket and process of each connection. */
enum { POLL_WAKE, POLL_LISTEN, POLL_CONNECTIONS };
enum { SPARE_CONNECTIONS = 64, OTHER_FILES = 64, TICK_MS = 100, SOON_MS = 10 };
static const int64_t unauthenticated_ns = 5 * ENI_SECOND; /* how long a connection may stay without a JOIN */
static const int64_t turn_ns = 100 * ENI_MILLI;           /* the least time that one may stay, in any crowd */
static const int64_t breath_ns = 100 * ENI_MILLI;         /* while no connection can be accepted */
/* Messages that a process sent before it ended may still be under way. */
static const int64_t last_words_ns = 50 * ENI_MILLI;

/* ---- messages of members after WELCOME ---- */

static void on_bye(eni_leader *leader, eni_leader_member *member)
{
    member->stage = MEMBER_BYE;
    member->done = member->told;
    eni_leader_try_gather(leader);
    eni_leader_check_paused(leader);
    eni_leader_check_end(leader);
}

static void on_stop(eni_leader *leader, const eni_connection *connection, const eni_message *m)
{
    char who[32], why[ENI_REASON_MAX];
    eni_peer_name(connection->peer.rank, who);
    snprintf(why, sizeof why, "%.400s, at %s", m->reason, who);
    eni_leader_begin_stop(leader, why, false);
}

/* The same number gets the same answer, even from another incarnation of the leader. */
static void on_claim(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    if (m->number != member->claims && m->number != member->claims + 1) {
        eni_leader_lost(leader, member->connection, "it sent a claim out of order");
        return;
    }
    if (m->number != member->claims) {
        uint64_t next = atomic_load_explicit(&leader->claimed, memory_order_relaxed);
        bool has_index =
            next < leader->terms.budget && !eni_leader_is_stopping(leader) && !member->is_leaving;
        uint64_t index = has_index ? next : UINT64_MAX;
        int32_t rank = eni_leader_member_number(leader, member);
        if (eni_leader_write(leader, ENI_ENTRY_CLAIM, rank, m->number, index) != EN_OK) return;
        member->claims = m->number;
        member->claim_index = index;
        if (has_index) atomic_store_explicit(&leader->claimed, next + 1, memory_order_relaxed);
    }
    bool has_index = member->claim_index != UINT64_MAX;
    eni_message answer = {.type = ENI_CTL_CLAIMED,
                          .number = member->claims,
                          .has_index = has_index,
                          .index = has_index ? member->claim_index : 0};
    eni_leader_member_put(member, &answer);
}

static void on_heartbeat(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    bool has_moved = m->moves != member->moves || m->step != member->step || m->op != member->op ||
                     m->waits != member->waits;
    if (has_moved) {
        leader->when.moved_ns = eni_now_ns();
        member->has_wait = false;
    }
    member->step = m->step;
    member->op = m->op;
    member->waits = m->waits;
    member->moves = m->moves;
    memcpy(member->phase, m->phase, sizeof member->phase);
    atomic_fetch_add_explicit(&leader->samples, m->samples - member->samples, memory_order_relaxed);
    member->samples = m->samples;
}

static void on_done(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    if (m->number > member->told || m->number < member->done) {
        eni_leader_lost(leader, member->connection, "it has blobs that it was never sent");
        return;
    }
    member->done = m->number;
    eni_leader_check_end(leader);
}

/* A member that breaks the protocol is lost. `fault` NULL: it did not. */
static void check_fault(eni_leader *leader, const eni_leader_member *member, const char *fault)
{
    if (fault != NULL) eni_leader_lost(leader, member->connection, fault);
}

/* Serves a rank's message between WELCOME and its goodbye; false if the type is not allowed there. */
static bool serve_rank(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    leader->when.moved_ns = eni_now_ns();
    switch (m->type) {
    case ENI_CTL_CLAIM: on_claim(leader, member, m); return true;
    case ENI_CTL_GATHER: check_fault(leader, member, eni_leader_gather(leader, member, m)); return true;
    case ENI_CTL_DONE: on_done(leader, member, m); return true;
    case ENI_CTL_SCORE: eni_leader_score(leader, member, m); return true;
    case ENI_CTL_PAUSED:
        member->has_paused = true;
        member->paused_step = m->step;
        member->save_step = m->index;
        eni_leader_check_paused(leader);
        return true;
    case ENI_CTL_SAVE: eni_leader_begin_save(leader); return true;
    case ENI_CTL_LEAVE:
        eni_leader_ask_to_leave(leader, eni_leader_member_number(leader, member));
        return true;
    case ENI_CTL_BYE: on_bye(leader, member); return true;
    default: return false;
    }
}

static void serve_member(eni_leader *leader, eni_connection *connection, const eni_message *m)
{
    if (leader->stage == LEADER_ENDING) return;
    eni_leader_member *member = eni_leader_member_of(leader, connection);
    bool is_in = connection->stage == CONNECTION_ACTIVE && member != NULL;
    switch (m->type) {
    case ENI_CTL_ABORT: eni_leader_gave_up(leader, connection, m->reason); return;
    case ENI_CTL_STOP:
        if (!is_in && connection->is_newcomer) break; /* it may not end the run */
        on_stop(leader, connection, m);
        return;
    case ENI_CTL_WAITING: eni_leader_waiting(leader, connection, member, m); return;
    case ENI_CTL_READY: eni_leader_ready(leader, connection, m); return;
    case ENI_CTL_HEARTBEAT:
        if (!is_in) break;
        on_heartbeat(leader, member, m);
        return;
    case ENI_CTL_ADDED:
        if (!is_in || connection->server == 0) break;
        check_fault(leader, member, eni_leader_added(leader, member, m));
        return;
    default:
        if (is_in && connection->server == 0 && member->stage == MEMBER_HERE && serve_rank(leader, member, m))
            return;
    }
    eni_leader_lost(leader, connection, "it sent an unexpected message");
}

/* ---- time ---- */

static void beat(eni_leader *leader, int64_t now_ns)
{
    int64_t interval_ns = leader->config.peer_timeout_ns / 4;
    if (interval_ns > ENI_SECOND) interval_ns = ENI_SECOND;
    if (now_ns < leader->when.next_beat_ns) return;
    leader->when.next_beat_ns = now_ns + interval_ns;
    eni_message m = {.type = ENI_CTL_HEARTBEAT, .step = -1, .samples = eni_leader_samples(leader)};
    for (int32_t i = 0; i < leader->nmembers; i++)
        if (leader->members[i].connection != NULL &&
            leader->members[i].connection->stage == CONNECTION_ACTIVE)
            eni_leader_member_put(&leader->members[i], &m);
}

static void tick_run(eni_leader *leader, int64_t now_ns)
{
    eni_leader_check_silence(leader, now_ns);
    if (leader->stage == LEADER_RUNNING && leader->abort.at_ns != 0 && now_ns >= leader->abort.at_ns)
        eni_leader_finish(leader, EN_EPEER, leader->abort.reason);
    /* Everyone had left before this incarnation began: by now a rank that missed the answer has had time to
     * ask again. */
    if (leader->config.revived != NULL && now_ns - leader->when.started_ns >= eni_leader_back_ns(leader))
        eni_leader_check_end(leader);
    if (leader->stage == LEADER_RUNNING) eni_leader_check_deadlock(leader, now_ns);
    if (leader->stage == LEADER_RUNNING) beat(leader, now_ns);
}

/* ---- one round of the loop ---- */

/* A free slot for the next connection. When all are taken, the slot of the longest silent unauthenticated
 * peer, so that a crowd of them cannot keep a member out: a member sends JOIN at once. But it may be
 * interrupted between its connect and its JOIN, so no slot is taken back before turn_ns; the next connection
 * waits in the kernel's queue meanwhile. NULL: none now; *is_full_out: nor in the next round. */
static eni_connection *next_connection(eni_leader *leader, bool *is_full_out)
{
    eni_connection *oldest = NULL;
    *is_full_out = false;
    bool has_unauthenticated = false;
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        if (connection->stage == CONNECTION_FREE) return connection;
        const bool is_leaving = connection->stage == CONNECTION_LEAVING; /* it may have been refused */
        if (connection->stage != CONNECTION_NEW && !is_leaving) continue;
        has_unauthenticated = true;
        if (is_leaving && !connection->is_half_closed) continue; /* its answer is not sent completely */
        if (connection->heard_ns + turn_ns > leader->when.looked_ns) continue;
        if (oldest == NULL || connection->heard_ns < oldest->heard_ns) oldest = connection;
    }
    *is_full_out = !has_unauthenticated;
    return oldest;
}

/* Accepting pauses, since poll(2) would report the waiting connection at once. */
static void cannot_accept(eni_leader *leader, int error)
{
    eni_leader_listener *listener = &leader->listener;
    const int64_t now_ns = eni_now_ns();
    listener->closed_ns = now_ns + breath_ns;
    if (eni_files_are_short(error, "the leader of this run", &listener->say_short_ns) ||
        now_ns < listener->say_short_ns)
        return;
    listener->say_short_ns = INT64_MAX;
    eni_error("leader", "accept failed: %s", strerror(error));
}

/* Called after all connections were served, so that unauthenticated peers have had their turn. */
static void accept_all(eni_leader *leader)
{
    bool is_full;
    for (eni_connection *connection; (connection = next_connection(leader, &is_full)) != NULL || is_full;) {
        int fd;
        const int error = eni_tcp_accept_now(leader->listener.fd, &fd);
        if (error != 0 && error != EAGAIN) cannot_accept(leader, error);
        if (error != 0) return;
        if (connection == NULL || connection->stage != CONNECTION_FREE) {
            if (!leader->listener.has_warned_full)
                eni_warn("leader", "too many connections: closing unauthenticated ones");
            leader->listener.has_warned_full = true;
        }
        if (connection == NULL) {
            close(fd);
            continue;
        }
        if (connection->stage != CONNECTION_FREE) eni_connection_free(connection);
        *connection = (eni_connection){.stage = CONNECTION_NEW,
                                       .refusals = &leader->listener.refusals,
                                       .heard_ns = eni_now_ns(),
                                       .process_fd = -1};
        eni_link_init(&connection->link, fd);
    }
}

static void dispatch(eni_leader *leader, eni_connection *connection, eni_span frame)
{
    eni_message message;
    const char *why = NULL;
    char text[ENI_REASON_MAX];
    en_status st = eni_message_get(frame.data, frame.bytes, &message, &why);
    if (st == EN_OK && (connection->stage == CONNECTION_ACTIVE || connection->stage == CONNECTION_JOINED)) {
        serve_member(leader, connection, &message);
    } else if (st == EN_OK && connection->stage == CONNECTION_NEW && message.type == ENI_CTL_JOIN) {
        eni_leader_join(leader, connection, &message);
    } else if (st == EN_OK && connection->stage == CONNECTION_NEW && message.type == ENI_CTL_WISH) {
        eni_leader_wish(leader, connection, &message);
    } else if (st == EN_EVERSION && connection->stage == CONNECTION_NEW) {
        eni_leader_refuse(connection, st,
                          "it has version %llu of Entrain's control protocol, but this process version %u: "
                          "use programs and libraries of the same release",
                          (unsigned long long)message.number, ENI_CONTROL_VERSION);
    } else if (connection->stage == CONNECTION_NEW) {
        eni_leader_refuse(connection, EN_EPROTO, "the first message is not a request to join: %s",
                          why == NULL ? "it has another type" : why);
    } else if (leader->stage != LEADER_ENDING) {
        snprintf(text, sizeof text, "it sent an invalid message: %s", why);
        eni_leader_lost(leader, connection, text);
    }
}

/* Handles all complete frames, and then the end of the stream if it was reached. */
static void serve_connection(eni_leader *leader, eni_connection *connection)
{
    eni_span frame;
    en_status st = EN_OK;
    while (connection->stage != CONNECTION_LEAVING &&
           (st = eni_link_next(&connection->link, &frame)) == EN_OK)
        dispatch(leader, connection, frame);
    if (st == EN_EPROTO && connection->stream == EN_OK) connection->stream = EN_EPROTO;
    if (connection->stage == CONNECTION_LEAVING) connection->link.in_at = connection->link.in.bytes;
    if (connection->stream == EN_OK) return;
    bool is_member = connection->stage == CONNECTION_ACTIVE || connection->stage == CONNECTION_JOINED;
    if (is_member && leader->stage != LEADER_ENDING)
        eni_leader_connection_broke(leader, connection,
                                    connection->stream == EN_EPROTO
                                        ? "it broke the framing of the control connection"
                                        : "its connection closed without a goodbye");
    else
        eni_connection_free(connection);
}

/* A leaving connection: half-close when all is sent, close when the other side has closed or time is up. */
static void serve_leaving(eni_connection *connection, int64_t now_ns)
{
    if (eni_link_flush(&connection->link) != EN_OK || now_ns >= connection->leave_ns) {
        eni_connection_free(connection);
    } else if (connection->link.out.bytes == 0 && !connection->is_half_closed) {
        shutdown(connection->link.fd, SHUT_WR);
        connection->is_half_closed = true;
    }
}

static void read_all(eni_leader *leader, int64_t now_ns)
{
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        const struct pollfd *polled = &leader->polled[POLL_CONNECTIONS + 2 * i];
        if (connection->stage == CONNECTION_FREE) continue;
        if (polled[1].revents != 0 && connection->ended_ns == 0) connection->ended_ns = now_ns;
        if (polled[0].revents == 0 || connection->stream != EN_OK) continue;
        connection->stream = eni_link_read(&connection->link);
        /* An unauthenticated peer's clock runs from its connection. */
        if (connection->stage != CONNECTION_NEW) connection->heard_ns = now_ns;
    }
}

static void serve_all(eni_leader *leader, int64_t now_ns)
{
    for (int pass = 0; pass < 2; pass++) /* broken ones first */
        for (size_t i = 0; i < leader->nconnections; i++) {
            eni_connection *connection = &leader->connections[i];
            if (connection->stage != CONNECTION_FREE && (pass == 1 || connection->stream != EN_OK))
                serve_connection(leader, connection);
        }
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        if (connection->stage == CONNECTION_LEAVING)
            serve_leaving(connection, now_ns);
        else if (connection->stage == CONNECTION_NEW && now_ns - connection->heard_ns > unauthenticated_ns)
            eni_connection_free(connection);
        else if (connection->ended_ns != 0 && now_ns - connection->ended_ns > last_words_ns &&
                 leader->stage != LEADER_ENDING)
            eni_leader_connection_broke(leader, connection,
                                        "its process ended, though its connection is held open");
        else if (connection->stage != CONNECTION_FREE && !connection->is_write_closed)
            connection->is_write_closed = eni_link_flush(&connection->link) != EN_OK;
    }
}

static void wait_events(eni_leader *leader)
{
    struct pollfd *set = leader->polled;
    int wait_ms = TICK_MS;
    set[POLL_WAKE] = (struct pollfd){leader->loop.wake_fd, POLLIN, 0};
    bool is_full;
    const bool has_room =
        leader->listener.closed_ns <= eni_now_ns() && (next_connection(leader, &is_full) != NULL || is_full);
    set[POLL_LISTEN] = (struct pollfd){has_room ? leader->listener.fd : -1, POLLIN, 0};
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        short events = POLLIN;
        if (connection->link.out.bytes > 0 && !connection->is_write_closed) events |= POLLOUT;
        struct pollfd *polled = &set[POLL_CONNECTIONS + 2 * i];
        polled[0] =
            (struct pollfd){connection->stage == CONNECTION_FREE ? -1 : connection->link.fd, events, 0};
        polled[1] = (struct pollfd){connection->ended_ns == 0 ? connection->process_fd : -1, POLLIN, 0};
        if (connection->ended_ns != 0 && connection->stage != CONNECTION_LEAVING) wait_ms = SOON_MS;
    }
    if (poll(set, POLL_CONNECTIONS + 2 * leader->nconnections, wait_ms) < 0 && errno != EINTR)
        eni_warn("leader", "poll failed: %s", strerror(errno));
}

/* Serves the requests of other threads of this process. */
static void check_asked(eni_leader *leader)
{
    char abort_reason[ENI_REASON_MAX], stop_why[ENI_REASON_MAX];
    eventfd_t ignored;
    eventfd_read(leader->loop.wake_fd, &ignored);
    pthread_mutex_lock(&leader->lock);
    bool is_abort_asked = leader->asked.is_abort, is_stop_asked = leader->asked.is_stop;
    memcpy(abort_reason, leader->asked.abort_reason, sizeof abort_reason);
    memcpy(stop_why, leader->end.outcome.stop_why, sizeof stop_why);
    leader->asked.is_stop = false;
    pthread_mutex_unlock(&leader->lock);
    if (leader->stage == LEADER_ENDING) return;
    if (is_abort_asked)
        eni_leader_finish(leader, EN_EPEER, abort_reason);
    else if (is_stop_asked)
        eni_leader_begin_stop(leader, stop_why, false);
}

static bool has_connections(const eni_leader *leader)
{
    for (size_t i = 0; i < leader->nconnections; i++)
        if (leader->connections[i].stage != CONNECTION_FREE && leader->connections[i].stage != CONNECTION_NEW)
            return true;
    return false;
}

static void round_once(eni_leader *leader)
{
    wait_events(leader);
    int64_t now_ns = eni_now_ns();
    /* This process itself was stopped (Ctrl-Z, a suspended laptop): the silence during that time does not
     * count. */
    if (leader->when.looked_ns != 0 && now_ns - leader->when.looked_ns > leader->config.peer_timeout_ns / 2)
        for (size_t i = 0; i < leader->nconnections; i++)
            leader->connections[i].heard_ns = now_ns;
    leader->when.looked_ns = now_ns;
    read_all(leader, now_ns);
    serve_all(leader, now_ns);
    accept_all(leader);
    check_asked(leader);
    if (leader->stage == LEADER_JOINING || leader->stage == LEADER_SERVING)
        eni_leader_tick_join(leader, now_ns);
    if (leader->stage == LEADER_RUNNING) eni_leader_tick_newcomers(leader, now_ns);
    if (leader->stage == LEADER_RUNNING) tick_run(leader, now_ns);
    eni_leader_status_tick(leader, now_ns);
}

static void *run(void *argument)
{
    eni_leader *leader = argument;
    if (leader->config.revived != NULL) eni_leader_revive(leader);
    do
        round_once(leader);
    while (leader->stage != LEADER_ENDING || (has_connections(leader) && eni_now_ns() < leader->when.end_ns));
    pthread_mutex_lock(&leader->lock);
    leader->end.is_over = true;
    pthread_mutex_unlock(&leader->lock);
    eventfd_write(leader->loop.over_fd, 1);
    return NULL;
}

/* ---- lifetime ---- */

static void leader_free(eni_leader *leader)
{
    for (size_t i = 0; i < leader->nconnections && leader->connections != NULL; i++)
        eni_connection_free(&leader->connections[i]);
    for (int32_t i = 0; i < leader->nmembers && leader->members != NULL; i++) {
        eni_leader_member *member = &leader->members[i];
        eni_kept_fini(&member->kept[0]);
        eni_kept_fini(&member->kept[1]);
        eni_kept_fini(&member->added);
        eni_free(member->member_data);
    }
    for (int32_t i = 0; i < leader->nmembers && leader->peers != NULL; i++)
        eni_peer_fini(&leader->peers[i]);
    eni_run_writer_close(leader->status.writer);
    eni_free(leader->status.rank);
    if (leader->listener.fd >= 0) close(leader->listener.fd);
    if (leader->loop.wake_fd >= 0) close(leader->loop.wake_fd);
    if (leader->loop.over_fd >= 0) close(leader->loop.over_fd);
    eni_free(leader->config.host);
    eni_free(leader->config.host_id);
    eni_free(leader->config.attributes);
    const bool is_revived = leader->config.revived != NULL; /* then they are borrowed */
    if (!is_revived) eni_free(leader->world.key_values);
    eni_free(leader->connections);
    eni_free(leader->polled);
    eni_free(leader->member_data);
    eni_free(leader->peers);
    eni_free(leader->members);
    pthread_mutex_destroy(&leader->lock);
    eni_free(leader);
}

static en_status allocate(eni_leader *leader, const eni_leader_config *config)
{
    size_t n = (size_t)config->nranks + (config->nservers > 1 ? (size_t)config->nservers - 1 : 0);
    leader->nmembers = (int32_t)n;
    leader->nconnections = n + SPARE_CONNECTIONS;
    EN_TRY(
        eni_files_need(POLL_CONNECTIONS + 2 * leader->nconnections + OTHER_FILES, "the leader of this run"));
    leader->connections = eni_alloc_array(leader->nconnections, sizeof *leader->connections);
    leader->polled = eni_alloc_array(POLL_CONNECTIONS + 2 * leader->nconnections, sizeof *leader->polled);
    leader->peers = eni_alloc_array(n, sizeof *leader->peers);
    leader->members = eni_alloc_array(n, sizeof *leader->members);
    leader->config.host = eni_strdup(config->host);
    leader->config.host_id = eni_strdup(config->host_id);
    leader->loop.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    leader->loop.over_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (size_t i = 0; leader->connections != NULL && i < leader->nconnections; i++)
        leader->connections[i].link.fd = leader->connections[i].process_fd = -1;
    for (size_t i = 0; leader->members != NULL && i < n; i++)
        leader->members[i].step = -1;
    leader->ncame = eni_leader_first_ranks(leader);
    bool is_whole = leader->connections != NULL && leader->polled != NULL && leader->peers != NULL &&
                    leader->members != NULL && leader->config.host != NULL && leader->config.host_id != NULL;
    if (!is_whole) return EN_ENOMEM;
    if (config->attributes != NULL)
        EN_TRY(eni_key_values_copy(config->attributes, config->nattributes, &leader->config.attributes));
    if (leader->loop.wake_fd >= 0 && leader->loop.over_fd >= 0) return EN_OK;
    return eni_fail(EN_EIO, "leader", "cannot create an event descriptor: %s", strerror(errno));
}

en_status eni_leader_start(const eni_leader_config *config, eni_leader **leader_out)
{
    if (config->nranks < 1 || config->nranks > ENI_RANKS_MAX)
        return eni_fail(EN_EINVAL, "leader", "a world of %d ranks is out of range: use 1 to %d",
                        config->nranks, ENI_RANKS_MAX);
    if (config->nfirst < 0 || config->nfirst > config->nranks || config->nplaces < 0)
        return eni_fail(EN_EINVAL, "leader",
                        "invalid world: %d ranks, %d of them at the start, %d at one time", config->nranks,
                        config->nfirst, config->nplaces);
    if (config->nservers < 0 || config->nservers > ENI_SERVERS_MAX)
        return eni_fail(EN_EINVAL, "leader", "%d servers are too many: the limit is %d", config->nservers,
                        ENI_SERVERS_MAX);
    eni_leader *leader = eni_alloc(sizeof *leader);
    if (leader == NULL) return EN_ENOMEM;
    en_status st;
    leader->config = *config;
    leader->config.host = leader->config.host_id = NULL;
    leader->config.attributes = NULL;
    leader->status.born = eni_process_born(getpid());
    leader->stop.step = ENI_STEP_NEVER;
    leader->listener.fd = leader->loop.wake_fd = leader->loop.over_fd = -1;
    if (config->peer_timeout_ns == 0) leader->config.peer_timeout_ns = 5 * ENI_SECOND;
    if (config->deadlock_ns == 0)
        leader->config.deadlock_ns =
            leader->config.peer_timeout_ns > 5 * ENI_SECOND ? leader->config.peer_timeout_ns : 5 * ENI_SECOND;
    leader->when.started_ns = eni_now_ns();
    leader->when.next_notice_ns = leader->when.started_ns + 5 * ENI_SECOND;
    int64_t join_ns = config->join_ns;
    if (config->revived != NULL && config->server_timeout_ns > 0) join_ns = config->server_timeout_ns;
    leader->when.join_deadline_ns = leader->when.started_ns + join_ns;
    pthread_mutex_init(&leader->lock, NULL);
    EN_TRY_GOTO(allocate(leader, config), free_leader);
    if (config->listen_fd >= 0) { /* inherited, taken over */
        EN_TRY_GOTO(eni_tcp_adopt(config->listen_fd, &leader->address), free_leader);
        leader->listener.fd = config->listen_fd;
    } else {
        st = eni_tcp_listen(&config->listen, config->is_insecure, &leader->listener.fd, &leader->address);
        EN_TRY_GOTO(st, free_leader);
    }
    eni_leader_status_open(leader);
    const int error = eni_thread_start(&leader->loop.thread, run, leader);
    if (error != 0) {
        eni_error("leader", "cannot start the leader's thread: %s", strerror(error));
        if (config->listen_fd >= 0) leader->listener.fd = -1; /* not taken over after all */
        EN_TRY_GOTO(EN_EIO, free_leader);
    }
    *leader_out = leader;
    return EN_OK;
free_leader:
    leader_free(leader);
    return st;
}

/* ---- queries and requests ---- */

uint64_t eni_leader_samples(const eni_leader *leader)
{
    return atomic_load_explicit(&leader->samples, memory_order_relaxed);
}

const eni_address *eni_leader_address(const eni_leader *leader)
{
    return &leader->address;
}

bool eni_leader_is_over(const eni_leader *leader)
{
    eni_leader *mutable = (eni_leader *)(uintptr_t)leader; /* the lock may change though *leader is const */
    pthread_mutex_lock(&mutable->lock);
    bool is_over = leader->end.is_over;
    pthread_mutex_unlock(&mutable->lock);
    return is_over;
}

en_status eni_leader_wait(eni_leader *leader, int64_t deadline_ns, int interrupt_fd)
{
    en_status st = eni_tcp_wait(leader->loop.over_fd, POLLIN, deadline_ns, interrupt_fd);
    if (st == EN_EPEER && !eni_leader_is_over(leader)) return EN_EINTR;
    if (st == EN_ETIMEOUT) return st;
    pthread_mutex_lock(&leader->lock);
    st = leader->end.status;
    pthread_mutex_unlock(&leader->lock);
    return st;
}

eni_run_outcome eni_leader_outcome(eni_leader *leader)
{
    pthread_mutex_lock(&leader->lock);
    const eni_run_outcome outcome = leader->end.outcome;
    pthread_mutex_unlock(&leader->lock);
    return outcome;
}

void eni_leader_abort(eni_leader *leader, const char *reason)
{
    pthread_mutex_lock(&leader->lock);
    if (!leader->asked.is_abort)
        snprintf(leader->asked.abort_reason, sizeof leader->asked.abort_reason, "%s", reason);
    leader->asked.is_abort = true;
    pthread_mutex_unlock(&leader->lock);
    eventfd_write(leader->loop.wake_fd, 1);
}

void eni_leader_stop(eni_leader *leader)
{
    if (leader == NULL) return;
    eni_leader_abort(leader, "the leader was stopped");
    pthread_join(leader->loop.thread, NULL);
    leader_free(leader);
}

void eni_leader_stop_run(eni_leader *leader, const char *why)
{
    pthread_mutex_lock(&leader->lock);
    if (leader->end.outcome.stop_why[0] == '\0') {
        snprintf(leader->end.outcome.stop_why, sizeof leader->end.outcome.stop_why, "%s", why);
        leader->asked.is_stop = true;
    }
    pthread_mutex_unlock(&leader->lock);
    eventfd_write(leader->loop.wake_fd, 1);
}
