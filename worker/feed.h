/* feed.h - batches on their way to a GPU: the next one is copied while this one is computed.
 *
 *     loader, pinned  [t+1]                              [t+2]
 *     FEED               '-> buffer 1 |  copied            '-> buffer 0 |  behind read(t)
 *     COMPUTE         forward, backward of t from buffer 0 | read | t+1 from buffer 1, behind copied | ..
 *
 * Two buffers on the device. A batch is computed behind the mark of its copy, and a buffer is filled again
 * behind the mark of the step that read it; the host waits for neither. It waits for the loader only when
 * nothing is left to be done (next), never ahead of time (ahead). Compute thread only. */
#ifndef WORKER_FEED_H
#define WORKER_FEED_H

#include "data/loader.h"
#include "entrain/device.h"

typedef struct eni_feed eni_feed;

/* Everything is borrowed and outlives the feed. The loader holds 2 batches and has pinned them. */
typedef struct eni_feed_config {
    const en_device *device; /* with .gpu */
    en_ctx *ctx;
    eni_loader *loader;
    uint64_t rows;                                 /* of the largest batch */
    uint64_t sample_bytes, target_bytes;           /* of one sample */
    en_status (*await)(void *user, en_mark *mark); /* blocks until the mark is reached */
    void *user;
} eni_feed_config;

en_status eni_feed_open(const eni_feed_config *config, eni_feed **feed_out);
void eni_feed_close(eni_feed *feed); /* nothing under way any more; NULL is fine */

/* The next batch, as eni_loader_next has it, but with addresses on the device; valid until the next call.
 * What is put into COMPUTE from now on begins behind its copy. */
en_status eni_feed_next(eni_feed *feed, int64_t deadline_ns, const eni_batch **batch_out);

/* Which buffer the batch at hand lies in: 0 or 1, in turns. */
int eni_feed_buffer(const eni_feed *feed);

/* All that reads the batch at hand is in COMPUTE by now. */
en_status eni_feed_done(eni_feed *feed);

/* Starts the copy of the batch that follows, if the loader has it ready. Never blocks. */
en_status eni_feed_ahead(eni_feed *feed);

#endif
