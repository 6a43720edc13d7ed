/* capture.c - work that is captured once and launched many times: a step of a small network is thirty kernels
 * of a few microseconds each, which take longer to enqueue than to run. Only this thread's calls are captured
 * (thread-local): the loader's threads may go on calling CUDA. */
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

struct en_capture {
    en_ctx *ctx; /* borrowed; outlives us */
    cudaGraphExec_t exec;
    eni_cuda_set *events; /* (nevents) borrowed: events that a launch sets; they outlive us */
    int nevents;
    cudaEvent_t launched; /* after the latest launch */
};

en_status eni_cuda_capture_begin(en_ctx *ctx)
{
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing) return eni_fail(EN_EBUG, "cuda", "cannot begin a capture inside another");
    EN_TRY(eni_cuda_check(
        ctx, cudaStreamBeginCapture(ctx->stream[EN_STREAM_COMPUTE], cudaStreamCaptureModeThreadLocal),
        "capturing"));
    ctx->is_capturing = true;
    ctx->is_capture_broken = false;
    eni_cuda_events_begin(ctx);
    ctx->captured = 1u << EN_STREAM_COMPUTE;
    ctx->capture++;
    return EN_OK;
}

/* A broken capture is not a failure of the device, which goes on without it. Logged once. */
static en_status refuse(en_ctx *ctx, cudaError_t error)
{
    (void)cudaGetLastError();
    if (!ctx->is_capture_broken)
        eni_warn("cuda", "capturing on %s failed: CUDA error %d, %s", ctx->name, (int)error,
                 error == cudaErrorStreamCaptureUnjoined ? "a stream was not joined into COMPUTE"
                                                         : cudaGetErrorString(error));
    return EN_EUNSUPPORTED;
}

/* Uploads the graph now rather than in the first launch. */
static cudaError_t prepare(en_capture *graph, cudaGraph_t captured)
{
    cudaError_t error = cudaEventCreateWithFlags(&graph->launched, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&graph->exec, captured, 0);
    if (error == cudaSuccess) error = cudaGraphUpload(graph->exec, graph->ctx->stream[EN_STREAM_COMPUTE]);
    return error;
}

en_status eni_cuda_capture_end(en_ctx *ctx, en_capture **graph_out)
{
    if (!ctx->is_capturing) return eni_fail(EN_EBUG, "cuda", "cannot end a capture that has not begun");
    (void)cudaSetDevice(ctx->index);
    cudaGraph_t captured = NULL;
    cudaError_t error = cudaStreamEndCapture(ctx->stream[EN_STREAM_COMPUTE], &captured);
    ctx->is_capturing = false;
    if (error != cudaSuccess || ctx->is_capture_broken) {
        if (captured) (void)cudaGraphDestroy(captured);
        return refuse(ctx, error);
    }
    en_capture *graph = eni_alloc(sizeof *graph);
    if (graph) {
        graph->ctx = ctx;
        graph->events = eni_cuda_events_take(ctx, &graph->nevents);
        error = prepare(graph, captured);
    }
    (void)cudaGraphDestroy(captured);
    if (!graph) return EN_ENOMEM;
    if (error != cudaSuccess) {
        eni_cuda_graph_free(graph);
        return refuse(ctx, error);
    }
    *graph_out = graph;
    return EN_OK;
}

en_status eni_cuda_launch(en_capture *graph)
{
    en_ctx *ctx = graph->ctx;
    const cudaStream_t stream = ctx->stream[EN_STREAM_COMPUTE];
    EN_TRY(eni_cuda_select(ctx));
    EN_TRY(eni_cuda_check(ctx, cudaGraphLaunch(graph->exec, stream), "launching captured work"));
    eni_cuda_events_launched(graph->events, graph->nevents, graph->launched);
    return eni_cuda_check(ctx, cudaEventRecord(graph->launched, stream), "launching captured work");
}

void eni_cuda_graph_free(en_capture *graph)
{
    if (!graph) return;
    (void)cudaSetDevice(graph->ctx->index);
    eni_cuda_events_let_go(graph->ctx, graph->events, graph->nevents, graph->launched);
    if (graph->exec) (void)cudaGraphExecDestroy(graph->exec);
    if (graph->launched) (void)cudaEventDestroy(graph->launched);
    eni_free(graph->events);
    eni_free(graph);
}
