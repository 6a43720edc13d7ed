/* stages.h - several devices of one rank: the thread of each computes its part of the network on the chunks
 * of a batch.
 *
 *            compute thread                          thread of stage s: own device, own batches
 *            eni_stages_begin(pass) -------------->  F0 F1 B0 F2 B1 ..      its turns (pipeline.h)
 *            eni_stages_await <-- "tensors >= t"     from s-1: activations; from s+1: gradients
 *            ..             <-- all are done         reads param and state; writes grad
 *
 * Stages hold parts of a network (models/split.h), replicas the whole of it and a chunk each. One device that
 * computes a batch chunk by chunk is one stage. Stages hand over in host memory: the producer copies into it,
 * and a host device reads it there.
 *
 * The gradient of a pass is the mean over its chunks, weighted by samples and added in their order: the bits
 * of eni_mean (ops/mean.h). During the last chunk's backward tensors become complete one after the other.
 * Each replica has the gradient of its own chunk; the caller computes their mean.
 *
 * Host devices read and write the caller's vectors themselves. A GPU gets the weights of its part at the
 * beginning of a pass and returns each chunk's gradient after its backward.
 *
 * One lock guards the progress of all. A thread waits for its neighbours without a deadline: every wait ends
 * when the pass fails, or by eni_stages_abort. All calls but abort come on the compute thread. */
#ifndef WORKER_PARALLEL_STAGES_H
#define WORKER_PARALLEL_STAGES_H

#include <jansson.h>
#include <stdbool.h>

#include "core/trace.h"
#include "entrain/model.h"
#include "models/split.h"
#include "ops/device.h"
#include "worker/parallel/pipeline.h"
#include "rank/straggler.h"

typedef struct eni_stages eni_stages;

typedef struct eni_stages_options {
    const en_schema *schema; /* borrowed, outlives the stages */
    const char *device;      /* their kind: "cpu", "cuda" */
    const char *plugin_dir;
    int n;                 /* stages, or replicas: <= ENI_STAGES_MAX */
    const eni_part *parts; /* (n) for replicas each the whole network; copied */
    bool are_replicas;
    eni_pipeline_kind kind;
    int nchunks;            /* the most per batch, >= 1; for replicas n */
    const int *index;       /* (n) devices of this kind; NULL: 0 to n - 1 */
    int threads;            /* per stage */
    int64_t gpu_timeout_ns; /* a GPU that does not answer for this long fails its stage */
    uint32_t flags;         /* EN_OPEN_* */
    uint32_t dtype;         /* of activations */
} eni_stages_options;

/* Opens devices and models; starts no thread. On the main thread, before any other one reads the environment
 * (ops/device.h). Logged. */
en_status eni_stages_open(const eni_stages_options *options, eni_stages **stages_out);

/* Before eni_stages_start: plans training batches of n samples, split into chunks, or evaluation batches,
 * each a chunk. */
en_status eni_stages_prepare(eni_stages *stages, uint64_t n, int mode);

/* Allocates the memory between the stages and starts their threads. Stage s has `threads` cores of its own
 * from first_core + s * threads on, counted among those that the process may use; first_core below 0: no
 * stage has its own. `straggler`: how slow each is, copied. `trace`: a row per stage, or NULL. */
en_status eni_stages_start(eni_stages *stages, int first_core, const eni_straggler *straggler,
                           eni_trace *trace);

/* Ends the threads, closes models and devices. NULL is fine. False: a GPU does not answer, so memory that it
 * may still write is kept until the process ends. */
bool eni_stages_close(eni_stages *stages);

/* The device of stage 0 in words. */
const char *eni_stages_describe(const eni_stages *stages);

/* ---- a pass ---- */

typedef enum eni_pass_kind {
    ENI_PASS_TRAIN,
    ENI_PASS_FORWARD, /* as in training, without backward: moves the running statistics */
    ENI_PASS_EVALUATE
} eni_pass_kind;

enum { ENI_STAGES_AT_ONCE = 4 }; /* the most batches of an evaluation in flight together */

/* Borrowed until the pass is done. All host memory. */
typedef struct eni_pass {
    eni_pass_kind kind;
    int64_t step;          /* for the trace; below 0: this pass is not counted (a warm-up) */
    int nchunks;           /* <= the options'; without backward <= ENI_STAGES_AT_ONCE */
    const en_batch *chunk; /* (nchunks), none of them empty */
    const float *param;    /* (schema count) */
    /* (schema nstate) read by EVALUATE, moved by the others; NULL: not kept. The first replica's. */
    float *state;
    /* One for stages, n for replicas: (schema count) each; overwritten by TRAIN, padding not touched.
     * Replicas without a chunk leave theirs alone. */
    float *const *grad;
    en_score *score; /* (nchunks) out: mean loss and hits of each chunk */
} eni_pass;

/* Never blocks. EN_EBUG: its chunks are larger than any that were prepared, or another pass is in flight. */
en_status eni_stages_begin(eni_stages *stages, const eni_pass *pass);

/* Waits until the gradients of more tensors than those from `first` on are complete; `first_out`: the first
 * of them. EN_ETIMEOUT when the deadline has passed; EN_ESTOP: the whole pass is done. A failure is the first
 * failing stage's, logged there, once all have stopped. All scores are there before the first tensor. */
en_status eni_stages_await(eni_stages *stages, uint32_t first, int64_t deadline_ns, uint32_t *first_out);

/* Ends the work in flight as soon as possible: EN_EINTR. Any thread, never blocks. */
void eni_stages_abort(eni_stages *stages);

/* ---- reports ---- */

/* "pipeline" of result.json (docs/parallel.md): measured, predicted (from the stages' own times) and ideal
 * bubble; bytes; the last full step turn by turn. NULL: no pass was counted, or one is in flight. Any
 * thread. */
json_t *eni_stages_report(eni_stages *stages);

/* The sum over all stages, as if of one straggler. */
void eni_stages_add_straggler(const eni_stages *stages, eni_straggler *sum);

/* The progress of the stage that the others wait for: the one that has done least, of the computing stages if
 * any. "stage 1: 3 forward, 2 backward of 8 done". */
enum { ENI_STAGES_TEXT = 64 };
const char *eni_stages_doing(eni_stages *stages, char text_out[ENI_STAGES_TEXT]);

#endif
