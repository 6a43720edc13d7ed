/* queues.c - what is put into queues, and the order between them.
 *
 * A mark is two events, because in a capture CUDA has two meanings for "record":
 *
 *     join    says to the capture where the other queue goes on from here; it exists only in there
 *     event   a node of the graph, recorded anew by each launch; can be polled, and waited for outside of it
 *
 * In a capture a mark records both, `event` first: what comes after `join` alone would be left behind when
 * the queue is ordered before COMPUTE again, and the capture would count as not joined. */
#include "ops/cuda/cuda.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

struct en_mark {
    en_ctx *ctx; /* borrowed; outlives us */
    cudaEvent_t event, join;
    uint64_t capture; /* in which it was last set; 0: in none */
};

static int is_in_capture(const en_ctx *ctx, int queue)
{
    return ctx->is_capturing && (ctx->captured >> queue & 1u);
}

en_status eni_cuda_mark_new(en_ctx *ctx, en_mark **mark_out)
{
    EN_TRY(eni_cuda_select(ctx));
    en_mark *mark = eni_alloc(sizeof *mark);
    if (!mark) return EN_ENOMEM;
    mark->ctx = ctx;
    en_status st =
        eni_cuda_check(ctx, cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming), "a mark");
    if (st == EN_OK)
        st = eni_cuda_check(ctx, cudaEventCreateWithFlags(&mark->join, cudaEventDisableTiming), "a mark");
    if (st != EN_OK) {
        eni_cuda_mark_free(mark);
        return st;
    }
    *mark_out = mark;
    return EN_OK;
}

void eni_cuda_mark_free(en_mark *mark)
{
    if (!mark) return;
    if (mark->event) (void)cudaEventDestroy(mark->event);
    if (mark->join) (void)cudaEventDestroy(mark->join);
    eni_free(mark);
}

en_status eni_cuda_mark(en_mark *mark, int queue)
{
    en_ctx *ctx = mark->ctx;
    const cudaStream_t stream = ctx->queue[queue];
    EN_TRY(eni_cuda_select(ctx));
    if (!is_in_capture(ctx, queue)) {
        mark->capture = 0;
        return eni_cuda_check(ctx, cudaEventRecord(mark->event, stream), "marking a queue");
    }
    mark->capture = ctx->capture;
    EN_TRY(eni_cuda_check(ctx, cudaEventRecordWithFlags(mark->event, stream, cudaEventRecordExternal),
                          "marking a queue that is recorded"));
    return eni_cuda_check(ctx, cudaEventRecord(mark->join, stream), "marking a queue that is recorded");
}

en_status eni_cuda_after(en_ctx *ctx, int queue, en_mark *mark)
{
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing && mark->capture == ctx->capture) {
        ctx->captured |= 1u << queue;
        return eni_cuda_check(ctx, cudaStreamWaitEvent(ctx->queue[queue], mark->join, cudaEventWaitDefault),
                              "ordering a queue that is recorded");
    }
    if (is_in_capture(ctx, queue)) {
        return eni_cuda_fail(ctx, "CUDA", (int)cudaErrorStreamCaptureIsolation,
                             "the mark is from before the recording", "ordering a queue that is recorded");
    }
    return eni_cuda_check(ctx, cudaStreamWaitEvent(ctx->queue[queue], mark->event, cudaEventWaitDefault),
                          "ordering a queue");
}

en_status eni_cuda_poll(en_mark *mark)
{
    EN_TRY(eni_cuda_select(mark->ctx));
    if (mark->ctx->is_capturing) {
        eni_error("cuda", "a mark was polled while work is recorded");
        return EN_EBUG;
    }
    const cudaError_t error = cudaEventQuery(mark->event);
    if (error == cudaErrorNotReady) return EN_ETIMEOUT;
    return eni_cuda_check(mark->ctx, error, "the work before a mark");
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
