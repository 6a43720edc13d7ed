/* prefetch.h - batches on their way to a GPU: the next one is copied while this one is computed.
 *
 *     loader, registered  [t+1]                              [t+2]
 *     PREFETCH               '-> buffer 1 |  copied            '-> buffer 0 |  behind read(t)
 *     COMPUTE         forward, backward of t from buffer 0 | read | t+1 from buffer 1, behind copied | ..
 *
 * Two buffers on the device. A batch is computed behind the event of its copy, and a buffer is filled again
 * behind the event of the step that read it; the host waits for neither. It waits for the loader only when
 * nothing is left to be done (next), never ahead of time (ahead). Compute thread only. */
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
    uint64_t rows;                                   /* of the largest batch */
    uint64_t sample_bytes, target_bytes;             /* of one sample */
    en_status (*await)(void *user, en_event *event); /* blocks until the event is reached */
    void *user;
} eni_prefetch_config;

en_status eni_prefetch_open(const eni_prefetch_config *config, eni_prefetch **prefetch_out);
void eni_prefetch_close(eni_prefetch *prefetch); /* nothing under way any more; NULL is fine */

/* The next batch, as eni_loader_next has it, but with addresses on the device; valid until the next call.
 * What is put into COMPUTE from now on begins behind its copy. */
en_status eni_prefetch_next(eni_prefetch *prefetch, int64_t deadline_ns, const eni_batch **batch_out);

/* Which buffer the batch at hand lies in: 0 or 1, in turns. */
int eni_prefetch_buffer(const eni_prefetch *prefetch);

/* All that reads the batch at hand is in COMPUTE by now. */
en_status eni_prefetch_done(eni_prefetch *prefetch);

/* Starts the copy of the batch that follows, if the loader has it ready. Never blocks. */
en_status eni_prefetch_ahead(eni_prefetch *prefetch);

#endif
