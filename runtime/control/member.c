/* member.c - a member's life, and its calls that wait for the leader: claims, gathers, the early end,
 * goodbyes. What is under way when psd goes away stays under way: it is asked again after the rejoin
 * (member_join.c). */
#include "runtime/control/member.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/member_state.h"

/* ---- life ---- */

static void prepare_condition(eni_member *member)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&member->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&member->lock, NULL);
}

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
    if (config->nranks < 1 || config->nranks > ENI_RANKS_MAX) {
        eni_error("member", "a world of %d ranks: 1 to %d are possible", config->nranks, ENI_RANKS_MAX);
        return EN_EINVAL;
    }
    if (config->server < 0 || config->server >= ENI_SERVERS_MAX) {
        eni_error("member", "server %d: 0 to %d are possible", config->server, ENI_SERVERS_MAX - 1);
        return EN_EINVAL;
    }
    return EN_OK;
}

static en_status prepare(eni_member *member, const eni_member_config *config)
{
    prepare_condition(member);
    member->link.fd = member->wake_fd = member->event_fd = member->generation_fd = member->process_fd = -1;
    atomic_init(&member->step, -1);
    atomic_init(&member->entered, -1);
    atomic_init(&member->phase, "");
    atomic_init(&member->wait.what, "");
    atomic_init(&member->wait.name, "");
    atomic_init(&member->stop_step, ENI_STEP_NEVER);
    EN_TRY(check_config(config));
    EN_TRY(copy_config(member, config));
    member->peers = eni_alloc_array((size_t)config->nranks, sizeof *member->peers);
    if (member->peers == NULL) return EN_ENOMEM;
    member->world.peers = member->peers;
    member->world.key_values = member->config.key_values;
    member->world.nkey_values = config->nkey_values;
    member->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    member->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    member->generation_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (member->wake_fd >= 0 && member->event_fd >= 0 && member->generation_fd >= 0) return EN_OK;
    eni_error("member", "eventfd failed: %s", strerror(errno));
    return EN_EIO;
}

en_status eni_member_open(const eni_member_config *config, eni_member **member_out)
{
    eni_member *member = eni_alloc(sizeof *member);
    if (member == NULL) return EN_ENOMEM;
    en_status st;
    EN_TRY_GOTO(prepare(member, config), close_member);
    EN_TRY_GOTO(eni_member_join(member), close_member);
    member->heard_ns = eni_now_ns();
    if (pthread_create(&member->thread, NULL, eni_member_run, member) != 0) {
        eni_error("member", "cannot start a thread");
        EN_TRY_GOTO(EN_EIO, close_member);
    }
    member->has_thread = true;
    *member_out = member;
    return EN_OK;
close_member:
    eni_member_close(member);
    return st;
}

static void free_leaders(eni_member *member)
{
    if (member->reign == NULL) eni_peer_fini(&member->world.leader); /* else it is the first one's */
    for (eni_reign *reign = member->reign; reign != NULL;) {
        eni_reign *before = reign->before;
        eni_peer_fini(&reign->leader);
        eni_free(reign);
        reign = before;
    }
}

static void free_config(eni_member *member)
{
    eni_member_config *own = &member->config;
    if (member->world.key_values != own->key_values) eni_free((void *)(uintptr_t)member->world.key_values);
    eni_free((void *)(uintptr_t)own->key_values);
    eni_free((void *)(uintptr_t)own->member_data);
    eni_free((void *)(uintptr_t)own->host);
    eni_free((void *)(uintptr_t)own->host_id);
}

static void close_all(eni_member *member)
{
    const int fds[] = {member->wake_fd, member->event_fd, member->generation_fd, member->process_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
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
    for (int32_t r = 0; r < member->npeers; r++)
        eni_peer_fini(&member->peers[r]);
    free_leaders(member);
    free_config(member);
    eni_free(member->peers);
    eni_blobs_fini(&member->blobs);
    for (int i = 0; i < 2; i++)
        eni_free(member->kept[i].data);
    while (member->lost != NULL) {
        eni_lost *next = member->lost->next;
        eni_free(member->lost);
        member->lost = next;
    }
    close_all(member);
    pthread_cond_destroy(&member->changed);
    pthread_mutex_destroy(&member->lock);
    eni_free(member);
}

const eni_world_info *eni_member_world(const eni_member *member)
{
    return &member->world;
}

/* ---- waiting for an answer ---- */

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

/* ---- claims ---- */

/* With the lock held: asks unless an earlier caller's question is still open, and waits for the answer. A
 * caller that gave up at its deadline loses nothing: the next one takes the answer. */
static en_status claim_locked(eni_member *member, uint64_t *index_out, int64_t deadline_ns)
{
    for (;;) {
        if (member->claim == ASK_ANSWERED) break;
        EN_TRY(can_ask(member));
        if (member->claim == ASK_IDLE) {
            eni_message m = {.type = ENI_CTL_CLAIM, .number = member->claims + 1};
            EN_TRY(eni_member_put(member, &m));
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

/* ---- gathers ---- */

/* A psd that comes back may not have told everybody of this gather: our part of it is kept until the next but
 * one. */
static en_status keep(eni_member *member, const eni_message *m)
{
    eni_kept *kept = &member->kept[m->number % 2];
    eni_free(kept->data);
    *kept = (eni_kept){0};
    if (member->config.server_timeout_ns == 0) return EN_OK;
    kept->data = eni_alloc(m->blob.bytes);
    if (kept->data == NULL) return EN_ENOMEM;
    memcpy(kept->data, m->blob.data, m->blob.bytes);
    memcpy(kept->tag, m->tag, sizeof kept->tag);
    kept->bytes = m->blob.bytes;
    kept->number = m->number;
    return EN_OK;
}

static en_status send_gather(eni_member *member, const char *tag, const void *blob, size_t bytes)
{
    if (strlen(tag) >= ENI_TAG_MAX || bytes > ENI_BLOB_MAX || member->gather != ASK_IDLE) {
        eni_error("member", "gather '%s' of %zu bytes: %s", tag, bytes,
                  member->gather != ASK_IDLE ? "another one is still open" : "the tag or blob is too long");
        return EN_EINVAL;
    }
    eni_message m = {.type = ENI_CTL_GATHER,
                     .number = member->sent + 1,
                     .blob = {blob == NULL ? (const uint8_t *)"" : blob, bytes}};
    snprintf(m.tag, sizeof m.tag, "%s", tag);
    EN_TRY(keep(member, &m));
    memcpy(member->gather_tag, m.tag, sizeof m.tag);
    member->nblobs = 0;
    member->gather = ASK_SENT;
    member->sent++;
    return eni_member_put(member, &m);
}

static en_status await_blobs(eni_member *member, const char *tag, int64_t deadline_ns)
{
    while (member->gather != ASK_ANSWERED) {
        EN_TRY(can_ask(member));
        if (wait_changed(member, deadline_ns) != EN_OK && member->gather != ASK_ANSWERED) {
            eni_error("member", "not all ranks came to gather '%s' before the deadline", tag);
            return EN_ETIMEOUT;
        }
    }
    return EN_OK;
}

static en_status gather_locked(eni_member *member, const char *tag, const void *blob, size_t bytes,
                               eni_blobs *blobs_out, int64_t deadline_ns)
{
    EN_TRY(can_ask(member));
    EN_TRY(send_gather(member, tag, blob, bytes));
    eni_member_wait_begin(member, "gather", member->gather_tag, 0, (uint32_t)member->sent);
    en_status st = await_blobs(member, tag, deadline_ns);
    eni_member_wait_end(member);
    EN_TRY(st);
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

/* ---- the early end ---- */

void eni_member_stop(eni_member *member, const char *why)
{
    eni_message m = {.type = ENI_CTL_STOP};
    snprintf(m.reason, sizeof m.reason, "%s", why);
    pthread_mutex_lock(&member->lock);
    if (!member->has_stop && eni_member_status(member) == EN_OK && !member->has_said_bye) {
        member->has_stop = true;
        memcpy(member->stop_why, m.reason, sizeof member->stop_why);
        eni_member_put(member, &m);
    }
    pthread_mutex_unlock(&member->lock);
}

/* The leader is choosing: everybody waits who is past what he told it. */
static en_status await_choice(eni_member *member)
{
    en_status st = EN_OK;
    pthread_mutex_lock(&member->lock);
    while (atomic_load(&member->stop_step) == ENI_STEP_PENDING && st == EN_OK) {
        st = can_ask(member);
        if (st == EN_OK) wait_changed(member, eni_now_ns() + ENI_SECOND); /* a leader that dies is noticed */
    }
    pthread_mutex_unlock(&member->lock);
    return st;
}

/* The step is stored before the choice is looked at, and the member's thread does it the other way round when
 * the leader asks (both in one total order): so either it tells of this step, or we see that it was asked. */
en_status eni_member_enter(eni_member *member, uint64_t step)
{
    atomic_store(&member->entered, (int64_t)step);
    uint64_t stop = atomic_load(&member->stop_step);
    if (stop == ENI_STEP_PENDING) EN_TRY(await_choice(member));
    stop = atomic_load(&member->stop_step);
    EN_TRY(eni_member_status(member));
    return step < stop ? EN_OK : EN_ESTOP;
}

/* ---- goodbyes ---- */

/* Waits until the thread has sent everything, with the lock held. */
static void wait_sent(eni_member *member, int64_t deadline_ns)
{
    while (member->link.out.bytes > 0 && eni_member_status(member) == EN_OK)
        if (wait_changed(member, deadline_ns) != EN_OK) return;
}

void eni_member_abort(eni_member *member, const char *reason)
{
    eni_message m = {.type = ENI_CTL_ABORT};
    snprintf(m.reason, sizeof m.reason, "%s", reason);
    pthread_mutex_lock(&member->lock);
    if (eni_member_status(member) == EN_OK && !member->has_said_bye && eni_member_put(member, &m) == EN_OK) {
        member->has_said_bye = true; /* what follows concerns us no more */
        member->is_bye_answered = true;
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
    return eni_member_status(member); /* a run that broke meanwhile closes the connection too */
}

en_status eni_member_bye(eni_member *member, int64_t deadline_ns)
{
    pthread_mutex_lock(&member->lock);
    en_status st = bye_locked(member, deadline_ns);
    pthread_mutex_unlock(&member->lock);
    return st;
}
