/* leader_seat.c - what all files of the leader need: say something to a member, close its connection, write
 * an entry of the journal, end the run for all. The other files of the leader call this one; it calls none of
 * them. */
#include <stdio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/leader_state.h"

static const int64_t linger_ns = ENI_SECOND;       /* how long a leaving connection may take to close */
static const int64_t goodbye_ns = 2 * ENI_SECOND;  /* how long all may take together when the run has ended */

/* ---- one connection ---- */

void eni_seat_put(eni_seat *seat, const eni_message *message)
{
    if (seat->stream != EN_OK || seat->is_write_closed) return;
    seat->stream = eni_message_put(&seat->link, message);
    seat->is_write_closed = eni_link_flush(&seat->link) != EN_OK;
}

void eni_seat_leave(eni_seat *seat)
{
    seat->stage = SEAT_LEAVING;
    seat->leave_ns = eni_now_ns() + linger_ns;
}

void eni_seat_free(eni_seat *seat)
{
    eni_link_fini(&seat->link);
    if (seat->process_fd >= 0) close(seat->process_fd);
    if (!seat->is_in_world) eni_peer_fini(&seat->peer);
    eni_free((void *)(uintptr_t)seat->key_values);
    *seat = (eni_seat){.link.fd = -1, .process_fd = -1};
}

/* ---- members ---- */

eni_mate *eni_leader_mate(eni_leader *leader, const eni_seat *seat)
{
    for (int32_t i = 0; i < leader->nmates; i++)
        if (leader->mates[i].seat == seat) return &leader->mates[i];
    return NULL;
}

void eni_mate_put(eni_mate *mate, const eni_message *message)
{
    if (mate->seat != NULL) eni_seat_put(mate->seat, message);
}

bool eni_leader_has_own_member(const eni_leader *leader)
{
    for (size_t i = 0; i < leader->nseats && leader->config.rank >= 0; i++) {
        const eni_seat *seat = &leader->seats[i];
        if (seat->stage != SEAT_JOINED && seat->stage != SEAT_ACTIVE) continue;
        if (seat->peer.pid == getpid() && seat->peer.born == leader->born) return true;
    }
    return false;
}

/* ---- the run ends ---- */

/* Sends the last message to everyone who can still hear it and stops serving. */
void eni_leader_end(eni_leader *leader, en_status status, const char *reason, const eni_message *last)
{
    pthread_mutex_lock(&leader->lock);
    leader->status = status;
    snprintf(leader->reason, sizeof leader->reason, "%s", reason);
    pthread_mutex_unlock(&leader->lock);
    leader->stage = LEADER_ENDING;
    leader->end_ns = eni_now_ns() + goodbye_ns;
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

en_status eni_leader_write(eni_leader *leader, eni_entry_kind kind, int32_t rank, uint64_t number,
                           uint64_t value)
{
    const eni_leader_config *config = &leader->config;
    eni_entry entry = {.kind = kind, .rank = rank, .number = number, .value = value};
    en_status st = config->journal == NULL ? EN_OK : config->journal(config->user, &entry);
    if (st != EN_OK) eni_leader_finish(leader, st, "the leader cannot write its journal");
    return st;
}
