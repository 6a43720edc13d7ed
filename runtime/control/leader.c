/* leader.c - the leader's life, its calls and its loop; see leader.h. One round of the loop: wait, read
 * everything, serve broken connections first (so that a death is named before what others say because of it),
 * then the rest. What is served there is in the other files (leader_state.h). */
#include "runtime/control/leader.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

/* What poll(2) looks at: these, then socket and process of each connection. */
enum { POLL_WAKE, POLL_LISTEN, POLL_CONNECTIONS };
enum { SPARE_CONNECTIONS = 64, OTHER_FILES = 64, TICK_MS = 100, SOON_MS = 10 };
static const int64_t unauthenticated_ns = 5 * ENI_SECOND; /* how long a connection may stay without a JOIN */
static const int64_t turn_ns = 100 * ENI_MILLI;    /* and in any crowd */
static const int64_t last_words_ns =
    50 * ENI_MILLI; /* what a process sent before it ended may be on its way */

/* ---- one round of the loop ---- */

/* A free slot for the next connection. When all are taken it is that of the unauthenticated peer who has
 * been silent longest, so that a crowd of them cannot keep a member out: a member says JOIN at once. But it
 * may be interrupted between its connect and its JOIN, so nobody goes before his turn is over; the next wait
 * in the kernel's queue for as long. NULL: none now; *is_full_out: nor in the next round. */
static eni_connection *next_connection(eni_leader *leader, bool *is_full_out)
{
    eni_connection *oldest = NULL;
    *is_full_out = false;
    bool has_unauthenticated = false;
    for (size_t i = 0; i < leader->nconnections; i++) {
        eni_connection *connection = &leader->connections[i];
        if (connection->stage == CONNECTION_FREE) return connection;
        if (connection->stage != CONNECTION_NEW) continue;
        has_unauthenticated = true;
        if (connection->heard_ns + turn_ns > leader->looked_ns) continue;
        if (oldest == NULL || connection->heard_ns < oldest->heard_ns) oldest = connection;
    }
    *is_full_out = !has_unauthenticated;
    return oldest;
}

/* After all connections were served, so that those who are still unauthenticated peers have had their turn.
 */
static void accept_all(eni_leader *leader)
{
    bool is_full;
    for (eni_connection *connection; (connection = next_connection(leader, &is_full)) != NULL || is_full;) {
        int fd;
        if (eni_tcp_accept(leader->listen_fd, 0, -1, &fd) != EN_OK) return;
        if (connection == NULL || connection->stage != CONNECTION_FREE) {
            if (!leader->has_warned_full)
                eni_warn("leader", "too many connections: closing unauthenticated ones");
            leader->has_warned_full = true;
        }
        if (connection == NULL) {
            close(fd);
            continue;
        }
        if (connection->stage != CONNECTION_FREE) eni_connection_free(connection);
        *connection = (eni_connection){.stage = CONNECTION_NEW,
                                       .refusals = &leader->refusals,
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
        eni_leader_serve(leader, connection, &message);
    } else if (st == EN_OK && connection->stage == CONNECTION_NEW && message.type == ENI_CTL_JOIN) {
        eni_leader_join(leader, connection, &message);
    } else if (connection->stage == CONNECTION_NEW) {
        snprintf(text, sizeof text, "this is not a JOIN: %s", why == NULL ? "another message" : why);
        eni_leader_refuse(connection, st == EN_EVERSION ? st : EN_EPROTO, text);
    } else if (leader->stage != LEADER_ENDING) {
        snprintf(text, sizeof text, "it sent a message that the protocol forbids: %s", why);
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
        if (connection->stage != CONNECTION_NEW)
            connection->heard_ns = now_ns; /* an unauthenticated peer's clock runs from its connection */
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
    set[POLL_WAKE] = (struct pollfd){leader->wake_fd, POLLIN, 0};
    bool is_full;
    const bool has_room = next_connection(leader, &is_full) != NULL || is_full;
    set[POLL_LISTEN] = (struct pollfd){has_room ? leader->listen_fd : -1, POLLIN, 0};
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

/* The process itself was stopped (Ctrl-Z, a suspended laptop): silence during that time is nobody's fault. */
static void forgive_own_absence(eni_leader *leader, int64_t now_ns)
{
    if (leader->looked_ns != 0 && now_ns - leader->looked_ns > leader->config.peer_timeout_ns / 2)
        for (size_t i = 0; i < leader->nconnections; i++)
            leader->connections[i].heard_ns = now_ns;
    leader->looked_ns = now_ns;
}

/* What other threads of this process asked for. */
static void check_asked(eni_leader *leader)
{
    char abort_reason[ENI_REASON_MAX], stop_why[ENI_REASON_MAX];
    eventfd_t ignored;
    eventfd_read(leader->wake_fd, &ignored);
    pthread_mutex_lock(&leader->lock);
    bool is_abort_asked = leader->is_abort_asked, is_stop_asked = leader->is_stop_asked;
    memcpy(abort_reason, leader->asked_reason, sizeof abort_reason);
    memcpy(stop_why, leader->stop_why, sizeof stop_why);
    leader->is_stop_asked = false;
    pthread_mutex_unlock(&leader->lock);
    if (leader->stage == LEADER_ENDING) return;
    if (is_abort_asked)
        eni_leader_finish(leader, EN_EPEER, abort_reason);
    else if (is_stop_asked)
        eni_leader_begin_stop(leader, stop_why);
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
    forgive_own_absence(leader, now_ns);
    read_all(leader, now_ns);
    serve_all(leader, now_ns);
    accept_all(leader);
    check_asked(leader);
    if (leader->stage == LEADER_JOINING || leader->stage == LEADER_SERVING)
        eni_leader_tick_join(leader, now_ns);
    if (leader->stage == LEADER_RUNNING) eni_leader_tick_run(leader, now_ns);
    eni_leader_status_tick(leader, now_ns);
}

static void *run(void *argument)
{
    eni_leader *leader = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals are for main */
    if (leader->config.revived != NULL && eni_leader_revive(leader) != EN_OK)
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
    do
        round_once(leader);
    while (leader->stage != LEADER_ENDING || (has_connections(leader) && eni_now_ns() < leader->end_ns));
    pthread_mutex_lock(&leader->lock);
    leader->is_over = true;
    pthread_mutex_unlock(&leader->lock);
    eventfd_write(leader->over_fd, 1);
    return NULL;
}

/* ---- life ---- */

static void member_fini(eni_leader_member *member)
{
    for (int i = 0; i < 2; i++)
        eni_slot_fini(&member->slot[i]);
    eni_slot_fini(&member->added);
    eni_free((void *)(uintptr_t)member->member_data);
}

static void leader_free(eni_leader *leader)
{
    for (size_t i = 0; i < leader->nconnections && leader->connections != NULL; i++)
        eni_connection_free(&leader->connections[i]);
    for (int32_t i = 0; i < leader->nmembers && leader->members != NULL; i++)
        member_fini(&leader->members[i]);
    for (int32_t i = 0; i < leader->nmembers && leader->peers != NULL; i++)
        eni_peer_fini(&leader->peers[i]);
    eni_leader_status_close(leader->status_file);
    if (leader->listen_fd >= 0) close(leader->listen_fd);
    if (leader->wake_fd >= 0) close(leader->wake_fd);
    if (leader->over_fd >= 0) close(leader->over_fd);
    eni_free((void *)(uintptr_t)leader->config.host);
    eni_free((void *)(uintptr_t)leader->config.host_id);
    eni_free((void *)(uintptr_t)leader->config.attributes);
    eni_free((void *)(uintptr_t)leader->world.key_values);
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
    leader->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    leader->over_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (size_t i = 0; leader->connections != NULL && i < leader->nconnections; i++)
        leader->connections[i].link.fd = leader->connections[i].process_fd = -1;
    for (size_t i = 0; leader->members != NULL && i < n; i++)
        leader->members[i].step = -1;
    bool is_whole = leader->connections != NULL && leader->polled != NULL && leader->peers != NULL &&
                    leader->members != NULL && leader->config.host != NULL && leader->config.host_id != NULL;
    if (!is_whole) return EN_ENOMEM;
    if (config->attributes != NULL)
        EN_TRY(eni_key_values_copy(config->attributes, config->nattributes, &leader->config.attributes));
    if (leader->wake_fd >= 0 && leader->over_fd >= 0) return EN_OK;
    eni_error("leader", "eventfd failed: %s", strerror(errno));
    return EN_EIO;
}

/* Listens, or takes an inherited listener over and asks it for its port. */
static en_status open_listener(eni_leader *leader, const eni_leader_config *config)
{
    if (config->listen_fd < 0)
        return eni_tcp_listen(&config->listen, config->is_insecure, &leader->listen_fd, &leader->address);
    EN_TRY(eni_tcp_adopt(config->listen_fd, &leader->address));
    leader->listen_fd = config->listen_fd;
    return EN_OK;
}

en_status eni_leader_start(const eni_leader_config *config, eni_leader **leader_out)
{
    if (config->nranks < 1 || config->nranks > ENI_RANKS_MAX) {
        eni_error("leader", "a world of %d ranks: 1 to %d are possible", config->nranks, ENI_RANKS_MAX);
        return EN_EINVAL;
    }
    if (config->nservers < 0 || config->nservers > ENI_SERVERS_MAX) {
        eni_error("leader", "%d servers: at most %d are possible", config->nservers, ENI_SERVERS_MAX);
        return EN_EINVAL;
    }
    eni_leader *leader = eni_alloc(sizeof *leader);
    if (leader == NULL) return EN_ENOMEM;
    en_status st;
    leader->config = *config;
    leader->config.host = leader->config.host_id = NULL;
    leader->config.attributes = NULL;
    leader->born = eni_process_born(getpid());
    leader->stop_step = ENI_STEP_NEVER;
    leader->listen_fd = leader->wake_fd = leader->over_fd = -1;
    if (config->peer_timeout_ns == 0) leader->config.peer_timeout_ns = 5 * ENI_SECOND;
    if (config->deadlock_ns == 0)
        leader->config.deadlock_ns =
            leader->config.peer_timeout_ns > 5 * ENI_SECOND ? leader->config.peer_timeout_ns : 5 * ENI_SECOND;
    if (config->ask_tag == NULL) leader->config.ask_tag = "result";
    leader->started_ns = eni_now_ns();
    leader->next_notice_ns = leader->started_ns + 5 * ENI_SECOND;
    int64_t join_ns = config->join_ns;
    if (config->revived != NULL && config->server_timeout_ns > 0) join_ns = config->server_timeout_ns;
    leader->join_deadline_ns = leader->started_ns + join_ns;
    pthread_mutex_init(&leader->lock, NULL);
    EN_TRY_GOTO(allocate(leader, config), free_leader);
    EN_TRY_GOTO(open_listener(leader, config), free_leader);
    eni_leader_status_open(leader);
    if (pthread_create(&leader->thread, NULL, run, leader) != 0) {
        eni_error("leader", "cannot start a thread");
        if (config->listen_fd >= 0) leader->listen_fd = -1; /* not taken over after all */
        EN_TRY_GOTO(EN_EIO, free_leader);
    }
    *leader_out = leader;
    return EN_OK;
free_leader:
    leader_free(leader);
    return st;
}

/* ---- questions and wishes ---- */

const eni_address *eni_leader_address(const eni_leader *leader)
{
    return &leader->address;
}

bool eni_leader_is_over(const eni_leader *leader)
{
    eni_leader *mutable = (eni_leader *)(uintptr_t)leader; /* the lock is not part of what const promises */
    pthread_mutex_lock(&mutable->lock);
    bool is_over = leader->is_over;
    pthread_mutex_unlock(&mutable->lock);
    return is_over;
}

en_status eni_leader_wait(eni_leader *leader, int64_t deadline_ns, int interrupt_fd)
{
    en_status st = eni_tcp_wait(leader->over_fd, POLLIN, deadline_ns, interrupt_fd);
    if (st == EN_EPEER && !eni_leader_is_over(leader)) return EN_EINTR;
    if (st == EN_ETIMEOUT) return st;
    pthread_mutex_lock(&leader->lock);
    st = leader->status;
    pthread_mutex_unlock(&leader->lock);
    return st;
}

int eni_leader_fd(const eni_leader *leader)
{
    return leader->over_fd;
}

void eni_leader_reason(eni_leader *leader, char reason_out[ENI_REASON_MAX])
{
    pthread_mutex_lock(&leader->lock);
    memcpy(reason_out, leader->reason, ENI_REASON_MAX);
    pthread_mutex_unlock(&leader->lock);
}

en_status eni_leader_death(eni_leader *leader, eni_death *death_out)
{
    pthread_mutex_lock(&leader->lock);
    bool has_death = leader->has_death;
    if (has_death) *death_out = leader->death;
    pthread_mutex_unlock(&leader->lock);
    return has_death ? EN_OK : EN_ENOENT;
}

void eni_leader_abort(eni_leader *leader, const char *reason)
{
    pthread_mutex_lock(&leader->lock);
    if (!leader->is_abort_asked) snprintf(leader->asked_reason, sizeof leader->asked_reason, "%s", reason);
    leader->is_abort_asked = true;
    pthread_mutex_unlock(&leader->lock);
    eventfd_write(leader->wake_fd, 1);
}

void eni_leader_stop(eni_leader *leader)
{
    if (leader == NULL) return;
    eni_leader_abort(leader, "the leader was stopped");
    pthread_join(leader->thread, NULL);
    leader_free(leader);
}

void eni_leader_stop_run(eni_leader *leader, const char *why)
{
    pthread_mutex_lock(&leader->lock);
    if (leader->stop_why[0] == '\0') {
        snprintf(leader->stop_why, sizeof leader->stop_why, "%s", why);
        leader->is_stop_asked = true;
    }
    pthread_mutex_unlock(&leader->lock);
    eventfd_write(leader->wake_fd, 1);
}

bool eni_leader_is_stopping(eni_leader *leader, char why_out[ENI_REASON_MAX])
{
    pthread_mutex_lock(&leader->lock);
    memcpy(why_out, leader->stop_why, ENI_REASON_MAX);
    pthread_mutex_unlock(&leader->lock);
    return why_out[0] != '\0';
}
