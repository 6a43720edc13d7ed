/* run.c - the run of a rank, from the join to its goodbye: opening, clock, steps, end. */
#include "rank/run.h"

#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/try.h"
#include "rank/save.h"

/* ---- opening ---- */

en_status eni_run_vectors(eni_rank *self, uint64_t room, bool has_micros)
{
    const uint64_t count = self->job.schema.count;
    const bool is_alone = eni_rank_is_alone(self);
    EN_TRY(eni_arena_open(room > count ? room : count, ENI_ARENA_NSLOTS, !is_alone, &self->exchange.arena));
    if (!is_alone || !has_micros) return EN_OK;
    self->exchange.micros = eni_alloc_array((size_t)self->job.accumulate, sizeof *self->exchange.micros);
    if (self->exchange.micros == NULL) return EN_ENOMEM;
    for (int64_t i = 0; i < self->job.accumulate; i++) {
        self->exchange.micros[i] = eni_alloc_array(count, sizeof(float));
        if (self->exchange.micros[i] == NULL) return EN_ENOMEM;
    }
    return EN_OK;
}

/* Rank and trainer open alternately: the memory of a device's vectors depends on who takes part, and the
 * strategy's shared memory on that of the device. */
en_status eni_run_open(eni_rank *self)
{
    const eni_trainer *trainer = &self->trainer;
    EN_TRY(eni_records_open(self));
    EN_TRY(eni_save_open(self));
    EN_TRY(eni_rank_connect(self));
    EN_TRY(eni_trainer_do(trainer, trainer->ops->connect));
    EN_TRY(eni_rank_start(self));
    EN_TRY(eni_save_check_strategy(self));
    EN_TRY(eni_trainer_do(trainer, trainer->ops->start));
    return self->world.rank == 0 ? EN_OK : eni_records_open_metrics(self);
}

en_status eni_run_claim(void *rank, uint64_t *micro_batch_out)
{
    eni_rank *self = rank;
    EN_TRY(eni_member_claim(self->member, micro_batch_out, eni_rank_answer_by(self, 60 * ENI_SECOND)));
    *micro_batch_out += self->saving.first_micro; /* only the rest of the budget (join.c) */
    return EN_OK;
}

/* ---- the clock ---- */

/* The leader's release time, for ranks on its host: before any of them leaves, and the same for all. Clocks
 * of different hosts cannot be compared, so another host's rank takes the time at which it leaves itself. */
static en_status meet(eni_rank *self, int64_t *zero_out)
{
    eni_blobs blobs = {0};
    EN_TRY(eni_member_gather(self->member, ENI_GATHER_BEGIN, NULL, 0, &blobs, INT64_MAX));
    const eni_blob *leaders = &blobs.blob[blobs.count - 1];
    *zero_out = eni_now_ns();
    if (leaders->bytes == sizeof *zero_out && strcmp(self->info->leader.host_id, self->host_id) == 0)
        memcpy(zero_out, leaders->data, sizeof *zero_out);
    eni_blobs_fini(&blobs);
    return EN_OK;
}

/* Zero on the clock: all leave together; setup is not on it. */
static en_status start_clock(eni_rank *self)
{
    int64_t *zero_ns = &self->records.stats.clock_begin_ns;
    eni_member_note(self->member, -1, "start of training");
    EN_TRY(self->is_newcomer ? eni_rank_come_in(self) : meet(self, zero_ns));
    if (self->is_newcomer)
        self->records.stats.before_ns += *zero_ns = eni_now_ns(); /* time since it learned the run's time */
    if (self->world.rank == 0)
        eni_bar_start(&self->records.bar, self->saving.first_step,
                      self->saving.is_resumed ? self->saving.past.samples : 0);
    return EN_OK;
}

/* The budget is used up. Nobody takes part in exchanges any more; the clock stops when all are here. A rank
 * that was asked to leave waits for nobody. */
static en_status stop_clock(eni_rank *self)
{
    eni_stats *stats = &self->records.stats;
    self->records.is_concluding = 1;
    eni_member_note(self->member, (int64_t)stats->sum.steps, "finish");
    if (self->exchange.client != NULL) EN_TRY(eni_client_finished(self->exchange.client));
    eni_rank_close_door(self);
    if (!eni_member_is_leaving(self->member))
        EN_TRY(eni_member_gather(self->member, "trained", NULL, 0, NULL, INT64_MAX));
    stats->clock_end_ns = eni_now_ns();
    stats->train_ns = stats->before_ns + stats->clock_end_ns - stats->clock_begin_ns;
    return EN_OK;
}

/* ---- the steps ---- */

en_status eni_run_begin(eni_rank *self)
{
    EN_TRY(eni_records_point_zero(self));
    EN_TRY(eni_snapshots_open(self));
    self->has_begun = 1;
    self->step = self->saving.first_step;
    return start_clock(self);
}

en_status eni_run_enter(eni_rank *self, eni_step_run *run_out)
{
    EN_TRY(eni_rank_alive(self));
    if (!self->job.is_claiming) EN_TRY(eni_member_enter(self->member, self->step)); /* or all end before it */
    if (eni_member_saves(self->member, self->step, self->job.is_claiming)) EN_TRY(eni_save_wish(self));
    eni_step_open(self, run_out);
    return EN_OK;
}

en_status eni_run_finish(eni_step_run *run)
{
    eni_rank *self = run->rank;
    const eni_trainer *trainer = &self->trainer;
    eni_member_note(self->member, (int64_t)run->step, "exchange");
    EN_TRY(trainer->ops->finish != NULL ? trainer->ops->finish(trainer->self, run)
                                        : eni_host_finish(self->exchange.host));
    if (self->job.clip_norm > 0) eni_step_clip(self);
    EN_TRY(eni_step_close(run));
    return trainer->steps_itself ? EN_OK : eni_run_stepped(run);
}

en_status eni_run_stepped(const eni_step_run *run)
{
    eni_rank *self = run->rank;
    EN_TRY(eni_snapshot_if_due(self, eni_step_samples(run)));
    EN_TRY(eni_save_step(self, eni_step_samples(run)));
    self->step++;
    return EN_OK;
}

/* ---- the end ---- */

en_status eni_run_end(eni_rank *self, en_status st)
{
    if (st != EN_ESTOP)
        (void)!eni_step_settle(self, false); /* steps that have arrived are recorded, without waiting */
    else if ((st = eni_step_settle(self, true)) == EN_OK)
        st = stop_clock(self);
    eni_step_show(self); /* the last gather has brought the last steps */
    if (self->world.rank == 0) eni_bar_done(&self->records.bar);
    EN_TRY(st);
    EN_TRY(eni_save_finish(self));
    EN_TRY(eni_host_over(self->exchange.host,
                         eni_shutdown_is_asked(self->shutdown) || eni_member_is_leaving(self->member)));
    return eni_member_is_leaving(self->member) ? EN_OK : eni_result(self);
}

en_status eni_run_leave(eni_rank *self)
{
    const eni_trainer *trainer = &self->trainer;
    EN_TRY(eni_records_close(self));
    EN_TRY(eni_trainer_do(trainer, trainer->ops->leave));
    return eni_rank_bye(self);
}

void eni_run_close_exchange(eni_rank *self)
{
    eni_save_close(self);
    eni_exchange_close(self);
}

void eni_run_close_vectors(eni_rank *self, bool is_stuck)
{
    if (is_stuck) return;
    for (int64_t i = 0; self->exchange.micros != NULL && i < self->job.accumulate; i++)
        eni_free(self->exchange.micros[i]);
    eni_free(self->exchange.micros);
    eni_arena_close(self->exchange.arena);
}
