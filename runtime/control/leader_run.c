/* leader_run.c - the leader after WELCOME: heartbeats, claims, goodbyes, the early end. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/control/leader_state.h"

static const int64_t farewell_ns = 2 * ENI_SECOND;

en_status eni_leader_write(eni_leader *leader, eni_entry_kind kind, int32_t rank, uint64_t number,
                           uint64_t value)
{
    const eni_leader_config *config = &leader->config;
    eni_entry entry = {.kind = kind, .rank = rank, .number = number, .value = value};
    en_status st = config->journal == NULL ? EN_OK : config->journal(config->user, &entry);
    if (st != EN_OK) eni_leader_finish(leader, st, "the leader cannot write its journal");
    return st;
}

/* ---- the end ---- */

/* Sends the last message to everyone who can still hear it and stops serving. */
void eni_leader_end(eni_leader *leader, en_status status, const char *reason, const eni_message *last)
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
        if (last != NULL) eni_seat_put(seat, last);
        eni_seat_leave(seat);
    }
}

void eni_leader_finish(eni_leader *leader, en_status status, const char *reason)
{
    if (leader->stage == LEADER_ENDING) return;
    eni_message ended = {.type = ENI_CTL_ENDED, .status = (uint32_t)status};
    snprintf(ended.reason, sizeof ended.reason, "%s", reason);
    if (!eni_leader_has_own_member(leader)) eni_error("leader", "the run ends: %s", reason);
    eni_leader_end(leader, status, reason, &ended);
}

/* All blobs that it took part in are with everybody, so nobody will need it again. */
static bool may_go(const eni_leader *leader, const eni_mate *leaving)
{
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_mate *mate = &leader->mates[r];
        bool is_behind =
            mate->stage == MATE_MISSING || (mate->stage == MATE_HERE && mate->done < leaving->told);
        if (is_behind) return false;
    }
    return true;
}

static void let_go(eni_leader *leader, eni_mate *mate)
{
    eni_seat *seat = mate->seat;
    if (eni_leader_write(leader, ENI_ENTRY_BYE, eni_mate_number(leader, mate), 0, 0) != EN_OK) return;
    mate->stage = MATE_GONE;
    mate->seat = NULL;
    eni_seat_put(seat, &(eni_message){.type = ENI_CTL_BYE});
    eni_seat_leave(seat);
}

void eni_leader_check_end(eni_leader *leader)
{
    int32_t living = 0;
    if (leader->stage != LEADER_RUNNING || leader->abort_ns != 0) return; /* goodbyes do not hide an abort */
    for (int32_t r = 0; r < leader->config.nranks && leader->stage == LEADER_RUNNING; r++) {
        eni_mate *mate = &leader->mates[r];
        if (mate->stage == MATE_BYE && mate->seat != NULL && may_go(leader, mate)) let_go(leader, mate);
        living += eni_mate_lives(mate);
    }
    if (living > 0 || leader->stage != LEADER_RUNNING) return;
    eni_leader_end(leader, EN_OK, "", &(eni_message){.type = ENI_CTL_BYE}); /* servers hear it */
}

static void on_bye(eni_leader *leader, eni_mate *mate)
{
    mate->stage = MATE_BYE;
    mate->done = mate->told;
    eni_leader_try_gather(leader);
    eni_leader_check_paused(leader);
    eni_leader_check_end(leader);
}

/* ---- the early end ---- */

static void put_all(eni_leader *leader, const eni_message *m)
{
    for (int32_t i = 0; i < leader->nmates; i++)
        if (leader->mates[i].stage == MATE_HERE) eni_mate_put(&leader->mates[i], m);
}

static eni_message stop_message(eni_leader *leader, uint32_t type)
{
    eni_message m = {.type = type, .index = leader->stop_step};
    pthread_mutex_lock(&leader->lock);
    memcpy(m.reason, leader->stop_why, sizeof m.reason);
    pthread_mutex_unlock(&leader->lock);
    return m;
}

/* First all ranks say which step they may still take without asking, so that none is past the one that is
 * chosen then. Claims end at once. */
void eni_leader_begin_stop(eni_leader *leader, const char *why)
{
    pthread_mutex_lock(&leader->lock);
    if (leader->stop_why[0] == '\0') snprintf(leader->stop_why, sizeof leader->stop_why, "%s", why);
    pthread_mutex_unlock(&leader->lock);
    if (leader->stage != LEADER_RUNNING) {
        eni_leader_finish(leader, EN_EINTR, why);
        return;
    }
    if (leader->stop != STOP_NONE) return;
    leader->stop = STOP_PAUSING;
    for (int32_t r = 0; r < leader->config.nranks; r++)
        leader->mates[r].has_paused = false;
    if (!eni_leader_has_own_member(leader)) eni_info("leader", "the run ends early: %s", why);
    eni_message pause = stop_message(leader, ENI_CTL_PAUSE);
    put_all(leader, &pause);
    eni_leader_check_paused(leader);
}

void eni_leader_check_paused(eni_leader *leader)
{
    int64_t last = -1;
    if (leader->stop != STOP_PAUSING || leader->stage != LEADER_RUNNING) return;
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_mate *mate = &leader->mates[r];
        if (mate->stage == MATE_MISSING || (mate->stage == MATE_HERE && !mate->has_paused)) return;
        if (mate->stage == MATE_HERE && mate->paused_step > last) last = mate->paused_step;
    }
    if (eni_leader_write(leader, ENI_ENTRY_STOP, 0, 0, (uint64_t)(last + 1)) != EN_OK) return;
    leader->stop = STOP_CHOSEN;
    leader->stop_step = (uint64_t)(last + 1);
    eni_message stopping = stop_message(leader, ENI_CTL_STOPPING);
    put_all(leader, &stopping);
}

void eni_leader_tell_stop(eni_leader *leader, eni_mate *mate)
{
    if (leader->stop == STOP_NONE) return;
    eni_message m = stop_message(leader, leader->stop == STOP_CHOSEN ? ENI_CTL_STOPPING : ENI_CTL_PAUSE);
    eni_mate_put(mate, &m);
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

/* What a rank may say after WELCOME and before its goodbye; false: nothing of that. */
static bool serve_rank(eni_leader *leader, eni_mate *mate, const eni_message *m)
{
    leader->moved_ns = eni_now_ns();
    switch (m->type) {
    case ENI_CTL_CLAIM: on_claim(leader, mate, m); return true;
    case ENI_CTL_GATHER: eni_leader_gather(leader, mate, m); return true;
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
        eni_leader_added(leader, mate, m);
        return;
    default:
        if (is_in && seat->server == 0 && mate->stage == MATE_HERE && serve_rank(leader, mate, m)) return;
    }
    eni_leader_lost(leader, seat, "it sent a message that was not due");
}

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
