/* train.c - the main path: training, one step after the other.
 *
 *     batch  ->  forward  ->  backward, layer by layer; each finished bucket is submitted to the strategy
 *            ->  finish: the strategy's exchange ends, param holds the next weights  ->  record
 *
 * The first line is the trainer's (trainer_host.c: read it next; gpu/trainer_gpu.c), the second the
 * strategy's (strategies/), carried out by its host (runtime/host/host.c). rank/run.c has the calls, which a
 * program of the user's makes itself (job/program.c). */
#include "core/try.h"
#include "rank/run.h"
#include "worker/worker.h"

static en_status train_step(eni_rank *rank)
{
    eni_step_run run;
    EN_TRY(eni_run_enter(rank, &run));
    EN_TRY(rank->trainer.ops->gradient(rank->trainer.self, &run)); /* all buckets are the strategy's now */
    return eni_run_finish(&run);
}

en_status eni_train(eni_rank *rank)
{
    EN_TRY(eni_trainer_do(&rank->trainer, rank->trainer.ops->warm_up));
    en_status st = eni_run_begin(rank);
    while (st == EN_OK)
        st = train_step(rank);
    return eni_run_end(rank, st);
}
