/* leader_run.c - the leader after WELCOME: what members say, and what time brings: heartbeats, claims,
 * goodbyes. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "runtime/control/leader_state.h"

/* ---- progress ---- */

uint64_t eni_leader_claimed(const eni_leader *leader)
{
    return atomic_load_explicit(&leader->claimed, memory_order_relaxed);
}

uint64_t eni_leader_samples(const eni_leader *leader)
{
    return atomic_load_explicit(&leader->samples, memory_order_relaxed);
}

/* ---- goodbyes and the early end ---- */

static void on_bye(eni_leader *leader, eni_mate *mate)
{
    mate->stage = MATE_BYE;
    mate->done = mate->told;
    eni_leader_try_gather(leader);
    eni_leader_check_paused(leader);
    eni_leader_check_end(leader);
}

static void on_paused(eni_leader *leader, eni_mate *mate, const eni_message *m)
{
    mate->has_paused = true;
    mate->paused_step = m->step;
    eni_leader_check_paused(leader);
}

static void on_stop(eni_leader *leader, const eni_seat *seat, const eni_message *m)
{
    char who[32], why[ENI_REASON_MAX];
    eni_peer_name(seat->peer.rank, who);
    snprintf(why, sizeof why, "%.400s, at %s", m->reason, who);
    eni_leader_begin_stop(leader, why);
}

/* ---- claims ---- */

/* The same number gets the same answer, also from another life of the leader. */
static void on_claim(eni_leader *leader, eni_mate *mate, const eni_message *m)
{
    if (m->number != mate->claims && m->number != mate->claims + 1) {
        eni_leader_lost(leader, mate->seat, "it sent a claim out of order");
        return;
    }
    if (m->number != mate->claims) {
        uint64_t next = atomic_load_explicit(&leader->claimed, memory_order_relaxed);
        bool has_index = next < leader->terms.budget && leader->stop == STOP_NONE;
        uint64_t index = has_index ? next : UINT64_MAX;
        int32_t rank = eni_mate_number(leader, mate);
        if (eni_leader_write(leader, ENI_ENTRY_CLAIM, rank, m->number, index) != EN_OK) return;
        mate->claims = m->number;
        mate->claim_index = index;
        if (has_index) atomic_store_explicit(&leader->claimed, next + 1, memory_order_relaxed);
    }
    bool has_index = mate->claim_index != UINT64_MAX;
    eni_message answer = {.type = ENI_CTL_CLAIMED,
                          .number = mate->claims,
                          .has_index = has_index,
                          .index = has_index ? mate->claim_index : 0};
    eni_mate_put(mate, &answer);
}

/* ---- serving ---- */

static void on_heartbeat(eni_leader *leader, eni_mate *mate, const eni_message *m)
{
    bool has_moved =
        m->moves != mate->moves || m->step != mate->step || m->op != mate->op || m->waits != mate->waits;
    if (has_moved) {
        leader->moved_ns = eni_now_ns();
        mate->has_wait = false;
    }
    mate->step = m->step;
    mate->op = m->op;
    mate->waits = m->waits;
    mate->moves = m->moves;
    memcpy(mate->phase, m->phase, sizeof mate->phase);
    atomic_fetch_add_explicit(&leader->samples, m->samples - mate->samples, memory_order_relaxed);
    mate->samples = m->samples;
}

static void on_done(eni_leader *leader, eni_mate *mate, const eni_message *m)
{
    if (m->number > mate->told || m->number < mate->done) {
        eni_leader_lost(leader, mate->seat, "it has blobs that it was never sent");
        return;
    }
    mate->done = m->number;
    eni_leader_check_end(leader);
}

/* Whoever breaks the protocol is lost. `fault` NULL: it did not. */
static void check_fault(eni_leader *leader, const eni_mate *mate, const char *fault)
{
    if (fault != NULL) eni_leader_lost(leader, mate->seat, fault);
}

/* What a rank may say after WELCOME and before its goodbye; false: nothing of that. */
static bool serve_rank(eni_leader *leader, eni_mate *mate, const eni_message *m)
{
    leader->moved_ns = eni_now_ns();
    switch (m->type) {
    case ENI_CTL_CLAIM: on_claim(leader, mate, m); return true;
    case ENI_CTL_GATHER: check_fault(leader, mate, eni_leader_gather(leader, mate, m)); return true;
    case ENI_CTL_DONE: on_done(leader, mate, m); return true;
    case ENI_CTL_PAUSED: on_paused(leader, mate, m); return true;
    case ENI_CTL_BYE: on_bye(leader, mate); return true;
    default: return false;
    }
}

void eni_leader_serve(eni_leader *leader, eni_seat *seat, const eni_message *m)
{
    if (leader->stage == LEADER_ENDING) return;
    eni_mate *mate = eni_leader_mate(leader, seat);
    bool is_in = seat->stage == SEAT_ACTIVE && mate != NULL;
    switch (m->type) {
    case ENI_CTL_ABORT: eni_leader_gave_up(leader, seat, m->reason); return;
    case ENI_CTL_STOP: on_stop(leader, seat, m); return;
    case ENI_CTL_WAITING: eni_leader_waiting(leader, seat, mate, m); return;
    case ENI_CTL_READY: eni_leader_ready(leader, seat, m); return;
    case ENI_CTL_HEARTBEAT:
        if (!is_in) break;
        on_heartbeat(leader, mate, m);
        return;
    case ENI_CTL_ADDED:
        if (!is_in || seat->server == 0) break;
        check_fault(leader, mate, eni_leader_added(leader, mate, m));
        return;
    default:
        if (is_in && seat->server == 0 && mate->stage == MATE_HERE && serve_rank(leader, mate, m)) return;
    }
    eni_leader_lost(leader, seat, "it sent a message that was not due");
}

/* ---- time ---- */

static void beat(eni_leader *leader, int64_t now_ns)
{
    int64_t interval_ns = leader->config.peer_timeout_ns / 4;
    if (interval_ns > ENI_SECOND) interval_ns = ENI_SECOND;
    if (now_ns < leader->next_beat_ns) return;
    leader->next_beat_ns = now_ns + interval_ns;
    eni_message m = {.type = ENI_CTL_HEARTBEAT, .step = -1, .samples = eni_leader_samples(leader)};
    for (int32_t i = 0; i < leader->nmates; i++)
        if (leader->mates[i].seat != NULL && leader->mates[i].seat->stage == SEAT_ACTIVE)
            eni_mate_put(&leader->mates[i], &m);
}

void eni_leader_tick_run(eni_leader *leader, int64_t now_ns)
{
    eni_leader_check_silence(leader, now_ns);
    if (leader->stage == LEADER_RUNNING && leader->abort_ns != 0 && now_ns >= leader->abort_ns)
        eni_leader_finish(leader, EN_EPEER, leader->abort_reason);
    /* Everyone had left before this life began: who has not heard the answer has had time to ask for it. */
    if (leader->config.revived != NULL && now_ns - leader->started_ns >= eni_leader_back_ns(leader))
        eni_leader_check_end(leader);
    if (leader->stage == LEADER_RUNNING) eni_leader_check_deadlock(leader, now_ns);
    if (leader->stage == LEADER_RUNNING) beat(leader, now_ns);
}
