/* graph.c - work that is recorded once and launched many times: a step of a small network is thirty kernels
 * of a few microseconds each, which takes longer to put into a queue than to do.
 *
 * The recording is of this thread alone (thread-local capture): the loader's threads may go on calling CUDA.
 */
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

struct en_graph {
    en_ctx *ctx; /* borrowed; outlives us */
    cudaGraphExec_t exec;
    eni_cuda_set *marks; /* (nmarks) borrowed: those that a launch sets; they outlive us */
    int nmarks;
    cudaEvent_t launched; /* behind the latest launch */
};

en_status eni_cuda_capture_begin(en_ctx *ctx)
{
    EN_TRY(eni_cuda_select(ctx));
    if (ctx->is_capturing) {
        eni_error("cuda", "a recording was to begin inside of another");
        return EN_EBUG;
    }
    EN_TRY(eni_cuda_check(
        ctx, cudaStreamBeginCapture(ctx->queue[EN_QUEUE_COMPUTE], cudaStreamCaptureModeThreadLocal),
        "recording"));
    ctx->is_capturing = 1;
    ctx->is_capture_broken = 0;
    eni_cuda_marks_begin(ctx);
    ctx->captured = 1u << EN_QUEUE_COMPUTE;
    ctx->capture++;
    return EN_OK;
}

/* What breaks a recording is no failure of the device: it goes on without. Said once. */
static en_status refuse(en_ctx *ctx, cudaError_t error)
{
    (void)cudaGetLastError();
    if (!ctx->is_capture_broken)
        eni_warn("cuda", "recording on %s failed: CUDA error %d, %s", ctx->name, (int)error,
                 error == cudaErrorStreamCaptureUnjoined ? "a queue was not ordered before COMPUTE again"
                                                         : cudaGetErrorString(error));
    return EN_EUNSUPPORTED;
}

/* Uploaded now, so that the first launch is not the one that pays. */
static cudaError_t prepare(en_graph *graph, cudaGraph_t recorded)
{
    cudaError_t error = cudaEventCreateWithFlags(&graph->launched, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&graph->exec, recorded, 0);
    if (error == cudaSuccess) error = cudaGraphUpload(graph->exec, graph->ctx->queue[EN_QUEUE_COMPUTE]);
    return error;
}

static en_graph *new_graph(en_ctx *ctx)
{
    en_graph *graph = eni_alloc(sizeof *graph);
    if (!graph) return NULL;
    graph->ctx = ctx;
    graph->marks = eni_cuda_marks_take(ctx, &graph->nmarks);
    if (graph->marks) return graph;
    eni_free(graph);
    return NULL;
}

en_status eni_cuda_capture_end(en_ctx *ctx, en_graph **graph_out)
{
    if (!ctx->is_capturing) {
        eni_error("cuda", "a recording was to end that did not begin");
        return EN_EBUG;
    }
    (void)cudaSetDevice(ctx->index);
    cudaGraph_t recorded = NULL;
    cudaError_t error = cudaStreamEndCapture(ctx->queue[EN_QUEUE_COMPUTE], &recorded);
    ctx->is_capturing = 0;
    if (error != cudaSuccess || ctx->is_capture_broken) {
        if (recorded) (void)cudaGraphDestroy(recorded);
        return refuse(ctx, error);
    }
    en_graph *graph = new_graph(ctx);
    if (graph) error = prepare(graph, recorded);
    (void)cudaGraphDestroy(recorded);
    if (!graph) return EN_ENOMEM;
    if (error != cudaSuccess) {
        eni_cuda_graph_free(graph);
        return refuse(ctx, error);
    }
    *graph_out = graph;
    return EN_OK;
}

en_status eni_cuda_launch(en_graph *graph)
{
    en_ctx *ctx = graph->ctx;
    const cudaStream_t stream = ctx->queue[EN_QUEUE_COMPUTE];
    EN_TRY(eni_cuda_select(ctx));
    EN_TRY(eni_cuda_check(ctx, cudaGraphLaunch(graph->exec, stream), "launching recorded work"));
    eni_cuda_marks_launched(graph->marks, graph->nmarks, graph->launched);
    return eni_cuda_check(ctx, cudaEventRecord(graph->launched, stream), "launching recorded work");
}

void eni_cuda_graph_free(en_graph *graph)
{
    if (!graph) return;
    (void)cudaSetDevice(graph->ctx->index);
    eni_cuda_marks_let_go(graph->ctx, graph->marks, graph->nmarks, graph->launched);
    if (graph->exec) (void)cudaGraphExecDestroy(graph->exec);
    if (graph->launched) (void)cudaEventDestroy(graph->launched);
    eni_free(graph->marks);
    eni_free(graph);
}
