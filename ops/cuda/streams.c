/* streams.c - what is put into streams, and the order between them.
 *
 * An event outside of a capture is CUDA's. In a capture CUDA has two meanings for "record", and an event
 * needs both, and a third thing besides:
 *
 *     point   a node of the graph (an external record): when it says that it is done, the host sees what was
 *             copied before. But what it says between a launch and its node's turn is not written down: it
 *             may still speak of the launch before
 *     tick    so a kernel of one thread counts in a word that the host can read; launch() says how far it
 *             must come, and only then the point is asked
 *     join    says to the capture where another stream goes on from here; it exists only in there. It comes
 *             last: what came after it would be left behind when the stream is ordered before COMPUTE again,
 *             and the capture would count as not joined
 *
 * Point and tick are for the host alone, and each is some microseconds of a step: so an event has them that
 * somebody has polled before, as the steps that come before a capture do. Any other stands for the end of
 * the launch.
 *
 *     COMPUTE   .. backward b1 ..  [point][tick](join)  ..
 *     EXCHANGE                                  `---> copy b1 ..
 *
 * From outside of the graph, wait_event() on such an event is ordered behind the whole launch. */
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
    uint64_t capture;   /* in which it was last set; 0: in none */
    int is_watched;     /* was polled */
    int is_counted;     /* its latest point is in a graph that was launched */
    int is_ticked;      /* then: and has a tick there */
    cudaEvent_t behind; /* then: behind that launch. The graph's */
    int word;           /* its place in `words` */
};

struct eni_cuda_events {
    uint32_t *words; /* (WORDS), page-locked; ticks write them */
    uint8_t is_taken[WORDS];
    uint32_t expected[WORDS]; /* what each word will be once all launches are done */
    cudaEvent_t launched;     /* behind all launches of graphs that were freed */
    eni_cuda_set *set;        /* (room) set in the capture that is under way */
    int nset, room;
};

/* CUDA loads a kernel when it is first launched. That of events is launched in captures alone, where nobody
 * promises that it may be loaded; and a library that was built for other GPUs shows here. */
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
        "taking page-locked memory"));
    memset(events->words, 0, WORDS * sizeof *events->words);
    EN_TRY(
        eni_cuda_check(ctx, cudaEventCreateWithFlags(&events->launched, cudaEventDisableTiming), "an event"));
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

static int is_in_capture(const en_ctx *ctx, int stream)
{
    return ctx->is_capturing && (ctx->captured >> stream & 1u);
}

/* A word whose event was freed is not given out before its last tick has come. */
static en_status take_word(en_event *event)
{
    eni_cuda_events *events = event->ctx->events;
    const volatile uint32_t *words = events->words;
    for (int i = 0; i < WORDS; i++) {
        if (events->is_taken[i] || words[i] != events->expected[i]) continue;
        events->is_taken[i] = 1;
        event->word = i;
        return EN_OK;
    }
    return eni_fail(EN_ENOMEM, "cuda", "more than %d events at a time", WORDS);
}

static en_status new_event(en_ctx *ctx, unsigned flags, en_event **event_out)
{
    EN_TRY(eni_cuda_select(ctx));
    en_event *event = eni_alloc(sizeof *event);
    if (!event) return EN_ENOMEM;
    event->ctx = ctx;
    event->word = -1;
    en_status st = take_word(event);
    if (st == EN_OK) st = eni_cuda_check(ctx, cudaEventCreateWithFlags(&event->point, flags), "an event");
    if (st == EN_OK)
        st = eni_cuda_check(ctx, cudaEventCreateWithFlags(&event->join, cudaEventDisableTiming), "an event");
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
    if (event->word >= 0) event->ctx->events->is_taken[event->word] = 0;
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
    event->is_counted = 0;
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
        event->is_counted = 1;
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
        return eni_fail(EN_EINVAL, "cuda", "a stream was to wait for an event of another context");
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

/* "Not ready" is no error, but CUDA keeps it as one, and the next launch of a kernel would be blamed for it. */
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
            ctx->is_hung = 1;
            return eni_cuda_fail(ctx, "CUDA", (int)error, "it has not answered for five minutes", doing);
        }
        if (waited > ENI_MILLI) nanosleep(&rest, NULL);
    }
    return eni_cuda_check(ctx, error, doing);
}

/* Has the tick of the latest launch been counted? The question to the stream finds a device that has failed,
 * whose ticks never come. */
static en_status poll_count(en_event *event)
{
    en_ctx *ctx = event->ctx;
    const volatile uint32_t *word = &ctx->events->words[event->word];
    const int is_reached = *word == ctx->events->expected[event->word];
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
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorCapturedEvent, "an event was polled", "capturing");
    event->is_watched = 1;
    const int is_behind = event->is_counted && !event->is_ticked;
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
                            "%llu bytes of host memory were to be copied, which is not page-locked",
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
