/* member.c - joining a run, and a member's calls; see member.h. */
#include "runtime/net/member.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"
#include "runtime/net/member_state.h"

static void set_text(char *out, size_t capacity, const char *text)
{
    snprintf(out, capacity, "%s", text == NULL ? "" : text);
}

static en_status send_join(eni_member *member, const eni_member_config *config)
{
    eni_message join = {.type = ENI_CTL_JOIN,
                        .token = config->token,
                        .rank = config->rank,
                        .nranks = config->nranks,
                        .pid = getpid()};
    set_text(join.host, sizeof join.host, config->host);
    set_text(join.host_id, sizeof join.host_id, config->host_id);
    join.pairs = (eni_pair_list){config->pairs, config->npairs, {NULL, 0}};
    join.privates = (eni_pair_list){config->privates, config->nprivates, {NULL, 0}};
    EN_TRY(eni_message_put(&member->link, &join));
    EN_TRY(eni_tcp_send(member->link.fd, member->link.out.data, member->link.out.bytes,
                        config->join_deadline_ns, config->abort_fd));
    eni_pack_drop(&member->link.out, member->link.out.bytes);
    return EN_OK;
}

/* PEER of rank `have`: they come in order. */
static en_status add_peer(eni_member *member, const eni_member_config *config, const eni_message *m,
                          int32_t *have)
{
    if (m->rank != *have || *have >= config->nranks) {
        eni_error("member", "the leader named rank %d where rank %d was due", m->rank, *have);
        return EN_EPROTO;
    }
    EN_TRY(eni_peer_init(&member->peers[*have], m));
    ++*have;
    return EN_OK;
}

static en_status take_welcome(eni_member *member, const eni_member_config *config, const eni_message *m,
                              int32_t have)
{
    if (have != config->nranks || m->nranks != have || m->index >= (uint64_t)have) {
        eni_error("member", "the leader's welcome is for rank %u of %d, after %d ranks", (unsigned)m->index,
                  m->nranks, have);
        return EN_EPROTO;
    }
    member->world.rank = (int32_t)m->index;
    member->world.nranks = m->nranks;
    member->world.epoch = m->epoch;
    member->world.incarnation = m->incarnation;
    member->world.budget = m->budget;
    return eni_peer_init(&member->world.leader, m);
}

static en_status take_refusal(const eni_message *m)
{
    eni_error("member", "the leader refused: %s", m->reason);
    en_status st = (en_status)m->status;
    return st == EN_OK ? EN_EPROTO : st;
}

/* Handles one frame while joining; *is_in_out is set by WELCOME. */
static en_status join_frame(eni_member *member, const eni_member_config *config, eni_span frame,
                            int32_t *have, bool *is_in_out)
{
    eni_message m;
    const char *why = NULL;
    if (eni_message_get(frame.data, frame.bytes, &m, &why) != EN_OK) {
        eni_error("member", "what answers at %s port %u is no leader of ours: %s", config->leader.host,
                  config->leader.port, why);
        return EN_EPROTO;
    }
    switch (m.type) {
    case ENI_CTL_PEER: return add_peer(member, config, &m, have);
    case ENI_CTL_WELCOME: *is_in_out = true; return take_welcome(member, config, &m, *have);
    case ENI_CTL_REFUSED:
    case ENI_CTL_ENDED: return take_refusal(&m);
    default: eni_error("member", "the leader sent message %u before WELCOME", m.type); return EN_EPROTO;
    }
}

/* Logs how waiting for WELCOME ended. */
static en_status join_failure(const eni_member_config *config, en_status st, bool is_closed)
{
    const char *what = "the leader did not let us in before the deadline: are all ranks started?";
    if (is_closed)
        what = "the leader closed the connection before the run began: did it end?";
    else if (st == EN_EPEER)
        st = EN_EINTR;
    if (st == EN_EINTR) return st; /* the one who interrupted us knows */
    eni_error("member", "%s port %u: %s", config->leader.host, config->leader.port, what);
    return st;
}

static en_status await_welcome(eni_member *member, const eni_member_config *config)
{
    int32_t have = 0;
    bool is_in = false;
    while (!is_in) {
        eni_span frame;
        en_status st = eni_link_next(&member->link, &frame);
        if (st == EN_OK) {
            EN_TRY(join_frame(member, config, frame, &have, &is_in));
            continue;
        }
        if (st == EN_EPROTO) {
            eni_error("member", "what answers at %s port %u does not speak our protocol", config->leader.host,
                      config->leader.port);
            return st;
        }
        st = eni_tcp_wait(member->link.fd, POLLIN, config->join_deadline_ns, config->abort_fd);
        if (st != EN_OK) return join_failure(config, st, false);
        st = eni_link_read(&member->link);
        if (st != EN_OK && member->link.in.bytes == 0) return join_failure(config, st, true);
    }
    return EN_OK;
}

static en_status join(eni_member *member, const eni_member_config *config)
{
    int fd;
    en_status st = eni_tcp_connect(&config->leader, config->join_deadline_ns, config->abort_fd, &fd);
    if (st == EN_EPEER) return EN_EINTR;
    EN_TRY(st);
    eni_link_init(&member->link, fd);
    st = send_join(member, config);
    if (st == EN_EPEER) return join_failure(config, st, true);
    EN_TRY(st);
    return await_welcome(member, config);
}

static en_status prepare(eni_member *member, const eni_member_config *config)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&member->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&member->lock, NULL);
    member->link.fd = member->wake_fd = member->event_fd = -1;
    member->abort_fd = config->abort_fd;
    member->peer_timeout_ns = config->peer_timeout_ns == 0 ? 5 * ENI_SECOND : config->peer_timeout_ns;
    atomic_init(&member->step, -1);
    atomic_init(&member->phase, "");
    if (config->nranks < 1 || config->nranks > ENI_RANKS_MAX) {
        eni_error("member", "a world of %d ranks: 1 to %d are possible", config->nranks, ENI_RANKS_MAX);
        return EN_EINVAL;
    }
    member->peers = eni_alloc_array((size_t)config->nranks, sizeof *member->peers);
    if (member->peers == NULL) return EN_ENOMEM;
    member->world.peers = member->peers;
    member->world.npairs = config->npairs;
    EN_TRY(eni_pairs_copy(config->pairs, config->npairs, &member->world.pairs));
    member->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    member->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (member->wake_fd >= 0 && member->event_fd >= 0) return EN_OK;
    eni_error("member", "eventfd failed: %s", strerror(errno));
    return EN_EIO;
}

en_status eni_member_open(const eni_member_config *config, eni_member **member_out)
{
    eni_member *member = eni_alloc(sizeof *member);
    if (member == NULL) return EN_ENOMEM;
    en_status st;
    EN_TRY_GOTO(prepare(member, config), close_member);
    EN_TRY_GOTO(join(member, config), close_member);
    member->heard_ns = eni_now_ns();
    if (pthread_create(&member->thread, NULL, eni_member_run, member) != 0) {
        eni_error("member", "cannot start a thread");
        EN_TRY_GOTO(EN_EIO, close_member);
    }
    member->has_thread = true;
    *member_out = member;
    return EN_OK;
close_member:
    member->world.nranks = config->nranks;
    eni_member_close(member);
    return st;
}

const eni_world_info *eni_member_world(const eni_member *member)
{
    return &member->world;
}

en_status eni_member_put(eni_member *member, const eni_message *message)
{
    EN_TRY(eni_message_put(&member->link, message));
    eventfd_write(member->wake_fd, 1);
    return EN_OK;
}

/* Waits on the condition, with the lock held. EN_ETIMEOUT at the deadline. */
static en_status wait_changed(eni_member *member, int64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / ENI_SECOND), (long)(deadline_ns % ENI_SECOND)};
    if (deadline_ns < 0) return EN_ETIMEOUT;
    return pthread_cond_timedwait(&member->changed, &member->lock, &until) == ETIMEDOUT ? EN_ETIMEOUT : EN_OK;
}

/* With the lock held: EN_OK while the leader would answer a question, and we would wait for it. */
static en_status can_ask(const eni_member *member)
{
    EN_TRY(eni_member_status(member));
    return member->is_interrupted || member->has_said_bye ? EN_EINTR : EN_OK;
}

/* With the lock held: asks unless an earlier caller's question is still open, and waits for the answer. A
 * caller that gave up at its deadline loses nothing: the next one takes the answer. */
static en_status claim_locked(eni_member *member, uint64_t *index_out, int64_t deadline_ns)
{
    for (;;) {
        if (member->claim == ASK_ANSWERED) break;
        EN_TRY(can_ask(member));
        if (member->claim == ASK_IDLE) {
            EN_TRY(eni_member_put(member, &(eni_message){.type = ENI_CTL_CLAIM}));
            member->claim = ASK_SENT;
        }
        if (wait_changed(member, deadline_ns) != EN_OK && member->claim != ASK_ANSWERED) {
            eni_error("member", "the leader did not answer a claim before the deadline");
            return EN_ETIMEOUT;
        }
    }
    if (!member->has_index) return EN_ESTOP; /* stays answered: now and ever after */
    member->claim = ASK_IDLE;
    *index_out = member->index;
    pthread_cond_broadcast(&member->changed);
    return EN_OK;
}

en_status eni_member_claim(eni_member *member, uint64_t *index_out, int64_t deadline_ns)
{
    pthread_mutex_lock(&member->lock);
    en_status st = claim_locked(member, index_out, deadline_ns);
    pthread_mutex_unlock(&member->lock);
    return st;
}

static en_status send_gather(eni_member *member, const char *tag, const void *blob, size_t bytes)
{
    if (strlen(tag) >= ENI_TAG_MAX || bytes > ENI_BLOB_MAX || member->gather != ASK_IDLE) {
        eni_error("member", "gather '%s' of %zu bytes: %s", tag, bytes,
                  member->gather != ASK_IDLE ? "another one is still open" : "the tag or blob is too long");
        return EN_EINVAL;
    }
    eni_message m = {.type = ENI_CTL_GATHER, .blob = {blob == NULL ? (const uint8_t *)"" : blob, bytes}};
    set_text(m.tag, sizeof m.tag, tag);
    memcpy(member->gather_tag, m.tag, sizeof m.tag);
    member->nblobs = 0;
    member->gather = ASK_SENT;
    return eni_member_put(member, &m);
}

static en_status gather_locked(eni_member *member, const char *tag, const void *blob, size_t bytes,
                               eni_blobs *blobs_out, int64_t deadline_ns)
{
    EN_TRY(can_ask(member));
    EN_TRY(send_gather(member, tag, blob, bytes));
    while (member->gather != ASK_ANSWERED) {
        EN_TRY(can_ask(member));
        if (wait_changed(member, deadline_ns) != EN_OK && member->gather != ASK_ANSWERED) {
            eni_error("member", "not all ranks came to gather '%s' before the deadline", tag);
            return EN_ETIMEOUT;
        }
    }
    member->gather = ASK_IDLE;
    if (blobs_out == NULL) {
        eni_blobs_fini(&member->blobs);
    } else {
        *blobs_out = member->blobs;
        member->blobs = (eni_blobs){0};
    }
    return EN_OK;
}

en_status eni_member_gather(eni_member *member, const char *tag, const void *blob, size_t bytes,
                            eni_blobs *blobs_out, int64_t deadline_ns)
{
    pthread_mutex_lock(&member->lock);
    en_status st = gather_locked(member, tag, blob, bytes, blobs_out, deadline_ns);
    pthread_mutex_unlock(&member->lock);
    return st;
}

void eni_member_note(eni_member *member, int64_t step, const char *phase)
{
    atomic_store_explicit(&member->step, step, memory_order_relaxed);
    atomic_store_explicit(&member->phase, phase, memory_order_relaxed);
}

void eni_member_note_samples(eni_member *member, uint64_t samples)
{
    atomic_store_explicit(&member->samples, samples, memory_order_relaxed);
}

en_status eni_member_status(const eni_member *member)
{
    return atomic_load_explicit(&member->status, memory_order_acquire);
}

int eni_member_fd(const eni_member *member)
{
    return member->event_fd;
}

en_status eni_member_verdict(eni_member *member, int64_t deadline_ns)
{
    EN_TRY(eni_tcp_wait(member->event_fd, POLLIN, deadline_ns, -1));
    en_status st = eni_member_status(member);
    return st == EN_OK ? EN_EINTR : st;
}

void eni_member_reason(eni_member *member, char reason_out[ENI_REASON_MAX])
{
    pthread_mutex_lock(&member->lock);
    memcpy(reason_out, member->reason, ENI_REASON_MAX);
    pthread_mutex_unlock(&member->lock);
}

en_status eni_member_death(eni_member *member, eni_death *death_out)
{
    pthread_mutex_lock(&member->lock);
    bool has_death = member->has_death;
    if (has_death) *death_out = member->death;
    pthread_mutex_unlock(&member->lock);
    return has_death ? EN_OK : EN_ENOENT;
}

/* Waits until the thread has sent everything, with the lock held. */
static void wait_sent(eni_member *member, int64_t deadline_ns)
{
    while (member->link.out.bytes > 0 && eni_member_status(member) == EN_OK)
        if (wait_changed(member, deadline_ns) != EN_OK) return;
}

void eni_member_abort(eni_member *member, const char *reason)
{
    eni_message m = {.type = ENI_CTL_ABORT};
    set_text(m.reason, sizeof m.reason, reason);
    pthread_mutex_lock(&member->lock);
    if (eni_member_status(member) == EN_OK && !member->has_said_bye && eni_member_put(member, &m) == EN_OK) {
        member->has_said_bye = true; /* what follows concerns us no more */
        pthread_cond_broadcast(&member->changed);
        wait_sent(member, eni_now_ns() + ENI_SECOND);
    }
    pthread_mutex_unlock(&member->lock);
}

static en_status bye_locked(eni_member *member, int64_t deadline_ns)
{
    EN_TRY(eni_member_status(member));
    if (!member->has_said_bye) EN_TRY(eni_member_put(member, &(eni_message){.type = ENI_CTL_BYE}));
    member->has_said_bye = true;
    while (!member->is_bye_answered) {
        EN_TRY(eni_member_status(member));
        if (member->is_interrupted) return EN_EINTR;
        if (wait_changed(member, deadline_ns) != EN_OK && !member->is_bye_answered) {
            eni_error("member", "the leader did not answer our goodbye before the deadline");
            return EN_ETIMEOUT;
        }
    }
    return EN_OK;
}

en_status eni_member_bye(eni_member *member, int64_t deadline_ns)
{
    pthread_mutex_lock(&member->lock);
    en_status st = bye_locked(member, deadline_ns);
    pthread_mutex_unlock(&member->lock);
    return st;
}

void eni_member_close(eni_member *member)
{
    if (member == NULL) return;
    if (member->has_thread) {
        pthread_mutex_lock(&member->lock);
        member->is_stopping = true;
        pthread_mutex_unlock(&member->lock);
        eventfd_write(member->wake_fd, 1);
        pthread_join(member->thread, NULL);
    }
    eni_link_fini(&member->link);
    for (int32_t r = 0; member->peers != NULL && r < member->world.nranks; r++)
        eni_peer_fini(&member->peers[r]);
    eni_peer_fini(&member->world.leader);
    eni_free((void *)(uintptr_t)member->world.pairs);
    eni_free(member->peers);
    eni_blobs_fini(&member->blobs);
    if (member->wake_fd >= 0) close(member->wake_fd);
    if (member->event_fd >= 0) close(member->event_fd);
    pthread_cond_destroy(&member->changed);
    pthread_mutex_destroy(&member->lock);
    eni_free(member);
}

/* ---- not there yet: what the calls of member.h did before them ---- */

void eni_member_wait_begin(eni_member *member, const char *what, const char *name, uint64_t bytes,
                           uint32_t number)
{
    (void)member, (void)what, (void)name, (void)bytes, (void)number;
}

void eni_member_wait_end(eni_member *member)
{
    (void)member;
}

void eni_member_stop(eni_member *member, const char *why)
{
    eni_member_abort(member, why);
}

en_status eni_member_enter(eni_member *member, uint64_t step)
{
    (void)step;
    return eni_member_status(member);
}

uint64_t eni_member_stop_step(const eni_member *member)
{
    (void)member;
    return ENI_STEP_NEVER;
}

bool eni_member_is_stopping(eni_member *member, char why_out[ENI_REASON_MAX])
{
    (void)member;
    why_out[0] = '\0';
    return false;
}

bool eni_member_has_left(eni_member *member, int32_t rank, eni_death *death_out)
{
    (void)member, (void)rank, (void)death_out;
    return false;
}

uint64_t eni_member_generation(const eni_member *member)
{
    (void)member;
    return 0;
}

const eni_peer *eni_member_leader(eni_member *member, uint32_t *epoch_out)
{
    if (epoch_out != NULL) *epoch_out = member->world.epoch;
    return &member->world.leader;
}

int eni_member_generation_fd(const eni_member *member)
{
    (void)member;
    return -1;
}

int64_t eni_member_away_since(const eni_member *member)
{
    (void)member;
    return 0;
}

en_status eni_member_await_end(eni_member *member, int64_t deadline_ns)
{
    return eni_member_verdict(member, deadline_ns);
}
