/* feed.c - see feed.h. Batch i lies in buffer i % 2: that of batch i - 2, which has been handed out. */
#include "worker/feed.h"

#include "core/memory.h"
#include "core/try.h"

typedef struct buffer {
    void *x, *target; /* on the device */
    en_mark *copied;  /* in FEED */
    en_mark *read;    /* in COMPUTE */
    eni_batch batch;  /* with the addresses above */
} buffer;

struct eni_feed {
    eni_feed_config config;
    const en_gpu *gpu;
    buffer buffers[2];
    uint64_t filled, given; /* batches; filled is given, or one more */
    en_status end;          /* how the stream ended, to be told when its turn comes */
};

static en_status open_buffer(eni_feed *feed, buffer *b)
{
    const eni_feed_config *c = &feed->config;
    EN_TRY(c->device->alloc(c->ctx, c->rows * c->sample_bytes, &b->x));
    EN_TRY(c->device->alloc(c->ctx, c->rows * c->target_bytes, &b->target));
    EN_TRY(feed->gpu->mark_new(c->ctx, &b->copied));
    return feed->gpu->mark_new(c->ctx, &b->read);
}

en_status eni_feed_open(const eni_feed_config *config, eni_feed **feed_out)
{
    eni_feed *feed = eni_alloc(sizeof *feed);
    if (feed == NULL) return EN_ENOMEM;
    feed->config = *config;
    feed->gpu = config->device->gpu;
    for (int i = 0; i < 2; i++) {
        const en_status st = open_buffer(feed, &feed->buffers[i]);
        if (st == EN_OK) continue;
        eni_feed_close(feed);
        return st;
    }
    *feed_out = feed;
    return EN_OK;
}

void eni_feed_close(eni_feed *feed)
{
    if (feed == NULL) return;
    for (int i = 0; i < 2; i++) {
        buffer *b = &feed->buffers[i];
        feed->gpu->mark_free(b->copied);
        feed->gpu->mark_free(b->read);
        feed->config.device->free(feed->config.ctx, b->x);
        feed->config.device->free(feed->config.ctx, b->target);
    }
    eni_free(feed);
}

/* Puts the copy of a batch into FEED; the loader keeps it until two more were taken. */
static en_status fill(eni_feed *feed, const eni_batch *from)
{
    const eni_feed_config *c = &feed->config;
    buffer *b = &feed->buffers[feed->filled % 2];
    const uint64_t n = from->micro.count;
    const void *target = from->labels != NULL ? (const void *)from->labels : (const void *)from->targets;
    b->batch = (eni_batch){.micro = from->micro, .x = b->x};
    if (from->labels != NULL)
        b->batch.labels = b->target;
    else
        b->batch.targets = b->target;
    feed->filled++;
    if (n == 0) return EN_OK;
    EN_TRY(feed->gpu->after(c->ctx, EN_QUEUE_FEED, b->read));
    EN_TRY(feed->gpu->copy(c->ctx, EN_QUEUE_FEED, b->x, from->x, n * c->sample_bytes, EN_COPY_IN));
    EN_TRY(feed->gpu->copy(c->ctx, EN_QUEUE_FEED, b->target, target, n * c->target_bytes, EN_COPY_IN));
    return feed->gpu->mark(b->copied, EN_QUEUE_FEED);
}

en_status eni_feed_next(eni_feed *feed, int64_t deadline_ns, const eni_batch **batch_out)
{
    const eni_feed_config *c = &feed->config;
    if (feed->filled == feed->given) {
        const eni_batch *from;
        if (feed->end != EN_OK) return feed->end;
        /* the loader takes back the batch that was in this buffer */
        EN_TRY(c->await(c->user, feed->buffers[feed->filled % 2].copied));
        EN_TRY(eni_loader_next(c->loader, deadline_ns, &from));
        EN_TRY(fill(feed, from));
    }
    buffer *b = &feed->buffers[feed->given++ % 2];
    *batch_out = &b->batch;
    return b->batch.micro.count == 0 ? EN_OK : feed->gpu->after(c->ctx, EN_QUEUE_COMPUTE, b->copied);
}

int eni_feed_buffer(const eni_feed *feed)
{
    return (int)((feed->given + 1) % 2); /* of batch given - 1 */
}

en_status eni_feed_done(eni_feed *feed)
{
    return feed->gpu->mark(feed->buffers[eni_feed_buffer(feed)].read, EN_QUEUE_COMPUTE);
}

en_status eni_feed_ahead(eni_feed *feed)
{
    const eni_batch *from;
    if (feed->filled > feed->given || feed->end != EN_OK) return EN_OK;
    en_status st = feed->gpu->poll(feed->buffers[feed->filled % 2].copied);
    if (st == EN_OK) st = eni_loader_next(feed->config.loader, 0, &from);
    if (st == EN_OK) return fill(feed, from);
    if (st != EN_ETIMEOUT) feed->end = st; /* what is at hand is still to be done */
    return EN_OK;
}
