/* model.c - one step of training: forward down the list, backward up again.
 *
 * The layers are planned per batch size, with the memory that they need; a step then only walks them. */
#include "entrain/model.h"

#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/evaluation.h"
#include "models/layer.h"

/* ---- all layers, planned for batches of one size ------------------------------------------------------ */

/* Memory is laid out twice with the same code: first from address 0 to learn the size, then in the block
 * that was allocated. While training every output is kept for backward; evaluation needs only the last, so
 * two areas take turns, each as wide as what it will hold. The gradients of activations do so too. */

/* One layer, or the cast in front of the first. */
typedef struct stage_of_size {
    en_plan *plan; /* NULL: a view, the output is the input */
    void *y;       /* own memory for the output; unset for a view */
    void *saved;
    const void *in, *out; /* of the last forward: the first layer reads the batch where it is */
    uint32_t first;       /* its tensors in the schema */
    uint32_t ntensors;    /* 0: none; weight, then bias */
} stage_of_size;

typedef struct prepared_size {
    int64_t n;   /* samples */
    int mode;    /* EN_MODEL_TRAIN or EN_MODEL_EVALUATE */
    int is_kept; /* EN_MODEL_KEEP */
    uint64_t used;
    int nstages;
    int first_weights;     /* the first stage with weights: where backward ends */
    stage_of_size *stages; /* (nstages); the last is the loss, its y float[2] */
    void *dy[2];           /* gradients of activations, used in turn from dy[0] on; train only */
    void *workspace;       /* one call's scratch */
    void *memory;          /* the device memory that all of the above lie in */
} prepared_size;

/* What planning finds out about a stage, and its place needs. */
typedef struct need {
    uint64_t x_bytes, y_bytes;
    uint64_t saved_bytes;
    uint64_t workspace_bytes;
} need;

static uint64_t extent_bytes(en_extent e, uint32_t dtype)
{
    return (uint64_t)en_extent_count(e) * en_dtype_bytes(dtype);
}

/* Plans one operation. */
static en_status stage_plan(prepared_size *p, const en_schema *schema, const en_device *device, en_ctx *ctx,
                            en_op *op, stage_of_size *stage, need *need_out)
{
    en_extent y;
    en_plan_info info = {.size = sizeof info};
    if (en_op_output(op, &y) != EN_OK)
        return eni_fail(EN_EINVAL, "prepared", "%s: a batch of %lld samples is too large",
                        schema->network->name, (long long)p->n);
    if (p->mode == EN_MODEL_EVALUATE) op->flags |= EN_OP_FORWARD_ONLY;
    EN_TRY(device->plan(ctx, op, &stage->plan));
    device->plan_info(stage->plan, &info);
    *need_out = (need){extent_bytes(op->x, eni_op_x_dtype(op)), extent_bytes(y, eni_op_y_dtype(op)),
                       info.saved_bytes, info.workspace_bytes};
    return EN_OK;
}

/* The layers from stage `i` on; the first of them gets x, of type dtype. */
static en_status layers_plan(prepared_size *p, const en_schema *schema, const en_device *device, en_ctx *ctx,
                             int i, en_extent x, uint32_t dtype, need *needs)
{
    uint32_t tensor = 0;
    p->first_weights = -1;
    for (const en_layer *layer = schema->network->layers; layer->op != 0; layer++, i++) {
        stage_of_size *stage = &p->stages[i];
        en_op op = eni_layer_op(layer, x, dtype);
        if (en_op_weights(&op) > 0) {
            stage->first = tensor;
            stage->ntensors = op.flags & EN_OP_BIAS ? 2 : 1;
            tensor += stage->ntensors;
            if (p->first_weights < 0) p->first_weights = i;
        }
        if (p->first_weights < 0 || p->first_weights == i) op.flags |= EN_OP_NO_DX;
        if (!eni_layer_is_view(layer, x)) EN_TRY(stage_plan(p, schema, device, ctx, &op, stage, &needs[i]));
        (void)en_op_output(&op, &x); /* the schema was made of the same list */
        dtype = eni_op_y_dtype(&op);
    }
    return EN_OK;
}

static en_status stages_plan(prepared_size *p, const en_schema *schema, const en_device *device, en_ctx *ctx,
                             uint32_t dtype, need *needs)
{
    en_extent x = schema->network->input;
    x.n = p->n;
    if (dtype == EN_F32) return layers_plan(p, schema, device, ctx, 0, x, dtype, needs);
    en_op cast = eni_cast_op(x, dtype);
    EN_TRY(stage_plan(p, schema, device, ctx, &cast, &p->stages[0], &needs[0]));
    return layers_plan(p, schema, device, ctx, 1, x, dtype, needs);
}

/* Takes `bytes` from the block; its start moves on by whole lines of the device. */
static void *carve(uint64_t *cursor, uint64_t bytes, uint64_t align)
{
    void *place = (void *)(uintptr_t)*cursor; /* NOLINT(performance-no-int-to-ptr): an address to be */
    *cursor += eni_round_up(bytes, align);
    return place;
}

/* How wide the two areas are that take turns: outputs from the first stage on, or gradients of inputs from
 * the last. */
static void turn_widths(const prepared_size *p, const need *needs, uint64_t width_out[2])
{
    int turn = 0;
    width_out[0] = width_out[1] = 0;
    for (int k = 0; k < p->nstages; k++) {
        const int is_train = p->mode == EN_MODEL_TRAIN, i = is_train ? p->nstages - 1 - k : k;
        if (p->stages[i].plan == NULL) continue;
        if (is_train && i <= p->first_weights) break; /* nobody asks for the gradient of its input */
        const uint64_t bytes = is_train ? needs[i].x_bytes : needs[i].y_bytes;
        if (bytes > width_out[turn]) width_out[turn] = bytes;
        turn = !turn;
    }
}

/* Lays everything out from `base`; returns the bytes used. */
static uint64_t layout(prepared_size *p, const need *needs, uint64_t base, uint64_t align)
{
    uint64_t cursor = base, width[2], workspace = 0;
    for (int i = 0; i < p->nstages; i++) {
        if (needs[i].workspace_bytes > workspace) workspace = needs[i].workspace_bytes;
    }
    turn_widths(p, needs, width);
    void *turn[2], *area[2] = {carve(&cursor, width[0], align), carve(&cursor, width[1], align)};
    turn[0] = area[0];
    turn[1] = area[1];
    for (int i = 0; i < p->nstages; i++) {
        stage_of_size *stage = &p->stages[i];
        if (stage->plan == NULL) continue;
        stage->saved = carve(&cursor, needs[i].saved_bytes, align);
        if (p->mode == EN_MODEL_TRAIN) {
            stage->y = carve(&cursor, needs[i].y_bytes, align);
        } else {
            stage->y = turn[0]; /* the input of this stage lies in the other one */
            turn[0] = turn[1];
            turn[1] = stage->y;
        }
    }
    p->dy[0] = area[0];
    p->dy[1] = area[1];
    p->workspace = carve(&cursor, workspace, align);
    return cursor - base;
}

/* Safe on a zeroed struct. */
static void discard(prepared_size *prepared, const en_device *device, en_ctx *ctx)
{
    for (int i = 0; prepared->stages != NULL && i < prepared->nstages; i++) {
        if (prepared->stages[i].plan != NULL) device->plan_free(prepared->stages[i].plan);
    }
    if (prepared->memory != NULL) device->free(ctx, prepared->memory);
    eni_free(prepared->stages);
    *prepared = (prepared_size){0};
}

/* Plans and allocates, for activations of type dtype. EN_ENOMEM, or what the device says (logged there). */
static en_status prepare(const en_schema *schema, const en_device *device, en_ctx *ctx, uint32_t dtype,
                         int64_t n, int mode, prepared_size *prepared_out)
{
    prepared_size p = {.n = n, .mode = mode, .nstages = dtype == EN_F32 ? 0 : 1};
    for (const en_layer *layer = schema->network->layers; layer->op != 0; layer++)
        p.nstages++;
    p.stages = eni_alloc_array((size_t)p.nstages, sizeof *p.stages);
    need *needs = eni_alloc_array((size_t)p.nstages, sizeof *needs);
    en_status st = p.stages != NULL && needs != NULL ? EN_OK : EN_ENOMEM;
    if (st != EN_OK) goto free_all;
    EN_TRY_GOTO(stages_plan(&p, schema, device, ctx, dtype, needs), free_all);
    EN_TRY_GOTO(device->alloc(ctx, layout(&p, needs, 0, device->align), &p.memory), free_all);
    layout(&p, needs, (uint64_t)(uintptr_t)p.memory, device->align);
    eni_free(needs);
    *prepared_out = p;
    return EN_OK;

free_all:
    eni_free(needs);
    discard(&p, device, ctx);
    return st;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

struct en_model {
    const en_schema *schema; /* borrowed, as the two below; outlive us */
    const en_device *device;
    en_ctx *ctx;
    uint32_t dtype;
    const float *loss_scale; /* device address, or NULL */
    float *pair; /* for en_model_result: whole pages; registered where the device has its own memory */
    prepared_size sizes[EN_MODEL_SIZES]; /* n is 0 where none is */
    uint64_t uses;
    const prepared_size *last; /* of the last forward or evaluate, or NULL */
    const void *target;        /* of the last forward */
};

/* A reader never touches what lies beyond the size that the writer stated. */
static en_status options_read(const en_model_options *given, en_model_options *options_out)
{
    *options_out = (en_model_options){.size = sizeof *options_out, .dtype = EN_F32};
    if (given == NULL) return EN_OK;
    const uint32_t size = given->size < sizeof *options_out ? given->size : (uint32_t)sizeof *options_out;
    memcpy(options_out, given, size);
    if (options_out->dtype == 0) options_out->dtype = EN_F32;
    if (options_out->dtype == EN_F32 || options_out->dtype == EN_BF16 || options_out->dtype == EN_F16)
        return EN_OK;
    return eni_fail(EN_EINVAL, "model",
                    "activations of type %u; a model computes in float32, bfloat16 or float16",
                    options_out->dtype);
}

en_status en_model_new(const en_schema *schema, const en_device *device, en_ctx *ctx,
                       const en_model_options *options, en_model **model_out)
{
    en_status st;
    en_model_options o;
    EN_TRY(options_read(options, &o));
    en_model *model = eni_alloc(sizeof *model);
    if (model == NULL) return EN_ENOMEM;
    *model = (en_model){
        .schema = schema, .device = device, .ctx = ctx, .dtype = o.dtype, .loss_scale = o.loss_scale};
    model->pair = eni_alloc_pages(2 * sizeof *model->pair);
    st = model->pair != NULL ? EN_OK : EN_ENOMEM;
    if (st == EN_OK && device->gpu != NULL)
        st = device->gpu->register_memory(ctx, model->pair, 2 * sizeof *model->pair);
    if (st != EN_OK) goto free_model;
    *model_out = model;
    return EN_OK;

free_model:
    eni_free(model->pair);
    eni_free(model);
    return st;
}

void en_model_free(en_model *model)
{
    if (model == NULL) return;
    for (int i = 0; i < EN_MODEL_SIZES; i++)
        discard(&model->sizes[i], model->device, model->ctx);
    if (model->device->gpu != NULL) model->device->gpu->unregister_memory(model->ctx, model->pair);
    eni_free(model->pair);
    eni_free(model);
}

/* ---- batch sizes ------------------------------------------------------------------------------------- */

/* The prepared size, or NULL. */
static prepared_size *size_find(en_model *model, int64_t n, int mode)
{
    for (int i = 0; i < EN_MODEL_SIZES; i++) {
        if (model->sizes[i].n == n && model->sizes[i].mode == mode) return &model->sizes[i];
    }
    return NULL;
}

/* An unused place, or that of the size that was not used for the longest time; NULL: all are to be kept. */
static prepared_size *size_oldest(en_model *model)
{
    prepared_size *oldest = NULL;
    for (int i = 0; i < EN_MODEL_SIZES; i++) {
        prepared_size *size = &model->sizes[i];
        if (!size->is_kept && (oldest == NULL || size->used < oldest->used)) oldest = size;
    }
    return oldest;
}

static en_status size_of(en_model *model, int64_t n, int mode, prepared_size **size_out)
{
    if (n < 1 || (mode != EN_MODEL_TRAIN && mode != EN_MODEL_EVALUATE))
        return eni_fail(EN_EINVAL, "model", "%s: a batch of %lld samples in mode %d",
                        model->schema->network->name, (long long)n, mode);
    prepared_size *size = size_find(model, n, mode);
    if (size == NULL) {
        size = size_oldest(model);
        if (size == NULL)
            return eni_fail(EN_EINVAL, "model",
                            "%s: a batch of %lld samples: all %d sizes that a model has are to be kept",
                            model->schema->network->name, (long long)n, EN_MODEL_SIZES);
        if (model->last == size) model->last = NULL;
        discard(size, model->device, model->ctx);
        EN_TRY(prepare(model->schema, model->device, model->ctx, model->dtype, n, mode, size));
    }
    size->used = ++model->uses;
    *size_out = size;
    return EN_OK;
}

en_status en_model_prepare(en_model *model, int64_t n, int mode)
{
    prepared_size *size;
    EN_TRY(size_of(model, n, mode & ~EN_MODEL_KEEP, &size));
    if (mode & EN_MODEL_KEEP) size->is_kept = 1;
    return EN_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------- */

static en_status forward(en_model *model, const float *param, const en_batch *batch, prepared_size *size)
{
    const en_model_tensor *tensors = model->schema->tensors;
    const void *x = batch->x;
    model->last = NULL; /* nothing to go back from, should a layer fail */
    for (int i = 0; i < size->nstages; i++) {
        stage_of_size *stage = &size->stages[i];
        stage->in = x;
        stage->out = stage->plan == NULL ? x : stage->y;
        x = stage->out;
        if (stage->plan == NULL) continue;
        en_args args = {.size = sizeof args,
                        .x = stage->in,
                        .y = stage->y,
                        .target = batch->target,
                        .saved = stage->saved,
                        .workspace = size->workspace};
        if (stage->ntensors > 0) args.w = param + tensors[stage->first].offset;
        if (stage->ntensors > 1) args.b = param + tensors[stage->first + 1].offset;
        EN_TRY(model->device->forward(stage->plan, &args));
    }
    model->last = size;
    model->target = batch->target;
    return EN_OK;
}

en_status en_model_forward(en_model *model, const float *param, const en_batch *batch)
{
    prepared_size *size;
    EN_TRY(size_of(model, batch->n, EN_MODEL_TRAIN, &size));
    return forward(model, param, batch, size);
}

en_status eni_model_forward_only(en_model *model, const float *param, const en_batch *batch)
{
    prepared_size *size;
    EN_TRY(size_of(model, batch->n, EN_MODEL_EVALUATE, &size));
    return forward(model, param, batch, size);
}

/* ---- backward ---------------------------------------------------------------------------------------- */

/* One layer: the weights' gradient, then the gradient of its input unless it is the last to go, which reads
 * the weights; then nobody but on_ready's caller needs either any more. */
static en_status stage_backward(en_model *model, const stage_of_size *stage, en_args *args,
                                const float *param, float *grad, int wants_dx, en_on_grad_ready on_ready,
                                void *user)
{
    const en_model_tensor *tensors = model->schema->tensors;
    if (stage->ntensors > 0) {
        args->w = param + tensors[stage->first].offset;
        args->dw = grad + tensors[stage->first].offset;
        if (stage->ntensors > 1) {
            args->b = param + tensors[stage->first + 1].offset;
            args->db = grad + tensors[stage->first + 1].offset;
        }
        EN_TRY(model->device->backward_weights(stage->plan, args));
    }
    if (wants_dx) EN_TRY(model->device->backward_data(stage->plan, args));
    if (stage->ntensors == 0 || on_ready == NULL) return EN_OK;
    return on_ready(user, stage->first, stage->ntensors);
}

en_status en_model_backward(en_model *model, const float *param, float *grad, en_on_grad_ready on_ready,
                            void *user)
{
    const prepared_size *size = model->last;
    if (size == NULL || size->mode != EN_MODEL_TRAIN)
        return eni_fail(EN_EBUG, "model", "%s: backward without a forward before it",
                        model->schema->network->name);
    void *dy = NULL, *dx = size->dy[0];
    for (int i = size->nstages - 1; i >= size->first_weights; i--) {
        const stage_of_size *stage = &size->stages[i];
        if (stage->plan == NULL) continue; /* a view: its dx is its dy */
        en_args args = {.size = sizeof args,
                        .x = stage->in,
                        .y = stage->y,
                        .dy = dy,
                        .dx = dx,
                        .target = model->target,
                        .saved = stage->saved,
                        .workspace = size->workspace,
                        .loss_scale = model->loss_scale};
        EN_TRY(stage_backward(model, stage, &args, param, grad, i > size->first_weights, on_ready, user));
        dy = dx;
        dx = dx == size->dy[0] ? size->dy[1] : size->dy[0];
    }
    return EN_OK;
}

/* ---- results ----------------------------------------------------------------------------------------- */

en_status en_model_fetch(en_model *model, float pair[2])
{
    const prepared_size *size = model->last;
    if (size == NULL)
        return eni_fail(EN_EBUG, "model", "%s: a result without a forward before it",
                        model->schema->network->name);
    return model->device->copy(model->ctx, pair, size->stages[size->nstages - 1].y, 2 * sizeof *pair,
                               EN_COPY_OUT);
}

en_status en_model_result(en_model *model, en_score *score_out)
{
    EN_TRY(en_model_fetch(model, model->pair));
    EN_TRY(model->device->sync(model->ctx));
    *score_out = (en_score){.loss = (double)model->pair[0], .correct = (int64_t)model->pair[1]};
    return EN_OK;
}

en_status en_model_evaluate(en_model *model, const float *param, const en_batch *batch, en_score *score_out)
{
    EN_TRY(eni_model_forward_only(model, param, batch));
    EN_TRY(en_model_result(model, score_out));
    score_out->loss *= (double)batch->n;
    return EN_OK;
}

const en_schema *eni_model_device(const en_model *model, eni_device *device_out)
{
    *device_out = (eni_device){.ops = model->device, .ctx = model->ctx};
    return model->schema;
}
