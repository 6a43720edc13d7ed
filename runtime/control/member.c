/* member.c - a member's calls: the progress of this rank, the state of the run, and requests to the leader:
 * claims, gathers, the early end, goodbyes. A request that is open when psd goes away stays open: it is sent
 * again after the rejoin (member_join.c). The other files of the member call this one; it calls none of them.
 *
 * The status is one atomic word, set once: first the reason and the death are stored, then the status, then
 * all waiting threads are woken. */
#include "runtime/control/member.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/control/member_state.h"

enum { SCORES_BYTES = 1 << 16 }; /* of unsent scores: they do not pile up for a stopped leader */

/* ---- progress of the compute thread ---- */

void eni_member_note(eni_member *member, int64_t step, const char *phase)
{
    if (atomic_load_explicit(&member->place.step, memory_order_relaxed) != step)
        atomic_store_explicit(&member->place.wait.number, 0, memory_order_relaxed);
    atomic_store_explicit(&member->place.step, step, memory_order_relaxed);
    atomic_store_explicit(&member->place.phase, phase, memory_order_relaxed);
    eni_wait_note_move(&member->place.wait);
}

void eni_member_note_samples(eni_member *member, uint64_t samples)
{
    atomic_store_explicit(&member->place.samples, samples, memory_order_relaxed);
}

void eni_member_tell_score(eni_member *member, const eni_score *score)
{
    eni_member_scores *s = &member->scores;
    const uint64_t told = atomic_load_explicit(&s->told, memory_order_relaxed);
    const uint64_t waiting = told - atomic_load_explicit(&s->sent, memory_order_acquire);
    if (waiting == ENI_SCORES_KEPT) return;
    s->own[told % ENI_SCORES_KEPT] = *score;
    atomic_store_explicit(&s->told, told + 1, memory_order_release);
    if (waiting > ENI_SCORES_KEPT / 8) eventfd_write(member->thread.wake_fd, 1);
}

void eni_member_put_scores(eni_member *member)
{
    eni_member_scores *s = &member->scores;
    const uint64_t told = atomic_load_explicit(&s->told, memory_order_acquire);
    for (uint64_t at = atomic_load(&s->sent); at < told; at++) {
        const eni_message m = {.type = ENI_CTL_SCORE, .score = s->own[at % ENI_SCORES_KEPT]};
        if (member->stage == MEMBER_HERE && member->link.out.bytes < SCORES_BYTES)
            (void)!eni_message_put(&member->link, &m);
    }
    atomic_store_explicit(&s->sent, told, memory_order_release);
}

bool eni_member_next_score(eni_member *member, eni_score *score_out)
{
    eni_member_scores *s = &member->scores;
    if (atomic_load_explicit(&s->come, memory_order_relaxed) == s->taken) return false;
    pthread_mutex_lock(&member->lock);
    const uint64_t come = atomic_load(&s->come);
    if (come - s->taken > ENI_SCORES_KEPT) s->taken = come - ENI_SCORES_KEPT;
    *score_out = s->kept[s->taken++ % ENI_SCORES_KEPT];
    pthread_mutex_unlock(&member->lock);
    return true;
}

eni_wait_note *eni_member_wait_note(eni_member *member)
{
    return &member->place.wait;
}

void eni_member_wait_begin(eni_member *member, const char *what, const char *name, uint64_t bytes,
                           uint32_t number)
{
    eni_wait_note_begin(&member->place.wait, what, name, bytes, number);
}

void eni_member_wait_device(eni_member *member, const char *what, const char *name, uint64_t bytes,
                            uint32_t number)
{
    atomic_store_explicit(&member->place.waits_for_device, 1, memory_order_relaxed);
    eni_member_wait_begin(member, what, name, bytes, number);
}

void eni_member_wait_end(eni_member *member)
{
    eni_wait_note_end(&member->place.wait);
    atomic_store_explicit(&member->place.waits_for_device, 0, memory_order_relaxed);
}

/* ---- state of the run ---- */

en_status eni_member_status(const eni_member *member)
{
    return atomic_load_explicit(&member->end.status, memory_order_acquire);
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

en_status eni_member_await_end(eni_member *member, int64_t deadline_ns)
{
    EN_TRY(eni_tcp_wait(member->event_fd, POLLIN, deadline_ns, -1));
    EN_TRY(eni_member_status(member));
    pthread_mutex_lock(&member->lock);
    bool is_over = member->end.is_over;
    pthread_mutex_unlock(&member->lock);
    return is_over ? EN_OK : EN_EINTR;
}

eni_run_outcome eni_member_outcome(eni_member *member)
{
    pthread_mutex_lock(&member->lock);
    const eni_run_outcome outcome = member->end.outcome;
    pthread_mutex_unlock(&member->lock);
    return outcome;
}

bool eni_member_has_left(eni_member *member, int32_t rank, eni_death *death_out)
{
    pthread_mutex_lock(&member->lock);
    const eni_lost *lost = member->end.lost;
    while (lost != NULL && lost->death.rank != rank)
        lost = lost->next;
    if (lost != NULL && death_out != NULL) *death_out = lost->death;
    pthread_mutex_unlock(&member->lock);
    return lost != NULL;
}

bool eni_member_presence(eni_member *member, size_t i, eni_presence_event *presence_out)
{
    pthread_mutex_lock(&member->lock);
    const bool is_there = i < member->end.nheard;
    if (is_there) *presence_out = member->end.heard[i];
    pthread_mutex_unlock(&member->lock);
    return is_there;
}

int64_t eni_member_came_after(const eni_member *member)
{
    return member->came_after_ns;
}

bool eni_member_is_leaving(const eni_member *member)
{
    return atomic_load(&member->end.is_leaving);
}

uint64_t eni_member_stop_step(const eni_member *member)
{
    uint64_t step = atomic_load(&member->stop.step);
    return step == ENI_STEP_PENDING ? ENI_STEP_NEVER : step;
}

/* ---- who leads ---- */

uint64_t eni_member_generation(const eni_member *member)
{
    return atomic_load_explicit(&member->lead.generation, memory_order_acquire);
}

const eni_peer *eni_member_leader(eni_member *member, uint32_t *epoch_out)
{
    pthread_mutex_lock(&member->lock);
    const eni_reign *reign = member->lead.reign;
    pthread_mutex_unlock(&member->lock);
    if (epoch_out != NULL) *epoch_out = reign->epoch;
    return &reign->leader;
}

int64_t eni_member_away_since(const eni_member *member)
{
    return atomic_load_explicit(&member->lead.away_since, memory_order_acquire);
}

/* ---- messages to the leader ---- */

en_status eni_member_put(eni_member *member, const eni_message *message)
{
    if (member->stage != MEMBER_HERE) return EN_OK; /* sent again after the rejoin */
    eni_member_put_scores(member);                  /* first: the last scores must precede the last gather */
    EN_TRY(eni_message_put(&member->link, message));
    eventfd_write(member->thread.wake_fd, 1);
    return EN_OK;
}

/* ---- the run is broken ---- */

/* Ends the run for this process: stores status, reason and death first, then signals all that threads wait
 * on. The first call wins. */
void eni_member_finish(eni_member *member, en_status status, const char *reason, const eni_death *death)
{
    if (atomic_load(&member->end.status) != EN_OK) return;
    eni_run_outcome *outcome = &member->end.outcome;
    snprintf(outcome->reason, sizeof outcome->reason, "%s", reason);
    outcome->has_death = death != NULL;
    if (death != NULL) outcome->death = *death;
    eni_error("member", "the run is broken: %s", reason);
    int before = EN_OK, verdict = status == EN_OK ? EN_EPEER : status;
    atomic_store_explicit(&member->end.status, verdict, memory_order_release);
    if (member->config.ended != NULL) atomic_compare_exchange_strong(member->config.ended, &before, verdict);
    eventfd_write(member->event_fd, 1);
    pthread_cond_broadcast(&member->changed);
}

void eni_member_leader_lost(eni_member *member, const char *cause, bool is_stopped)
{
    const eni_peer *leader = &member->lead.reign->leader;
    eni_death death = {.rank = leader->rank, .pid = leader->pid, .step = -1, .is_stopped = is_stopped};
    char text[ENI_REASON_MAX];
    snprintf(death.host, sizeof death.host, "%s", leader->host);
    snprintf(death.cause, sizeof death.cause, "%s", cause);
    eni_death_text(&death, text);
    eni_member_finish(member, EN_EPEER, text, &death);
}

const eni_world_info *eni_member_world(const eni_member *member)
{
    return &member->world;
}

/* ---- waiting for an answer ---- */

/* Waits on the condition, with the lock held. EN_ETIMEOUT at the deadline. */
static en_status wait_changed(eni_member *member, int64_t deadline_ns)
{
    const struct timespec until = eni_timespec(deadline_ns);
    if (deadline_ns < 0) return EN_ETIMEOUT;
    return pthread_cond_clockwait(&member->changed, &member->lock, CLOCK_MONOTONIC, &until) == ETIMEDOUT
               ? EN_ETIMEOUT
               : EN_OK;
}

/* With the lock held: EN_OK while a question makes sense and its answer may be waited for. */
static en_status can_ask(const eni_member *member)
{
    EN_TRY(eni_member_status(member));
    return member->end.is_interrupted || member->end.has_said_bye ? EN_EINTR : EN_OK;
}

/* ---- claims ---- */

/* With the lock held: asks unless an earlier caller's question is still open, and waits for the answer. If a
 * caller gives up at its deadline, the next one takes the answer. */
static en_status claim_locked(eni_member *member, uint64_t *index_out, int64_t deadline_ns)
{
    for (;;) {
        if (member->claim.stage == ASK_ANSWERED) break;
        EN_TRY(can_ask(member));
        if (member->claim.stage == ASK_IDLE) {
            eni_message m = {.type = ENI_CTL_CLAIM, .number = member->claim.number + 1};
            EN_TRY(eni_member_put(member, &m));
            member->claim.stage = ASK_SENT;
        }
        if (wait_changed(member, deadline_ns) != EN_OK && member->claim.stage != ASK_ANSWERED)
            return eni_fail(EN_ETIMEOUT, "member", "the leader did not answer a claim before the deadline");
    }
    if (!member->claim.has_index) return EN_ESTOP; /* stays answered from now on */
    member->claim.stage = ASK_IDLE;
    *index_out = member->claim.index;
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

/* A restarted psd may not have sent this gather to all: our part of it is kept until the next but one. */
static en_status keep(eni_member *member, const eni_message *m)
{
    eni_kept *kept = &member->gather.kept[m->number % 2];
    eni_kept_fini(kept);
    return member->config.server_timeout_ns == 0 || eni_kept_fill(kept, m) ? EN_OK : EN_ENOMEM;
}

static en_status send_gather(eni_member *member, const char *tag, const void *blob, size_t bytes)
{
    if (strlen(tag) >= ENI_TAG_MAX || bytes > ENI_BLOB_MAX || member->gather.stage != ASK_IDLE)
        return eni_fail(EN_EINVAL, "member", "gather '%s' of %zu bytes: %s", tag, bytes,
                        member->gather.stage != ASK_IDLE ? "another gather is still open"
                                                         : "the tag or blob is too long");
    eni_message m = {.type = ENI_CTL_GATHER,
                     .number = member->gather.sent + 1,
                     .blob = {blob == NULL ? (const uint8_t *)"" : blob, bytes}};
    snprintf(m.tag, sizeof m.tag, "%s", tag);
    EN_TRY(keep(member, &m));
    memcpy(member->gather.tag, m.tag, sizeof m.tag);
    member->gather.nblobs = 0;
    member->gather.stage = ASK_SENT;
    member->gather.sent++;
    return eni_member_put(member, &m);
}

static en_status await_blobs(eni_member *member, const char *tag, int64_t deadline_ns)
{
    while (member->gather.stage != ASK_ANSWERED) {
        EN_TRY(can_ask(member));
        if (wait_changed(member, deadline_ns) != EN_OK && member->gather.stage != ASK_ANSWERED)
            return eni_fail(EN_ETIMEOUT, "member", "not all ranks joined gather '%s' before the deadline",
                            tag);
    }
    return EN_OK;
}

static en_status gather_locked(eni_member *member, const char *tag, const void *blob, size_t bytes,
                               eni_blobs *blobs_out, int64_t deadline_ns)
{
    EN_TRY(can_ask(member));
    EN_TRY(send_gather(member, tag, blob, bytes));
    eni_member_wait_begin(member, "gather", member->gather.tag, 0, (uint32_t)member->gather.sent);
    en_status st = await_blobs(member, tag, deadline_ns);
    eni_member_wait_end(member);
    EN_TRY(st);
    member->gather.stage = ASK_IDLE;
    if (blobs_out == NULL) {
        eni_blobs_fini(&member->gather.blobs);
    } else {
        *blobs_out = member->gather.blobs;
        member->gather.blobs = (eni_blobs){0};
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

void eni_member_ask_stop(eni_member *member, const char *why)
{
    char *said = member->end.outcome.stop_why;
    if (said[0] != '\0' || member->end.has_said_bye) return;
    if (member->came_after_ns >= 0) { /* it joined on its own, and leaves on its own */
        member->end.asks_to_leave = true;
        eni_member_put(member, &(eni_message){.type = ENI_CTL_LEAVE});
        return;
    }
    eni_message m = {.type = ENI_CTL_STOP};
    snprintf(m.reason, sizeof m.reason, "%s", why);
    memcpy(said, m.reason, sizeof m.reason);
    eni_member_put(member, &m);
}

void eni_member_stop(eni_member *member, const char *why)
{
    pthread_mutex_lock(&member->lock);
    if (eni_member_status(member) == EN_OK) eni_member_ask_stop(member, why);
    pthread_mutex_unlock(&member->lock);
}

void eni_member_save(eni_member *member)
{
    pthread_mutex_lock(&member->lock);
    if (eni_member_status(member) == EN_OK && !member->end.has_said_bye)
        eni_member_put(member, &(eni_message){.type = ENI_CTL_SAVE});
    pthread_mutex_unlock(&member->lock);
}

bool eni_member_saves(eni_member *member, uint64_t step, bool is_claiming)
{
    return is_claiming ? atomic_exchange(&member->stop.has_wish, false)
                       : atomic_load(&member->stop.save_step) == step;
}

/* The leader is choosing: a rank that is past the step it reported waits. */
static en_status await_choice(eni_member *member)
{
    en_status st = EN_OK;
    pthread_mutex_lock(&member->lock);
    while (atomic_load(&member->stop.step) == ENI_STEP_PENDING && st == EN_OK) {
        st = can_ask(member);
        if (st == EN_OK) wait_changed(member, eni_now_ns() + ENI_SECOND); /* notices the leader's death */
    }
    pthread_mutex_unlock(&member->lock);
    return st;
}

/* The step is stored before the choice is read, and the member's thread does it the other way round when the
 * leader asks (both in one total order): so either it reports this step, or we see that it was asked. */
en_status eni_member_enter(eni_member *member, uint64_t step)
{
    atomic_store(&member->stop.entered, (int64_t)step);
    uint64_t stop = atomic_load(&member->stop.step);
    if (stop == ENI_STEP_PENDING) EN_TRY(await_choice(member));
    stop = atomic_load(&member->stop.step);
    EN_TRY(eni_member_status(member));
    return step < stop ? EN_OK : EN_ESTOP;
}

/* ---- goodbyes ---- */

void eni_member_abort(eni_member *member, const char *reason)
{
    eni_message m = {.type = ENI_CTL_ABORT};
    snprintf(m.reason, sizeof m.reason, "%s", reason);
    pthread_mutex_lock(&member->lock);
    if (eni_member_status(member) == EN_OK && !member->end.has_said_bye &&
        eni_member_put(member, &m) == EN_OK) {
        member->end.has_said_bye = true; /* later events do not concern us */
        member->end.is_bye_answered = true;
        pthread_cond_broadcast(&member->changed);
        const int64_t deadline_ns = eni_now_ns() + ENI_SECOND;
        while (member->link.out.bytes > 0 && eni_member_status(member) == EN_OK &&
               wait_changed(member, deadline_ns) == EN_OK) {
        }
    }
    pthread_mutex_unlock(&member->lock);
}

static en_status bye_locked(eni_member *member, int64_t deadline_ns)
{
    EN_TRY(eni_member_status(member));
    if (!member->end.has_said_bye) EN_TRY(eni_member_put(member, &(eni_message){.type = ENI_CTL_BYE}));
    member->end.has_said_bye = true;
    while (!member->end.is_bye_answered) {
        EN_TRY(eni_member_status(member));
        if (member->end.is_interrupted) return EN_EINTR;
        if (wait_changed(member, deadline_ns) != EN_OK && !member->end.is_bye_answered)
            return eni_fail(EN_ETIMEOUT, "member",
                            "the leader did not answer this rank's goodbye before the deadline");
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
