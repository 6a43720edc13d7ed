/* worker.h - this program: a rank (rank/rank.h) and its trainer, which has a data set, a model and a device.
 *
 *     main.c           flags, signals, exit code
 *     worker.c         opens what is below, runs, closes it in reverse
 *     command.c        flags that it refuses before it connects
 *     train.c          the steps: read this first
 *     trainer_host.c   the gradient of a step on the processor
 *     batches.c        the loader, and a warm-up before the clock begins
 *     evaluate.c       evaluates weights
 *     statistics.h     running statistics of batch normalisation
 *     share.c          the data set, once per host
 *     check.c          `entrain check` in place of training
 *     measure.c        what `check -v` and `advise` measure, in its place
 *
 *     gpu/             the same step on a GPU: trainer_gpu.c, gpus.h (which), vectors.h (where weights and gradients
 *                      lie), prefetch.h (batches), scaler.h (fp16)
 *     parallel/        on several devices, or chunk by chunk: trainer_stages.c, team.h (the devices), pipeline.h (the
 *                      schedule: pure), stages.h (one pass over all of them), stage.h (one of them and its thread)
 *
 * One compute thread owns everything; the loader has a thread of its own. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "config/config.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "ops/device.h"
#include "rank/rank.h"
#include "runtime/collective/gpu_choose.h"
#include "runtime/host/cost_model.h"
#include "rank/straggler.h"

typedef struct eni_share eni_share;

/* The parts of a trainer on a GPU; zero elsewhere. */
typedef struct eni_on_gpu {
    struct eni_gpus *gpus;                         /* gpu/gpus.h */
    eni_gpu_choice choice;                         /* where vectors lie */
    struct eni_vectors *vectors;                   /* gpu/vectors.h */
    eni_form form;                                 /* of the loader's batches: gpu/images.h */
    en_gpu_pixels pixels;                          /* how the GPU makes images of them */
    struct eni_prefetch *prefetch;                 /* gpu/prefetch.h */
    struct eni_step_on_gpu *step;                  /* gpu/trainer_gpu.c */
    struct eni_evaluation *evaluation[ENI_SPLITS]; /* models/evaluation.h, by set; rank 0 */
    struct eni_scaler *scaler;                     /* gpu/scaler.h; NULL without fp16 */
    uint64_t overflown;                            /* fp16: samples whose gradient did not count */
    uint64_t copied;                               /* bytes copied out and in for the exchange */
    bool is_stuck; /* it does not answer: memory that it may still write is not freed */
} eni_on_gpu;

typedef struct eni_worker {
    eni_rank rank;
    const eni_config *config;
    const char *plugin_dir; /* strategies and devices */
    eni_dataset *dataset;
    /* Serves it to the other ranks of this host until all have joined; NULL if this rank does not. */
    eni_share *share;
    eni_loader *loader;
    int threads;
    eni_device device;       /* of a team: the host, where vectors lie */
    en_model *model;         /* NULL with a team: each device has its own */
    struct eni_team *team;   /* parallel/team.h; NULL: one device computes whole batches */
    struct eni_judge *judge; /* evaluate.c; NULL: `model` itself */
    eni_straggler straggler;
    struct eni_statistics *statistics; /* statistics.h; NULL: the network has none */
    eni_on_gpu gpu;
} eni_worker;

/* worker.c: opens, trains and closes a rank. main turns the status into the exit code. */
en_status eni_worker_run(eni_worker *worker);

/* command.c: EN_EINVAL, logged: --straggler of a rank that there is not; a flag that needs a GPU if the device is
 * not one. */
en_status eni_check_stragglers(const eni_worker *w);
en_status eni_refuse_without_gpu(const eni_config *config);

/* The trainers; worker.c picks one by the devices. */
extern const eni_trainer_ops eni_trainer_host, eni_trainer_gpu, eni_trainer_stages;

/* gpu/trainer_gpu.c, called by the roof while everything else that the GPU may reach still exists. */
void eni_gpu_close(eni_worker *worker);

/* train.c: from equal weights on all ranks to the end of the budget, and the result. */
en_status eni_train(eni_rank *rank);

/* share.c: opens `dataset`, from the rank of this host that has read it or, as the first, for all; errors as
 * eni_dataset_open, and EN_EINTR; into the memory that an elastic run keeps, or from there. close: nobody
 * will ask for it any more; NULL is fine. */
en_status eni_share_open(eni_worker *worker, const eni_data_options *options);
void eni_share_close(eni_share *share);

/* evaluate.c, at rank 0. open, on a GPU: allocates the evaluations' memory before step 0; nothing to do on
 * the host. evaluate_weights is an eni_trainer_ops.evaluate; on a host, it uses all cores. close: before the
 * device. */
en_status eni_evaluate_open(eni_worker *worker);
en_status eni_evaluate_weights(void *worker, eni_judged on, const float *flat, const float *state,
                               double *loss_out, double *accuracy_out);
void eni_evaluate_close(eni_worker *worker);

/* check.c, in place of training: known sums through the exchange, and a line on stdout; or measures for
 * --probe. */
en_status eni_check(eni_worker *worker);

/* measure.c: measures, with gradients that are all zero, and reports to the launcher. EN_EINVAL, logged.
 * room: elements of the largest vector that it needs. */
en_status eni_measure(eni_worker *worker);
uint64_t eni_measure_room(const eni_worker *worker);

/* ---- batches.c: the micro-batches of a rank, and what both trainers do with them beside computing ---- */

enum { ENI_BATCH_SIZES = 6 };

/* The sizes of the micro-batches that the plan may hand to this rank, each once: full ones, and those of
 * ragged steps. Returns their number. */
int eni_batch_sizes(const eni_worker *w, uint64_t sizes_out[ENI_BATCH_SIZES]);

/* Computes once before the clock of the run begins, so that first touches, kernels and caches are not on the
 * clock of whichever arm meets them: forward and backward of each batch size of the run, on made-up pixels
 * and into scratch. No loader, random number or hook of a strategy takes part: the run ends with the same
 * bytes without it. Every rank, once the exchange is open. */
en_status eni_warm_up(eni_worker *w);

/* Computes full made-up batches for about budget_ns. seconds_out: the mean time of forward and backward on
 * the slowest rank; ready_out: when each of the first ENI_COST_BUCKETS may leave, as a share of this rank's
 * computing. Overwrites the arena's ENI_SLOT_EVAL, and on a GPU its gradient. */
en_status eni_time_batches(eni_worker *w, int64_t budget_ns, double *seconds_out,
                           double ready_out[ENI_COST_BUCKETS]);

/* Starts w->loader. `options`: how its memory is allocated; the rest is filled in here. */
en_status eni_start_loader(eni_worker *w, eni_loader_options *options);

/* The next micro-batch of this rank, on the device that computes it; also notes it in `run`. Blocks for the
 * loader, as long as the run is alive. */
en_status eni_next_batch(eni_worker *w, eni_step_run *run, const eni_batch **batch_out);

/* A host trainer's computing: the mean gradient of a batch into `grad`, its loss and hits into `run`. If it
 * `leaves`, buckets are submitted as they become complete. `micro`: its number, in a process that plays
 * several. */
typedef en_status (*eni_compute_gradient)(eni_worker *w, eni_step_run *run, const eni_batch *batch,
                                          int64_t micro, float *grad, bool leaves);

/* Its eni_trainer_ops.gradient: one micro-batch of this rank, whose buckets leave while backward runs; or, in
 * a world of one without servers, all micro-batches (exchange.micros) and their mean. */
en_status eni_gradient(eni_worker *w, eni_step_run *run, eni_compute_gradient compute);

#endif
