/* loss.cu - the mean loss of a batch, the number of samples classified right, and the gradient of the mean.
 *
 *     blocks of samples (or of elements)  ->  two numbers each  ->  one block adds them in order: y
 *
 * A batch of up to SMALL samples is one block, which writes y directly. No atomics: always the same bits. */
#include "ops/cuda/element.h"

enum { WARPS = 16, THREADS = WARPS * ENI_WARP, SMALL = 128, PER_THREAD = 8, BLOCKS = 256 };

typedef struct loss_pair {
    float loss, correct;
} loss_pair;

/* The sum over the block, in its first thread. */
static __device__ loss_pair block_sum(loss_pair v)
{
    __shared__ float losses[WARPS], corrects[WARPS];
    const int warp = (int)threadIdx.x / ENI_WARP, lane = (int)threadIdx.x % ENI_WARP;
    v.loss = warp_sum(v.loss);
    v.correct = warp_sum(v.correct);
    if (lane == 0) {
        losses[warp] = v.loss;
        corrects[warp] = v.correct;
    }
    __syncthreads();
    if (warp == 0) {
        v.loss = warp_sum(lane < WARPS ? losses[lane] : 0.0f);
        v.correct = warp_sum(lane < WARPS ? corrects[lane] : 0.0f);
    }
    return v;
}

/* Writes a block's two numbers: to parts, or, as the mean, to y. */
static __device__ void report(loss_pair sum, float count, loss_pair *parts, float *y)
{
    if (threadIdx.x != 0) return;
    if (gridDim.x > 1) {
        parts[blockIdx.x] = sum;
        return;
    }
    y[0] = sum.loss / count;
    y[1] = sum.correct;
}

__global__ void add_parts(loss_pair *parts, uint32_t nparts, float count, float *y)
{
    loss_pair sum = {0.0f, 0.0f};
    for (uint32_t i = threadIdx.x; i < nparts; i += blockDim.x) {
        sum.loss += parts[i].loss;
        sum.correct += parts[i].correct;
    }
    report(block_sum(sum), count, NULL, y);
}

/* Position of the largest x of a row, the first of equal ones, in all lanes. */
template <typename T> static __device__ int position_of_largest(const T *row, uint32_t classes)
{
    float best = -INFINITY;
    int position = 0x7fffffff;
    for (uint32_t k = threadIdx.x % ENI_WARP; k < classes; k += ENI_WARP)
        if (position == 0x7fffffff || to_float(row[k]) > best) {
            best = to_float(row[k]);
            position = (int)k;
        }
    for (int step = ENI_WARP / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, step);
        const int other_position = __shfl_xor_sync(0xffffffffu, position, step);
        if (other > best || (other == best && other_position < position)) {
            best = other;
            position = other_position;
        }
    }
    return position;
}

/* The value at the label; an invalid label makes the loss NaN. */
static __device__ float at_label(const float *row, int32_t label, uint32_t classes)
{
    return label >= 0 && (uint32_t)label < classes ? row[label] : NAN;
}

/* A warp per sample. */
__global__ void nll_forward(const float *x, const int32_t *target, uint32_t samples, uint32_t classes,
                            loss_pair *parts, float *y)
{
    loss_pair sum = {0.0f, 0.0f};
    for (uint32_t n = blockIdx.x * WARPS + threadIdx.x / ENI_WARP; n < samples; n += gridDim.x * WARPS) {
        const float *row = x + (size_t)n * classes;
        const bool is_correct = position_of_largest(row, classes) == target[n];
        if (threadIdx.x % ENI_WARP != 0) continue;
        sum.loss -= at_label(row, target[n], classes);
        sum.correct += is_correct ? 1.0f : 0.0f;
    }
    report(block_sum(sum), (float)samples, parts, y);
}

__global__ void nll_backward(const int32_t *target, float *dx, uint32_t samples, uint32_t classes,
                             const float *loss_scale)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= samples * classes) return;
    const float gradient = -1.0f / (float)samples * scale_of(loss_scale);
    dx[i] = (int32_t)(i % classes) == target[i / classes] ? gradient : 0.0f;
}

/* Saves the gradient, (softmax(x) - one_hot(target)) / N, since the exponentials are at hand. */
template <typename T>
__global__ void cross_entropy_forward(const T *x, const int32_t *target, float *saved, uint32_t samples,
                                      uint32_t classes, loss_pair *parts, float *y)
{
    loss_pair sum = {0.0f, 0.0f};
    const uint32_t lane = threadIdx.x % ENI_WARP;
    for (uint32_t n = blockIdx.x * WARPS + threadIdx.x / ENI_WARP; n < samples; n += gridDim.x * WARPS) {
        const T *row = x + (size_t)n * classes;
        const int32_t label = target[n];
        float largest = -INFINITY, total = 0.0f, at = 0.0f;
        for (uint32_t k = lane; k < classes; k += ENI_WARP)
            largest = fmaxf(largest, to_float(row[k]));
        largest = warp_max(largest);
        for (uint32_t k = lane; k < classes; k += ENI_WARP) {
            total += expf(to_float(row[k]) - largest);
            if ((int32_t)k == label) at = to_float(row[k]) - largest;
        }
        total = warp_sum(total);
        at = label >= 0 && (uint32_t)label < classes ? warp_sum(at) : NAN;
        const bool is_correct = position_of_largest(row, classes) == label;
        for (uint32_t k = lane; saved && k < classes; k += ENI_WARP) {
            const float p = expf(to_float(row[k]) - largest) / total;
            saved[(size_t)n * classes + k] = (p - ((int32_t)k == label ? 1.0f : 0.0f)) / (float)samples;
        }
        if (lane != 0) continue;
        sum.loss += logf(total) - at;
        sum.correct += is_correct ? 1.0f : 0.0f;
    }
    report(block_sum(sum), (float)samples, parts, y);
}

template <typename T>
__global__ void cross_entropy_backward(const float *saved, T *dx, uint32_t count, const float *loss_scale)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) from_float(saved[i] * scale_of(loss_scale), dx + i);
}

template <typename T>
__global__ void mse_forward(const T *x, const float *target, uint32_t count, loss_pair *parts, float *y)
{
    loss_pair sum = {0.0f, 0.0f};
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const float gap = to_float(x[i]) - target[i];
        sum.loss += gap * gap;
    }
    report(block_sum(sum), (float)count, parts, y);
}

template <typename T>
__global__ void mse_backward(const T *x, const float *target, T *dx, uint32_t count, const float *loss_scale)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    from_float(2.0f * (to_float(x[i]) - target[i]) / (float)count * scale_of(loss_scale), dx + i);
}

/* One block, or as many as the parts have room for. */
static uint32_t blocks_for(int64_t work, int64_t small, int64_t per_block)
{
    if (work <= small) return 1;
    return (uint32_t)eni_least((work + per_block - 1) / per_block, BLOCKS);
}

static en_status add_up(const en_plan *plan, const en_args *args, uint32_t blocks, int64_t count)
{
    if (blocks == 1) return EN_OK;
    return ENI_LAUNCH(plan->ctx, add_parts, 1, THREADS, eni_cuda_stream(plan), (loss_pair *)args->workspace,
                      blocks, (float)count, (float *)args->y);
}

/* ---- the kernels --------------------------------------------------------------------------------------- */

/* Two floats per block. */
static en_status prepare(en_plan *plan)
{
    plan->info.workspace_bytes = BLOCKS * 2 * sizeof(float);
    return EN_OK;
}

static en_status prepare_cross_entropy(en_plan *plan)
{
    if (!(plan->op.flags & EN_OP_FORWARD_ONLY))
        plan->info.saved_bytes = (uint64_t)en_extent_count(plan->op.x) * sizeof(float);
    return prepare(plan);
}

static en_status nll(en_plan *plan, const en_args *args)
{
    const en_extent x = plan->op.x;
    const uint32_t blocks = blocks_for(x.n, SMALL, WARPS);
    const en_status st = ENI_LAUNCH(plan->ctx, nll_forward, blocks, THREADS, eni_cuda_stream(plan),
                                    (const float *)args->x, (const int32_t *)args->target, (uint32_t)x.n,
                                    (uint32_t)x.c, (loss_pair *)args->workspace, (float *)args->y);
    return st == EN_OK ? add_up(plan, args, blocks, x.n) : st;
}

static en_status nll_back(en_plan *plan, const en_args *args)
{
    const en_extent x = plan->op.x;
    return ENI_RUN(plan, nll_backward, x.n * x.c, (const int32_t *)args->target, (float *)args->dx,
                   (uint32_t)x.n, (uint32_t)x.c, args->loss_scale);
}

template <typename T> static en_status run_cross_entropy(const en_plan *plan, const en_args *args)
{
    const en_extent x = plan->op.x;
    const uint32_t blocks = blocks_for(x.n, SMALL, WARPS);
    float *saved = plan->op.flags & EN_OP_FORWARD_ONLY ? NULL : (float *)args->saved;
    const en_status st =
        ENI_LAUNCH(plan->ctx, cross_entropy_forward<T>, blocks, THREADS, eni_cuda_stream(plan),
                   (const T *)args->x, (const int32_t *)args->target, saved, (uint32_t)x.n, (uint32_t)x.c,
                   (loss_pair *)args->workspace, (float *)args->y);
    return st == EN_OK ? add_up(plan, args, blocks, x.n) : st;
}

template <typename T> static en_status run_cross_entropy_backward(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->op.x);
    return ENI_RUN(plan, cross_entropy_backward<T>, count, (const float *)args->saved, (T *)args->dx,
                   (uint32_t)count, args->loss_scale);
}

template <typename T> static en_status run_mse(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->op.x);
    const uint32_t blocks = blocks_for(count, THREADS * PER_THREAD, THREADS * PER_THREAD);
    const en_status st = ENI_LAUNCH(plan->ctx, mse_forward<T>, blocks, THREADS, eni_cuda_stream(plan),
                                    (const T *)args->x, (const float *)args->target, (uint32_t)count,
                                    (loss_pair *)args->workspace, (float *)args->y);
    return st == EN_OK ? add_up(plan, args, blocks, count) : st;
}

template <typename T> static en_status run_mse_backward(const en_plan *plan, const en_args *args)
{
    const int64_t count = en_extent_count(plan->op.x);
    return ENI_RUN(plan, mse_backward<T>, count, (const T *)args->x, (const float *)args->target,
                   (T *)args->dx, (uint32_t)count, args->loss_scale);
}

ENI_TYPED_CALL(cross_entropy, run_cross_entropy)
ENI_TYPED_CALL(cross_entropy_back, run_cross_entropy_backward)
ENI_TYPED_CALL(mse, run_mse)
ENI_TYPED_CALL(mse_back, run_mse_backward)

const eni_cuda_kernel eni_cuda_nll = {prepare, NULL, nll, NULL, nll_back};
const eni_cuda_kernel eni_cuda_cross_entropy = {prepare_cross_entropy, NULL, cross_entropy, NULL,
                                                cross_entropy_back};
const eni_cuda_kernel eni_cuda_mse = {prepare, NULL, mse, NULL, mse_back};
