/* prefetch.h - brings the next batch to a GPU while this one is computed: copies it, or makes it there of stored bytes. */
#ifndef WORKER_GPU_PREFETCH_H
#define WORKER_GPU_PREFETCH_H

#include "data/loader.h"
#include "entrain/device.h"

typedef struct eni_prefetch eni_prefetch;

/* Everything is borrowed and outlives the prefetch. The loader holds 2 batches and has registered them. */
typedef struct eni_prefetch_config {
    const en_device *device; /* with .gpu */
    en_ctx *ctx;
    eni_loader *loader;
    uint64_t rows;                       /* of the largest batch */
    uint64_t sample_bytes, target_bytes; /* of one sample, as the model reads it */
    /* Not NULL: makes x of the loader's form, of raw_bytes a sample. images NULL: they follow their cuts. */
    const en_gpu_pixels *pixels;
    uint64_t raw_bytes;
    en_status (*await)(void *user, en_event *event); /* blocks until the event is reached */
    void *user;
} eni_prefetch_config;

en_status eni_prefetch_open(const eni_prefetch_config *config, eni_prefetch **prefetch_out);
void eni_prefetch_close(eni_prefetch *prefetch); /* nothing may be in flight; NULL is fine */

/* The next batch, as from eni_loader_next, but with addresses on the device; valid until the next call. Work
 * enqueued in COMPUTE from now on waits for its copy. */
en_status eni_prefetch_next(eni_prefetch *prefetch, int64_t deadline_ns, const eni_batch **batch_out);

/* The buffer of the batch at hand: 0 or 1, alternating. */
int eni_prefetch_buffer(const eni_prefetch *prefetch);

/* Everything that reads the batch at hand has been enqueued in COMPUTE. */
en_status eni_prefetch_done(eni_prefetch *prefetch);

/* Starts the copy of the following batch if the loader has it ready. Never blocks. */
en_status eni_prefetch_ahead(eni_prefetch *prefetch);

#endif
