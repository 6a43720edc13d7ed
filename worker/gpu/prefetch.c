/* prefetch.c - see prefetch.h. Batch i replaces batch i - 2, which has been handed out, in buffer i % 2. */
#include "worker/gpu/prefetch.h"

#include "core/memory.h"
#include "core/try.h"

typedef struct buffer {
    void *x, *target; /* on the device */
    en_event *copied; /* in PREFETCH */
    en_event *read;   /* in COMPUTE */
    eni_batch batch;  /* with the addresses above */
} buffer;

struct eni_prefetch {
    eni_prefetch_config config;
    const en_gpu *gpu;
    buffer buffers[2];
    uint8_t *
        raw; /* on the device, read and written in PREFETCH alone: one for both buffers; NULL without pixels */
    uint64_t filled, given; /* batches; filled is given, or given + 1 */
    en_status end;          /* how the stream ended; returned when its turn comes */
};

static en_status open_buffer(eni_prefetch *prefetch, buffer *b)
{
    const eni_prefetch_config *c = &prefetch->config;
    EN_TRY(c->device->alloc(c->ctx, c->rows * c->sample_bytes, &b->x));
    EN_TRY(c->device->alloc(c->ctx, c->rows * c->target_bytes, &b->target));
    EN_TRY(prefetch->gpu->event_new(c->ctx, &b->copied));
    return prefetch->gpu->event_new(c->ctx, &b->read);
}

en_status eni_prefetch_open(const eni_prefetch_config *config, eni_prefetch **prefetch_out)
{
    eni_prefetch *prefetch = eni_alloc(sizeof *prefetch);
    if (prefetch == NULL) return EN_ENOMEM;
    prefetch->config = *config;
    prefetch->gpu = config->device->gpu;
    en_status st = EN_OK;
    if (config->pixels != NULL)
        st = config->device->alloc(config->ctx, config->rows * config->raw_bytes, (void **)&prefetch->raw);
    for (int i = 0; i < 2 && st == EN_OK; i++)
        st = open_buffer(prefetch, &prefetch->buffers[i]);
    if (st == EN_OK)
        *prefetch_out = prefetch;
    else
        eni_prefetch_close(prefetch);
    return st;
}

void eni_prefetch_close(eni_prefetch *prefetch)
{
    if (prefetch == NULL) return;
    for (int i = 0; i < 2; i++) {
        buffer *b = &prefetch->buffers[i];
        prefetch->gpu->event_free(b->copied);
        prefetch->gpu->event_free(b->read);
        prefetch->config.device->free(prefetch->config.ctx, b->x);
        prefetch->config.device->free(prefetch->config.ctx, b->target);
    }
    prefetch->config.device->free(prefetch->config.ctx, prefetch->raw);
    eni_free(prefetch);
}

static en_status bring(eni_prefetch *prefetch, const eni_batch *from, void *x)
{
    const eni_prefetch_config *c = &prefetch->config;
    const uint64_t n = from->micro.count;
    if (c->pixels == NULL)
        return prefetch->gpu->copy(c->ctx, EN_STREAM_PREFETCH, x, from->x, n * c->sample_bytes, EN_COPY_IN);
    en_gpu_pixels pixels = *c->pixels;
    pixels.cuts = prefetch->raw;
    pixels.cut_bytes = c->raw_bytes;
    pixels.out = x;
    pixels.count = n;
    if (pixels.images == NULL) {
        pixels.images = prefetch->raw + sizeof(en_gpu_cut);
        pixels.image_bytes = c->raw_bytes;
    }
    EN_TRY(prefetch->gpu->copy(c->ctx, EN_STREAM_PREFETCH, prefetch->raw, from->x, n * c->raw_bytes,
                               EN_COPY_IN));
    return prefetch->gpu->pixels(c->ctx, EN_STREAM_PREFETCH, &pixels);
}

/* Enqueues the copy of a batch in PREFETCH; the loader keeps the batch until two more have been taken. */
static en_status fill(eni_prefetch *prefetch, const eni_batch *from)
{
    const eni_prefetch_config *c = &prefetch->config;
    buffer *b = &prefetch->buffers[prefetch->filled % 2];
    const uint64_t n = from->micro.count;
    b->batch = (eni_batch){.micro = from->micro, .x = b->x, .target = b->target};
    prefetch->filled++;
    if (n == 0) return EN_OK;
    EN_TRY(prefetch->gpu->wait_event(c->ctx, EN_STREAM_PREFETCH, b->read));
    EN_TRY(bring(prefetch, from, b->x));
    EN_TRY(prefetch->gpu->copy(c->ctx, EN_STREAM_PREFETCH, b->target, from->target, n * c->target_bytes,
                               EN_COPY_IN));
    return prefetch->gpu->event_record(b->copied, EN_STREAM_PREFETCH);
}

en_status eni_prefetch_next(eni_prefetch *prefetch, int64_t deadline_ns, const eni_batch **batch_out)
{
    const eni_prefetch_config *c = &prefetch->config;
    if (prefetch->filled == prefetch->given) {
        const eni_batch *from;
        if (prefetch->end != EN_OK) return prefetch->end;
        /* the loader takes back the batch that was in this buffer */
        EN_TRY(c->await(c->user, prefetch->buffers[prefetch->filled % 2].copied));
        EN_TRY(eni_loader_next(c->loader, deadline_ns, &from));
        EN_TRY(fill(prefetch, from));
    }
    buffer *b = &prefetch->buffers[prefetch->given++ % 2];
    *batch_out = &b->batch;
    return b->batch.micro.count == 0 ? EN_OK
                                     : prefetch->gpu->wait_event(c->ctx, EN_STREAM_COMPUTE, b->copied);
}

int eni_prefetch_buffer(const eni_prefetch *prefetch)
{
    return (int)((prefetch->given + 1) % 2); /* of batch given - 1 */
}

en_status eni_prefetch_done(eni_prefetch *prefetch)
{
    return prefetch->gpu->event_record(prefetch->buffers[eni_prefetch_buffer(prefetch)].read,
                                       EN_STREAM_COMPUTE);
}

en_status eni_prefetch_ahead(eni_prefetch *prefetch)
{
    const eni_batch *from;
    if (prefetch->filled > prefetch->given || prefetch->end != EN_OK) return EN_OK;
    en_status st = prefetch->gpu->poll(prefetch->buffers[prefetch->filled % 2].copied);
    if (st == EN_OK) st = eni_loader_next(prefetch->config.loader, 0, &from);
    if (st == EN_OK) return fill(prefetch, from);
    if (st != EN_ETIMEOUT) prefetch->end = st; /* the batches at hand still count */
    return EN_OK;
}
