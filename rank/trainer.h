/* trainer.h - computes a rank's gradients, and evaluates weights.
 *
 *     rank     who takes part, the strategy, buckets, the exchange, records, checkpoints. It knows no model
 *     trainer  in: weights and a batch. Out: the gradient, bucket by bucket while backward runs; loss, hits
 *
 * Between them lies the arena (collective/arena.h): flat weights in slot PARAM, the flat gradient in slot
 * GRAD, each divided into buckets. A trainer that computes elsewhere (a GPU, other threads, another program)
 * copies a bucket's gradient there before it submits it, and takes the weights of the next step from there
 * when the bucket is finished; or it has the strategy's own steps run on its vectors (`steps`).
 *
 * worker/ has three: trainer_host.c, gpu/trainer_gpu.c and parallel/trainer_stages.c. A new one fills the
 * table; nothing in rank/ or in the loop (worker/train.c) changes. One that has threads or a process of its
 * own waits in slices and calls eni_rank_alive in between: every wait ends when the run does.
 *
 * All calls come on the compute thread; report_run also on that of the last resort (shutdown.h), while the
 * compute thread is inside the trainer; `self` is the trainer's own. Statuses but EN_OK end the run. An entry
 * that is NULL has nothing to do; open and gradient are always there, except for a program that makes the calls
 * of run.h itself; without evaluate there is no curve. */
#ifndef RANK_TRAINER_H
#define RANK_TRAINER_H

#include <jansson.h>
#include <stdbool.h>

#include "rank/checkpoint.h"
#include "rank/step.h"
#include "run/transform.h"
#include "runtime/collective/gpu_steps.h"

/* The set on which weights are evaluated. */
typedef enum eni_judged { ENI_JUDGED_CURVE, ENI_JUDGED_TEST } eni_judged;

typedef struct eni_trainer_ops {
    /* ---- opening, in this order; all ranks make the calls together, so they may wait for each other ---- */

    /* After the join: the device, where its vectors will lie, the model. */
    en_status (*open)(void *self);
    /* The arena has the first weights, the strategy is not open yet: makes memory that other ranks reach. */
    en_status (*connect)(void *self);
    /* The arena is filled and mapped as it stays: copies the weights to where they are read. */
    en_status (*start)(void *self);
    /* Computes once on synthetic data, so that nothing happens for the first time on the clock; then the
     * first batch may be prepared. Neither draws a random number nor changes a weight. */
    en_status (*warm_up)(void *self);

    /* ---- a step ---- */

    /* From the next batch to the last bucket submitted: eni_step_take for each micro-batch, eni_step_begin
     * once the samples that count are known, eni_step_submit for each bucket as soon as it is complete. */
    en_status (*gradient)(void *self, eni_step_run *run);
    /* The trainer's own optimizer, in the strategy's step of a bucket. NULL: the host steps, or with steps_itself
     * nobody does in `finish`. */
    en_status (*step)(void *self, uint32_t bucket);
    /* The strategy's finish of every bucket, and the weights to where the next forward reads them. NULL: the
     * host's finish, which leaves them there. */
    en_status (*finish)(void *self, eni_step_run *run);
    /* Loss (summed over the samples) and hits of the step whose run.set was `set`. With `may_wait` it blocks
     * until they are there; without, EN_ETIMEOUT if they are not. NULL: `gradient` has them at once, in the
     * run. */
    en_status (*score)(void *self, int set, bool may_wait, double *loss_out, uint64_t *correct_out);

    /* ---- between steps ---- */

    /* Copies the trainer's weights (with `and_slots` the optimizer's vectors too) to the arena, where `steps`
     * keeps them elsewhere. Blocks. */
    en_status (*bring)(void *self, bool and_slots);
    /* Running statistics or a program's memories (en_schema.nstate), which the rank knows only as a flat
     * vector; not called without any. state: those of micro-batch `micro` of a step, copied into host memory; blocks.
     * set_state: those that it begins with, once, before `connect`. recompute: new ones for these weights, to
     * be evaluated. */
    en_status (*state)(void *self, int64_t micro, float *state_out);
    en_status (*set_state)(void *self, int64_t micro, const float *state);
    en_status (*recompute)(void *self, const float *flat, float *state_out);
    /* Mean loss and share of hits (NaN: no classes) of the flat weights and the state that goes with them;
     * EN_EINTR when the user wants the run to end. */
    en_status (*evaluate)(void *self, eni_judged on, const float *flat, const float *state, double *loss_out,
                          double *accuracy_out);
    /* fp16's loss scale, as a checkpoint keeps it; zeroes without one. */
    eni_scale_facts (*scale)(void *self);
    en_status (*set_scale)(void *self, const eni_scale_facts *facts);
    /* Adds to result.json: of this rank; of the run, from all ranks' reports (NULL: it ended early). */
    void (*report_rank)(void *self, json_t *report);
    void (*report_run)(void *self, const json_t *reports, json_t *result);

    /* ---- the end ---- */

    /* After the last step of a run that ends well, all ranks together: nobody reads another's memory any
     * more. */
    en_status (*leave)(void *self);
    /* The run has failed: ends waits for a peer that is gone. Any thread that may close. */
    void (*abort)(void *self);
} eni_trainer_ops;

/* The trainer's description, for JOIN, checkpoints and result.json. Texts outlive the rank. */
typedef struct eni_about {
    const char *model;      /* "lenet" */
    const char *data;       /* "fashion-mnist" */
    eni_pixel_facts pixels; /* what is done to its images */
    uint64_t data_bytes, holdout, test_samples;
    bool has_accuracy;   /* a classification */
    const char *set;     /* of the curve: "holdout" or "test" */
    const char *device;  /* its kind: "cpu"; all ranks' must be equal */
    char computes[16];   /* decides the bytes of a step besides the program: "cuda, fp16" */
    const char *machine; /* the device in words; NULL until open */
    int threads;
} eni_about;

typedef struct eni_trainer {
    const eni_trainer_ops *ops;
    void *self;
    eni_about about;

    /* set by `open` */
    int late;          /* steps by which loss and hits come after their step: 0 or 1 */
    bool reads_arena;  /* forward reads slot PARAM itself: it may be mapped from elsewhere */
    bool writes_arena; /* it may write weights, so they are its own: nothing is mapped from elsewhere */
    bool steps_itself; /* runtime/host/host.h: steps_outside */
    /* Samples may turn out not to count (fp16), so nobody knows a step's before it is computed. */
    bool may_drop;
    const char *carrier;  /* of gradients, by `steps`: "nccl", "cuda-ipc"; else NULL */
    const char *why;      /* the reason for it */
    eni_gpu_steps *steps; /* set by `connect`: the strategy's steps run there; NULL: in the arena */
} eni_trainer;

/* Calls an entry that may be NULL. */
static inline en_status eni_trainer_bring(const eni_trainer *t, bool and_slots)
{
    return t->ops->bring == NULL ? EN_OK : t->ops->bring(t->self, and_slots);
}

static inline void eni_trainer_report_run(const eni_trainer *t, const json_t *reports, json_t *result)
{
    if (t->ops->report_run != NULL) t->ops->report_run(t->self, reports, result);
}

/* connect, start, warm_up or leave. */
static inline en_status eni_trainer_do(const eni_trainer *t, en_status (*entry)(void *self))
{
    return entry == NULL ? EN_OK : entry(t->self);
}

#endif
