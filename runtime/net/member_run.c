/* member_run.c - a member's thread: heartbeats, answers to its callers, and what the leader says about
 * deaths. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/net/member_state.h"

/* Ends the run for this process: status, reason and death first, then everything that somebody may wait on.
 * The first call wins. With the lock held. */
static void finish(eni_member *member, en_status status, const char *reason, const eni_death *death)
{
    if (atomic_load(&member->status) != EN_OK) return;
    snprintf(member->reason, sizeof member->reason, "%s", reason);
    if (death != NULL) {
        member->death = *death;
        member->has_death = true;
    }
    eni_error("member", "the run is broken: %s", reason);
    atomic_store_explicit(&member->status, status == EN_OK ? EN_EPEER : status, memory_order_release);
    eventfd_write(member->event_fd, 1);
    pthread_cond_broadcast(&member->changed);
}

/* The user wants this process to end: whoever waits is woken. The run itself is not broken, so the status
 * stays and the owner can still tell the others by an abort. With the lock held. */
static void interrupt(eni_member *member)
{
    member->is_interrupted = true;
    eventfd_write(member->event_fd, 1);
    pthread_cond_broadcast(&member->changed);
}

static void on_dead(eni_member *member, const eni_message *m)
{
    eni_death death = {.rank = m->rank, .pid = m->pid, .step = m->step};
    char text[ENI_REASON_MAX];
    memcpy(death.host, m->host, sizeof death.host);
    memcpy(death.phase, m->phase, sizeof death.phase);
    memcpy(death.cause, m->reason, sizeof death.cause);
    eni_death_text(&death, text);
    finish(member, EN_EPEER, text, &death);
}

/* Nobody told us anything: it is the leader itself that is gone. */
static void leader_lost(eni_member *member, const char *cause)
{
    const eni_peer *leader = &member->world.leader;
    eni_death death = {.rank = leader->rank, .pid = leader->pid, .step = -1};
    char text[ENI_REASON_MAX];
    snprintf(death.host, sizeof death.host, "%s", leader->host);
    snprintf(death.cause, sizeof death.cause, "%s", cause);
    eni_death_text(&death, text);
    finish(member, EN_EPEER, text, &death);
}

static void on_claimed(eni_member *member, const eni_message *m)
{
    if (member->claim != ASK_SENT) return;
    member->claim = ASK_ANSWERED;
    member->has_index = m->has_index;
    member->index = m->index;
    pthread_cond_broadcast(&member->changed);
}

static void on_gathered(eni_member *member, const eni_message *m)
{
    size_t count = (size_t)member->world.nranks + 1;
    bool is_due = member->gather == ASK_SENT && m->index == member->nblobs && m->count == count &&
                  strcmp(m->tag, member->gather_tag) == 0;
    if (!is_due) {
        leader_lost(member, "it sent a blob that nobody asked for");
        return;
    }
    if (m->index == 0) {
        member->blobs.blob = eni_alloc_array(count, sizeof *member->blobs.blob);
        member->blobs.count = member->blobs.blob == NULL ? 0 : count;
    }
    uint8_t *copy = member->blobs.blob == NULL ? NULL : eni_alloc(m->blob.bytes);
    if (copy == NULL) {
        finish(member, EN_ENOMEM, "this process is out of memory", NULL);
        return;
    }
    memcpy(copy, m->blob.data, m->blob.bytes);
    member->blobs.blob[member->nblobs++] = (eni_blob){copy, m->blob.bytes};
    if (member->nblobs < count) return;
    member->gather = ASK_ANSWERED;
    pthread_cond_broadcast(&member->changed);
}

static void serve(eni_member *member, const eni_message *m)
{
    switch (m->type) {
    case ENI_CTL_HEARTBEAT: return;
    case ENI_CTL_CLAIMED: on_claimed(member, m); return;
    case ENI_CTL_GATHERED: on_gathered(member, m); return;
    case ENI_CTL_DEAD: on_dead(member, m); return;
    case ENI_CTL_ENDED: finish(member, (en_status)m->status, m->reason, NULL); return;
    case ENI_CTL_BYE:
        member->is_bye_answered = true;
        pthread_cond_broadcast(&member->changed);
        return;
    default: leader_lost(member, "it sent a message that only a member may send");
    }
}

/* Reads and serves all there is, with the lock held; then looks whether the stream has ended. */
static void receive(eni_member *member)
{
    en_status stream = eni_link_read(&member->link), st;
    eni_span frame;
    eni_message m;
    const char *why = NULL;
    member->heard_ns = eni_now_ns();
    while ((st = eni_link_next(&member->link, &frame)) == EN_OK) {
        if (eni_message_get(frame.data, frame.bytes, &m, &why) == EN_OK)
            serve(member, &m);
        else
            leader_lost(member, why);
    }
    if (st == EN_EPROTO) leader_lost(member, "it broke the framing of the control connection");
    if (stream != EN_OK && !member->has_said_bye)
        leader_lost(member, "its connection closed without a goodbye");
    if (stream != EN_OK && member->has_said_bye) {
        member->is_bye_answered = true;
        pthread_cond_broadcast(&member->changed);
    }
    if (stream != EN_OK) eni_link_fini(&member->link);
}

static void beat(eni_member *member, int64_t now_ns)
{
    int64_t interval_ns = member->peer_timeout_ns / 4;
    if (interval_ns > ENI_SECOND) interval_ns = ENI_SECOND;
    if (now_ns < member->next_beat_ns) return;
    member->next_beat_ns = now_ns + interval_ns;
    eni_message m = {.type = ENI_CTL_HEARTBEAT,
                     .step = atomic_load_explicit(&member->step, memory_order_relaxed),
                     .samples = atomic_load_explicit(&member->samples, memory_order_relaxed)};
    const char *phase = atomic_load_explicit(&member->phase, memory_order_relaxed);
    snprintf(m.phase, sizeof m.phase, "%s", phase);
    eni_message_put(&member->link, &m);
}

static void check_and_beat(eni_member *member, int64_t now_ns)
{
    char cause[64];
    if (now_ns - member->heard_ns > member->peer_timeout_ns) {
        snprintf(cause, sizeof cause, "silent for %.1f s", (double)(now_ns - member->heard_ns) / 1e9);
        leader_lost(member, cause);
    }
    beat(member, now_ns);
}

/* With the lock held: heartbeat, silence of the leader, what is to be sent. */
static void tick(eni_member *member)
{
    int64_t now_ns = eni_now_ns();
    if (member->looked_ns != 0 && now_ns - member->looked_ns > member->peer_timeout_ns / 2)
        member->heard_ns = now_ns; /* it was we who were stopped */
    member->looked_ns = now_ns;
    if (!member->has_said_bye)
        check_and_beat(member, now_ns); /* after it nothing more is due but the answer */
    size_t unsent = member->link.out.bytes;
    if (unsent > 0 && eni_link_flush(&member->link) != EN_OK)
        eni_pack_drop(&member->link.out,
                      member->link.out.bytes); /* the end of the stream is about to be read */
    if (unsent > 0 && member->link.out.bytes == 0) pthread_cond_broadcast(&member->changed);
}

void *eni_member_run(void *argument)
{
    eni_member *member = argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals are for main */
    pthread_mutex_lock(&member->lock);
    while (!member->is_stopping) {
        tick(member);
        struct pollfd set[3] = {{member->wake_fd, POLLIN, 0},
                                {member->link.fd, POLLIN, 0},
                                {member->is_interrupted ? -1 : member->abort_fd, POLLIN, 0}};
        if (member->link.out.bytes > 0) set[1].events |= POLLOUT;
        int interval_ms = (int)(member->peer_timeout_ns / ENI_MILLI / 8);
        pthread_mutex_unlock(&member->lock);
        int n = poll(set, 3, interval_ms < 250 ? interval_ms + 1 : 250);
        pthread_mutex_lock(&member->lock);
        eventfd_t ignored;
        if (n > 0 && set[0].revents != 0) eventfd_read(member->wake_fd, &ignored);
        if (n > 0 && (set[1].revents & ~POLLOUT) != 0) receive(member);
        if (n > 0 && set[2].revents != 0) interrupt(member);
    }
    pthread_mutex_unlock(&member->lock);
    return NULL;
}
