/* layer_weights.cu - the kernels around the libraries' part of a layer (layer_weights.c).
 *
 * Weights between the flat vector, float32 (O, I, taps), and the libraries' order, (O, taps, I) in the op's
 * type; and the last sum of the bias gradient, in the launch that copies dw back:
 *
 *     in    [ w: an element per thread ][ b ]
 *     out   [ dw: an element per thread ][ db: a warp per output channel ]
 *
 * dy (rows, O) for the gradients: zero where the fused relu blocked, and summed over the rows, which is the
 * gradient of the bias:
 *
 *     block (tile of up to 64 columns, part of the rows)        groups of threads side by side take
 *         group 0: rows 0, g, 2g ..                             every g-th row each; then the groups
 *         group 1: rows 1, g + 1 ..                             are added in pairs
 *
 * Threads of a group read neighbours, and with O <= 64 all groups together read one range of memory. */
#include "ops/cuda/element.h"

/* ---- weights ------------------------------------------------------------------------------------------- */

typedef struct weights_shape {
    uint32_t out, in, taps;
} weights_shape;

static __host__ __device__ uint32_t count_of(weights_shape s)
{
    return s.out * s.in * s.taps;
}

/* The index in (O, I, taps) of an element of (O, taps, I). */
static __device__ uint32_t flat_index(weights_shape s, uint32_t i)
{
    if (s.taps == 1 || s.in == 1) return i;
    const uint32_t c = i % s.in, t = i / s.in % s.taps, o = i / s.in / s.taps;
    return (o * s.in + c) * s.taps + t;
}

template <typename T>
__global__ void weights_in(const float *w, const float *b, T *w_to, T *b_to, weights_shape s)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, count = count_of(s);
    if (i < count)
        from_float(w[flat_index(s, i)], w_to + i);
    else if (b && i - count < s.out)
        from_float(b[i - count], b_to + (i - count));
}

/* The first `dw_blocks` blocks copy dw, the others sum db. */
template <typename T>
__global__ void weights_out(const T *dw_from, float *dw, uint32_t dw_blocks, const float *parts,
                            uint32_t nparts, float *db, weights_shape s, const float *loss_scale)
{
    const float scale = scale_of(loss_scale);
    if (blockIdx.x < dw_blocks) {
        const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < count_of(s)) dw[flat_index(s, i)] = to_float(dw_from[i]) / scale;
        return;
    }
    const uint32_t o = ((blockIdx.x - dw_blocks) * blockDim.x + threadIdx.x) / ENI_WARP;
    if (o >= s.out) return;
    float sum = 0.0f;
    for (uint32_t p = threadIdx.x % ENI_WARP; p < nparts; p += ENI_WARP)
        sum += parts[p * s.out + o];
    sum = warp_sum(sum);
    if (threadIdx.x % ENI_WARP == 0) db[o] = sum / scale;
}

static weights_shape shape_of(const en_plan *plan)
{
    const en_op *op = &plan->op;
    const int64_t taps = op->kind == EN_OP_CONV2D ? op->kernel_h * op->kernel_w : 1;
    return weights_shape{(uint32_t)op->channels, (uint32_t)op->x.c, (uint32_t)taps};
}

template <typename T>
static en_status run_weights_in(const en_plan *plan, const float *w, const float *b, void *w_to, void *b_to)
{
    const weights_shape s = shape_of(plan);
    const int64_t work = (int64_t)count_of(s) + (b ? s.out : 0);
    return ENI_RUN(plan, weights_in<T>, work, w, b, (T *)w_to, (T *)b_to, s);
}

template <typename T>
static en_status run_weights_out(const en_plan *plan, const void *dw_from, const float *parts, int64_t nparts,
                                 const en_args *args)
{
    const weights_shape s = shape_of(plan);
    const uint32_t dw_blocks = dw_from ? eni_blocks(count_of(s), ENI_BLOCK) : 0;
    const uint32_t db_blocks = nparts > 0 ? eni_blocks(s.out, ENI_BLOCK / ENI_WARP) : 0;
    return ENI_LAUNCH(plan->ctx, weights_out<T>, dw_blocks + db_blocks, ENI_BLOCK, eni_cuda_stream(plan),
                      (const T *)dw_from, (float *)args->dw, dw_blocks, parts, (uint32_t)nparts,
                      (float *)args->db, s, args->loss_scale);
}

en_status eni_cuda_weights_in(const en_plan *plan, const float *w, const float *b, void *w_to, void *b_to)
{
    return ENI_TYPED(plan->op.dtype, run_weights_in, plan, w, b, w_to, b_to);
}

en_status eni_cuda_weights_out(const en_plan *plan, const void *dw_from, uint32_t dtype, const float *parts,
                               int64_t nparts, const en_args *args)
{
    return ENI_TYPED(dtype, run_weights_out, plan, dw_from, parts, nparts, args);
}

/* ---- columns of dy ------------------------------------------------------------------------------------- */

enum { TILE = 64, LARGE_BLOCK = 1024 };
enum { ONE_PART = 1024, EACH = 8, MANY = 256 }; /* rows, rows, parts */

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
static en_status run_columns(const en_plan *plan, const en_args *args, float *sums, int64_t nparts)
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
static en_status run_columns(const en_plan *plan, const en_args *args, float *sums, int64_t nparts)
{
    return plan->op.flags & EN_OP_FUSE_RELU ? run_columns<T, 1>(plan, args, sums, nparts)
                                            : run_columns<T, 0>(plan, args, sums, nparts);
}

en_status eni_cuda_columns(const en_plan *plan, const en_args *args, float *sums, int64_t nparts)
{
    return ENI_TYPED(plan->op.dtype, run_columns, plan, args, sums, nparts);
}
