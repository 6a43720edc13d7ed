/* model.c - one step of training: forward through the nodes of a network, backward up again.
 *
 * The operations are planned per batch size, with the memory that they need (prepared.h); a step then only walks
 * them. */
#include "entrain/model.h"

#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/evaluation.h"
#include "models/prepared.h"

/* ---- the model ----------------------------------------------------------------------------------------- */

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
    en_batch batch;           /* of the last forward */
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
    if (n < 1 || (mode != EN_MODEL_TRAIN && mode != EN_MODEL_EVALUATE))
        return eni_fail(EN_EINVAL, "model", "%s: a batch of %lld samples in mode %d",
                        model->schema->network->name, (long long)n, mode);
    eni_prepared *size = size_find(model, n, mode);
    if (size == NULL) {
        size = size_oldest(model);
        if (size == NULL)
            return eni_fail(EN_EINVAL, "model",
                            "%s: a batch of %lld samples: all %d sizes that a model has are to be kept",
                            model->schema->network->name, (long long)n, EN_MODEL_SIZES);
        if (model->last == size) model->last = NULL;
        eni_prepared_fini(size, model->device, model->ctx);
        EN_TRY(eni_prepare(model->schema, model->device, model->ctx, model->dtype, n, mode, size));
    }
    size->used = ++model->uses;
    *size_out = size;
    return EN_OK;
}

en_status en_model_prepare(en_model *model, int64_t n, int mode)
{
    eni_prepared *size;
    EN_TRY(size_of(model, n, mode & ~EN_MODEL_KEEP, &size));
    if (mode & EN_MODEL_KEEP) size->is_kept = true;
    return EN_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------- */

/* The weights of a node, and its statistics: NULL where it has none. */
static void give_tensors(const en_model *model, const en_node *node, const float *param, float *state,
                         en_args *args)
{
    const en_schema *schema = model->schema;
    if (node->ntensors > 0) args->w = param + schema->tensors[node->first].offset;
    if (node->ntensors > 1) args->b = param + schema->tensors[node->first + 1].offset;
    if (node->nbuffers > 0 && state != NULL) args->stats = state + schema->buffers[node->first_buffer].offset;
}

static en_status forward(en_model *model, const float *param, float *state, const en_batch *batch,
                         eni_prepared *size)
{
    model->last = NULL; /* nothing to go back from, should a node fail */
    for (uint32_t i = 0; i < size->nnodes; i++) {
        const eni_step_node *step = &size->nodes[i];
        const en_node *node = &model->schema->nodes[i];
        if (step->plan == NULL) continue;
        en_args args = {.size = sizeof args,
                        .x = step->x != NULL ? step->x : batch->x,
                        .y = step->y,
                        .x2 = step->x2 == NULL && node->x2 >= 0 ? batch->x : step->x2,
                        .target = batch->target,
                        .saved = step->saved,
                        .workspace = step->scratch[0]};
        give_tensors(model, node, param, state, &args);
        EN_TRY(model->device->forward(step->plan, &args));
    }
    model->last = size;
    model->batch = *batch;
    return EN_OK;
}

en_status en_model_forward(en_model *model, const float *param, float *state, const en_batch *batch)
{
    eni_prepared *size;
    EN_TRY(size_of(model, batch->n, EN_MODEL_TRAIN, &size));
    return forward(model, param, state, batch, size);
}

en_status eni_model_forward_only(en_model *model, const float *param, const float *state,
                                 const en_batch *batch)
{
    eni_prepared *size;
    EN_TRY(size_of(model, batch->n, EN_MODEL_EVALUATE, &size));
    if (model->schema->nstate > 0 && state == NULL)
        return eni_fail(EN_EBUG, "model", "%s: an evaluation without its running statistics",
                        model->schema->network->name);
    return forward(model, param, (float *)(uintptr_t)state, batch, size); /* which reads it only */
}

/* ---- backward ---------------------------------------------------------------------------------------- */

/* A finished contribution goes to the gradient of the input. */
static en_status join(const en_model *model, const eni_contribution *c)
{
    if (c->join == ENI_JOIN_NONE) return EN_OK;
    if (c->join == ENI_JOIN_COPY)
        return model->device->copy(model->ctx, c->to, c->from, c->bytes, EN_COPY_ON);
    const en_args args = {.size = sizeof args, .x = c->to, .x2 = c->from, .y = c->to};
    return model->device->forward(c->add, &args);
}

/* One node: the weights' gradient, then the gradient of its input, which reads the weights; then nobody but
 * on_ready's caller needs either any more. */
static en_status node_backward(const en_model *model, uint32_t at, const float *param, float *grad)
{
    const eni_step_node *step = &model->last->nodes[at];
    const en_node *node = &model->schema->nodes[at];
    en_args args = {.size = sizeof args,
                    .x = step->x != NULL ? step->x : model->batch.x,
                    .y = step->y,
                    .dy = step->dy,
                    .dx = step->dx,
                    .target = model->batch.target,
                    .saved = step->saved,
                    .workspace = step->scratch[1],
                    .loss_scale = model->loss_scale};
    give_tensors(model, node, param, NULL, &args);
    if (node->ntensors > 0) {
        args.dw = grad + model->schema->tensors[node->first].offset;
        if (node->ntensors > 1) args.db = grad + model->schema->tensors[node->first + 1].offset;
        EN_TRY(model->device->backward_weights(step->plan, &args));
    }
    if (step->dx != NULL) EN_TRY(model->device->backward_data(step->plan, &args));
    EN_TRY(join(model, &step->joins[0]));
    return join(model, &step->joins[1]);
}

en_status en_model_backward(en_model *model, const float *param, float *grad, en_on_grad_ready on_ready,
                            void *user)
{
    const eni_prepared *size = model->last;
    if (size == NULL || size->mode != EN_MODEL_TRAIN)
        return eni_fail(EN_EBUG, "model", "%s: backward without a forward before it",
                        model->schema->network->name);
    for (uint32_t i = size->nnodes - 1; i > 0; i--) {
        const en_node *node = &model->schema->nodes[i];
        if (!size->nodes[i].has_backward) continue;
        EN_TRY(node_backward(model, i, param, grad));
        if (node->ntensors > 0 && on_ready != NULL) EN_TRY(on_ready(user, node->first, node->ntensors));
    }
    return EN_OK;
}

/* ---- results ----------------------------------------------------------------------------------------- */

/* The loss of the last forward. */
static en_status last_node(const en_model *model, const eni_step_node **node_out)
{
    if (model->last == NULL)
        return eni_fail(EN_EBUG, "model", "%s: a result without a forward before it",
                        model->schema->network->name);
    *node_out = &model->last->nodes[model->last->nnodes - 1];
    return EN_OK;
}

en_status en_model_fetch(en_model *model, float pair[2])
{
    const eni_step_node *loss;
    EN_TRY(last_node(model, &loss));
    return model->device->copy(model->ctx, pair, loss->y, 2 * sizeof *pair, EN_COPY_OUT);
}

en_status eni_model_outputs(en_model *model, float *outputs)
{
    const eni_step_node *loss;
    EN_TRY(last_node(model, &loss));
    const uint64_t bytes = (uint64_t)(model->batch.n * model->schema->outputs) * sizeof *outputs;
    return model->device->copy(model->ctx, outputs, loss->x != NULL ? loss->x : model->batch.x, bytes,
                               EN_COPY_OUT);
}

en_status en_model_result(en_model *model, en_score *score_out)
{
    EN_TRY(en_model_fetch(model, model->pair));
    EN_TRY(model->device->sync(model->ctx));
    *score_out = (en_score){.loss = (double)model->pair[0], .correct = (int64_t)model->pair[1]};
    return EN_OK;
}

en_status en_model_evaluate(en_model *model, const float *param, const float *state, const en_batch *batch,
                            en_score *score_out)
{
    EN_TRY(eni_model_forward_only(model, param, state, batch));
    EN_TRY(en_model_result(model, score_out));
    score_out->loss *= (double)batch->n;
    return EN_OK;
}

const en_schema *eni_model_device(const en_model *model, eni_device *device_out)
{
    *device_out = (eni_device){.ops = model->device, .ctx = model->ctx};
    return model->schema;
}
