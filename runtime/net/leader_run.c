/* leader_run.c - the leader after WELCOME: claims, gathers, goodbyes, and who died first. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/net/leader_state.h"

/* A rank that lost a neighbour's socket may give up a moment before the neighbour's control connection
 * closes: an ABORT waits this long for a death that explains it. */
static const int64_t abort_grace_ns = 200 * ENI_MILLI;
static const int64_t farewell_ns = 2 * ENI_SECOND;

/* Sends the last message to everyone who can still hear it and stops serving. */
static void end_run(eni_leader *leader, en_status status, const char *reason, const eni_message *last)
{
    pthread_mutex_lock(&leader->lock);
    leader->status = status;
    snprintf(leader->reason, sizeof leader->reason, "%s", reason);
    pthread_mutex_unlock(&leader->lock);
    leader->stage = LEADER_ENDING;
    leader->end_ns = eni_now_ns() + farewell_ns;
    for (size_t i = 0; i < leader->nseats; i++) {
        eni_seat *seat = &leader->seats[i];
        if (seat->stage != SEAT_JOINED && seat->stage != SEAT_ACTIVE) continue;
        eni_message refused = {.type = ENI_CTL_REFUSED, .status = (uint32_t)status};
        snprintf(refused.reason, sizeof refused.reason, "%s", reason);
        if (last != NULL) eni_seat_put(seat, seat->stage == SEAT_ACTIVE ? last : &refused);
        eni_seat_leave(seat);
    }
}

void eni_leader_finish(eni_leader *leader, en_status status, const char *reason)
{
    eni_message ended = {.type = ENI_CTL_ENDED, .status = (uint32_t)status};
    snprintf(ended.reason, sizeof ended.reason, "%s", reason);
    eni_error("leader", "the run ends: %s", reason);
    end_run(leader, status, reason, &ended);
}

void eni_leader_lost(eni_leader *leader, eni_seat *seat, const char *cause)
{
    eni_death death = {.rank = seat->peer.rank, .pid = seat->peer.pid, .step = seat->step};
    snprintf(death.host, sizeof death.host, "%s", seat->peer.host);
    memcpy(death.phase, seat->phase, sizeof death.phase);
    snprintf(death.cause, sizeof death.cause, "%s", cause);
    eni_message dead = {.type = ENI_CTL_DEAD, .rank = death.rank, .pid = death.pid, .step = death.step};
    memcpy(dead.host, death.host, sizeof dead.host);
    memcpy(dead.phase, death.phase, sizeof dead.phase);
    memcpy(dead.reason, death.cause, sizeof dead.reason);
    char reason[ENI_REASON_MAX];
    eni_death_text(&death, reason);
    eni_error("leader", "%s", reason);
    pthread_mutex_lock(&leader->lock);
    leader->death = death;
    leader->has_death = true;
    pthread_mutex_unlock(&leader->lock);
    end_run(leader, EN_EPEER, reason, &dead);
}

static void on_heartbeat(eni_leader *leader, eni_seat *seat, const eni_message *m)
{
    seat->step = m->step;
    memcpy(seat->phase, m->phase, sizeof seat->phase);
    atomic_fetch_add_explicit(&leader->samples, m->samples - seat->samples, memory_order_relaxed);
    seat->samples = m->samples;
}

static void on_claim(eni_leader *leader, eni_seat *seat)
{
    uint64_t next = atomic_load_explicit(&leader->claimed, memory_order_relaxed);
    eni_message m = {.type = ENI_CTL_CLAIMED, .has_index = next < leader->terms.budget};
    if (m.has_index) {
        m.index = next;
        atomic_store_explicit(&leader->claimed, next + 1, memory_order_relaxed);
    }
    eni_seat_put(seat, &m);
}

/* A gather that can never be complete, because a rank has left, ends the run rather than hang it. */
static void check_gather_possible(eni_leader *leader)
{
    if (leader->ngathered == 0 || leader->nleft == 0) return;
    char reason[ENI_REASON_MAX];
    snprintf(reason, sizeof reason, "rank %d waits in gather '%s', but another rank has already left the run",
             leader->gather_first, leader->gather_tag);
    eni_leader_finish(leader, EN_EMISMATCH, reason);
}

static void send_gathered(eni_leader *leader, const eni_blob *blobs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        eni_message m = {.type = ENI_CTL_GATHERED, .index = i, .count = count};
        memcpy(m.tag, leader->gather_tag, sizeof m.tag);
        m.blob = (eni_span){blobs[i].data, blobs[i].bytes};
        for (int32_t r = 0; r < leader->config.nranks; r++)
            eni_seat_put(leader->by_rank[r], &m);
    }
}

/* All blobs are here: everyone gets all of them, and the leader's last. */
static void finish_gather(eni_leader *leader)
{
    uint32_t nranks = (uint32_t)leader->config.nranks;
    eni_blob *blobs = eni_alloc_array(nranks + 1, sizeof *blobs);
    if (blobs == NULL) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    for (uint32_t r = 0; r < nranks; r++)
        blobs[r] = (eni_blob){leader->by_rank[r]->blob, leader->by_rank[r]->blob_bytes};
    blobs[nranks] = (eni_blob){(const uint8_t *)"", 0};
    if (leader->config.on_gather != NULL)
        leader->config.on_gather(leader->config.user, leader->gather_tag, blobs, nranks, &blobs[nranks]);
    if (blobs[nranks].bytes > ENI_BLOB_MAX)
        eni_leader_finish(leader, EN_EINVAL, "the leader's own blob is over the limit");
    else
        send_gathered(leader, blobs, nranks + 1);
    eni_free(blobs);
    for (uint32_t r = 0; r < nranks; r++) {
        eni_seat *seat = leader->by_rank[r];
        eni_free(seat->blob);
        seat->blob = NULL;
        seat->has_blob = false;
    }
    leader->ngathered = 0;
}

static void on_gather(eni_leader *leader, eni_seat *seat, const eni_message *m)
{
    char reason[ENI_REASON_MAX];
    if (leader->ngathered > 0 && (seat->has_blob || strcmp(m->tag, leader->gather_tag) != 0)) {
        snprintf(reason, sizeof reason,
                 "rank %d is at gather '%s', rank %d at '%s': ranks must gather in one order",
                 seat->peer.rank, m->tag, leader->gather_first, leader->gather_tag);
        eni_leader_finish(leader, EN_EMISMATCH, reason);
        return;
    }
    if (leader->ngathered == 0) {
        memcpy(leader->gather_tag, m->tag, sizeof leader->gather_tag);
        leader->gather_first = seat->peer.rank;
    }
    seat->blob = eni_alloc(m->blob.bytes);
    if (seat->blob == NULL) {
        eni_leader_finish(leader, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    memcpy(seat->blob, m->blob.data, m->blob.bytes);
    seat->blob_bytes = m->blob.bytes;
    seat->has_blob = true;
    leader->ngathered++;
    if (leader->abort_ns != 0) return; /* somebody gave up: in a moment all hear that instead of an answer */
    if (leader->ngathered == leader->config.nranks)
        finish_gather(leader);
    else
        check_gather_possible(leader);
}

static void on_bye(eni_leader *leader, eni_seat *seat)
{
    eni_seat_put(seat, &(eni_message){.type = ENI_CTL_BYE});
    eni_seat_leave(seat);
    leader->nleft++;
    if (leader->nleft == leader->config.nranks)
        end_run(leader, EN_OK, "", NULL);
    else
        check_gather_possible(leader);
}

static void on_abort(eni_leader *leader, eni_seat *seat, const eni_message *m)
{
    eni_seat_leave(seat); /* what it does from now on is no death */
    if (leader->abort_ns != 0) return;
    leader->abort_ns = eni_now_ns() + abort_grace_ns;
    snprintf(leader->abort_reason, sizeof leader->abort_reason,
             "rank %d (pid %" PRId64 " on host %.100s) gave up: %.300s", seat->peer.rank, seat->peer.pid,
             seat->peer.host, m->reason);
}

void eni_leader_serve(eni_leader *leader, eni_seat *seat, const eni_message *m)
{
    if (leader->stage != LEADER_RUNNING) return;
    switch (m->type) {
    case ENI_CTL_HEARTBEAT: on_heartbeat(leader, seat, m); return;
    case ENI_CTL_CLAIM: on_claim(leader, seat); return;
    case ENI_CTL_GATHER: on_gather(leader, seat, m); return;
    case ENI_CTL_BYE: on_bye(leader, seat); return;
    case ENI_CTL_ABORT: on_abort(leader, seat, m); return;
    default: eni_leader_lost(leader, seat, "it sent a message that only a leader may send");
    }
}

static void beat(eni_leader *leader, int64_t now_ns)
{
    int64_t interval_ns = leader->config.peer_timeout_ns / 4;
    if (interval_ns > ENI_SECOND) interval_ns = ENI_SECOND;
    if (now_ns < leader->next_beat_ns) return;
    leader->next_beat_ns = now_ns + interval_ns;
    eni_message m = {.type = ENI_CTL_HEARTBEAT, .step = -1, .samples = eni_leader_samples(leader)};
    for (int32_t r = 0; r < leader->config.nranks; r++)
        if (leader->by_rank[r]->stage == SEAT_ACTIVE) eni_seat_put(leader->by_rank[r], &m);
}

void eni_leader_tick_run(eni_leader *leader, int64_t now_ns)
{
    int64_t timeout_ns = leader->config.peer_timeout_ns;
    for (int32_t r = 0; r < leader->config.nranks && leader->stage == LEADER_RUNNING; r++) {
        eni_seat *seat = leader->by_rank[r];
        if (seat->stage != SEAT_ACTIVE || now_ns - seat->heard_ns < timeout_ns) continue;
        char cause[64];
        snprintf(cause, sizeof cause, "silent for %.1f s", (double)(now_ns - seat->heard_ns) / 1e9);
        eni_leader_lost(leader, seat, cause);
    }
    if (leader->stage == LEADER_RUNNING && leader->abort_ns != 0 && now_ns >= leader->abort_ns)
        eni_leader_finish(leader, EN_EPEER, leader->abort_reason);
    if (leader->stage == LEADER_RUNNING) beat(leader, now_ns);
}
