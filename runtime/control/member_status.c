/* member_status.c - how the run is and where this rank is in it: what a member's callers, its thread and
 * those who join read and write. The other files of the member call this one; it calls none of them.
 *
 * The status is one atomic word, set once: first the reason and the death are stored, then the status, then
 * everybody who may wait is woken. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/control/member_state.h"

/* ---- where the compute thread is ---- */

void eni_member_note(eni_member *member, int64_t step, const char *phase)
{
    if (atomic_load_explicit(&member->step, memory_order_relaxed) != step)
        atomic_store_explicit(&member->wait.number, 0, memory_order_relaxed);
    atomic_store_explicit(&member->step, step, memory_order_relaxed);
    atomic_store_explicit(&member->phase, phase, memory_order_relaxed);
    eni_wait_note_move(&member->wait);
}

void eni_member_where(const eni_member *member, int64_t *step_out, const char **phase_out)
{
    *step_out = atomic_load_explicit(&member->step, memory_order_relaxed);
    *phase_out = atomic_load_explicit(&member->phase, memory_order_relaxed);
}

void eni_member_note_samples(eni_member *member, uint64_t samples)
{
    atomic_store_explicit(&member->samples, samples, memory_order_relaxed);
}

eni_wait_note *eni_member_wait_note(eni_member *member)
{
    return &member->wait;
}

void eni_member_wait_begin(eni_member *member, const char *what, const char *name, uint64_t bytes,
                           uint32_t number)
{
    eni_wait_note_begin(&member->wait, what, name, bytes, number);
}

void eni_member_wait_device(eni_member *member, const char *what, const char *name, uint64_t bytes,
                            uint32_t number)
{
    atomic_store_explicit(&member->waits_for_device, 1, memory_order_relaxed);
    eni_member_wait_begin(member, what, name, bytes, number);
}

void eni_member_wait_end(eni_member *member)
{
    eni_wait_note_end(&member->wait);
    atomic_store_explicit(&member->waits_for_device, 0, memory_order_relaxed);
}

/* ---- how the run is ---- */

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

en_status eni_member_await_end(eni_member *member, int64_t deadline_ns)
{
    EN_TRY(eni_tcp_wait(member->event_fd, POLLIN, deadline_ns, -1));
    EN_TRY(eni_member_status(member));
    pthread_mutex_lock(&member->lock);
    bool is_over = member->is_over;
    pthread_mutex_unlock(&member->lock);
    return is_over ? EN_OK : EN_EINTR;
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

bool eni_member_has_left(eni_member *member, int32_t rank, eni_death *death_out)
{
    pthread_mutex_lock(&member->lock);
    const eni_lost *lost = member->lost;
    while (lost != NULL && lost->death.rank != rank)
        lost = lost->next;
    if (lost != NULL && death_out != NULL) *death_out = lost->death;
    pthread_mutex_unlock(&member->lock);
    return lost != NULL;
}

uint64_t eni_member_stop_step(const eni_member *member)
{
    uint64_t step = atomic_load(&member->stop_step);
    return step == ENI_STEP_PENDING ? ENI_STEP_NEVER : step;
}

bool eni_member_is_stopping(eni_member *member, char why_out[ENI_REASON_MAX])
{
    pthread_mutex_lock(&member->lock);
    bool has_stop = member->has_stop;
    memcpy(why_out, member->stop_why, ENI_REASON_MAX);
    pthread_mutex_unlock(&member->lock);
    return has_stop;
}

/* ---- who leads ---- */

uint64_t eni_member_generation(const eni_member *member)
{
    return atomic_load_explicit(&member->generation, memory_order_acquire);
}

const eni_peer *eni_member_leader(eni_member *member, uint32_t *epoch_out)
{
    eventfd_t ignored;
    pthread_mutex_lock(&member->lock);
    const eni_reign *reign = member->reign;
    eventfd_read(member->generation_fd, &ignored);
    pthread_mutex_unlock(&member->lock);
    if (epoch_out != NULL) *epoch_out = reign->epoch;
    return &reign->leader;
}

int eni_member_generation_fd(const eni_member *member)
{
    return member->generation_fd;
}

int64_t eni_member_away_since(const eni_member *member)
{
    return atomic_load_explicit(&member->away_since, memory_order_acquire);
}

/* ---- what to tell the leader ---- */

en_status eni_member_put(eni_member *member, const eni_message *message)
{
    if (member->stage != MEMBER_HERE) return EN_OK; /* said again after the rejoin */
    EN_TRY(eni_message_put(&member->link, message));
    eventfd_write(member->wake_fd, 1);
    return EN_OK;
}

/* ---- the end ---- */

/* Ends the run for this process: status, reason and death first, then everything that somebody may wait on.
 * The first call wins. */
void eni_member_finish(eni_member *member, en_status status, const char *reason, const eni_death *death)
{
    if (atomic_load(&member->status) != EN_OK) return;
    snprintf(member->reason, sizeof member->reason, "%s", reason);
    if (death != NULL) {
        member->death = *death;
        member->has_death = true;
    }
    eni_error("member", "the run is broken: %s", reason);
    int before = EN_OK, verdict = status == EN_OK ? EN_EPEER : status;
    if (member->config.ended != NULL) atomic_compare_exchange_strong(member->config.ended, &before, verdict);
    atomic_store_explicit(&member->status, verdict, memory_order_release);
    eventfd_write(member->event_fd, 1);
    pthread_cond_broadcast(&member->changed);
}

/* Nobody told us anything: it is the leader itself that is gone. */
void eni_member_leader_lost(eni_member *member, const char *cause, bool is_stopped)
{
    const eni_peer *leader = &member->reign->leader;
    eni_death death = {.rank = leader->rank, .pid = leader->pid, .step = -1, .is_stopped = is_stopped};
    char text[ENI_REASON_MAX];
    snprintf(death.host, sizeof death.host, "%s", leader->host);
    snprintf(death.cause, sizeof death.cause, "%s", cause);
    eni_death_text(&death, text);
    eni_member_finish(member, EN_EPEER, text, &death);
}
