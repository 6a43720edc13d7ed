/* train.c - the main path: training, one step after the other.
 *
 *     batch  ->  forward  ->  backward, layer by layer; each finished bucket is submitted to the strategy
 *            ->  finish: the strategy's exchange ends, param holds the next weights  ->  record
 *
 * The first line is the trainer's (trainer_host.c: read it next; gpu/trainer_gpu.c), the second the
 * strategy's (strategies/), carried out by its host (runtime/host/host.c). rank/step.c has the records. */
#include <string.h>

#include "core/clock.h"
#include "core/try.h"
#include "rank/save.h"
#include "worker/worker.h"

static en_status train_step(eni_rank *rank, uint64_t step)
{
    const eni_trainer *trainer = &rank->trainer;
    eni_step_run run;
    eni_step_open(rank, step, &run);
    EN_TRY(trainer->ops->gradient(trainer->self, &run)); /* all buckets are the strategy's now */
    eni_member_note(rank->member, (int64_t)step, "exchange");
    EN_TRY(trainer->ops->finish != NULL ? trainer->ops->finish(trainer->self, &run)
                                        : eni_host_finish(rank->exchange.host));
    EN_TRY(eni_step_close(&run));
    EN_TRY(eni_snapshot_if_due(rank, eni_step_samples(&run)));
    return eni_save_step(rank, eni_step_samples(&run));
}

/* The leader's release time, for ranks on its host: before any of them leaves, and the same for all. Clocks
 * of different hosts cannot be compared, so another host's rank takes the time at which it leaves itself. */
static en_status meet(eni_rank *rank, int64_t *zero_out)
{
    eni_blobs blobs = {0};
    EN_TRY(eni_member_gather(rank->member, ENI_GATHER_BEGIN, NULL, 0, &blobs, INT64_MAX));
    const eni_blob *leaders = &blobs.blob[blobs.count - 1];
    *zero_out = eni_now_ns();
    if (leaders->bytes == sizeof *zero_out && strcmp(rank->info->leader.host_id, rank->host_id) == 0)
        memcpy(zero_out, leaders->data, sizeof *zero_out);
    eni_blobs_fini(&blobs);
    return EN_OK;
}

/* Zero on the clock: all leave together; setup is not on it. */
static en_status start_clock(eni_rank *rank)
{
    int64_t *zero_ns = &rank->records.stats.clock_begin_ns;
    eni_member_note(rank->member, -1, "start of training");
    if (rank->is_newcomer)
        EN_TRY(eni_rank_come_in(rank));
    else
        EN_TRY(meet(rank, zero_ns));
    if (rank->is_newcomer) *zero_ns = eni_now_ns();
    if (rank->is_newcomer)
        rank->records.stats.before_ns += *zero_ns; /* time since it learned the run's time */
    if (rank->world.rank == 0)
        eni_bar_start(&rank->records.bar, rank->saving.first_step,
                      rank->saving.is_resumed ? rank->saving.past.samples : 0);
    return EN_OK;
}

/* The budget is used up. Nobody takes part in exchanges any more; the clock stops when all are here. A rank
 * that was asked to leave waits for nobody. */
static en_status stop_clock(eni_rank *rank)
{
    eni_stats *stats = &rank->records.stats;
    rank->records.is_concluding = 1;
    eni_member_note(rank->member, (int64_t)stats->sum.steps, "finish");
    if (rank->exchange.client != NULL) EN_TRY(eni_client_finished(rank->exchange.client));
    if (!eni_member_is_leaving(rank->member))
        EN_TRY(eni_member_gather(rank->member, "trained", NULL, 0, NULL, INT64_MAX));
    stats->clock_end_ns = eni_now_ns();
    stats->train_ns = stats->before_ns + stats->clock_end_ns - stats->clock_begin_ns;
    return EN_OK;
}

en_status eni_train(eni_rank *rank)
{
    en_status st = start_clock(rank);
    for (uint64_t step = rank->saving.first_step; st == EN_OK; step++) {
        st = eni_rank_alive(rank);
        if (st == EN_OK && !rank->job.is_claiming)
            st = eni_member_enter(rank->member, step); /* or all end before it */
        if (st == EN_OK && eni_member_saves(rank->member, step, rank->job.is_claiming))
            st = eni_save_wish(rank);
        if (st == EN_OK) st = train_step(rank, step);
    }
    if (st != EN_ESTOP)
        (void)!eni_step_settle(rank, false); /* steps that have arrived are recorded, without waiting */
    else if ((st = eni_step_settle(rank, true)) == EN_OK)
        st = stop_clock(rank);
    eni_step_show(rank); /* the last gather has brought the last steps */
    if (rank->world.rank == 0) eni_bar_done(&rank->records.bar);
    EN_TRY(st);
    EN_TRY(eni_save_finish(rank));
    return eni_host_over(rank->exchange.host,
                         eni_shutdown_is_asked(rank->shutdown) || eni_member_is_leaving(rank->member));
}
