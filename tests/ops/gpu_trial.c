#include "tests/ops/gpu_trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"

enum { GUARD = 256, PATTERN = 0xff }; /* every byte 0xff is not a number in all types */

/* ---- numbers ------------------------------------------------------------------------------------------- */

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* To a multiple of the unit that the exponent leaves; 2^-24 is the least. */
static uint16_t to_f16(float value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double size = fabs((double)value);
    int exponent;
    if (value != value) return 0x7fff;
    if (size == 0.0) return sign;
    if (size >= 65520.0) return (uint16_t)(sign | 0x7c00);
    (void)frexp(size, &exponent); /* size = m * 2^exponent, 1/2 <= m < 1 */
    const int power = exponent < -13 ? -24 : exponent - 11;
    const int64_t units =
        (int64_t)nearbyint(ldexp(size, -power)); /* below 2048; 2048 carries into the exponent */
    return (uint16_t)(sign | (power == -24 ? units : ((int64_t)(power + 24) << 10) + units));
}

static float from_16(uint16_t bits, uint32_t dtype)
{
    if (dtype == EN_BF16) {
        const uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                        : exponent == 0 ? ldexp(fraction, -24)
                                        : ldexp(fraction + 1024, exponent - 25);
    return (float)(bits & 0x8000 ? -size : size);
}

float gpu_rounded(float value, uint32_t dtype)
{
    if (dtype == EN_BF16) return from_16(to_bf16(value), dtype);
    return dtype == EN_F16 ? from_16(to_f16(value), dtype) : value;
}

static void round_all(float *values, int64_t count, uint32_t dtype)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = gpu_rounded(values[i], dtype);
}

static void scale_all(float *values, int64_t count, float by)
{
    for (int64_t i = 0; i < count; i++)
        values[i] *= by;
}

/* ---- tensors between guards ---------------------------------------------------------------------------- */

static uint64_t image_bytes(const gpu_tensor *t)
{
    return eni_round_up(2 * GUARD + t->skew + t->bytes, GUARD);
}

static void *address(const gpu_tensor *t)
{
    return t->memory + GUARD + t->skew;
}

static void put(gpu_trial *t, gpu_tensor *tensor)
{
    GPU_OK(t->rig->ops->copy(t->rig->ctx, tensor->memory, tensor->image, image_bytes(tensor), EN_COPY_IN));
    GPU_OK(t->rig->ops->sync(t->rig->ctx));
}

static void look(gpu_trial *t, gpu_tensor *tensor)
{
    GPU_OK(t->rig->ops->copy(t->rig->ctx, tensor->now, tensor->memory, image_bytes(tensor), EN_COPY_OUT));
    GPU_OK(t->rig->ops->sync(t->rig->ctx));
}

static void store(gpu_tensor *tensor, const void *values)
{
    unsigned char *to = tensor->image + GUARD + tensor->skew;
    if (values == NULL) return;
    if (en_dtype_bytes(tensor->dtype) != 2) {
        memcpy(to, values, tensor->bytes);
        return;
    }
    for (int64_t i = 0; i < tensor->count; i++) {
        const float value = ((const float *)values)[i];
        const uint16_t bits = tensor->dtype == EN_BF16 ? to_bf16(value) : to_f16(value);
        memcpy(to + 2 * i, &bits, sizeof bits);
    }
}

/* values NULL: an output, filled with what is not a number. */
static void tensor_init(gpu_trial *t, gpu_tensor *tensor, int64_t count, uint32_t dtype, const void *values,
                        uint64_t skew)
{
    *tensor = (gpu_tensor){
        .bytes = (uint64_t)count * en_dtype_bytes(dtype), .skew = skew, .dtype = dtype, .count = count};
    const uint64_t bytes = image_bytes(tensor);
    void *memory = NULL;
    tensor->image = eni_alloc(bytes);
    tensor->now = eni_alloc(bytes);
    assert_non_null(tensor->image);
    assert_non_null(tensor->now);
    memset(tensor->image, PATTERN, bytes);
    store(tensor, values);
    GPU_OK(t->rig->ops->alloc(t->rig->ctx, bytes, &memory));
    tensor->memory = memory;
    put(t, tensor);
}

static void tensor_fini(gpu_trial *t, gpu_tensor *tensor)
{
    t->rig->ops->free(t->rig->ctx, tensor->memory);
    eni_free(tensor->image);
    eni_free(tensor->now);
}

/* Only [the tensor] may differ from what was put there, and that only if it is an output. */
static void check_tensor(gpu_trial *t, int which, const char *name, int is_output)
{
    gpu_tensor *tensor = &t->tensor[which];
    const uint64_t begin = GUARD + tensor->skew, end = begin + tensor->bytes, bytes = image_bytes(tensor);
    look(t, tensor);
    for (uint64_t i = 0; i < bytes; i++) {
        if (tensor->now[i] == tensor->image[i] || (is_output && i >= begin && i < end)) continue;
        fail_msg("%s: byte %lld of %s (%llu bytes) was written", gpu_trial_name(t), (long long)(i - begin),
                 name, (unsigned long long)tensor->bytes);
    }
}

/* ---- a trial ------------------------------------------------------------------------------------------- */

static uint32_t y_dtype(const en_op *op)
{
    return op->kind == EN_OP_LOG_SOFTMAX || (op->kind >= EN_OP_NLL && op->kind <= EN_OP_MSE) ? EN_F32
                                                                                             : op->dtype;
}

static int is_loss(const en_op *op)
{
    return op->kind >= EN_OP_NLL && op->kind <= EN_OP_MSE;
}

static void run_ref(gpu_trial *t)
{
    trial *want = &t->want;
    const en_device *ops = want->device->ops;
    const en_args args = trial_args(want);
    assert_int_equal(ops->forward(want->plan, &args), EN_OK);
    round_all(want->y, want->ny, y_dtype(&t->op));
    if (t->op.flags & EN_OP_FORWARD_ONLY) return;
    if (want->nw > 0) assert_int_equal(ops->backward_weights(want->plan, &args), EN_OK);
    if (!(t->op.flags & EN_OP_NO_DX)) assert_int_equal(ops->backward_data(want->plan, &args), EN_OK);
    if (t->scale == 0.0f) return;
    if (is_loss(&t->op)) scale_all(want->dx, want->nx, t->scale);
    scale_all(want->dw, want->nw, 1.0f / t->scale);
    if (t->op.flags & EN_OP_BIAS) scale_all(want->db, want->nb, 1.0f / t->scale);
}

/* ref has no cast: a relu stands in, and its results are replaced. */
static en_op op_of_ref(const en_op *op)
{
    en_op plain = *op;
    plain.dtype = EN_F32;
    if (op->kind == EN_OP_CAST) plain.kind = EN_OP_RELU;
    return plain;
}

void gpu_trial_init(gpu_trial *t, gpu_rig *rig, const eni_device *ref, const en_op *op, uint64_t skew,
                    float scale)
{
    const en_op plain = op_of_ref(op);
    const uint32_t dtype = op->dtype, x_dtype = op->kind == EN_OP_CAST ? EN_F32 : dtype, y = y_dtype(op);
    *t = (gpu_trial){.rig = rig, .op = *op, .skew = skew, .scale = scale, .info.size = sizeof t->info};
    trial *want = &t->want;
    trial_init(want, ref, &plain, 7);
    round_all(want->x, want->nx, x_dtype);
    round_all(want->x2, want->nx, dtype);
    /* Those of a batch normalisation are float32 whatever the type. */
    round_all(want->w, op->kind == EN_OP_BATCHNORM ? 0 : want->nw, dtype);
    round_all(want->b, op->kind == EN_OP_BATCHNORM ? 0 : want->nb, dtype);
    round_all(want->dy, want->ny, y);
    GPU_OK(rig->ops->plan(rig->ctx, op, &t->plan));
    rig->ops->plan_info(t->plan, &t->info);
    gpu_tensor *of = t->tensor;
    tensor_init(t, &of[GPU_X], want->nx, x_dtype, want->x, 0);
    tensor_init(t, &of[GPU_X2], want->nx, dtype, want->x2, 0);
    tensor_init(t, &of[GPU_W], want->nw, EN_F32, want->w, skew);
    tensor_init(t, &of[GPU_B], want->nb, EN_F32, want->b, skew);
    tensor_init(t, &of[GPU_DY], want->ny, y, want->dy, 0);
    tensor_init(t, &of[GPU_Y], want->ny, y, NULL, 0);
    tensor_init(t, &of[GPU_DX], want->nx, dtype, NULL, 0);
    tensor_init(t, &of[GPU_DW], want->nw, EN_F32, NULL, skew);
    tensor_init(t, &of[GPU_DB], want->nb, EN_F32, NULL, skew);
    tensor_init(t, &of[GPU_TARGET], op->kind == EN_OP_MSE ? want->nx : op->x.n, EN_I32, want->target, 0);
    tensor_init(t, &of[GPU_STATS], want->nstats, EN_F32, want->stats, 0);
    tensor_init(t, &of[GPU_SAVED], (int64_t)t->info.saved_bytes, EN_U8, NULL, 0);
    tensor_init(t, &of[GPU_WORK], (int64_t)t->info.workspace_bytes, EN_U8, NULL, 0);
    tensor_init(t, &t->loss_scale, 1, EN_F32, &scale, 0);
    run_ref(t);
    for (int64_t i = 0; op->kind == EN_OP_CAST && i < want->ny; i++)
        want->y[i] = gpu_rounded(want->x[i], dtype);
}

void gpu_trial_fini(gpu_trial *t)
{
    for (int i = 0; i < GPU_TENSORS; i++)
        tensor_fini(t, &t->tensor[i]);
    tensor_fini(t, &t->loss_scale);
    t->rig->ops->plan_free(t->plan);
    trial_fini(&t->want);
}

void gpu_trial_set(gpu_trial *t, int which, const float *values)
{
    store(&t->tensor[which], values);
    put(t, &t->tensor[which]);
}

static void run_backward(gpu_trial *t, const en_args *args)
{
    const en_device *ops = t->rig->ops;
    if (t->op.flags & EN_OP_FORWARD_ONLY) return;
    if (t->want.nw > 0) GPU_OK(ops->backward_weights(t->plan, args));
    if (!(t->op.flags & EN_OP_NO_DX)) GPU_OK(ops->backward_data(t->plan, args));
}

en_args gpu_trial_args(const gpu_trial *t)
{
    const gpu_tensor *of = t->tensor;
    return (en_args){.size = sizeof(en_args),
                     .x = address(&of[GPU_X]),
                     .x2 = address(&of[GPU_X2]),
                     .y = address(&of[GPU_Y]),
                     .w = address(&of[GPU_W]),
                     .b = address(&of[GPU_B]),
                     .dy = address(&of[GPU_DY]),
                     .dx = address(&of[GPU_DX]),
                     .dw = address(&of[GPU_DW]),
                     .db = address(&of[GPU_DB]),
                     .target = address(&of[GPU_TARGET]),
                     .stats = t->want.nstats > 0 ? address(&of[GPU_STATS]) : NULL,
                     .saved = address(&of[GPU_SAVED]),
                     .workspace = address(&of[GPU_WORK]),
                     .loss_scale = t->scale != 0.0f ? address(&t->loss_scale) : NULL};
}

void gpu_trial_enqueue(gpu_trial *t)
{
    const en_args args = gpu_trial_args(t);
    GPU_OK(t->rig->ops->forward(t->plan, &args));
    run_backward(t, &args);
}

void gpu_trial_look(gpu_trial *t, int which)
{
    look(t, &t->tensor[which]);
}

void gpu_trial_run(gpu_trial *t, float *y_out)
{
    gpu_tensor *of = t->tensor;
    const en_args args = gpu_trial_args(t);
    put(t, &of[GPU_DY]);
    put(t, &of[GPU_STATS]);
    GPU_OK(t->rig->ops->forward(t->plan, &args));
    check_tensor(t, GPU_Y, "y", 1);
    if (y_out) {
        float *y = gpu_trial_floats(t, GPU_Y);
        memcpy(y_out, y, (size_t)t->want.ny * sizeof *y);
        eni_free(y);
    }
    store(&of[GPU_Y], t->want.y);
    put(t, &of[GPU_Y]);
    run_backward(t, &args);
    const uint32_t flags = t->op.flags;
    const int trains = !(flags & EN_OP_FORWARD_ONLY);
    check_tensor(t, GPU_X, "x", 0);
    check_tensor(t, GPU_X2, "x2", 0);
    check_tensor(t, GPU_Y, "y", 0);
    check_tensor(t, GPU_W, "w", 0);
    check_tensor(t, GPU_B, "b", 0);
    check_tensor(t, GPU_DY, "dy", trains && t->want.nw > 0 && flags & EN_OP_FUSE_RELU);
    check_tensor(t, GPU_DX, "dx", trains && !(flags & EN_OP_NO_DX));
    check_tensor(t, GPU_DW, "dw", trains);
    check_tensor(t, GPU_DB, "db", trains && flags & EN_OP_BIAS);
    check_tensor(t, GPU_TARGET, "target", 0);
    check_tensor(t, GPU_STATS, "stats", trains);
    check_tensor(t, GPU_SAVED, "saved", 1);
    check_tensor(t, GPU_WORK, "workspace", 1);
}

const void *gpu_trial_bits(const gpu_trial *t, int which)
{
    return t->tensor[which].now + GUARD + t->tensor[which].skew;
}

float *gpu_trial_floats(const gpu_trial *t, int which)
{
    const gpu_tensor *tensor = &t->tensor[which];
    const unsigned char *bits = gpu_trial_bits(t, which);
    float *values = eni_alloc_array((size_t)tensor->count + 1, sizeof *values);
    assert_non_null(values);
    if (en_dtype_bytes(tensor->dtype) == 4) memcpy(values, bits, tensor->bytes);
    for (int64_t i = 0; en_dtype_bytes(tensor->dtype) == 2 && i < tensor->count; i++) {
        uint16_t half;
        memcpy(&half, bits + 2 * i, sizeof half);
        values[i] = from_16(half, tensor->dtype);
    }
    return values;
}

const char *gpu_trial_name(const gpu_trial *t)
{
    static char text[320];
    static const char *const types[] = {"?", "f32", "bf16", "f16"};
    const en_op *op = &t->op;
    snprintf(text, sizeof text,
             "%s op %u of (%lld, %lld, %lld, %lld) to %lld channels, window %lld, stride %lld, padding %lld, "
             "flags "
             "%u, skew %llu, scale %g (%s %s %s)",
             types[op->dtype & 3], op->kind, (long long)op->x.n, (long long)op->x.h, (long long)op->x.w,
             (long long)op->x.c, (long long)op->channels, (long long)op->kernel_h, (long long)op->stride_h,
             (long long)op->pad_h, op->flags, (unsigned long long)t->skew, (double)t->scale, t->info.forward,
             t->info.backward_weights, t->info.backward_data);
    return text;
}
