/* columns.cu - dy (rows, O) on its way to the gradients of a layer: zero where the fused relu let nothing
 * through, and summed over the rows, which is the gradient of the bias.
 *
 *     block (tile of up to 64 columns, part of the rows)        groups of threads side by side take
 *         group 0: rows 0, g, 2g ..                             every g-th row each; then the groups
 *         group 1: rows 1, g + 1 ..                             are added in pairs
 *
 * Threads of a group read neighbours, and where O <= 64 all groups together read one stretch of memory. */
#include "ops/cuda/element.h"
#include "ops/cuda/kernels.h"

enum {
    TILE = 64,
    LARGE_BLOCK = 1024,
    ONE_PART = 1024 /* rows */,
    MANY = 256 /* parts */,
    EACH = 8 /* rows */
};

template <typename T, int MASK>
__global__ void columns(T *dy, const T *y, float *sums, uint32_t rows, uint32_t cols, uint32_t rows_of_part,
                        const float *loss_scale)
{
    __shared__ float sum_of[LARGE_BLOCK];
    const uint32_t width = cols < (uint32_t)TILE ? cols : (uint32_t)TILE, groups = blockDim.x / width;
    const uint32_t group = threadIdx.x / width, c = blockIdx.x * width + threadIdx.x % width;
    const uint32_t first = blockIdx.y * rows_of_part + group;
    const uint32_t end = (blockIdx.y + 1) * rows_of_part < rows ? (blockIdx.y + 1) * rows_of_part : rows;
    float sum = 0.0f;
    if (group < groups && c < cols) {
#pragma unroll 4
        for (uint32_t r = first; r < end; r += groups) {
            const size_t at = (size_t)r * cols + c;
            if (MASK && to_float(y[at]) <= 0.0f)
                from_float(0.0f, dy + at);
            else
                sum += to_float(dy[at]);
        }
    }
    if (!sums) return;
    sum_of[threadIdx.x] = sum;
    for (uint32_t n = groups; n > 1;) {
        const uint32_t rest = (n + 1) / 2;
        __syncthreads();
        if (group < n - rest) sum_of[threadIdx.x] += sum_of[threadIdx.x + rest * width];
        n = rest;
    }
    if (group == 0 && c < cols)
        sums[(size_t)blockIdx.y * cols + c] = sum_of[threadIdx.x] / scale_of(loss_scale);
}

static int64_t rows_of(const en_plan *plan)
{
    return plan->y.n * plan->y.h * plan->y.w;
}

int64_t eni_cuda_columns_parts(const en_plan *plan)
{
    const int64_t rows = rows_of(plan), width = eni_least(plan->y.c, TILE);
    if (plan->op.kind == EN_OP_LINEAR && rows <= ONE_PART)
        return 1; /* saves the launch that adds the parts */
    const int64_t at_once = ENI_BLOCK / width * EACH, parts = (rows + at_once - 1) / at_once;
    return eni_least(parts, MANY);
}

template <typename T, int MASK>
static en_status run(const en_plan *plan, const en_args *args, float *sums, int64_t nparts)
{
    const int64_t rows = rows_of(plan), cols = plan->y.c, rows_of_part = (rows + nparts - 1) / nparts;
    const uint32_t threads =
        nparts == 1 && rows > ENI_BLOCK / 2 ? (uint32_t)LARGE_BLOCK : (uint32_t)ENI_BLOCK;
    const dim3 grid(eni_blocks(cols, eni_least(cols, TILE)), (uint32_t)nparts);
    return ENI_LAUNCH(plan->ctx, (columns<T, MASK>), grid, threads, eni_cuda_stream(plan), (T *)args->dy,
                      (const T *)args->y, sums, (uint32_t)rows, (uint32_t)cols, (uint32_t)rows_of_part,
                      nparts == 1 ? args->loss_scale : NULL);
}

template <typename T>
static en_status run(const en_plan *plan, const en_args *args, float *sums, int64_t nparts)
{
    return plan->op.flags & EN_OP_FUSE_RELU ? run<T, 1>(plan, args, sums, nparts)
                                            : run<T, 0>(plan, args, sums, nparts);
}

en_status eni_cuda_columns(const en_plan *plan, const en_args *args, float *sums, int64_t nparts)
{
    switch (plan->op.dtype) {
    case EN_BF16: return run<eni_bf16>(plan, args, sums, nparts);
    case EN_F16: return run<eni_f16>(plan, args, sums, nparts);
    default: return run<float>(plan, args, sums, nparts);
    }
}
