/* team.h - the devices of a rank that has several, or that computes its batch chunk by chunk: what its trainer
 * (trainer_stages.c), the roof (worker.c), the warm-up, statistics and evaluation share. Compute thread only. */
#ifndef WORKER_PARALLEL_TEAM_H
#define WORKER_PARALLEL_TEAM_H

#include "models/evaluation.h"
#include "worker/parallel/stages.h"
#include "worker/worker.h"

/* The devices of a rank, and what a pass hands them. */
typedef struct eni_team {
    eni_stages *stages;
    char device[ENI_DEVICE_NAME]; /* their kind: "cpu" */
    const en_gpu *gpu;            /* NULL: they are the host's */
    int n, nchunks;               /* stages or replicas; of a batch */
    bool are_replicas;
    eni_part parts[ENI_STAGES_MAX];
    en_batch *chunk; /* (nchunks or more, for an evaluation) */
    en_score *score; /* the same */
    float **own;     /* of replicas: (n) each one's gradient */
    float *moved;    /* chunks of a batch that would begin inside a line; NULL: none does */
    void *evaluated[ENI_STAGES_AT_ONCE]; /* batches of an evaluation, with their targets */
} eni_team;

/* --parallel, or --micro-batches of more than one: then w->team is there. */
bool eni_team_is_wanted(const eni_config *config);

/* Chunks of a batch on so many devices: --micro-batches; of replicas one each; of a pipeline that was not told, four a
 * stage, as far as the batch goes. */
int eni_team_chunks(const eni_config *config, int ndevices);

/* Before anybody is met: which devices, and where the network is cut; those of a host are opened, `cores` for all of
 * them. EN_EINVAL, logged with the remedy. close: safe without. */
en_status eni_team_open(eni_worker *worker, int cores);
void eni_team_close(eni_worker *worker);

/* After the join: which GPUs, and they are opened; nothing to do on a host. */
en_status eni_team_open_gpus(eni_worker *worker);
/* Then: all `n` batch sizes of the run. */
en_status eni_team_prepare(eni_worker *worker, const uint64_t *sizes, int n);
/* Everything is in place: the threads. Each has cores of its own where there are as many. An eni_trainer_ops.start. */
en_status eni_team_start(void *worker);

/* A batch as chunks, into team->chunk: it lies chunk by chunk (data/loader.h). How many: none of them is empty. */
int eni_team_cut(const eni_worker *worker, const en_batch *batch);

/* Samples of a full batch's largest chunk. */
uint64_t eni_team_chunk_rows(const eni_worker *worker);

/* eni_stages_await in slices, as long as the run is alive: EN_OK with the next `first`; EN_ESTOP. After
 * anything else the pass is over too. */
en_status eni_team_await(eni_worker *worker, uint32_t *first);

/* The pass under way ends as soon as it can: behind this nobody reads or writes what it was given. No pass may follow.
 * `why` again. */
en_status eni_team_give_up(eni_worker *worker, en_status why);

/* One training pass into scratch: weights and statistics stay as they are. */
en_status eni_team_warm_up(eni_worker *worker, const en_batch *batch, float *grad);

/* Forward in training, host memory: moves `state`. */
en_status eni_team_forward(eni_worker *worker, const float *param, float *state, const en_batch *batch);

/* As eni_model_evaluate_set, several batches under way at one time; the same sums in the same order. */
en_status eni_team_evaluate(eni_worker *worker, const float *param, const float *state, const eni_set *set,
                            eni_set_score *score_out);

#endif
