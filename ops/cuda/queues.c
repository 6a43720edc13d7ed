/* queues.c - what is put into queues, and the order between them.
 *
 * A mark outside of a capture is an event. In a capture CUDA has two meanings for "record", and a mark needs
 * both, and a third thing besides:
 *
 *     event   a node of the graph (an external record): when it says that it is done, the host sees what was
 *             copied before. But what it says between a launch and its node's turn is not written down: it
 *             may still speak of the launch before
 *     tick    so a kernel of one thread counts in a word that the host can read; launch() says how far it
 *             must come, and only then the event is asked
 *     join    says to the capture where another queue goes on from here; it exists only in there. It comes
 *             last: what came after it would be left behind when the queue is ordered before COMPUTE again,
 *             and the capture would count as not joined
 *
 * Event and tick are for the host alone, and each is some microseconds of a step: so a mark has them that
 * somebody has polled before, as the steps that come before a recording do. Any other stands for the end of
 * the launch.
 *
 *     COMPUTE   .. backward b1 ..  [event][tick](join)  ..
 *     EXCHANGE                                  `---> copy b1 ..
 *
 * From outside of the graph, after() on such a mark is ordered behind the whole launch. */
#include "ops/cuda/cuda.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

enum { WORDS = 8192, ROOM_AT_FIRST = 64 }; /* a few marks per bucket, and a bucket may be a kilobyte */
enum { TIMEOUT_S = 300 };

struct en_mark {
    en_ctx *ctx; /* borrowed; outlives us */
    cudaEvent_t event, join;
    uint64_t capture;   /* in which it was last set; 0: in none */
    int is_watched;     /* was polled */
    int is_counted;     /* its latest point is in a graph that was launched */
    int is_ticked;      /* then: and has a tick there */
    cudaEvent_t behind; /* then: behind that launch. The graph's */
    int word;           /* its place in `words` */
};

struct eni_cuda_marks {
    uint32_t *words; /* (WORDS), page-locked; ticks write them */
    uint8_t is_taken[WORDS];
    uint32_t expected[WORDS]; /* what each word will be once all launches are done */
    cudaEvent_t launched;     /* behind all launches of graphs that were freed */
    eni_cuda_set *set;        /* (room) set in the capture that is under way */
    int nset, room;
};

/* CUDA loads a kernel when it is first launched. That of marks is launched in recordings alone, where nobody
 * promises that it may be loaded; and a library that was built for other GPUs shows here. */
static en_status load_tick(en_ctx *ctx)
{
    const cudaStream_t stream = ctx->queue[EN_QUEUE_COMPUTE];
    EN_TRY(eni_cuda_tick(ctx, stream, ctx->marks->words));
    ctx->marks->expected[0] = 1;
    return eni_cuda_finish(ctx, stream, "loading kernels");
}

en_status eni_cuda_marks_open(en_ctx *ctx)
{
    eni_cuda_marks *marks = ctx->marks = eni_alloc(sizeof *marks);
    if (!marks) return EN_ENOMEM;
    marks->room = ROOM_AT_FIRST;
    marks->set = eni_alloc_array(ROOM_AT_FIRST, sizeof *marks->set);
    if (!marks->set) return EN_ENOMEM;
    EN_TRY(eni_cuda_check(
        ctx, cudaHostAlloc((void **)&marks->words, WORDS * sizeof *marks->words, cudaHostAllocMapped),
        "taking page-locked memory"));
    memset(marks->words, 0, WORDS * sizeof *marks->words);
    EN_TRY(eni_cuda_check(ctx, cudaEventCreateWithFlags(&marks->launched, cudaEventDisableTiming), "a mark"));
    return load_tick(ctx);
}

void eni_cuda_marks_close(en_ctx *ctx)
{
    eni_cuda_marks *marks = ctx->marks;
    if (!marks) return;
    if (marks->words) (void)cudaFreeHost(marks->words);
    if (marks->launched) (void)cudaEventDestroy(marks->launched);
    eni_free(marks->set);
    eni_free(marks);
    ctx->marks = NULL;
}

static int is_in_capture(const en_ctx *ctx, int queue)
{
    return ctx->is_capturing && (ctx->captured >> queue & 1u);
}

/* A word whose mark was freed is not given out before its last tick has come. */
static en_status take_word(en_mark *mark)
{
    eni_cuda_marks *marks = mark->ctx->marks;
    const volatile uint32_t *words = marks->words;
    for (int i = 0; i < WORDS; i++) {
        if (marks->is_taken[i] || words[i] != marks->expected[i]) continue;
        marks->is_taken[i] = 1;
        mark->word = i;
        return EN_OK;
    }
    eni_error("cuda", "more than %d marks at a time", WORDS);
    return EN_ENOMEM;
}

static en_status new_mark(en_ctx *ctx, unsigned flags, en_mark **mark_out)
{
    EN_TRY(eni_cuda_select(ctx));
    en_mark *mark = eni_alloc(sizeof *mark);
    if (!mark) return EN_ENOMEM;
    mark->ctx = ctx;
    mark->word = -1;
    en_status st = take_word(mark);
    if (st == EN_OK) st = eni_cuda_check(ctx, cudaEventCreateWithFlags(&mark->event, flags), "a mark");
    if (st == EN_OK)
        st = eni_cuda_check(ctx, cudaEventCreateWithFlags(&mark->join, cudaEventDisableTiming), "a mark");
    if (st != EN_OK) {
        eni_cuda_mark_free(mark);
        return st;
    }
    *mark_out = mark;
    return EN_OK;
}

en_status eni_cuda_mark_new(en_ctx *ctx, en_mark **mark_out)
{
    return new_mark(ctx, cudaEventDisableTiming, mark_out);
}

en_status eni_cuda_timer_new(en_ctx *ctx, en_mark **mark_out)
{
    return new_mark(ctx, cudaEventDefault, mark_out);
}

void eni_cuda_mark_free(en_mark *mark)
{
    if (!mark) return;
    if (mark->event) (void)cudaEventDestroy(mark->event);
    if (mark->join) (void)cudaEventDestroy(mark->join);
    if (mark->word >= 0) mark->ctx->marks->is_taken[mark->word] = 0;
    eni_free(mark);
}

static en_status remember(eni_cuda_marks *marks, en_mark *mark)
{
    if (marks->nset == marks->room) {
        eni_cuda_set *larger = eni_alloc_array((size_t)marks->room * 2, sizeof *larger);
        if (!larger) return EN_ENOMEM;
        memcpy(larger, marks->set, (size_t)marks->nset * sizeof *larger);
        eni_free(marks->set);
        marks->set = larger;
        marks->room *= 2;
    }
    marks->set[marks->nset++] = (eni_cuda_set){mark, mark->is_watched};
    return EN_OK;
}

static en_status mark_in_capture(en_mark *mark, cudaStream_t stream)
{
    en_ctx *ctx = mark->ctx;
    const char *doing = "marking a queue that is recorded";
    EN_TRY(remember(ctx->marks, mark));
    mark->capture = ctx->capture;
    if (mark->is_watched) {
        EN_TRY(eni_cuda_check(ctx, cudaEventRecordWithFlags(mark->event, stream, cudaEventRecordExternal),
                              doing));
        EN_TRY(eni_cuda_tick(ctx, stream, &ctx->marks->words[mark->word]));
    }
    return eni_cuda_check(ctx, cudaEventRecord(mark->join, stream), doing);
}

en_status eni_cuda_mark(en_mark *mark, int queue)
{
    en_ctx *ctx = mark->ctx;
    EN_TRY(eni_cuda_select(ctx));
    if (is_in_capture(ctx, queue)) return mark_in_capture(mark, ctx->queue[queue]);
    mark->capture = 0;
    mark->is_counted = 0;
    return eni_cuda_check(ctx, cudaEventRecord(mark->event, ctx->queue[queue]), "marking a queue");
}

void eni_cuda_marks_begin(en_ctx *ctx)
{
    ctx->marks->nset = 0;
}

eni_cuda_set *eni_cuda_marks_take(en_ctx *ctx, int *n_out)
{
    eni_cuda_marks *marks = ctx->marks;
    const int n = marks->nset;
    eni_cuda_set *taken = eni_alloc_array((size_t)(n > 0 ? n : 1), sizeof *taken);
    if (taken && n > 0) memcpy(taken, marks->set, (size_t)n * sizeof *taken);
    *n_out = n;
    return taken;
}

void eni_cuda_marks_launched(const eni_cuda_set *set, int n, cudaEvent_t behind)
{
    for (int i = 0; i < n; i++) {
        en_mark *mark = set[i].mark;
        if (set[i].is_ticked) mark->ctx->marks->expected[mark->word]++;
        mark->is_ticked = set[i].is_ticked;
        mark->is_counted = 1;
        mark->behind = behind;
    }
}

void eni_cuda_marks_let_go(en_ctx *ctx, const eni_cuda_set *set, int n, cudaEvent_t behind)
{
    (void)cudaEventRecord(ctx->marks->launched, ctx->queue[EN_QUEUE_COMPUTE]);
    for (int i = 0; i < n; i++)
        if (set[i].mark->behind == behind) set[i].mark->behind = ctx->marks->launched;
}

en_status eni_cuda_after(en_ctx *ctx, int queue, en_mark *mark)
{
    if (mark->ctx != ctx) {
        eni_error("cuda", "a queue was to wait for a mark of another context");
        return EN_EINVAL;
    }
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing && mark->capture == ctx->capture) {
        ctx->captured |= 1u << queue;
        return eni_cuda_check(ctx, cudaStreamWaitEvent(ctx->queue[queue], mark->join, cudaEventWaitDefault),
                              "ordering a queue that is recorded");
    }
    if (is_in_capture(ctx, queue))
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorStreamCaptureIsolation,
                             "the mark is from before the recording", "ordering a queue that is recorded");
    const cudaEvent_t event = mark->is_counted ? mark->behind : mark->event;
    return eni_cuda_check(ctx, cudaStreamWaitEvent(ctx->queue[queue], event, cudaEventWaitDefault),
                          "ordering a queue");
}

/* "Not ready" is no error, but CUDA keeps it as one, and the next launch of a kernel would be blamed for it.
 */
static cudaError_t forget_not_ready(cudaError_t error)
{
    if (error == cudaErrorNotReady) (void)cudaGetLastError();
    return error;
}

en_status eni_cuda_elapsed(en_mark *begin, en_mark *end, int64_t *ns_out)
{
    en_ctx *ctx = begin->ctx;
    float ms = 0;
    EN_TRY(eni_cuda_select(ctx));
    const cudaError_t error = forget_not_ready(cudaEventElapsedTime(&ms, begin->event, end->event));
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

/* Has the tick of the latest launch been counted? The question to the queue finds a device that has failed,
 * whose ticks never come. */
static en_status poll_count(en_mark *mark)
{
    en_ctx *ctx = mark->ctx;
    const volatile uint32_t *word = &ctx->marks->words[mark->word];
    const int is_reached = *word == ctx->marks->expected[mark->word];
    atomic_thread_fence(memory_order_acquire);
    if (is_reached) return EN_OK;
    const cudaError_t error = ask(ctx->queue[EN_QUEUE_COMPUTE]);
    if (error == cudaSuccess || error == cudaErrorNotReady) return ctx->has_failed ? EN_EIO : EN_ETIMEOUT;
    return eni_cuda_check(ctx, error, "the recorded work before a mark");
}

en_status eni_cuda_poll(en_mark *mark)
{
    en_ctx *ctx = mark->ctx;
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing)
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorCapturedEvent, "a mark was polled", "recording");
    mark->is_watched = 1;
    const int is_behind = mark->is_counted && !mark->is_ticked;
    if (mark->is_counted && mark->is_ticked) EN_TRY(poll_count(mark));
    const cudaError_t error = forget_not_ready(cudaEventQuery(is_behind ? mark->behind : mark->event));
    if (error == cudaErrorNotReady) return EN_ETIMEOUT;
    return eni_cuda_check(ctx, error, "the work before a mark");
}

static en_status copy_part(en_ctx *ctx, int queue, void *dst, const void *src, uint64_t bytes, int direction)
{
    static const enum cudaMemcpyKind kinds[] = {[EN_COPY_IN] = cudaMemcpyHostToDevice,
                                                [EN_COPY_OUT] = cudaMemcpyDeviceToHost,
                                                [EN_COPY_ON] = cudaMemcpyDeviceToDevice};
    return eni_cuda_check(ctx, cudaMemcpyAsync(dst, src, bytes, kinds[direction], ctx->queue[queue]),
                          "copying");
}

en_status eni_cuda_queue_copy(en_ctx *ctx, int queue, void *dst, const void *src, uint64_t bytes,
                              int direction)
{
    EN_TRY(eni_cuda_select(ctx));
    for (uint64_t done = 0; done < bytes;) {
        char *to = (char *)dst + done;
        const char *from = (const char *)src + done;
        uint64_t part = bytes - done;
        if (direction != EN_COPY_ON)
            part = eni_cuda_pinned_part(ctx, direction == EN_COPY_IN ? from : to, part);
        if (part == 0) {
            eni_error("cuda", "%llu bytes of host memory were to be copied, which is not page-locked",
                      (unsigned long long)(bytes - done));
            return EN_EINVAL;
        }
        EN_TRY(copy_part(ctx, queue, to, from, part, direction));
        done += part;
    }
    return EN_OK;
}

en_status eni_cuda_queue_zero(en_ctx *ctx, int queue, void *dst, uint64_t bytes)
{
    if (bytes == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    return eni_cuda_check(ctx, cudaMemsetAsync(dst, 0, bytes, ctx->queue[queue]), "zeroing");
}
