/* model.c - one step of training: forward down the list, backward up again.
 *
 * The layers are planned per batch size (prepared.c); this file only walks them. */
#include "entrain/model.h"

#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/model.h"
#include "models/prepared.h"

struct en_model {
    const en_schema *schema; /* borrowed, as the two below; outlive us */
    const en_device *device;
    en_ctx *ctx;
    uint32_t dtype;
    const float *loss_scale; /* device address, or NULL */
    float *pair; /* for en_model_result: whole pages; registered where the device has its own memory */
    eni_prepared sizes[EN_MODEL_SIZES]; /* n is 0 where none is */
    uint64_t uses;
    const eni_prepared *last; /* of the last forward or evaluate, or NULL */
    const void *target;       /* of the last forward */
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
    eni_error("model", "activations of type %u; a model computes in float32, bfloat16 or float16",
              options_out->dtype);
    return EN_EINVAL;
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
        eni_prepared_fini(&model->sizes[i], model->device, model->ctx);
    if (model->device->gpu != NULL) model->device->gpu->unregister_memory(model->ctx, model->pair);
    eni_free(model->pair);
    eni_free(model);
}

/* ---- batch sizes ------------------------------------------------------------------------------------- */

/* The prepared size, or NULL. */
static eni_prepared *size_find(en_model *model, int64_t n, int mode)
{
    for (int i = 0; i < EN_MODEL_SIZES; i++) {
        if (model->sizes[i].n == n && model->sizes[i].mode == mode) return &model->sizes[i];
    }
    return NULL;
}

/* An unused place, or that of the size that was not used for the longest time; NULL: all are to be kept. */
static eni_prepared *size_oldest(en_model *model)
{
    eni_prepared *oldest = NULL;
    for (int i = 0; i < EN_MODEL_SIZES; i++) {
        eni_prepared *size = &model->sizes[i];
        if (!size->is_kept && (oldest == NULL || size->used < oldest->used)) oldest = size;
    }
    return oldest;
}

static en_status size_of(en_model *model, int64_t n, int mode, eni_prepared **size_out)
{
    if (n < 1 || (mode != EN_MODEL_TRAIN && mode != EN_MODEL_EVALUATE)) {
        eni_error("model", "%s: a batch of %lld samples in mode %d", model->schema->network->name,
                  (long long)n, mode);
        return EN_EINVAL;
    }
    eni_prepared *size = size_find(model, n, mode);
    if (size == NULL) {
        size = size_oldest(model);
        if (size == NULL) {
            eni_error("model", "%s: a batch of %lld samples: all %d sizes that a model has are to be kept",
                      model->schema->network->name, (long long)n, EN_MODEL_SIZES);
            return EN_EINVAL;
        }
        if (model->last == size) model->last = NULL;
        eni_prepared_fini(size, model->device, model->ctx);
        EN_TRY(eni_prepared_init(model->schema, model->device, model->ctx, model->dtype, n, mode, size));
    }
    size->used = ++model->uses;
    *size_out = size;
    return EN_OK;
}

en_status en_model_prepare(en_model *model, int64_t n, int mode)
{
    eni_prepared *size;
    EN_TRY(size_of(model, n, mode & ~EN_MODEL_KEEP, &size));
    if (mode & EN_MODEL_KEEP) size->is_kept = 1;
    return EN_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------- */

static en_status forward(en_model *model, const float *param, const en_batch *batch, eni_prepared *size)
{
    const en_model_tensor *tensors = model->schema->tensors;
    const void *x = batch->x;
    model->last = NULL; /* nothing to go back from, should a layer fail */
    for (int i = 0; i < size->nstages; i++) {
        eni_stage *stage = &size->stages[i];
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
    eni_prepared *size;
    EN_TRY(size_of(model, batch->n, EN_MODEL_TRAIN, &size));
    return forward(model, param, batch, size);
}

en_status eni_model_forward_only(en_model *model, const float *param, const en_batch *batch)
{
    eni_prepared *size;
    EN_TRY(size_of(model, batch->n, EN_MODEL_EVALUATE, &size));
    return forward(model, param, batch, size);
}

/* ---- backward ---------------------------------------------------------------------------------------- */

/* One layer: the weights' gradient, then the gradient of its input unless it is the last to go, which reads
 * the weights; then nobody but on_ready's caller needs either any more. */
static en_status stage_backward(en_model *model, const eni_stage *stage, en_args *args, const float *param,
                                float *grad, int wants_dx, en_on_grad_ready on_ready, void *user)
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
    const eni_prepared *size = model->last;
    if (size == NULL || size->mode != EN_MODEL_TRAIN) {
        eni_error("model", "%s: backward without a forward before it", model->schema->network->name);
        return EN_EBUG;
    }
    void *dy = NULL, *dx = size->dy[0];
    for (int i = size->nstages - 1; i >= size->first_weights; i--) {
        const eni_stage *stage = &size->stages[i];
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
    const eni_prepared *size = model->last;
    if (size == NULL) {
        eni_error("model", "%s: a result without a forward before it", model->schema->network->name);
        return EN_EBUG;
    }
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
