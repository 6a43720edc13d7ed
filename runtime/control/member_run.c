/* member_run.c - a member's thread and lifetime: heartbeats, long waits, answers to its callers, and deaths
 * that the leader announces. */
#include <errno.h>
#include <poll.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/try.h"
#include "runtime/control/member_state.h"
#include "runtime/net/process.h"

static const int64_t last_words_ns = 50 * ENI_MILLI; /* its last messages may be under way */
static const int64_t count_after_ns = ENI_SECOND;    /* after this the sockets' byte counts are read */
enum { AGAIN = 6, TICK_MS = 250, SOON_MS = 10, MOVED_UNIT = 65536 };

/* ---- the user ---- */

/* The user wants this process to end: wakes all waiting threads. The run itself is not broken, so the status
 * stays and the owner can still inform the others by an abort. */
static void interrupt(eni_member *member)
{
    member->end.is_interrupted = true;
    eventfd_write(member->event_fd, 1);
    pthread_cond_broadcast(&member->changed);
}

/* Ends in good order first, if there is time for it. */
static void on_user(eni_member *member, int64_t now_ns)
{
    if (member->config.stop_grace_ns == 0) {
        interrupt(member);
        return;
    }
    member->when.stop_deadline_ns = now_ns + member->config.stop_grace_ns;
    eni_member_ask_stop(member, "interrupted by the user");
}

/* ---- messages of the leader ---- */

static void on_dead(eni_member *member, const eni_message *m)
{
    char text[ENI_REASON_MAX];
    eni_death_text(&m->death, text);
    eni_member_finish(member, EN_EPEER, text, &m->death);
}

/* False if it was known: a restarted leader repeats it. If memory is short, a reader sees fewer events. */
static bool note_presence(eni_member *member, eni_presence_kind kind, int32_t rank)
{
    for (size_t i = 0; i < member->end.nheard; i++)
        if (member->end.heard[i].kind == kind && member->end.heard[i].rank == rank) return false;
    eni_member_end *end = &member->end;
    if (eni_grow((void **)&end->heard, &end->room, end->nheard + 1, sizeof *end->heard) == EN_OK)
        end->heard[end->nheard++] = (eni_presence_event){kind, rank, eni_now_ns()};
    return true;
}

static void on_came(eni_member *member, const eni_message *m)
{
    if (note_presence(member, ENI_CAME, m->rank))
        eni_info("member", "rank %d has joined: pid %" PRId64 " on host %s", m->rank, m->pid, m->host);
}

static void on_went(eni_member *member, const eni_message *m)
{
    if (note_presence(member, ENI_WENT, m->rank))
        eni_info("member", "rank %d has left, as requested", m->rank);
}

static void on_leave(eni_member *member)
{
    if (atomic_load(&member->end.is_leaving)) return; /* a restarted leader repeats it */
    eni_info("member", "this rank was asked to leave: it ends when it has done its claimed micro-batches");
    atomic_store(&member->end.is_leaving, true);
}

static void on_left(eni_member *member, const eni_message *m)
{
    char text[ENI_REASON_MAX];
    eni_lost *lost = note_presence(member, ENI_LOST, m->death.rank) ? eni_alloc(sizeof *lost) : NULL;
    if (lost == NULL) return;
    lost->death = m->death;
    lost->next = member->end.lost;
    member->end.lost = lost;
    eni_death_text(&lost->death, text);
    eni_warn("member", "%s; the run goes on without it", text);
    if (member->config.on_left != NULL) member->config.on_left(member->config.user, lost->death.rank);
}

static void on_claimed(eni_member *member, const eni_message *m)
{
    if (member->claim.stage != ASK_SENT || m->number != member->claim.number + 1) {
        eni_member_leader_lost(member, "it answered a claim that was not made", false);
        return;
    }
    member->claim.stage = ASK_ANSWERED;
    member->claim.number = m->number;
    member->claim.has_index = m->has_index;
    member->claim.index = m->index;
    pthread_cond_broadcast(&member->changed);
}

static void on_gathered(eni_member *member, const eni_message *m)
{
    size_t count = (size_t)member->world.nranks + 1;
    bool is_due = member->gather.stage == ASK_SENT && m->index == member->gather.nblobs &&
                  m->count == count && m->number == member->gather.sent &&
                  strcmp(m->tag, member->gather.tag) == 0;
    if (!is_due) {
        eni_member_leader_lost(member, "it sent a blob that was not requested", false);
        return;
    }
    if (m->index == 0) {
        member->gather.blobs.blob = eni_alloc_array(count, sizeof *member->gather.blobs.blob);
        member->gather.blobs.count = member->gather.blobs.blob == NULL ? 0 : count;
    }
    uint8_t *copy = member->gather.blobs.blob == NULL ? NULL : eni_alloc(m->blob.bytes);
    if (copy == NULL) {
        eni_member_finish(member, EN_ENOMEM, "this process is out of memory", NULL);
        return;
    }
    memcpy(copy, m->blob.data, m->blob.bytes);
    member->gather.blobs.blob[member->gather.nblobs++] = (eni_blob){copy, m->blob.bytes};
    if (member->gather.nblobs < count) return;
    member->gather.done = m->number;
    member->gather.stage = ASK_ANSWERED;
    eni_member_put(member, &(eni_message){.type = ENI_CTL_DONE, .number = m->number});
    pthread_cond_broadcast(&member->changed);
}

static void hear_why(eni_member *member, const eni_message *m)
{
    char *why = member->end.outcome.stop_why;
    if (m->reason[0] == '\0') return; /* from a restarted leader, which knows only the step */
    if (why[0] == '\0') eni_info("member", "the run ends early: %s", m->reason);
    memcpy(why, m->reason, sizeof m->reason);
    member->end.outcome.has_time = m->has_time;
}

/* Order matters: see eni_member_enter. A server takes no steps, so it has nothing to answer. */
static void on_pause(eni_member *member, const eni_message *m)
{
    hear_why(member, m);
    if (member->config.server > 0) return;
    atomic_store(&member->stop.step, ENI_STEP_PENDING);
    eni_message answer = {.type = ENI_CTL_PAUSED,
                          .step = atomic_load(&member->stop.entered),
                          .index = atomic_load(&member->stop.save_step)};
    eni_member_put(member, &answer);
}

static void on_stopping(eni_member *member, const eni_message *m)
{
    hear_why(member, m);
    atomic_store(&member->stop.step, m->index);
    pthread_cond_broadcast(&member->changed);
}

static void on_saving(eni_member *member, const eni_message *m)
{
    atomic_store(&member->stop.save_step, m->index);
    atomic_store(&member->stop.has_wish, true);
    uint64_t pending = ENI_STEP_PENDING;
    atomic_compare_exchange_strong(&member->stop.step, &pending, ENI_STEP_NEVER);
    pthread_cond_broadcast(&member->changed);
}

static void on_bye(eni_member *member)
{
    member->end.is_bye_answered = true;
    if (member->config.server > 0) {
        member->end.is_over = true;
        eventfd_write(member->event_fd, 1);
    }
    pthread_cond_broadcast(&member->changed);
}

/* ---- requests to a server: its callbacks run without the lock ---- */

static void on_serve(eni_member *member, const eni_message *m)
{
    eni_message ready;
    pthread_mutex_unlock(&member->lock);
    en_status st = eni_member_serve(member, m, &ready);
    pthread_mutex_lock(&member->lock);
    if (st == EN_OK) st = eni_message_put(&member->link, &ready);
    if (st != EN_OK) eni_member_finish(member, st, "this server cannot open its shards again", NULL);
}

static void on_ask(eni_member *member, const eni_message *m)
{
    eni_blob own = {(const uint8_t *)"", 0};
    pthread_mutex_unlock(&member->lock);
    if (member->config.on_ask != NULL) member->config.on_ask(member->config.user, m->tag, &own);
    pthread_mutex_lock(&member->lock);
    eni_message added = {.type = ENI_CTL_ADDED, .number = m->number};
    memcpy(added.tag, m->tag, sizeof added.tag);
    if (own.bytes <= ENI_BLOB_MAX) added.blob = (eni_span){own.data, own.bytes};
    if (added.blob.data == NULL) added.blob = (eni_span){(const uint8_t *)"", 0};
    eni_member_put(member, &added);
}

/* ---- serving ---- */

/* Serves messages before WELCOME of a rejoin. */
static void serve_rejoin(eni_member *member, const eni_message *m)
{
    bool is_server = member->config.server > 0;
    switch (m->type) {
    case ENI_CTL_LEADER: return; /* WELCOME repeats it */
    case ENI_CTL_PEER:
        if (is_server) return; /* we know them */
        break;
    case ENI_CTL_SERVE:
        if (!is_server) break;
        on_serve(member, m);
        return;
    case ENI_CTL_WELCOME: eni_member_rejoined(member, m); return;
    case ENI_CTL_BYE: /* the previous incarnation received ours, but did not send its answer */
        if (!member->end.has_said_bye) break;
        member->stage = MEMBER_HERE;
        on_bye(member);
        return;
    case ENI_CTL_LEFT: on_left(member, m); return;
    case ENI_CTL_DEAD: on_dead(member, m); return;
    case ENI_CTL_REFUSED:
    case ENI_CTL_ENDED: eni_member_finish(member, (en_status)m->status, m->reason, NULL); return;
    default: break;
    }
    eni_member_leader_lost(member, "it sent an unexpected message before WELCOME when it came back", false);
}

static void on_scored(eni_member *member, const eni_message *m)
{
    const uint64_t come = atomic_load(&member->scores.come);
    member->scores.kept[come % ENI_SCORES_KEPT] = m->score;
    atomic_store(&member->scores.come, come + 1);
}

static void serve_rank(eni_member *member, const eni_message *m)
{
    switch (m->type) {
    case ENI_CTL_SCORED: on_scored(member, m); return;
    case ENI_CTL_CAME: on_came(member, m); return;
    case ENI_CTL_WENT: on_went(member, m); return;
    case ENI_CTL_LEAVE: on_leave(member); return;
    case ENI_CTL_SAVING: on_saving(member, m); return;
    case ENI_CTL_CLAIMED: on_claimed(member, m); return;
    case ENI_CTL_GATHERED: on_gathered(member, m); return;
    case ENI_CTL_RENEWED:
        if (eni_member_set_leader(member, m) != EN_OK)
            eni_member_finish(member, EN_ENOMEM, "this process is out of memory", NULL);
        return;
    default: eni_member_leader_lost(member, "it sent a message that only a member may send", false);
    }
}

static void serve(eni_member *member, const eni_message *m)
{
    if (member->stage == MEMBER_REJOINING) {
        serve_rejoin(member, m);
        return;
    }
    switch (m->type) {
    case ENI_CTL_HEARTBEAT: return;
    case ENI_CTL_NOTICE: eni_info("member", "%s", m->reason); return;
    case ENI_CTL_PAUSE: on_pause(member, m); return;
    case ENI_CTL_STOPPING: on_stopping(member, m); return;
    case ENI_CTL_LEFT: on_left(member, m); return;
    case ENI_CTL_DEAD: on_dead(member, m); return;
    case ENI_CTL_ENDED: eni_member_finish(member, (en_status)m->status, m->reason, NULL); return;
    case ENI_CTL_BYE: on_bye(member); return;
    default: break;
    }
    if (member->config.server == 0)
        serve_rank(member, m);
    else if (m->type == ENI_CTL_ASK)
        on_ask(member, m);
    else
        eni_member_leader_lost(member, "it sent a message that is not for a server", false);
}

/* The connection is of no use any more: psd may come back, any other leader is dead. */
static void stream_ended(eni_member *member, const char *cause)
{
    if (eni_member_may_wait_for_leader(member)) {
        eni_member_go_away(member, cause);
        return;
    }
    if (!member->end.has_said_bye && !member->end.is_over) eni_member_leader_lost(member, cause, false);
    if (member->end.has_said_bye) {
        member->end.is_bye_answered = true;
        pthread_cond_broadcast(&member->changed);
    }
    eni_link_fini(&member->link);
    member->lead.ended_ns = 0;
}

/* Reads and serves all that has arrived; then checks whether the stream has ended. */
static void receive(eni_member *member)
{
    en_status stream = eni_link_read(&member->link), st;
    eni_span frame;
    eni_message m;
    const char *why = NULL;
    member->when.heard_ns = eni_now_ns();
    while ((st = eni_link_next(&member->link, &frame)) == EN_OK) {
        if (eni_message_get(frame.data, frame.bytes, &m, &why) == EN_OK)
            serve(member, &m);
        else
            eni_member_leader_lost(member, why, false);
    }
    if (st == EN_EPROTO)
        eni_member_leader_lost(member, "it broke the framing of the control connection", false);
    if (stream != EN_OK || st == EN_EPROTO) stream_ended(member, "its connection closed without a goodbye");
}

/* ---- waits ---- */

typedef struct wait_now {
    const char *what, *name;
    uint64_t bytes;
    int64_t begin_ns;
} wait_now;

/* The compute thread's present wait; false if it does not wait, or is just entering or leaving one. */
static bool look_at_wait(const eni_member *member, wait_now *wait)
{
    wait->begin_ns = atomic_load(&member->place.wait.begin_ns);
    if (wait->begin_ns == 0) return false;
    wait->what = atomic_load_explicit(&member->place.wait.what, memory_order_relaxed);
    wait->name = atomic_load_explicit(&member->place.wait.name, memory_order_relaxed);
    wait->bytes = atomic_load_explicit(&member->place.wait.bytes, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load(&member->place.wait.begin_ns) == wait->begin_ns;
}

static void put_heartbeat(eni_member *member, int64_t now_ns)
{
    wait_now wait;
    eni_tcp_totals totals;
    bool is_waiting = look_at_wait(member, &wait);
    if (is_waiting && now_ns - wait.begin_ns > count_after_ns && eni_tcp_count(&totals) == EN_OK)
        member->thread.moved_bytes = totals.sent + totals.received;
    eni_message m = {.type = ENI_CTL_HEARTBEAT,
                     .step = atomic_load_explicit(&member->place.step, memory_order_relaxed),
                     .op = atomic_load_explicit(&member->place.wait.number, memory_order_relaxed),
                     .moves = atomic_load_explicit(&member->place.wait.moves, memory_order_relaxed) +
                              member->thread.moved_bytes / MOVED_UNIT,
                     .samples = atomic_load_explicit(&member->place.samples, memory_order_relaxed)};
    const bool is_slowed = member->config.is_slowed || atomic_load(&member->place.waits_for_device) != 0;
    if (is_waiting) m.waits = is_slowed ? ENI_WAITS_SLOWED : ENI_WAITS;
    const char *phase = atomic_load_explicit(&member->place.phase, memory_order_relaxed);
    snprintf(m.phase, sizeof m.phase, "%s", phase);
    eni_message_put(&member->link, &m);
}

static void beat(eni_member *member, int64_t now_ns)
{
    int64_t interval_ns = member->config.peer_timeout_ns / 4;
    if (interval_ns > ENI_SECOND) interval_ns = ENI_SECOND;
    if (now_ns < member->when.next_beat_ns) return;
    member->when.next_beat_ns = now_ns + interval_ns;
    put_heartbeat(member, now_ns);
}

/* Asks the leader to explain a long wait. A heartbeat first reports where we are. */
static void ask_why(eni_member *member, int64_t now_ns)
{
    wait_now wait;
    if (!look_at_wait(member, &wait)) return;
    int64_t since_ns = wait.begin_ns > member->when.awake_ns ? wait.begin_ns : member->when.awake_ns;
    if (now_ns - since_ns < member->config.notice_ns) return;
    if (member->when.told_wait_ns == wait.begin_ns && now_ns < member->when.next_notice_ns) return;
    member->when.told_wait_ns = wait.begin_ns;
    member->when.next_notice_ns = now_ns + AGAIN * member->config.notice_ns;
    put_heartbeat(member, now_ns);
    eni_message m = {.type = ENI_CTL_WAITING,
                     .step = atomic_load_explicit(&member->place.step, memory_order_relaxed),
                     .op = atomic_load_explicit(&member->place.wait.number, memory_order_relaxed),
                     .bytes = wait.bytes,
                     .waited_ns = now_ns - since_ns};
    snprintf(m.what, sizeof m.what, "%s", wait.what);
    snprintf(m.name, sizeof m.name, "%s", wait.name);
    eni_message_put(&member->link, &m);
}

/* ---- the loop ---- */

static void check_silence(eni_member *member, int64_t now_ns)
{
    const eni_peer *leader = &member->lead.reign->leader;
    char cause[80];
    int64_t silent_ns = now_ns - member->when.heard_ns;
    if (silent_ns <= member->config.peer_timeout_ns) return;
    bool is_stopped = strcmp(leader->host_id, member->config.host_id) == 0 &&
                      eni_process_look(leader->pid, leader->born) == ENI_PROCESS_STOPPED;
    snprintf(cause, sizeof cause, "%s %.1f s", is_stopped ? "stopped (SIGSTOP or Ctrl-Z) for" : "silent for",
             (double)silent_ns / 1e9);
    eni_member_leader_lost(member, cause, is_stopped);
}

static void flush(eni_member *member)
{
    size_t unsent = member->link.out.bytes;
    if (unsent > 0 && eni_link_flush(&member->link) != EN_OK) /* the end of the stream is about to be read */
        eni_pack_drop(&member->link.out, member->link.out.bytes);
    if (unsent > 0 && member->link.out.bytes == 0) pthread_cond_broadcast(&member->changed);
}

/* With the lock held: handles deadlines and timeouts. */
static void tick(eni_member *member)
{
    int64_t now_ns = eni_now_ns();
    if (member->when.looked_ns != 0 && now_ns - member->when.looked_ns > member->config.peer_timeout_ns / 2)
        member->when.heard_ns = now_ns; /* we were the ones that were stopped */
    if (member->when.looked_ns != 0 && now_ns - member->when.looked_ns > member->config.notice_ns / 2)
        member->when.awake_ns = now_ns; /* and the others may have waited for us */
    member->when.looked_ns = now_ns;
    if (member->when.stop_deadline_ns != 0 && now_ns >= member->when.stop_deadline_ns &&
        !member->end.is_interrupted)
        interrupt(member);
    if (member->lead.ended_ns != 0 && now_ns - member->lead.ended_ns > last_words_ns)
        stream_ended(member, "its process ended, though its connection is held open");
    if (member->stage != MEMBER_HERE && eni_member_status(member) == EN_OK)
        eni_member_tick_away(member, now_ns);
    else if (!member->end.is_bye_answered && member->link.fd >= 0) {
        check_silence(member, now_ns);
        beat(member, now_ns);
        ask_why(member, now_ns);
    }
    eni_member_put_scores(member);
    flush(member);
}

/* How long poll(2) may sleep if nothing arrives. */
static int timeout_ms(const eni_member *member)
{
    int64_t ms = member->config.peer_timeout_ns / ENI_MILLI / 8 + 1;
    int64_t notice_ms = member->config.notice_ns / ENI_MILLI / 4 + 1;
    if (notice_ms < ms) ms = notice_ms;
    if (member->stage != MEMBER_HERE || member->lead.ended_ns != 0) return SOON_MS;
    if (member->when.stop_deadline_ns != 0 && !member->end.is_interrupted) return SOON_MS;
    return ms < TICK_MS ? (int)ms : TICK_MS;
}

static void *run(void *argument)
{
    eni_member *member = argument;
    pthread_mutex_lock(&member->lock);
    while (!member->thread.is_stopping) {
        tick(member);
        bool has_user = !member->end.is_interrupted && member->when.stop_deadline_ns == 0;
        /* Else it would wake us forever. */
        bool is_watched = member->lead.ended_ns == 0 && member->link.fd >= 0;
        struct pollfd set[4] = {{member->thread.wake_fd, POLLIN, 0},
                                {member->link.fd, POLLIN, 0},
                                {has_user ? member->config.abort_fd : -1, POLLIN, 0},
                                {is_watched ? member->lead.process_fd : -1, POLLIN, 0}};
        if (member->link.out.bytes > 0) set[1].events |= POLLOUT;
        int wait_ms = timeout_ms(member);
        pthread_mutex_unlock(&member->lock);
        int n = poll(set, 4, wait_ms);
        pthread_mutex_lock(&member->lock);
        eventfd_t ignored;
        if (n <= 0) continue;
        if (set[0].revents != 0) eventfd_read(member->thread.wake_fd, &ignored);
        if (set[3].revents != 0) member->lead.ended_ns = eni_now_ns();
        if ((set[1].revents & ~POLLOUT) != 0) receive(member);
        if (set[2].revents != 0) on_user(member, eni_now_ns());
    }
    pthread_mutex_unlock(&member->lock);
    return NULL;
}

/* ---- lifetime ---- */

/* A rejoin needs all of it again. */
static en_status copy_config(eni_member *member, const eni_member_config *config)
{
    eni_member_config *own = &member->config;
    *own = *config;
    own->host = own->host_id = NULL;
    own->key_values = own->member_data = NULL;
    if (own->peer_timeout_ns == 0) own->peer_timeout_ns = 5 * ENI_SECOND;
    if (own->notice_ns == 0) own->notice_ns = 5 * ENI_SECOND;
    own->host = eni_strdup(config->host == NULL ? "" : config->host);
    own->host_id = eni_strdup(config->host_id == NULL ? "" : config->host_id);
    if (own->host == NULL || own->host_id == NULL) return EN_ENOMEM;
    EN_TRY(eni_key_values_copy(config->key_values, config->nkey_values, &own->key_values));
    return eni_key_values_copy(config->member_data, config->nmember_data, &own->member_data);
}

static en_status check_config(const eni_member_config *config)
{
    if (config->nranks < 1 || config->nranks > ENI_RANKS_MAX)
        return eni_fail(EN_EINVAL, "member", "a world of %d ranks is out of range: use 1 to %d",
                        config->nranks, ENI_RANKS_MAX);
    if (config->server < 0 || config->server >= ENI_SERVERS_MAX)
        return eni_fail(EN_EINVAL, "member", "server number %d is out of range: use 0 to %d", config->server,
                        ENI_SERVERS_MAX - 1);
    return EN_OK;
}

static en_status prepare(eni_member *member, const eni_member_config *config)
{
    pthread_cond_init(&member->changed, NULL);
    pthread_mutex_init(&member->lock, NULL);
    member->link.fd = member->thread.wake_fd = member->event_fd = member->lead.process_fd = -1;
    atomic_init(&member->place.step, -1);
    atomic_init(&member->stop.entered, -1);
    atomic_init(&member->place.phase, "");
    atomic_init(&member->place.wait.what, "");
    atomic_init(&member->place.wait.name, "");
    atomic_init(&member->stop.step, ENI_STEP_NEVER);
    atomic_init(&member->stop.save_step, ENI_STEP_NEVER);
    member->came_after_ns = -1;
    EN_TRY(check_config(config));
    EN_TRY(copy_config(member, config));
    member->peers = eni_alloc_array((size_t)config->nranks, sizeof *member->peers);
    if (member->peers == NULL) return EN_ENOMEM;
    member->world.peers = member->peers;
    member->world.key_values = member->config.key_values;
    member->world.nkey_values = config->nkey_values;
    member->thread.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    member->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (member->thread.wake_fd >= 0 && member->event_fd >= 0) return EN_OK;
    return eni_fail(EN_EIO, "member", "cannot create an event descriptor: %s", strerror(errno));
}

en_status eni_member_open(const eni_member_config *config, eni_member **member_out)
{
    eni_member *member = eni_alloc(sizeof *member);
    if (member == NULL) return EN_ENOMEM;
    en_status st;
    EN_TRY_GOTO(prepare(member, config), close_member);
    EN_TRY_GOTO(eni_member_join(member), close_member);
    member->when.heard_ns = eni_now_ns();
    const int error = eni_thread_start(&member->thread.id, run, member);
    if (error != 0) {
        eni_error("member", "cannot start the thread that talks to the leader: %s", strerror(error));
        EN_TRY_GOTO(EN_EIO, close_member);
    }
    member->thread.is_there = true;
    *member_out = member;
    return EN_OK;
close_member:
    eni_member_close(member);
    return st;
}

void eni_member_close(eni_member *member)
{
    if (member == NULL) return;
    if (member->thread.is_there) {
        pthread_mutex_lock(&member->lock);
        member->thread.is_stopping = true;
        pthread_mutex_unlock(&member->lock);
        eventfd_write(member->thread.wake_fd, 1);
        pthread_join(member->thread.id, NULL);
    }
    eni_link_fini(&member->link);
    for (int32_t r = 0; r < member->npeers; r++)
        eni_peer_fini(&member->peers[r]);
    if (member->lead.reign == NULL) eni_peer_fini(&member->world.leader); /* else the first reign owns it */
    while (member->lead.reign != NULL) {
        eni_reign *before = member->lead.reign->before;
        eni_peer_fini(&member->lead.reign->leader);
        eni_free(member->lead.reign);
        member->lead.reign = before;
    }
    const eni_member_config *own = &member->config;
    if (member->world.key_values != own->key_values) eni_free(member->world.key_values);
    eni_free(own->key_values);
    eni_free(own->member_data);
    eni_free(own->host);
    eni_free(own->host_id);
    eni_free(member->peers);
    eni_free(member->end.heard);
    eni_blobs_fini(&member->gather.blobs);
    for (int i = 0; i < 2; i++)
        eni_kept_fini(&member->gather.kept[i]);
    while (member->end.lost != NULL) {
        eni_lost *next = member->end.lost->next;
        eni_free(member->end.lost);
        member->end.lost = next;
    }
    const int fds[] = {member->thread.wake_fd, member->event_fd, member->lead.process_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    pthread_cond_destroy(&member->changed);
    pthread_mutex_destroy(&member->lock);
    eni_free(member);
}
