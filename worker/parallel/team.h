/* team.h - the devices of a rank that has several, or that computes its batch chunk by chunk: shared by its
 * trainer (trainer_stages.c), worker.c, the warm-up, statistics and evaluation. Compute thread only. */
#ifndef WORKER_PARALLEL_TEAM_H
#define WORKER_PARALLEL_TEAM_H

#include "models/evaluation.h"
#include "worker/parallel/stages.h"
#include "worker/worker.h"

/* The devices of a rank, and the buffers of its passes. */
typedef struct eni_team {
    eni_stages *stages;
    char device[ENI_DEVICE_NAME]; /* their kind: "cpu" */
    const en_gpu *gpu;            /* NULL on host devices */
    int n, nchunks;               /* stages or replicas; chunks per batch */
    bool are_replicas;
    eni_part parts[ENI_STAGES_MAX];
    en_batch *chunk;                     /* (nchunks or more, for an evaluation) */
    en_score *score;                     /* (as many) */
    float **own;                         /* (n) of replicas: each one's gradient */
    float *moved;                        /* chunks that would begin inside a line; NULL if none would */
    void *evaluated[ENI_STAGES_AT_ONCE]; /* batches of an evaluation, with their targets */
} eni_team;

/* With --parallel, or more than one of --micro-batches: then w->team is set. */
bool eni_team_is_wanted(const eni_config *config);

/* Chunks per batch on this many devices: --micro-batches; one per replica; by default four per stage of a
 * pipeline, at most one per sample. */
int eni_team_chunks(const eni_config *config, int ndevices);

/* Before the rank connects: chooses the devices and cuts the network; opens those of a host, with `cores` for
 * all of them. EN_EINVAL, logged with the remedy. close: safe on a worker without a team. */
en_status eni_team_open(eni_worker *worker, int cores);
void eni_team_close(eni_worker *worker);

/* After the join: chooses and opens GPUs; nothing to do on a host. */
en_status eni_team_open_gpus(eni_worker *worker);
/* After that: all `n` batch sizes of the run. */
en_status eni_team_prepare(eni_worker *worker, const uint64_t *sizes, int n);
/* Once everything is in place: starts the threads, each on cores of its own if there are enough. An
 * eni_trainer_ops.start. */
en_status eni_team_start(void *worker);

/* Splits a batch into team->chunk: it lies chunk by chunk (data/loader.h). Returns the number of chunks, none
 * empty. */
int eni_team_cut(const eni_worker *worker, const en_batch *batch);

/* Samples in the largest chunk of a full batch. */
uint64_t eni_team_chunk_rows(const eni_worker *worker);

/* eni_stages_await in slices, as long as the run is alive: EN_OK with the next `first`; EN_ESTOP. Any other
 * status ends the pass as well. */
en_status eni_team_await(eni_worker *worker, uint32_t *first);

/* Ends the pass in flight soon: afterwards nobody touches its memory. No pass may follow. Returns `why`. */
en_status eni_team_give_up(eni_worker *worker, en_status why);

/* One training pass into scratch: weights and statistics stay as they are. */
en_status eni_team_warm_up(eni_worker *worker, const en_batch *batch, float *grad);

/* A training forward on host memory: moves `state`. */
en_status eni_team_forward(eni_worker *worker, const float *param, float *state, const en_batch *batch);

/* As eni_model_evaluate_set, with several batches in flight; the same sums in the same order. */
en_status eni_team_evaluate(eni_worker *worker, const float *param, const float *state, const eni_set *set,
                            eni_set_score *score_out);

#endif
