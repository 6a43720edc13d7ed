/* stage.h - one stage, between its thread (stage.c) and the compute thread (stages.c): only these two include
 * it. The compute thread owns a pass until it begins, the stages until all threads are done with it. One lock
 * guards what both touch meanwhile: the progress of each stage. */
#ifndef WORKER_PARALLEL_STAGE_H
#define WORKER_PARALLEL_STAGE_H

#include <pthread.h>

#include "core/memory.h"
#include "worker/parallel/stages.h"

/* A turn, when it began and when it ended: for the trace, the report and the times. */
typedef struct eni_turn_span {
    eni_turn turn;
    int64_t begin_ns, end_ns;
    int64_t slept_ns; /* at its end, of a slow rank */
} eni_turn_span;

/* Host memory in which chunks are handed over: chunk c lies in slot c % n of a pass. */
typedef struct eni_slots {
    unsigned char *memory;
    uint64_t bytes, stride;
    int n;
} eni_slots;

/* The memory of a stage on a GPU; zero on host devices, which work in the caller's vectors. */
typedef struct eni_stage_on_gpu {
    float *param, *state, *grad; /* of its part */
    eni_slots x, target;         /* device memory of the chunks that it keeps */
    float *pair;                 /* host: loss and hits of a chunk */
    void *reached[4];            /* (nreached) registered host memory */
    int nreached;
    en_event *event;
} eni_stage_on_gpu;

typedef struct eni_stage {
    eni_stages *all;
    int at, index; /* the stage's number; its device's */
    eni_part part;
    eni_device device;
    en_model *model;
    int in_flight; /* the most chunks that it keeps for backward at one time */
    pthread_t thread;
    bool has_thread;
    eni_turn *turns;      /* (nturns) of the pass */
    eni_turn_span *spans; /* (nturns) of the pass; and of the last full one that was counted */
    eni_turn_span *kept;
    int nturns, nkept;
    eni_slots y, dy; /* between it and the next stage: activations down, their gradients up */
    /* The gradient of one chunk of its part; on a GPU followed by its state, and registered; else NULL if not
     * needed. */
    float *scratch;
    eni_stage_on_gpu gpu;
    eni_straggler straggler;
    int64_t forward_ns, backward_ns; /* total of counted passes */
    int64_t nforward, nbackward;

    /* under the lock */
    int forwards, backwards; /* chunks of the pass that are done */
    bool is_at_it;           /* in a turn whose input is there */
    uint32_t done;           /* tensors of its part from here on are complete */
} eni_stage;

struct eni_stages {
    eni_stages_options options; /* index and parts are copied into the stages */
    int first_core;
    eni_stage *stage;                     /* (options.n) */
    uint64_t chunk_rows, evaluation_rows; /* the largest chunk of a kind */
    eni_trace *trace;
    char (*names)[2][24]; /* (nchunks) names of spans: "forward 3", "backward 3" */
    eni_pass pass;        /* the pass in flight, or the last one */
    int64_t begin_ns, end_ns;
    int64_t pass_ns, npasses; /* total of counted passes */

    pthread_mutex_t lock; /* guards what follows, and the stages' own */
    pthread_cond_t moved;
    uint64_t nbegun;  /* passes */
    int nbusy;        /* threads that work on a pass */
    en_status status; /* of the pass: the first failing stage's */
    bool is_aborted, is_over;
};

static inline bool eni_stage_is_gpu(const eni_stage *g)
{
    return g->device.ops->gpu != NULL;
}

/* The stage before this one, whose activations come in, and the one behind it; NULL at the ends. */
static inline eni_stage *eni_stage_before(const eni_stage *g)
{
    return g->all->options.are_replicas || g->at == 0 ? NULL : &g->all->stage[g->at - 1];
}

static inline eni_stage *eni_stage_behind(const eni_stage *g)
{
    return g->all->options.are_replicas || g->at == g->all->options.n - 1 ? NULL : &g->all->stage[g->at + 1];
}

/* Slots for chunks of at most `rows` rows of `row_bytes` each; the bytes of `n` of them. */
static inline uint64_t eni_slots_stride(uint64_t rows, uint64_t row_bytes)
{
    return eni_round_up(rows * row_bytes, 256);
}

/* Bytes of a sample that enters or leaves, whatever its type; of its target. */
uint64_t eni_stage_x_row(const eni_stage *stage);
uint64_t eni_stage_y_row(const eni_stage *stage);
uint64_t eni_stage_target_row(const eni_stage *stage);

/* The thread: computes passes until all->is_over. `user`: the stage. */
void *eni_stage_main(void *user);

#endif
