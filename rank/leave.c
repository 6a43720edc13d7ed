/* leave.c - how a rank leaves a run: in good order; or because it has failed, and then the others hear why.
 */
#include <stdio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "rank/rank.h"

/* A wait ended because nobody is there any more. Somebody died: the leader knows who, and says so within the
 * time that a broken data socket is ahead of it. Or the user called all of us off, and we are not the first
 * to go. */
static en_status why_alone(eni_rank *self)
{
    if (self->member != NULL && !eni_shutdown_is_asked(self->shutdown))
        eni_member_verdict(self->member, eni_now_ns() + 2 * ENI_SECOND);
    return eni_shutdown_is_asked(self->shutdown) ? EN_EINTR : EN_EPEER;
}

/* What could not be reached or read may be what a dead process has left behind: then its death is the cause.
 */
static en_status unless_lost(eni_rank *self, en_status st)
{
    const int may_be = st == EN_ENOENT || st == EN_EIO || st == EN_EDENIED || st == EN_EPROTO;
    if (self->member == NULL || !may_be) return st;
    return eni_member_verdict(self->member, eni_now_ns() + 300 * ENI_MILLI) == EN_EPEER ? EN_EPEER : st;
}

en_status eni_rank_cause(eni_rank *self, en_status st)
{
    return st == EN_EPEER ? why_alone(self) : unless_lost(self, st);
}

void eni_rank_give_up(eni_rank *self, en_status st)
{
    char reason[ENI_REASON_MAX] = "", said[ENI_REASON_MAX];
    eni_death death;
    /* The exact sentence that this rank has logged: the survivors hear the cause, not its class. */
    const char *why = st != EN_EINTR && eni_log_last_error(said, sizeof said) ? said : en_status_str(st);
    eni_shutdown_heard(self->shutdown);
    if (self->exchange.net != NULL)
        eni_net_abort(self->exchange.net); /* nobody may take it: unsent messages would cost 2 s */
    if (self->member != NULL) {
        eni_member_reason(self->member, reason);
        if (reason[0] == 0) eni_member_abort(self->member, why);
    } else if (self->leader != NULL) {
        snprintf(reason, sizeof reason, "rank %d gave up: %.480s", self->world.rank, why);
        eni_leader_abort(self->leader, reason);
    }
    /* The leader names the one who gave up; to be stopped before it has would be the end that others hear. */
    if (self->leader != NULL) eni_leader_wait(self->leader, eni_now_ns() + 2 * ENI_SECOND, -1);
    if (self->leader != NULL && self->config->result_fd >= 0 &&
        eni_leader_death(self->leader, &death) == EN_OK)
        eni_failure_write((int)self->config->result_fd, &death); /* there may be no member yet to know it */
    if (st == EN_EINTR)
        eni_result_cut_short(self, "interrupted", "");
    else
        eni_result_cut_short(self, "failed", reason[0] != 0 ? reason : why);
}

en_status eni_rank_bye(eni_rank *self)
{
    EN_TRY(eni_member_bye(self->member, eni_rank_answer_by(self, 10 * ENI_SECOND)));
    /* The leader stays until the last has left: its end would look like a death to the others. */
    return self->leader == NULL
               ? EN_OK
               : eni_leader_wait(self->leader, eni_now_ns() + 60 * ENI_SECOND, self->abort_fd);
}

void eni_rank_leave(eni_rank *self)
{
    eni_member_close(self->member);
    self->member = NULL;
    eni_mesh_close(&self->mesh);
    eni_leader_stop(self->leader);
    self->leader = NULL;
    if (self->token_path[0] != 0) eni_token_remove(self->token_path);
    if (self->token_lock >= 0) close(self->token_lock);
}
