/* stages.h - several devices of one rank: each has a thread, which computes its part of the network on the chunks of a
 * batch.
 *
 *            compute thread                          thread of stage s: own device, own batches
 *            eni_stages_begin(pass) -------------->  F0 F1 B0 F2 B1 ..      its turns (pipeline.h)
 *            eni_stages_await <-- "tensors >= t"     from s-1: activations; from s+1: gradients
 *            ..             <-- all are done         reads param and state; writes grad
 *
 * Stages hold parts of a network (models/split.h), replicas the whole of it and a chunk each. One device that computes
 * a batch chunk by chunk is one stage. What lies between two stages is handed over in host memory, which the producer
 * copies into; a host device reads it there.
 *
 * The gradient of a pass is the mean over its chunks, weighted by samples and added in their order: the bits of
 * eni_mean (ops/mean.h). During the last chunk's backward tensors become complete one after the other. Of replicas
 * each has the gradient of its own chunk; their mean is the caller's.
 *
 * Host devices read and write the caller's vectors themselves. A GPU gets the weights of its part at the beginning of
 * a pass and gives each chunk's gradient back behind its backward.
 *
 * One lock guards who is how far. A thread waits for its neighbours without a deadline: every wait ends when the pass
 * fails, or by eni_stages_abort. All calls come on the compute thread, but abort. */
#ifndef WORKER_PARALLEL_STAGES_H
#define WORKER_PARALLEL_STAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "core/trace.h"
#include "entrain/model.h"
#include "models/split.h"
#include "ops/device.h"
#include "worker/parallel/pipeline.h"
#include "worker/straggler.h"

typedef struct eni_stages eni_stages;

typedef struct eni_stages_options {
    const en_schema *schema; /* borrowed, outlives the stages */
    const char *device;      /* their kind: "cpu", "cuda" */
    const char *plugin_dir;
    int n;                 /* stages, or replicas: <= ENI_STAGES_MAX */
    const eni_part *parts; /* (n) of replicas each the whole network; copied */
    bool are_replicas;
    eni_pipeline_kind kind;
    int nchunks;            /* of a batch, at most: >= 1; of replicas n */
    const int *index;       /* (n) which devices of this kind; NULL: 0 to n - 1 */
    int threads;            /* of each */
    int64_t gpu_timeout_ns; /* a GPU that has not answered for so long fails its stage */
    uint32_t flags;         /* EN_OPEN_* */
    uint32_t dtype;         /* of activations */
} eni_stages_options;

/* Opens devices and models; no thread yet. On the main thread, before any other one reads the environment
 * (ops/device.h). Logged. */
en_status eni_stages_open(const eni_stages_options *options, eni_stages **stages_out);

/* Plans training batches of n samples, which are cut into chunks, or evaluation batches, each a chunk. Before
 * eni_stages_start. */
en_status eni_stages_prepare(eni_stages *stages, uint64_t n, int mode);

/* Takes what lies between the stages and starts their threads. Stage s has `threads` cores for its own from
 * first_core + s * threads on, counted among those that the process may use; below 0: none has. `straggler`: how slow
 * each is, copied. `trace`: a row for each stage; NULL: none. */
en_status eni_stages_start(eni_stages *stages, int first_core, const eni_straggler *straggler,
                           eni_trace *trace);

/* Ends the threads, closes models and devices. NULL is fine. False: a GPU does not answer, so all memory that it may
 * still write stays as it is until the process ends. */
bool eni_stages_close(eni_stages *stages);

/* The device of stage 0 in words. */
const char *eni_stages_describe(const eni_stages *stages);

/* ---- a pass ---- */

typedef enum eni_pass_kind {
    ENI_PASS_TRAIN,
    ENI_PASS_FORWARD, /* of training, without backward: moves the running statistics */
    ENI_PASS_EVALUATE
} eni_pass_kind;

enum { ENI_STAGES_AT_ONCE = 4 }; /* batches of an evaluation that may be under way together */

/* Borrowed until the pass is done. All of it host memory. */
typedef struct eni_pass {
    eni_pass_kind kind;
    int64_t step;          /* for the trace; below 0: this pass is not counted (a warm-up) */
    int nchunks;           /* <= the options'; without backward <= ENI_STAGES_AT_ONCE */
    const en_batch *chunk; /* (nchunks), none of them empty */
    const float *param;    /* (schema count) */
    /* (schema nstate) read by EVALUATE, moved by the others; NULL: not remembered. Of replicas the first one's. */
    float *state;
    /* Of stages (1), of replicas (n): (schema count) each; overwritten by TRAIN, padding not touched. Replicas without a
     * chunk leave theirs alone. */
    float *const *grad;
    en_score *score; /* (nchunks) out: mean loss and hits of each chunk */
} eni_pass;

/* Never blocks. EN_EBUG: its chunks are larger than any that were prepared; one is under way. */
en_status eni_stages_begin(eni_stages *stages, const eni_pass *pass);

/* Until the gradients of more tensors than those from `first` on are complete: `first_out`, the first of them;
 * EN_ETIMEOUT when the deadline has passed; EN_ESTOP: the pass is done, all of it. A failure: of the first stage that
 * failed, once all have stopped (logged there). The scores of all chunks are there before the first tensor is. */
en_status eni_stages_await(eni_stages *stages, uint32_t first, int64_t deadline_ns, uint32_t *first_out);

/* What is under way ends as soon as it can: EN_EINTR. Any thread, never blocks. */
void eni_stages_abort(eni_stages *stages);

/* ---- what it took ---- */

/* "pipeline" of result.json (docs/parallel.md): bubble as measured, as predicted from the stages' own times, and
 * ideal; bytes, and the last full step turn by turn. NULL: no pass was counted, or one is under way. Any thread. */
json_t *eni_stages_report(eni_stages *stages);

/* Of all stages together, as one straggler would have it. */
void eni_stages_add_straggler(const eni_stages *stages, eni_straggler *sum);

/* How far the stage is that the others wait for: of those that compute, else of all, the one that has done least.
 * "stage 1: 3 forward, 2 backward of 8 done". */
enum { ENI_STAGES_TEXT = 64 };
const char *eni_stages_doing(eni_stages *stages, char text_out[ENI_STAGES_TEXT]);

#endif
