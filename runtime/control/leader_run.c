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

static void on_bye(eni_leader *leader, eni_leader_member *member)
{
    member->stage = MEMBER_BYE;
    member->done = member->told;
    eni_leader_try_gather(leader);
    eni_leader_check_paused(leader);
    eni_leader_check_end(leader);
}

static void on_paused(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    member->has_paused = true;
    member->paused_step = m->step;
    eni_leader_check_paused(leader);
}

static void on_stop(eni_leader *leader, const eni_connection *connection, const eni_message *m)
{
    char who[32], why[ENI_REASON_MAX];
    eni_peer_name(connection->peer.rank, who);
    snprintf(why, sizeof why, "%.400s, at %s", m->reason, who);
    eni_leader_begin_stop(leader, why);
}

/* ---- claims ---- */

/* The same number gets the same answer, also from another incarnation of the leader. */
static void on_claim(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    if (m->number != member->claims && m->number != member->claims + 1) {
        eni_leader_lost(leader, member->connection, "it sent a claim out of order");
        return;
    }
    if (m->number != member->claims) {
        uint64_t next = atomic_load_explicit(&leader->claimed, memory_order_relaxed);
        bool has_index = next < leader->terms.budget && leader->stop == STOP_NONE;
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

/* ---- serving ---- */

static void on_heartbeat(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    bool has_moved = m->moves != member->moves || m->step != member->step || m->op != member->op ||
                     m->waits != member->waits;
    if (has_moved) {
        leader->moved_ns = eni_now_ns();
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

/* Whoever breaks the protocol is lost. `fault` NULL: it did not. */
static void check_fault(eni_leader *leader, const eni_leader_member *member, const char *fault)
{
    if (fault != NULL) eni_leader_lost(leader, member->connection, fault);
}

/* What a rank may say after WELCOME and before its goodbye; false: nothing of that. */
static bool serve_rank(eni_leader *leader, eni_leader_member *member, const eni_message *m)
{
    leader->moved_ns = eni_now_ns();
    switch (m->type) {
    case ENI_CTL_CLAIM: on_claim(leader, member, m); return true;
    case ENI_CTL_GATHER: check_fault(leader, member, eni_leader_gather(leader, member, m)); return true;
    case ENI_CTL_DONE: on_done(leader, member, m); return true;
    case ENI_CTL_PAUSED: on_paused(leader, member, m); return true;
    case ENI_CTL_BYE: on_bye(leader, member); return true;
    default: return false;
    }
}

void eni_leader_serve(eni_leader *leader, eni_connection *connection, const eni_message *m)
{
    if (leader->stage == LEADER_ENDING) return;
    eni_leader_member *member = eni_leader_member_of(leader, connection);
    bool is_in = connection->stage == CONNECTION_ACTIVE && member != NULL;
    switch (m->type) {
    case ENI_CTL_ABORT: eni_leader_gave_up(leader, connection, m->reason); return;
    case ENI_CTL_STOP: on_stop(leader, connection, m); return;
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
    eni_leader_lost(leader, connection, "it sent a message that was not due");
}

/* ---- time ---- */

static void beat(eni_leader *leader, int64_t now_ns)
{
    int64_t interval_ns = leader->config.peer_timeout_ns / 4;
    if (interval_ns > ENI_SECOND) interval_ns = ENI_SECOND;
    if (now_ns < leader->next_beat_ns) return;
    leader->next_beat_ns = now_ns + interval_ns;
    eni_message m = {.type = ENI_CTL_HEARTBEAT, .step = -1, .samples = eni_leader_samples(leader)};
    for (int32_t i = 0; i < leader->nmembers; i++)
        if (leader->members[i].connection != NULL &&
            leader->members[i].connection->stage == CONNECTION_ACTIVE)
            eni_leader_member_put(&leader->members[i], &m);
}

void eni_leader_tick_run(eni_leader *leader, int64_t now_ns)
{
    eni_leader_check_silence(leader, now_ns);
    if (leader->stage == LEADER_RUNNING && leader->abort_ns != 0 && now_ns >= leader->abort_ns)
        eni_leader_finish(leader, EN_EPEER, leader->abort_reason);
    /* Everyone had left before this incarnation began: who has not heard the answer has had time to ask for it. */
    if (leader->config.revived != NULL && now_ns - leader->started_ns >= eni_leader_back_ns(leader))
        eni_leader_check_end(leader);
    if (leader->stage == LEADER_RUNNING) eni_leader_check_deadlock(leader, now_ns);
    if (leader->stage == LEADER_RUNNING) beat(leader, now_ns);
}
