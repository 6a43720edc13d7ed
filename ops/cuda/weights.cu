/* weights.cu - weights on their way between the flat vector, float32 (O, I, taps), and what the libraries
 * take, (O, taps, I) in the op's type; and the last sum of the bias gradient, in the launch that brings dw
 * back.
 *
 *     in    [ w: an element per thread ][ b ]
 *     out   [ dw: an element per thread ][ db: a warp per output channel ] */
#include "ops/cuda/element.h"
#include "ops/cuda/kernels.h"

typedef struct weights_shape {
    uint32_t out, in, taps;
} weights_shape;

static __host__ __device__ uint32_t count_of(weights_shape s)
{
    return s.out * s.in * s.taps;
}

/* Where an element of (O, taps, I) lies in (O, I, taps). */
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

/* The first `dw_blocks` blocks bring dw, the others db. */
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
    weights_shape s;
    s.out = (uint32_t)op->channels;
    s.in = (uint32_t)op->x.c;
    s.taps = (uint32_t)taps;
    return s;
}

template <typename T>
static en_status run_in(const en_plan *plan, const float *w, const float *b, void *w_to, void *b_to)
{
    const weights_shape s = shape_of(plan);
    const int64_t work = (int64_t)count_of(s) + (b ? s.out : 0);
    return ENI_LAUNCH(plan->ctx, weights_in<T>, eni_blocks(work, ENI_BLOCK), ENI_BLOCK, eni_cuda_stream(plan),
                      w, b, (T *)w_to, (T *)b_to, s);
}

template <typename T>
static en_status run_out(const en_plan *plan, const void *dw_from, const float *parts, int64_t nparts,
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
    switch (plan->op.dtype) {
    case EN_BF16: return run_in<eni_bf16>(plan, w, b, w_to, b_to);
    case EN_F16: return run_in<eni_f16>(plan, w, b, w_to, b_to);
    default: return run_in<float>(plan, w, b, w_to, b_to);
    }
}

en_status eni_cuda_weights_out(const en_plan *plan, const void *dw_from, uint32_t dtype, const float *parts,
                               int64_t nparts, const en_args *args)
{
    switch (dtype) {
    case EN_BF16: return run_out<eni_bf16>(plan, dw_from, parts, nparts, args);
    case EN_F16: return run_out<eni_f16>(plan, dw_from, parts, nparts, args);
    default: return run_out<float>(plan, dw_from, parts, nparts, args);
    }
}
