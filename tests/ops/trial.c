#include "tests/ops/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/memory.h"
#include "core/rng.h"

enum { GUARD = 64, PATTERN = 0xff }; /* as floats: no numbers */

static float *new_floats(const trial *t, const char *name, int64_t count, int skew)
{
    if (t->memory != NULL)
        return t->memory->take(name, (size_t)count * sizeof(float), skew > 0 ? sizeof(float) : ENI_LINE);
    float *memory = eni_alloc_array((size_t)count + 16, sizeof *memory);
    assert_non_null(memory);
    for (int64_t i = 0; i < count + 16; i++)
        memory[i] = NAN;
    return memory + skew;
}

static float *new_random(const trial *t, const char *name, int64_t count, int skew, uint64_t seed,
                         uint64_t stream)
{
    const eni_rng_key key = {seed, ENI_RNG_TEST, 0, stream};
    float *values = new_floats(t, name, count, skew);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(2 * eni_rng_unit(&key, (uint64_t)i) - 1);
    return values;
}

unsigned char *trial_guarded(const trial *t, const char *name, uint64_t bytes)
{
    if (t->memory != NULL) return t->memory->take(name, bytes, ENI_LINE);
    unsigned char *memory = eni_alloc(bytes + GUARD);
    assert_non_null(memory);
    memset(memory, PATTERN, bytes + GUARD);
    return memory;
}

static void check_guard(const trial *t, const char *what, const unsigned char *memory, uint64_t bytes)
{
    for (int i = 0; i < GUARD && t->memory == NULL; i++)
        if (memory[bytes + (uint64_t)i] != PATTERN) fail_msg("%s wrote past its %s", trial_name(t), what);
}

static void *new_target(const trial *t, uint64_t seed)
{
    if (t->op.kind == EN_OP_MSE) return new_random(t, "target", t->nx, 0, seed, 5);
    int32_t *labels = (int32_t *)(void *)new_floats(t, "target", t->op.x.n, 0);
    const eni_rng_key key = {seed, ENI_RNG_TEST, 0, 6};
    for (int64_t i = 0; i < t->op.x.n; i++)
        labels[i] = (int32_t)eni_rng_below(&key, (uint64_t)i, (uint64_t)t->op.x.c);
    return labels;
}

float *trial_var(const trial *t)
{
    return t->stats + (t->nstats - 16) / 2;
}

int64_t *trial_batches(const trial *t)
{
    return (int64_t *)(void *)(t->stats + t->nstats - 16);
}

static float *new_stats(trial *t, uint64_t seed)
{
    t->stats = new_random(t, "stats", t->nstats, 0, seed, 8);
    for (int64_t k = 0; k < t->nb && t->nstats > 0; k++)
        trial_var(t)[k] = fabsf(trial_var(t)[k]) + 0.5f;
    if (t->nstats > 0) *trial_batches(t) = 41;
    return t->stats;
}

void trial_init(trial *t, const eni_device *device, const en_op *op, uint64_t seed)
{
    trial_init_in(t, NULL, device, op, seed);
}

void trial_init_in(trial *t, const trial_memory *memory, const eni_device *device, const en_op *op,
                   uint64_t seed)
{
    *t = (trial){.device = device, .memory = memory, .op = *op, .info.size = sizeof t->info};
    assert_int_equal(en_op_output(op, &t->y_extent), EN_OK);
    assert_int_equal(device->ops->plan(device->ctx, op, &t->plan), EN_OK);
    device->ops->plan_info(t->plan, &t->info);
    t->nx = en_extent_count(op->x);
    t->ny = en_extent_count(t->y_extent);
    t->nw = en_op_weights(op);
    t->nb = t->nw > 0 ? op->channels : 0;
    t->x = new_random(t, "x", t->nx, 0, seed, 1);
    t->w = new_random(t, "w", t->nw, 1, seed, 2);
    t->b = new_random(t, "b", t->nb, 1, seed, 3);
    t->dy = new_random(t, "dy", t->ny, 0, seed, 4);
    t->x2 = new_random(t, "x2", t->nx, 0, seed, 7);
    t->nstats = en_op_stats(op);
    t->stats = new_stats(t, seed);
    t->y = new_floats(t, "y", t->ny, 0);
    t->dx = new_floats(t, "dx", t->nx, 0);
    t->dw = new_floats(t, "dw", t->nw, 1);
    t->db = new_floats(t, "db", t->nb, 1);
    t->target = new_target(t, seed);
    t->saved = trial_guarded(t, "saved", t->info.saved_bytes);
    t->workspace = trial_guarded(t, "workspace", t->info.workspace_bytes);
}

static void give(const trial *t, void *memory)
{
    if (t->memory != NULL)
        t->memory->give(memory);
    else
        eni_free(memory);
}

void trial_fini(trial *t)
{
    void *const plain[] = {t->x, t->x2, t->dy, t->y, t->dx, t->stats, t->target, t->saved, t->workspace};
    float *const skewed[] = {t->w, t->b, t->dw, t->db};
    for (int i = 0; i < 9; i++)
        give(t, plain[i]);
    if (t->kept != NULL) give(t, t->kept);
    for (int i = 0; i < 4; i++)
        give(t, t->memory != NULL ? skewed[i] : skewed[i] - 1);
    t->device->ops->plan_free(t->plan);
}

en_args trial_args(const trial *t)
{
    return (en_args){.size = sizeof(en_args),
                     .x = t->x,
                     .y = t->y,
                     .w = t->w,
                     .b = t->b,
                     .dy = t->dy,
                     .dx = t->dx,
                     .dw = t->dw,
                     .db = t->db,
                     .target = t->target,
                     .saved = t->saved,
                     .workspace = t->workspace,
                     .x2 = t->x2,
                     .stats = t->stats,
                     .kept = t->kept,
                     .is_same_w = t->is_same_w};
}

void trial_run(trial *t)
{
    const en_device *ops = t->device->ops;
    const en_args args = trial_args(t);
    assert_int_equal(ops->forward(t->plan, &args), EN_OK);
    if (!(t->op.flags & EN_OP_FORWARD_ONLY)) {
        if (t->nw > 0) assert_int_equal(ops->backward_weights(t->plan, &args), EN_OK);
        if (!(t->op.flags & EN_OP_NO_DX)) assert_int_equal(ops->backward_data(t->plan, &args), EN_OK);
    }
    check_guard(t, "saved bytes", t->saved, t->info.saved_bytes);
    check_guard(t, "workspace", t->workspace, t->info.workspace_bytes);
    if (t->kept != NULL) check_guard(t, "kept bytes", t->kept, t->info.kept_bytes);
}

const char *trial_name(const trial *t)
{
    static char text[256];
    const en_op *op = &t->op;
    snprintf(
        text, sizeof text,
        "%s: op %u of (%lld, %lld, %lld, %lld) to %lld channels, window %lld, stride %lld, padding %lld, "
        "flags %u",
        t->device->ops->name, op->kind, (long long)op->x.n, (long long)op->x.h, (long long)op->x.w,
        (long long)op->x.c, (long long)op->channels, (long long)op->kernel_h, (long long)op->stride_h,
        (long long)op->pad_h, op->flags);
    return text;
}

void assert_close(const char *what, const trial *t, const float *a, const float *b, int64_t count,
                  double tolerance)
{
    double largest = 1e-3;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)b[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tolerance * largest))
            fail_msg("%s: %s[%lld] is %.9g, expected %.9g", trial_name(t), what, (long long)i, (double)a[i],
                     (double)b[i]);
}

en_op conv_op(en_extent x, int64_t channels, int64_t kernel, int64_t stride, int64_t pad, uint32_t flags)
{
    return (en_op){.size = sizeof(en_op),
                   .kind = EN_OP_CONV2D,
                   .dtype = EN_F32,
                   .flags = flags,
                   .x = x,
                   .channels = channels,
                   .kernel_h = kernel,
                   .kernel_w = kernel,
                   .stride_h = stride,
                   .stride_w = stride,
                   .pad_h = pad,
                   .pad_w = pad};
}

en_op linear_op(int64_t n, int64_t in, int64_t out, uint32_t flags)
{
    return (en_op){.size = sizeof(en_op),
                   .kind = EN_OP_LINEAR,
                   .dtype = EN_F32,
                   .flags = flags,
                   .x = {n, 1, 1, in},
                   .channels = out};
}

en_op pool_op(uint32_t kind, en_extent x, int64_t kernel, int64_t stride, int64_t pad)
{
    en_op op = conv_op(x, 0, kernel, stride, pad, 0);
    op.kind = kind;
    return op;
}

en_op plain_op(uint32_t kind, en_extent x)
{
    return (en_op){.size = sizeof(en_op), .kind = kind, .dtype = EN_F32, .x = x};
}

en_op batchnorm_op(en_extent x, uint32_t flags)
{
    en_op op = plain_op(EN_OP_BATCHNORM, x);
    op.flags = EN_OP_BIAS | flags;
    op.channels = x.c;
    op.eps = 1e-5f;
    op.momentum = 0.1f;
    return op;
}

const en_op *trial_ops(int *count_out)
{
    static en_op ops[128];
    const uint32_t bias = EN_OP_BIAS, relu = EN_OP_FUSE_RELU, sum = EN_OP_FUSE_ADD;
    const uint32_t max = EN_OP_MAXPOOL, relu_max = EN_OP_RELU_MAXPOOL;
    int n = 0;
    ops[n++] = conv_op((en_extent){64, 28, 28, 1}, 20, 5, 1, 0, bias | EN_OP_NO_DX); /* the convnet's */
    ops[n++] = conv_op((en_extent){64, 12, 12, 20}, 50, 5, 1, 0, bias);
    ops[n++] = conv_op((en_extent){37, 12, 12, 20}, 50, 5, 1, 0, bias);
    ops[n++] = conv_op((en_extent){1, 12, 12, 20}, 50, 5, 1, 0, bias);
    ops[n++] = conv_op((en_extent){6, 9, 8, 17}, 35, 3, 2, 1, bias | relu); /* windows over the edges */
    ops[n++] = conv_op((en_extent){3, 4, 5, 18}, 33, 4, 3, 2, 0);
    ops[n++] = conv_op((en_extent){4, 6, 5, 20}, 40, 3, 1, 1, bias | EN_OP_NO_DX);
    ops[n++] = conv_op((en_extent){3, 9, 9, 3}, 7, 3, 1, 1, 0);
    ops[n++] = conv_op((en_extent){2, 11, 7, 5}, 6, 3, 2, 1, bias | relu);
    ops[n++] = conv_op((en_extent){1, 8, 8, 16}, 32, 1, 2, 0, bias);
    ops[n++] = conv_op((en_extent){2, 5, 5, 1}, 1, 5, 1, 0, bias);
    ops[n++] = conv_op((en_extent){2, 16, 16, 64}, 64, 3, 1, 1, 0);
    ops[n++] = conv_op((en_extent){2, 15, 13, 3}, 16, 7, 2, 3, bias | relu | EN_OP_NO_DX);
    ops[n++] = linear_op(64, 800, 500, bias | relu);
    ops[n++] = linear_op(29, 500, 10, bias);
    ops[n++] = linear_op(1, 800, 500, bias);
    ops[n++] = linear_op(10, 10, 10, bias | relu);
    ops[n++] = linear_op(20, 10, 5, 0);
    ops[n++] = linear_op(1, 1, 1, bias);
    ops[n++] = linear_op(64, 784, 256, bias | relu | EN_OP_NO_DX);
    ops[n++] = plain_op(EN_OP_RELU, (en_extent){64, 1, 1, 500});
    ops[n++] = plain_op(EN_OP_RELU, (en_extent){1, 3, 5, 7});
    for (int i = 0; i < 2; i++) {
        const uint32_t kind = i == 0 ? max : relu_max;
        ops[n++] = pool_op(kind, (en_extent){64, 24, 24, 20}, 2, 2, 0);
        ops[n++] = pool_op(kind, (en_extent){31, 8, 8, 50}, 2, 2, 0);
        ops[n++] = pool_op(kind, (en_extent){2, 7, 9, 3}, 2, 2, 0);
        ops[n++] = pool_op(kind, (en_extent){1, 2, 2, 1}, 2, 2, 0);
        ops[n++] = pool_op(kind, (en_extent){1, 4, 6, 1100}, 2, 2, 0);
        ops[n++] = pool_op(kind, (en_extent){1, 4, 4, 2500}, 2, 2, 0);
        ops[n++] = pool_op(kind, (en_extent){2, 9, 8, 4}, 3, 2, 1);
        ops[n++] = pool_op(kind, (en_extent){2, 5, 5, 3}, 3, 1, 0);
        ops[n++] = pool_op(kind, (en_extent){3, 15, 16, 67}, 3, 2, 1);
        ops[n++] = pool_op(kind, (en_extent){1, 3, 4, 2050}, 3, 2, 1);
        ops[n++] =
            pool_op(kind, (en_extent){1, 5, 9, 3}, 2, 4, 0); /* rows and columns that no window reads */
    }
    ops[n++] = plain_op(EN_OP_FLATTEN, (en_extent){64, 4, 4, 50});
    ops[n++] = plain_op(EN_OP_FLATTEN, (en_extent){3, 5, 2, 7});
    ops[n++] = plain_op(EN_OP_FLATTEN, (en_extent){9, 1, 1, 33});
    for (uint32_t kind = EN_OP_LOG_SOFTMAX; kind <= EN_OP_MSE; kind++) {
        ops[n++] = plain_op(kind, (en_extent){64, 1, 1, 10});
        ops[n++] = plain_op(kind, (en_extent){1, 1, 1, 3});
        ops[n++] = plain_op(kind, (en_extent){7, 1, 1, 1});
    }
    ops[n++] = plain_op(EN_OP_MSE, (en_extent){2, 3, 4, 5});
    ops[n++] = conv_op((en_extent){2, 8, 8, 64}, 128, 1, 2, 0, 0); /* those of residual networks */
    ops[n++] = conv_op((en_extent){2, 8, 8, 64}, 128, 3, 2, 1, 0);
    ops[n++] = conv_op((en_extent){3, 32, 32, 3}, 64, 7, 2, 3, EN_OP_NO_DX);
    ops[n++] = conv_op((en_extent){3, 32, 32, 3}, 64, 3, 1, 1, EN_OP_NO_DX);
    ops[n++] = conv_op((en_extent){5, 8, 8, 8}, 16, 1, 2, 0, 0);
    ops[n++] = conv_op((en_extent){5, 7, 7, 8}, 8, 3, 1, 1, 0);
    ops[n++] = conv_op((en_extent){2, 32, 32, 3}, 8, 7, 2, 3, 0);
    ops[n++] = conv_op((en_extent){6, 16, 16, 16}, 24, 3, 1, 1, 0); /* by Winograd, on the cpu */
    ops[n++] = conv_op((en_extent){9, 9, 7, 32}, 16, 3, 1, 1, bias | relu);
    ops[n++] =
        conv_op((en_extent){9, 9, 9, 32}, 40, 3, 1, 1, bias | relu); /* two chunks, of 23 and 22 rows */
    ops[n++] = conv_op((en_extent){7, 8, 9, 48}, 40, 3, 1, 0, bias);
    ops[n++] = conv_op((en_extent){11, 5, 4, 24}, 16, 3, 1, 2, relu | EN_OP_NO_DX);
    ops[n++] = conv_op((en_extent){17, 4, 4, 32}, 64, 3, 1, 1, 0);
    ops[n++] = conv_op((en_extent){65, 2, 2, 16}, 24, 3, 1, 1, 0);
    ops[n++] = conv_op((en_extent){5, 2, 2, 16}, 24, 3, 2, 1,
                       bias | relu); /* one window: a linear layer, on the cpu */
    ops[n++] = conv_op((en_extent){5, 1, 1, 16}, 24, 1, 2, 0, bias);
    ops[n++] = conv_op((en_extent){4, 3, 3, 7}, 9, 3, 1, 0, bias | EN_OP_NO_DX);
    ops[n++] = conv_op((en_extent){3, 1, 1, 64}, 64, 3, 1, 1, 0); /* of 7x7 stems: the last images are 1x1 */
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t fused = (i & 1 ? relu : 0) | (i & 2 ? sum : 0);
        ops[n++] = batchnorm_op((en_extent){5, 32, 31, 8}, fused); /* more than four pieces of 1,024 pixels */
        ops[n++] = batchnorm_op((en_extent){3, 7, 5, 67}, fused);
        ops[n++] = batchnorm_op((en_extent){2, 1, 1, 512}, fused);
        ops[n++] = batchnorm_op((en_extent){1, 3, 1, 1}, fused);
    }
    ops[n++] = batchnorm_op((en_extent){2, 33, 33, 64}, relu | EN_OP_NO_DX);
    for (uint32_t i = 0; i < 2; i++) {
        ops[n] = plain_op(EN_OP_ADD, (en_extent){9, 16, 15, 8});
        ops[n++].flags = i == 0 ? 0 : relu;
        ops[n] = plain_op(EN_OP_ADD, (en_extent){1, 1, 3, 5});
        ops[n++].flags = i == 0 ? 0 : relu;
    }
    ops[n++] = pool_op(EN_OP_AVGPOOL, (en_extent){7, 4, 4, 512}, 0, 0, 0);
    ops[n++] = pool_op(EN_OP_AVGPOOL, (en_extent){3, 5, 3, 11}, 0, 0, 0);
    ops[n++] = pool_op(EN_OP_AVGPOOL, (en_extent){2, 9, 8, 300}, 3, 2, 1);
    ops[n++] = pool_op(EN_OP_AVGPOOL, (en_extent){2, 7, 7, 6}, 2, 3, 1);
    ops[n++] = pool_op(EN_OP_AVGPOOL, (en_extent){2, 6, 5, 4}, 2, 2, 0);
    *count_out = n;
    return ops;
}

static void round_all(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

void trial_round(trial *t)
{
    if (t->op.kind != EN_OP_CONV2D && t->op.kind != EN_OP_LINEAR) return;
    round_all(t->x, t->nx);
    round_all(t->w, t->nw);
    round_all(t->dy, t->ny);
}

int cpu_has_bf16(void)
{
#ifdef __x86_64__
    const char *most = getenv("DNNL_MAX_CPU_ISA");
    return __builtin_cpu_supports("avx512bf16") && (most == NULL || strcmp(most, "ALL") == 0);
#else
    return 0;
#endif
}

static int open_cpu_as(eni_device *device_out, int threads, uint32_t flags)
{
    const eni_device_options how = {
        .plugin_dir = EN_BUILD_DIR "/plugins", .threads = threads, .flags = flags};
    if (access(EN_BUILD_DIR "/plugins/device_cpu.so", F_OK) != 0) return 0;
    assert_int_equal(eni_device_open_with("cpu", &how, device_out), EN_OK);
    return 1;
}

int open_cpu(eni_device *device_out, int threads)
{
    return open_cpu_as(device_out, threads, 0);
}

int open_cpu_bf16(eni_device *device_out, int threads)
{
    return cpu_has_bf16() && open_cpu_as(device_out, threads, EN_OPEN_BF16);
}
