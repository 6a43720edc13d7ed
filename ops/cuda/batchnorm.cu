/* batchnorm.cu - batch normalisation over the rows (N H W, C) of a tensor, with a sum and a relu behind it.
 *
 *     forward             sum_parts: mean and squares of each part of the rows -> join_moments: of all rows
 *                         -> combine: y; one block moves the running statistics
 *     .. FORWARD_ONLY     combine, by the running statistics
 *     backward_weights    sum_parts: masks dy, sums dy and dy (x - mean) -> join_gradients: dw, db
 *     backward_data       combine: dx
 *
 * A block has a tile of up to TILE packs of channels side by side; a thread has one of them, in every
 * `groups`-th row. Sums are float within a part, double over the parts, in an order that follows from the
 * extent: always the same bits.
 *
 * Squares of a part are of gaps from its first row, which saves the pass over memory that its mean would
 * take. Cancellation is bounded, since no number of n is further than sqrt(n) deviations from their mean. */
#include "core/try.h"
#include "ops/cuda/element.h"

enum {
    TILE = 32,  /* packs */
    EACH = 4,   /* rows that a thread loads at once */
    PART = 8,   /* rows of a thread in a part .. */
    MANY = 512, /* .. or more, for at most this many parts */
    SIDE = 8,   /* channels of a block that joins parts */
    LANES = ENI_BLOCK / SIDE
};

typedef struct bn_shape {
    uint32_t rows, channels, packs; /* packs in a row */
    uint32_t width, tiles,
        groups;            /* packs in a tile; tiles side by side; rows that a block handles at once */
    uint32_t part, nparts; /* rows in a part */
} bn_shape;

/* By channel. */
typedef struct bn_channels {
    const float *w, *b;
    float *mean, *var; /* saved; in evaluation the running ones */
    float *mean_dy;    /* saved for backward_data, which subtracts both from dy: its mean, */
    float *slope;      /* and that of dy (x - mean), over the variance. NULL: forward */
    float eps;
} bn_channels;

typedef struct bn_stats {
    float *mean, *var; /* NULL if nothing moves */
    long long *batches;
    float momentum;
} bn_stats;

/* A thread's pack of channels and its row among the groups; the rows of its block. */
typedef struct bn_place {
    uint32_t pack, group, stretch;
    bool is_idle;
} bn_place;

static __device__ bn_place place_of(bn_shape s)
{
    bn_place p;
    p.pack = blockIdx.x % s.tiles * s.width + threadIdx.x % s.width;
    p.group = threadIdx.x / s.width;
    p.stretch = blockIdx.x / s.tiles;
    p.is_idle = p.pack >= s.packs || p.group >= s.groups;
    return p;
}

/* EACH of a thread's rows from `row` on, those before `end`. */
template <typename T, int V>
static __device__ void load(eni_pack<T, V> v[EACH], const T *from, uint32_t row, uint32_t end, bn_place p,
                            bn_shape s)
{
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (row + i * s.groups < end)
            v[i] = ((const eni_pack<T, V> *)from)[(row + i * s.groups) * s.packs + p.pack];
}

static __device__ float inverse_of(float var, float eps)
{
    return 1.0f / sqrtf(var + eps);
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

/* Adds the values of all groups, in pairs, to those of group 0. */
template <int V> static __device__ void add_groups(float a[V], float b[V], bn_place p, bn_shape s)
{
    __shared__ float sums[2 * V][ENI_BLOCK];
    const uint32_t at = threadIdx.x;
    for (int k = 0; k < V; k++) {
        sums[k][at] = a[k];
        sums[V + k][at] = b[k];
    }
    for (uint32_t n = s.groups; n > 1;) {
        const uint32_t rest = (n + 1) / 2;
        __syncthreads();
        for (int k = 0; k < 2 * V; k++)
            if (p.group < n - rest) sums[k][at] += sums[k][at + rest * s.width];
        n = rest;
    }
    for (int k = 0; k < V; k++) {
        a[k] = sums[k][at];
        b[k] = sums[V + k][at];
    }
}

/* parts (nparts, 2, C). dy NULL: the mean of x, and the sum of the squares of the gaps from it. Else the sum
 * of dy, zeroed where y, if given, is not positive, and that of dy (x - mean). */
template <typename T, int V>
__global__ void sum_parts(const T *x, const T *y, T *dy, const float *mean, float *parts, bn_shape s)
{
    const bn_place p = place_of(s);
    const uint32_t first = p.stretch * s.part, end = min(first + s.part, s.rows);
    eni_pack<T, V> v[EACH], d[EACH], out[EACH];
    float from[V], sum[V], product[V];
    if (!p.is_idle) v[0] = ((const eni_pack<T, V> *)x)[first * s.packs + p.pack];
    for (int k = 0; k < V; k++) {
        from[k] = p.is_idle ? 0.0f : dy ? mean[p.pack * V + k] : to_float(v[0].at[k]);
        sum[k] = product[k] = 0.0f;
    }
    for (uint32_t row = first + p.group; row < end && !p.is_idle; row += EACH * s.groups) {
        load(v, x, row, end, p, s);
        if (dy) load(d, (const T *)dy, row, end, p, s);
        if (y) load(out, y, row, end, p, s);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (row + i * s.groups >= end) break;
            for (int k = 0; k < V; k++) {
                if (y && to_float(out[i].at[k]) <= 0.0f) from_float(0.0f, &d[i].at[k]);
                const float gap = to_float(v[i].at[k]) - from[k], with = dy ? to_float(d[i].at[k]) : gap;
                sum[k] += with;
                product[k] += with * gap;
            }
            if (y) ((eni_pack<T, V> *)dy)[(row + i * s.groups) * s.packs + p.pack] = d[i];
        }
    }
    add_groups<V>(sum, product, p, s);
    if (p.is_idle || p.group > 0) return;
    float *to = parts + (size_t)p.stretch * 2 * s.channels + p.pack * V;
    for (int k = 0; k < V; k++) {
        const float gap = dy ? 0.0f : sum[k] / (float)(end - first); /* of the part's mean */
        to[k] = dy ? sum[k] : from[k] + gap;
        to[s.channels + k] = product[k] - sum[k] * gap;
    }
}

/* The sum over the LANES threads with one channel, in all of them. */
static __device__ double add_lanes(double v)
{
    __shared__ double sums[ENI_BLOCK];
    sums[threadIdx.x] = v;
    for (uint32_t n = ENI_BLOCK / 2; n >= SIDE; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n) sums[threadIdx.x] += sums[threadIdx.x + n];
    }
    __syncthreads();
    v = sums[threadIdx.x % SIDE];
    __syncthreads();
    return v;
}

__global__ void join_moments(const float *parts, bn_channels to, bn_shape s)
{
    const uint32_t c = blockIdx.x * SIDE + threadIdx.x % SIDE, lane = threadIdx.x / SIDE;
    const uint32_t nparts = c < s.channels ? s.nparts : 0;
    double sum = 0.0, squares = 0.0;
    for (uint32_t i = lane; i < nparts; i += LANES)
        sum += (double)parts[(size_t)i * 2 * s.channels + c] * (double)min(s.part, s.rows - i * s.part);
    const double mean = add_lanes(sum) / s.rows;
    for (uint32_t i = lane; i < nparts; i += LANES) {
        const float *part = parts + (size_t)i * 2 * s.channels + c;
        const double gap = (double)part[0] - mean;
        squares += (double)part[s.channels] + gap * gap * (double)min(s.part, s.rows - i * s.part);
    }
    const double var = add_lanes(squares) / s.rows;
    if (c >= s.channels || lane > 0) return;
    to.mean[c] = (float)mean;
    to.var[c] = var < 0.0 ? 0.0f : (float)var; /* by rounding; NaN passes */
}

__global__ void join_gradients(const float *parts, bn_channels to, float *dw, float *db,
                               const float *loss_scale, bn_shape s)
{
    const uint32_t c = blockIdx.x * SIDE + threadIdx.x % SIDE, lane = threadIdx.x / SIDE;
    const uint32_t nparts = c < s.channels ? s.nparts : 0;
    double sum = 0.0, product = 0.0;
    for (uint32_t i = lane; i < nparts; i += LANES) {
        sum += (double)parts[(size_t)i * 2 * s.channels + c];
        product += (double)parts[((size_t)i * 2 + 1) * s.channels + c];
    }
    sum = add_lanes(sum);
    product = add_lanes(product);
    if (c >= s.channels || lane > 0) return;
    const float scale = scale_of(loss_scale);
    const double inverse = (double)inverse_of(to.var[c], to.eps);
    db[c] = (float)sum / scale;
    dw[c] = (float)(product * inverse) / scale;
    to.mean_dy[c] = (float)(sum / s.rows);
    to.slope[c] = (float)(product * inverse * inverse / s.rows);
}

/* ---- element by element -------------------------------------------------------------------------------- */

/* Moves all running statistics, or none if one would not be finite. One block. */
static __device__ void move_stats(bn_stats stats, bn_channels by, bn_shape s)
{
    __shared__ int is_broken;
    const float unbiased = (float)s.rows / (float)(s.rows - 1), stays = 1.0f - stats.momentum;
    if (threadIdx.x == 0) is_broken = 0;
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < s.channels; c += ENI_BLOCK)
        if (!isfinite(by.mean[c]) || !isfinite(by.var[c] * unbiased)) atomicOr(&is_broken, 1);
    __syncthreads();
    if (is_broken) return;
    for (uint32_t c = threadIdx.x; c < s.channels; c += ENI_BLOCK) {
        stats.mean[c] = stays * stats.mean[c] + stats.momentum * by.mean[c];
        stats.var[c] = stays * stats.var[c] + stats.momentum * (by.var[c] * unbiased);
    }
    if (threadIdx.x == 0) ++*stats.batches;
}

/* Forward: y = (x - mean) f + b + x2, f = w / sqrt(var + eps), and relu; x2 may be NULL. With slopes: dx from
 * x and dy. `to` may be an input. */
template <typename T, int V>
__global__ void combine(const T *x, const T *with, T *to, bn_channels by, int relu, bn_stats stats,
                        bn_shape s)
{
    if (stats.mean && blockIdx.x == gridDim.x - 1) return move_stats(stats, by, s);
    const bn_place p = place_of(s);
    if (p.is_idle) return;
    const uint32_t row = p.stretch * EACH * s.groups + p.group;
    eni_pack<T, V> v[EACH], d[EACH];
    float mean[V], factor[V], with_factor[V], shift[V];
    load(v, x, row, s.rows, p, s);
    if (with) load(d, with, row, s.rows, p, s);
    for (int k = 0; k < V; k++) {
        const uint32_t c = p.pack * V + k;
        const float f = by.w[c] * inverse_of(by.var[c], by.eps);
        mean[k] = by.mean[c];
        factor[k] = by.slope ? -f * by.slope[c] : f;
        with_factor[k] = by.slope ? f : 1.0f;
        shift[k] = by.slope ? -f * by.mean_dy[c] : by.b[c];
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (row + i * s.groups >= s.rows) return;
        for (int k = 0; k < V; k++) {
            float sum = (to_float(v[i].at[k]) - mean[k]) * factor[k] + shift[k];
            if (with) sum += to_float(d[i].at[k]) * with_factor[k];
            from_float(relu ? relu_of(sum) : sum, &v[i].at[k]);
        }
        ((eni_pack<T, V> *)to)[(row + i * s.groups) * s.packs + p.pack] = v[i];
    }
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static bn_shape shape_of(const en_plan *plan, int width)
{
    const en_extent x = plan->op.x;
    bn_shape s;
    s.rows = (uint32_t)(x.n * x.h * x.w);
    s.channels = (uint32_t)x.c;
    s.packs = s.channels / (uint32_t)width;
    s.width = (uint32_t)eni_least(s.packs, TILE);
    s.tiles = eni_blocks(s.packs, s.width);
    s.groups = ENI_BLOCK / s.width;
    const uint32_t least = eni_blocks(s.rows, MANY);
    s.part = s.groups * PART > least ? s.groups * PART : least;
    s.nparts = eni_blocks(s.rows, s.part);
    return s;
}

static bn_channels channels_of(const en_plan *plan, const en_args *args)
{
    const bool trains = !(plan->op.flags & EN_OP_FORWARD_ONLY);
    const int64_t c = plan->op.channels, padded = (en_op_stats(&plan->op) - 16) / 2;
    bn_channels by;
    by.w = (const float *)args->w;
    by.b = (const float *)args->b;
    by.eps = plan->op.eps;
    by.mean = trains ? (float *)args->saved : args->stats;
    by.var = by.mean + (trains ? c : padded);
    by.mean_dy = trains ? by.mean + 2 * c : NULL;
    by.slope = trains ? by.mean + 3 * c : NULL;
    return by;
}

static bn_stats stats_of(const en_plan *plan, const en_args *args)
{
    const int64_t padded = (en_op_stats(&plan->op) - 16) / 2;
    float *at = args->stats;
    if (!at || plan->op.flags & EN_OP_FORWARD_ONLY) return bn_stats{};
    return bn_stats{at, at + padded, (long long *)(at + 2 * padded), plan->op.momentum};
}

template <typename T, int V> static en_status run_prepare(en_plan *plan)
{
    const bn_shape s = shape_of(plan, V);
    plan->info.saved_bytes = (uint64_t)s.channels * 4 * sizeof(float);
    plan->info.workspace_bytes = (uint64_t)s.nparts * 2 * s.channels * sizeof(float);
    return EN_OK;
}

/* y NULL: no mask; dy NULL: forward. */
template <typename T, int V>
static en_status run_sums(const en_plan *plan, const en_args *args, const void *y, void *dy)
{
    const bn_shape s = shape_of(plan, V);
    return ENI_LAUNCH(plan->ctx, (sum_parts<T, V>), s.tiles * s.nparts, ENI_BLOCK, eni_cuda_stream(plan),
                      (const T *)args->x, (const T *)y, (T *)dy, (const float *)args->saved,
                      (float *)args->workspace, s);
}

template <typename T, int V>
static en_status run_combine(const en_plan *plan, const en_args *args, const void *with, void *to, int relu,
                             bn_channels by, bn_stats stats)
{
    const bn_shape s = shape_of(plan, V);
    const uint32_t blocks = s.tiles * eni_blocks(s.rows, s.groups * EACH);
    return ENI_LAUNCH(plan->ctx, (combine<T, V>), blocks + (stats.mean ? 1 : 0), ENI_BLOCK,
                      eni_cuda_stream(plan), (const T *)args->x, (const T *)with, (T *)to, by, relu, stats,
                      s);
}

template <typename T, int V> static en_status run_forward(const en_plan *plan, const en_args *args)
{
    const uint32_t flags = plan->op.flags;
    const bn_shape s = shape_of(plan, V);
    bn_channels by = channels_of(plan, args);
    if (!(flags & EN_OP_FORWARD_ONLY)) {
        EN_TRY((run_sums<T, V>(plan, args, NULL, NULL)));
        EN_TRY(ENI_LAUNCH(plan->ctx, join_moments, eni_blocks(s.channels, SIDE), ENI_BLOCK,
                          eni_cuda_stream(plan), (const float *)args->workspace, by, s));
    }
    by.slope = NULL;
    return run_combine<T, V>(plan, args, flags & EN_OP_FUSE_ADD ? args->x2 : NULL, args->y,
                             (flags & EN_OP_FUSE_RELU) != 0, by, stats_of(plan, args));
}

template <typename T, int V> static en_status run_weights(const en_plan *plan, const en_args *args)
{
    const bn_shape s = shape_of(plan, V);
    EN_TRY((run_sums<T, V>(plan, args, plan->op.flags & EN_OP_FUSE_RELU ? args->y : NULL, args->dy)));
    return ENI_LAUNCH(plan->ctx, join_gradients, eni_blocks(s.channels, SIDE), ENI_BLOCK,
                      eni_cuda_stream(plan), (const float *)args->workspace, channels_of(plan, args),
                      (float *)args->dw, (float *)args->db, args->loss_scale, s);
}

template <typename T, int V> static en_status run_data(const en_plan *plan, const en_args *args)
{
    return run_combine<T, V>(plan, args, args->dy, args->dx, 0, channels_of(plan, args), bn_stats{});
}

static en_status prepare(en_plan *plan)
{
    if (plan->op.flags & EN_OP_FORWARD_ONLY) return EN_OK;
    return ENI_PACKED(plan->op.dtype, plan->y.c, run_prepare, plan);
}

ENI_PACKED_CALL(forward, run_forward, plan->y.c)
ENI_PACKED_CALL(backward_weights, run_weights, plan->y.c)
ENI_PACKED_CALL(backward_data, run_data, plan->y.c)

const eni_cuda_kernel eni_cuda_batchnorm = {prepare, NULL, forward, backward_weights, backward_data};
