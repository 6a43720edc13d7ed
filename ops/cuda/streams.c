/* streams.c - work in streams, and the order between them.
 *
 * An event outside a capture is CUDA's. In a capture CUDA has two meanings for "record"; an event needs both,
 * and a third part:
 *
 *     point   a node of the graph (an external record): when it is done, the host sees everything that was
 *             copied before. But its answer between a launch and its node's turn is undocumented: it
 *             may still be that of the previous launch
 *     tick    so a kernel of one thread counts in a word that the host can read; launch() sets the expected
 *             count, and the point is only polled once that is reached
 *     join    marks for the capture where another stream continues; it only exists in there. It comes
 *             last: later work would be left out when the stream is joined into COMPUTE again,
 *             and the capture would count as not joined
 *
 * Point and tick are for the host alone, and each costs some microseconds of a step: so only events that have
 * been polled before, in the steps before a capture, have them. Any other stands for the end of the launch.
 *
 *     COMPUTE   .. backward b1 ..  [point][tick](join)  ..
 *     EXCHANGE                                  `---> copy b1 ..
 *
 * From outside the graph, wait_event() on such an event waits for the whole launch. */
#include "ops/cuda/cuda.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { WORDS = 8192 }; /* a few events per bucket, and a bucket may be a kilobyte */
enum { TIMEOUT_S = 300 };

struct en_event {
    en_ctx *ctx; /* borrowed; outlives us */
    cudaEvent_t point, join;
    uint64_t capture;   /* in which it was last set; 0 outside captures */
    bool is_watched;    /* was polled */
    bool is_counted;    /* its latest point is in a launched graph */
    bool is_ticked;     /* and has a tick there */
    cudaEvent_t behind; /* after that launch; owned by the graph */
    int word;           /* its index in `words` */
};

struct eni_cuda_events {
    uint32_t *words; /* (WORDS), page-locked; ticks write them */
    bool is_taken[WORDS];
    uint32_t expected[WORDS]; /* each word's value once all launches are done */
    cudaEvent_t launched;     /* after all launches of freed graphs */
    eni_cuda_set *set;        /* (room) set in the capture in progress */
    int nset, room;
};

/* CUDA loads a kernel when it is first launched. The tick's launches are all in captures, where loading may
 * fail; and a library that was built for other GPUs is found here. */
static en_status load_tick(en_ctx *ctx)
{
    const cudaStream_t stream = ctx->stream[EN_STREAM_COMPUTE];
    EN_TRY(eni_cuda_tick(ctx, stream, ctx->events->words));
    ctx->events->expected[0] = 1;
    return eni_cuda_finish(ctx, stream, "loading kernels");
}

en_status eni_cuda_events_open(en_ctx *ctx)
{
    eni_cuda_events *events = ctx->events = eni_alloc(sizeof *events);
    if (!events) return EN_ENOMEM;
    EN_TRY(eni_cuda_check(
        ctx, cudaHostAlloc((void **)&events->words, WORDS * sizeof *events->words, cudaHostAllocMapped),
        "allocating page-locked memory"));
    memset(events->words, 0, WORDS * sizeof *events->words);
    EN_TRY(eni_cuda_check(ctx, cudaEventCreateWithFlags(&events->launched, cudaEventDisableTiming),
                          "creating an event"));
    return load_tick(ctx);
}

void eni_cuda_events_close(en_ctx *ctx)
{
    eni_cuda_events *events = ctx->events;
    if (!events) return;
    if (events->words) (void)cudaFreeHost(events->words);
    if (events->launched) (void)cudaEventDestroy(events->launched);
    eni_free(events->set);
    eni_free(events);
    ctx->events = NULL;
}

static bool is_in_capture(const en_ctx *ctx, int stream)
{
    return ctx->is_capturing && (ctx->captured >> stream & 1u);
}

/* The word of a freed event is not reused before its last tick has arrived. */
static en_status take_word(en_event *event)
{
    eni_cuda_events *events = event->ctx->events;
    const volatile uint32_t *words = events->words;
    for (int i = 0; i < WORDS; i++) {
        if (events->is_taken[i] || words[i] != events->expected[i]) continue;
        events->is_taken[i] = true;
        event->word = i;
        return EN_OK;
    }
    return eni_fail(EN_ENOMEM, "cuda", "more than %d events exist at a time", WORDS);
}

static en_status new_event(en_ctx *ctx, unsigned flags, en_event **event_out)
{
    EN_TRY(eni_cuda_select(ctx));
    en_event *event = eni_alloc(sizeof *event);
    if (!event) return EN_ENOMEM;
    event->ctx = ctx;
    event->word = -1;
    en_status st = take_word(event);
    if (st == EN_OK)
        st = eni_cuda_check(ctx, cudaEventCreateWithFlags(&event->point, flags), "creating an event");
    if (st == EN_OK)
        st = eni_cuda_check(ctx, cudaEventCreateWithFlags(&event->join, cudaEventDisableTiming),
                            "creating an event");
    if (st != EN_OK) {
        eni_cuda_event_free(event);
        return st;
    }
    *event_out = event;
    return EN_OK;
}

en_status eni_cuda_event_new(en_ctx *ctx, en_event **event_out)
{
    return new_event(ctx, cudaEventDisableTiming, event_out);
}

en_status eni_cuda_timer_new(en_ctx *ctx, en_event **event_out)
{
    return new_event(ctx, cudaEventDefault, event_out);
}

void eni_cuda_event_free(en_event *event)
{
    if (!event) return;
    if (event->point) (void)cudaEventDestroy(event->point);
    if (event->join) (void)cudaEventDestroy(event->join);
    if (event->word >= 0) event->ctx->events->is_taken[event->word] = false;
    eni_free(event);
}

static en_status event_in_capture(en_event *event, cudaStream_t stream)
{
    en_ctx *ctx = event->ctx;
    eni_cuda_events *events = ctx->events;
    const char *doing = "recording an event in a stream that is captured";
    EN_TRY(eni_cuda_grow((void **)&events->set, events->nset, &events->room, sizeof *events->set));
    events->set[events->nset++] = (eni_cuda_set){event, event->is_watched};
    event->capture = ctx->capture;
    if (event->is_watched) {
        EN_TRY(eni_cuda_check(ctx, cudaEventRecordWithFlags(event->point, stream, cudaEventRecordExternal),
                              doing));
        EN_TRY(eni_cuda_tick(ctx, stream, &events->words[event->word]));
    }
    return eni_cuda_check(ctx, cudaEventRecord(event->join, stream), doing);
}

en_status eni_cuda_event_record(en_event *event, int stream)
{
    en_ctx *ctx = event->ctx;
    EN_TRY(eni_cuda_select(ctx));
    if (is_in_capture(ctx, stream)) return event_in_capture(event, ctx->stream[stream]);
    event->capture = 0;
    event->is_counted = false;
    return eni_cuda_check(ctx, cudaEventRecord(event->point, ctx->stream[stream]),
                          "recording an event in a stream");
}

void eni_cuda_events_begin(en_ctx *ctx)
{
    ctx->events->nset = 0;
}

eni_cuda_set *eni_cuda_events_take(en_ctx *ctx, int *n_out)
{
    eni_cuda_events *events = ctx->events;
    eni_cuda_set *taken = events->set;
    *n_out = events->nset;
    events->set = NULL;
    events->nset = events->room = 0;
    return taken;
}

void eni_cuda_events_launched(const eni_cuda_set *set, int n, cudaEvent_t behind)
{
    for (int i = 0; i < n; i++) {
        en_event *event = set[i].event;
        if (set[i].is_ticked) event->ctx->events->expected[event->word]++;
        event->is_ticked = set[i].is_ticked;
        event->is_counted = true;
        event->behind = behind;
    }
}

void eni_cuda_events_let_go(en_ctx *ctx, const eni_cuda_set *set, int n, cudaEvent_t behind)
{
    (void)cudaEventRecord(ctx->events->launched, ctx->stream[EN_STREAM_COMPUTE]);
    for (int i = 0; i < n; i++)
        if (set[i].event->behind == behind) set[i].event->behind = ctx->events->launched;
}

en_status eni_cuda_wait_event(en_ctx *ctx, int stream, en_event *event)
{
    if (event->ctx != ctx)
        return eni_fail(EN_EINVAL, "cuda", "a stream cannot wait for an event of another context");
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing && event->capture == ctx->capture) {
        ctx->captured |= 1u << stream;
        return eni_cuda_check(ctx,
                              cudaStreamWaitEvent(ctx->stream[stream], event->join, cudaEventWaitDefault),
                              "ordering a stream that is captured");
    }
    if (is_in_capture(ctx, stream))
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorStreamCaptureIsolation,
                             "the event is from before the capture", "ordering a stream that is captured");
    const cudaEvent_t point = event->is_counted ? event->behind : event->point;
    return eni_cuda_check(ctx, cudaStreamWaitEvent(ctx->stream[stream], point, cudaEventWaitDefault),
                          "ordering a stream");
}

/* "Not ready" is not an error, but CUDA keeps it as one, and would report it for the next launch of a
 * kernel. */
static cudaError_t forget_not_ready(cudaError_t error)
{
    if (error == cudaErrorNotReady) (void)cudaGetLastError();
    return error;
}

en_status eni_cuda_elapsed(en_event *begin, en_event *end, int64_t *ns_out)
{
    en_ctx *ctx = begin->ctx;
    float ms = 0;
    EN_TRY(eni_cuda_select(ctx));
    const cudaError_t error = forget_not_ready(cudaEventElapsedTime(&ms, begin->point, end->point));
    *ns_out = (int64_t)((double)ms * 1e6);
    return error == cudaErrorNotReady ? EN_ETIMEOUT : eni_cuda_check(ctx, error, "timing work");
}

static cudaError_t ask(cudaStream_t stream)
{
    return forget_not_ready(cudaStreamQuery(stream));
}

en_status eni_cuda_finish(en_ctx *ctx, cudaStream_t stream, const char *doing)
{
    const int64_t begin = eni_now_ns();
    cudaError_t error;
    while ((error = ask(stream)) == cudaErrorNotReady) {
        const int64_t waited = eni_now_ns() - begin;
        const struct timespec rest = {.tv_nsec = 50 * ENI_MICRO};
        if (waited > TIMEOUT_S * ENI_SECOND) {
            ctx->is_hung = true;
            return eni_cuda_fail(ctx, "CUDA", (int)error, "it has not answered for five minutes", doing);
        }
        if (waited > ENI_MILLI) nanosleep(&rest, NULL);
    }
    return eni_cuda_check(ctx, error, doing);
}

/* Whether the tick of the latest launch has been counted. Polling the stream finds a failed device, whose
 * ticks never arrive. */
static en_status poll_count(en_event *event)
{
    en_ctx *ctx = event->ctx;
    const volatile uint32_t *word = &ctx->events->words[event->word];
    const bool is_reached = *word == ctx->events->expected[event->word];
    atomic_thread_fence(memory_order_acquire);
    if (is_reached) return EN_OK;
    const cudaError_t error = ask(ctx->stream[EN_STREAM_COMPUTE]);
    if (error == cudaSuccess || error == cudaErrorNotReady) return ctx->has_failed ? EN_EIO : EN_ETIMEOUT;
    return eni_cuda_check(ctx, error, "the captured work before an event");
}

en_status eni_cuda_poll(en_event *event)
{
    en_ctx *ctx = event->ctx;
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing)
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorCapturedEvent, "an event was polled during a capture",
                             "capturing");
    event->is_watched = true;
    const bool is_behind = event->is_counted && !event->is_ticked;
    if (event->is_counted && event->is_ticked) EN_TRY(poll_count(event));
    const cudaError_t error = forget_not_ready(cudaEventQuery(is_behind ? event->behind : event->point));
    if (error == cudaErrorNotReady) return EN_ETIMEOUT;
    return eni_cuda_check(ctx, error, "the work before an event");
}

static en_status copy_part(en_ctx *ctx, int stream, void *dst, const void *src, uint64_t bytes, int direction)
{
    static const enum cudaMemcpyKind kinds[] = {[EN_COPY_IN] = cudaMemcpyHostToDevice,
                                                [EN_COPY_OUT] = cudaMemcpyDeviceToHost,
                                                [EN_COPY_ON] = cudaMemcpyDeviceToDevice};
    return eni_cuda_check(ctx, cudaMemcpyAsync(dst, src, bytes, kinds[direction], ctx->stream[stream]),
                          "copying");
}

en_status eni_cuda_stream_copy(en_ctx *ctx, int stream, void *dst, const void *src, uint64_t bytes,
                               int direction)
{
    EN_TRY(eni_cuda_select(ctx));
    for (uint64_t done = 0; done < bytes;) {
        char *to = (char *)dst + done;
        const char *from = (const char *)src + done;
        uint64_t part = bytes - done;
        if (direction != EN_COPY_ON)
            part = eni_cuda_registered_part(ctx, direction == EN_COPY_IN ? from : to, part);
        if (part == 0)
            return eni_fail(EN_EINVAL, "cuda",
                            "cannot copy %llu bytes of host memory that is not page-locked",
                            (unsigned long long)(bytes - done));
        EN_TRY(copy_part(ctx, stream, to, from, part, direction));
        done += part;
    }
    return EN_OK;
}

en_status eni_cuda_stream_zero(en_ctx *ctx, int stream, void *dst, uint64_t bytes)
{
    if (bytes == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    return eni_cuda_check(ctx, cudaMemsetAsync(dst, 0, bytes, ctx->stream[stream]), "zeroing");
}
