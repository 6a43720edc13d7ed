/* loader.h - threads that prepare the next batches before the model needs them.
 *
 *     loader threads: one after the other: choose the next micro-batch -> indices, a free buffer
 *                     concurrently:        gather, augment, normalise into it
 *     consumer:       eni_loader_next: waits for the oldest buffer to be ready, returns the one it had
 *
 * For a GPU the buffers are registered, and the consumer holds two batches: one is copied to the device while the copy of the
 * other may still be in progress (`hold`):
 *
 *     next: b0, its copy begins | next: b1, its copy begins | b0's event is reached | next: b2, returns b0
 *
 * The next micro-batch is, with fixed assignment, first, first + stride, ..; with claims the callback's choice. All memory is
 * allocated by eni_loader_start; the steady state allocates nothing.
 *
 * Prefetch and claims: up to `depth` micro-batches are claimed ahead of the consumer's own. Those claimed but not computed
 * when the run ends early (a death, an abort) are samples not applied, which the report shows; at a regular end every
 * claim has been computed. */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include <stdint.h>

#include "data/dataset.h"
#include "data/plan.h"
#include "entrain/status.h"

/* Called on a loader thread, one at a time, for the number of the next micro-batch. May wait, with its own deadline, and must
 * return when the run is over or aborted. EN_ESTOP ends the stream; so does any other status, which eni_loader_next then
 * returns. */
typedef en_status (*eni_loader_claim)(void *user, uint64_t *micro_batch_out);

/* Makes a buffer reachable for a device, and undoes it: gpu.h's register_memory and unregister_memory. Called for each
 * buffer, on whole pages, by eni_loader_start and eni_loader_stop on the caller's thread, which owns the device's context;
 * call stop before the context is closed. A status other than EN_OK from register_memory makes start fail. */
typedef en_status (*eni_loader_pin)(void *user, void *memory, uint64_t bytes);
typedef void (*eni_loader_unpin)(void *user, void *memory);

enum { ENI_LOADER_THREADS = 64 };

typedef struct eni_loader_options {
    const eni_dataset *dataset; /* borrowed, outlives the loader */
    const eni_plan *plan;       /* copied */
    uint64_t seed;
    eni_order order;
    int depth; /* buffers ready ahead of the consumer's own; 0: 2, or with fixed assignment one per thread if more */
    int threads;            /* 1 to ENI_LOADER_THREADS, 0: 1; does not change the data */
    uint64_t first, stride; /* fixed assignment: m = first, first + stride, ..; rank and W; solo: 0 and 1 */
    eni_loader_claim claim; /* not NULL: claims, skipping empty micro-batches */
    void *user;
    eni_form form;                  /* of x; floats unless a GPU makes them */
    uint64_t chunks;                /* > 1: batches are stored chunk by chunk (eni_micro_chunk) */
    int hold;                       /* batches that the consumer holds at once; 0: 1 */
    eni_loader_pin register_memory; /* NULL: ordinary memory */
    eni_loader_unpin unregister_memory;
    void *pin_user;
} eni_loader_options;

typedef struct eni_batch {
    eni_micro micro;
    const float *x;     /* (micro.count, H, W, C); of another form: its address alone */
    const void *target; /* labels, int32_t (micro.count), or float (micro.count, T) */
} eni_batch;

typedef struct eni_loader eni_loader;

/* Starts the threads. EN_EINVAL, EN_ENOMEM, EN_EIO (no thread), logged. */
en_status eni_loader_start(const eni_loader_options *options, eni_loader **loader_out);

/* The next batch, in order; stays valid until as many further calls have returned a batch as are held: until the next one
 * with hold 1. A failing call releases nothing. Consumer thread only. Blocks until deadline_ns at most. EN_ESTOP: the stream
 * has ended; EN_ETIMEOUT; EN_EINTR after an abort; or the status of a failed claim. With fixed assignment micro.count may be
 * 0: a synchronous rank takes part in every step. */
en_status eni_loader_next(eni_loader *loader, int64_t deadline_ns, const eni_batch **batch_out);

/* Wakes the consumer (EN_EINTR from then on) and makes the threads end after their current batch. Any thread,
 * never blocks, safe twice. */
void eni_loader_abort(eni_loader *loader);

/* Aborts and joins the threads (waits for a running claim to return); the buffers stay. Safe twice, NULL is fine. Call it
 * before destroying what the threads use: the dataset and the claims' user. */
void eni_loader_halt(eni_loader *loader);

/* The same, and frees. NULL is fine. */
void eni_loader_stop(eni_loader *loader);

#endif
