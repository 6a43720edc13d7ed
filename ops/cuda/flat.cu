// flat.cu - arithmetic on flat vectors: the bits of ops/mean.c and ops/optimizer.c.
//
// There, every product and every sum is rounded by itself (-ffp-contract=off). nvcc would fuse a product and
// a sum into one rounding, so each operation is written as an intrinsic: __fmul_rn and __fadd_rn are never
// fused. x - y is __fadd_rn(x, -y): the same rounding. One element's arithmetic is one function, shared by the
// path of four at a time and the path of one.
//
// All of it is bound by memory: each element is read once and written once, four per load if every vector is
// aligned to 16 bytes, as the buckets and slices of a run are (to 64); tails and other addresses one by one.
//
// The file also has the kernel that stands for an event in a CUDA graph (streams.c): it increments a word that
// the host reads.
#include <stddef.h>
#include <string.h>

#include "core/try.h"
#include "ops/cuda/element.h"

namespace
{

enum { THREADS = 256, BLOCKS_PER_CORE = 16 };

struct Sources {
    const float *at[EN_GPU_SOURCES];
    int count;
};

struct Step {
    Sources sources;
    float *mean, *w, *m, *v; // NULL: not asked for
    uint64_t count;
    const en_gpu_rates *rates;
    const float *total;
    const en_gpu_adam *adam;
};

// Shared by all elements of a step; read once per thread.
struct Rates {
    float lr, momentum, decay, inv;
    bool nesterov;
    en_gpu_adam adam;
};

template <bool ADAM> __device__ Rates read_rates(const Step &step)
{
    Rates r;
    if (ADAM) r.adam = *step.adam;
    r.lr = step.rates->lr;
    r.momentum = step.m ? step.rates->momentum : 0.0f;
    r.decay = step.rates->weight_decay;
    r.nesterov = step.rates->nesterov != 0;
    r.inv = step.total ? 1.0f / *step.total : step.rates->inv;
    return r;
}

// As sgd_step in ops/optimizer.c: a term that is 0 is left out, not added.
__device__ void step_one(float &w, float &m, float g, const Rates &r)
{
    if (r.decay != 0.0f) g = __fadd_rn(g, __fmul_rn(r.decay, w));
    if (r.momentum != 0.0f) {
        m = __fadd_rn(__fmul_rn(r.momentum, m), g);
        g = r.nesterov ? __fadd_rn(g, __fmul_rn(r.momentum, m)) : m;
    }
    w = __fadd_rn(w, -__fmul_rn(r.lr, g));
}

// As adam_all there.
__device__ void adam_one(float &w, float &m, float &v, float g, const en_gpu_adam &r)
{
    if (r.decay != 0.0f) g = __fadd_rn(g, __fmul_rn(r.decay, w));
    m = __fadd_rn(m, __fmul_rn(__fadd_rn(g, -m), r.take_mean));
    v = __fadd_rn(__fmul_rn(v, r.keep_square), __fmul_rn(__fmul_rn(r.take_square, g), g));
    const float below = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), r.root), r.eps);
    w = __fadd_rn(__fmul_rn(w, r.keep), -__fdiv_rn(__fmul_rn(r.rate, m), below));
}

// Elements of width 1 or 4.
template <int WIDTH> using Lane = eni_pack<float, WIDTH>;

template <int WIDTH> __device__ Lane<WIDTH> load(const float *from)
{
    return *reinterpret_cast<const Lane<WIDTH> *>(from);
}

template <int WIDTH> __device__ void store(float *to, const Lane<WIDTH> &x)
{
    *reinterpret_cast<Lane<WIDTH> *>(to) = x;
}

// (sum over k of source[k] * scale[k]) * inv, in that order. A source of scale 0 is left out and not
// read, as in eni_mean_ranks; without sources the mean is 0.
template <int WIDTH> __device__ Lane<WIDTH> mean_of(const Step &step, const Rates &r, uint64_t i)
{
    Lane<WIDTH> sum = {};
    bool is_first = true;
    for (int k = 0; k < step.sources.count; k++) {
        const float scale = step.rates->scale[k];
        if (scale == 0.0f) continue;
        const Lane<WIDTH> x = load<WIDTH>(step.sources.at[k] + i);
        for (int e = 0; e < WIDTH; e++) {
            const float product = __fmul_rn(x.at[e], scale);
            sum.at[e] = is_first ? product : __fadd_rn(sum.at[e], product);
        }
        is_first = false;
    }
    if (is_first) return sum;
    for (int e = 0; e < WIDTH; e++)
        sum.at[e] = __fmul_rn(sum.at[e], r.inv);
    return sum;
}

template <int WIDTH>
__device__ void adam_at(const Step &step, const Rates &r, uint64_t i, const Lane<WIDTH> &g)
{
    Lane<WIDTH> w = load<WIDTH>(step.w + i), m = load<WIDTH>(step.m + i), v = load<WIDTH>(step.v + i);
    for (int e = 0; e < WIDTH; e++)
        adam_one(w.at[e], m.at[e], v.at[e], g.at[e], r.adam);
    store(step.m + i, m);
    store(step.v + i, v);
    store(step.w + i, w);
}

template <int WIDTH, bool ADAM> __device__ void step_at(const Step &step, const Rates &r, uint64_t i)
{
    const Lane<WIDTH> g = mean_of<WIDTH>(step, r, i);
    if (step.mean) store(step.mean + i, g);
    if (ADAM) {
        adam_at<WIDTH>(step, r, i, g);
        return;
    }
    if (!step.w) return;
    Lane<WIDTH> w = load<WIDTH>(step.w + i), m = {};
    if (r.momentum != 0.0f) m = load<WIDTH>(step.m + i);
    for (int e = 0; e < WIDTH; e++)
        step_one(w.at[e], m.at[e], g.at[e], r);
    if (r.momentum != 0.0f) store(step.m + i, m);
    store(step.w + i, w);
}

// The grid walks over `count` elements: WIDTH at a time, then the rest.
template <int WIDTH, bool ADAM> __global__ void mean_step(const __grid_constant__ Step step)
{
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x, wide = step.count / WIDTH * WIDTH;
    const uint64_t me = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (step.total && *step.total == 0.0f) { // no rank had a sample
        if (step.mean)
            for (uint64_t i = me; i < step.count; i += threads)
                step.mean[i] = 0.0f;
        return;
    }
    const Rates r = read_rates<ADAM>(step);
    for (uint64_t i = me * WIDTH; i < wide; i += threads * WIDTH)
        step_at<WIDTH, ADAM>(step, r, i);
    if (wide + me < step.count) step_at<1, ADAM>(step, r, wide + me);
}

template <int WIDTH> __global__ void lin(float *y, float a, const float *x, float b, uint64_t count)
{
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x, wide = count / WIDTH * WIDTH;
    const uint64_t me = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (uint64_t i = me * WIDTH; i < wide; i += threads * WIDTH) {
        Lane<WIDTH> v = load<WIDTH>(x + i);
        for (int e = 0; e < WIDTH; e++)
            v.at[e] = __fmul_rn(a, v.at[e]);
        if (b != 0.0f) {
            const Lane<WIDTH> old = load<WIDTH>(y + i);
            for (int e = 0; e < WIDTH; e++)
                v.at[e] = __fadd_rn(v.at[e], __fmul_rn(b, old.at[e]));
        }
        store(y + i, v);
    }
    const uint64_t i = wide + me;
    if (i < count) y[i] = b != 0.0f ? __fadd_rn(__fmul_rn(a, x[i]), __fmul_rn(b, y[i])) : __fmul_rn(a, x[i]);
}

__device__ bool is_nonfinite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u;
}

// A thread that finds one writes 1; several writers do not conflict.
template <int WIDTH> __global__ void check_finite(const float *v, uint64_t count, uint32_t *flag)
{
    const uint64_t threads = (uint64_t)gridDim.x * blockDim.x, wide = count / WIDTH * WIDTH;
    const uint64_t me = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool found = wide + me < count && is_nonfinite(v[wide + me]);
    for (uint64_t i = me * WIDTH; i < wide; i += threads * WIDTH) {
        const Lane<WIDTH> x = load<WIDTH>(v + i);
        for (int e = 0; e < WIDTH; e++)
            found |= is_nonfinite(x.at[e]);
    }
    if (found) *flag = 1;
}

__global__ void tick(volatile uint32_t *word)
{
    __threadfence_system();
    *word = *word + 1;
    __threadfence_system();
}

bool on_16(const void *memory)
{
    return ((uintptr_t)memory & 15u) == 0; // so is NULL
}

// At least WIDTH blocks' worth of threads for the tail; not more blocks than keep the GPU busy.
unsigned grid_of(const en_ctx *ctx, uint64_t count, int width)
{
    const uint64_t blocks = (count / (uint64_t)width + THREADS - 1) / THREADS;
    const uint64_t most = (uint64_t)ctx->cores * BLOCKS_PER_CORE;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

} // namespace

// "adam" and "adamw" differ only in their numbers.
static bool is_adam(const en_gpu_step *step)
{
    const size_t known = offsetof(en_gpu_step, adam) + sizeof step->adam;
    const bool is_named = strcmp(step->optimizer, "adam") == 0 || strcmp(step->optimizer, "adamw") == 0;
    return is_named && step->size >= known && step->adam && step->slot[0] && step->slot[1];
}

static bool is_known(const en_gpu_step *step)
{
    if (step->size < offsetof(en_gpu_step, adam) || step->nsources < 1 || step->nsources > EN_GPU_SOURCES ||
        !step->rates)
        return false;
    return !step->w || (step->optimizer && (strcmp(step->optimizer, "sgd") == 0 || is_adam(step)));
}

en_status eni_cuda_mean_step(en_ctx *ctx, int stream, const en_gpu_step *given)
{
    if (!is_known(given)) {
        eni_cuda_say("unsupported step of %d sources with optimizer \"%s\": expected 1 to %d sources and "
                     "sgd, adam or adamw with their numbers",
                     given->nsources, given->optimizer ? given->optimizer : "", EN_GPU_SOURCES);
        return EN_EUNSUPPORTED;
    }
    if (given->count == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    Step step = {};
    step.sources.count = given->nsources;
    bool is_wide = on_16(given->mean) && on_16(given->w) && on_16(given->slot[0]) && on_16(given->slot[1]);
    for (int k = 0; k < given->nsources; k++) {
        step.sources.at[k] = given->source[k];
        is_wide = is_wide && on_16(given->source[k]);
    }
    step.mean = given->mean;
    step.w = given->w;
    step.m = given->slot[0];
    step.v = given->slot[1];
    step.count = given->count;
    step.rates = given->rates;
    step.total = given->total;
    if (given->w && is_adam(given)) step.adam = given->adam;
    const auto kernel = step.adam ? (is_wide ? mean_step<4, true> : mean_step<1, true>)
                                  : (is_wide ? mean_step<4, false> : mean_step<1, false>);
    return ENI_LAUNCH(ctx, kernel, grid_of(ctx, step.count, is_wide ? 4 : 1), THREADS, ctx->stream[stream],
                      step);
}

en_status eni_cuda_lin(en_ctx *ctx, int stream, float *y, float a, const float *x, float b, uint64_t count)
{
    if (count == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    const cudaStream_t handle = ctx->stream[stream];
    if (on_16(x) && on_16(y))
        return ENI_LAUNCH(ctx, lin<4>, grid_of(ctx, count, 4), THREADS, handle, y, a, x, b, count);
    return ENI_LAUNCH(ctx, lin<1>, grid_of(ctx, count, 1), THREADS, handle, y, a, x, b, count);
}

en_status eni_cuda_check_finite(en_ctx *ctx, int stream, const float *v, uint64_t count, uint32_t *flag)
{
    if (count == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    const cudaStream_t handle = ctx->stream[stream];
    if (on_16(v))
        return ENI_LAUNCH(ctx, check_finite<4>, grid_of(ctx, count, 4), THREADS, handle, v, count, flag);
    return ENI_LAUNCH(ctx, check_finite<1>, grid_of(ctx, count, 1), THREADS, handle, v, count, flag);
}

en_status eni_cuda_tick(en_ctx *ctx, cudaStream_t stream, uint32_t *word)
{
    return ENI_LAUNCH(ctx, tick, 1, 1, stream, word);
}
