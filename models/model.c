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
#include "models/node.h"
#include "models/prepared.h"
#include "models/split.h"

/* ---- the model ----------------------------------------------------------------------------------------- */

/* A batch in flight, from its forward to its backward. */
typedef struct in_flight {
    const eni_prepared *size;   /* size of the last forward or evaluate, or NULL */
    const eni_step_node *nodes; /* (schema->nnodes) of that size and, if several are in flight, this batch */
    en_batch batch;
} in_flight;

struct en_model {
    const en_schema *schema; /* borrowed, as the two below; outlive us */
    const en_device *device;
    en_ctx *ctx;
    en_model_options options; /* with all defaults resolved */
    eni_part part;
    float *pair; /* for en_model_result: whole pages; registered if the device has its own memory */
    eni_prepared sizes[EN_MODEL_SIZES]; /* n is 0 if unused */
    uint64_t uses;
    in_flight *batches; /* (options.in_flight) */
    uint32_t turn;
    uint64_t weights; /* a number for each en_model_new_weights, from 1 on */
};

/* Never reads beyond the size that the writer stated. */
static en_status options_read(const en_schema *schema, const en_model_options *given,
                              en_model_options *options_out)
{
    en_model_options o = {0};
    if (given != NULL) memcpy(&o, given, given->size < sizeof o ? given->size : sizeof o);
    if (o.dtype == 0) o.dtype = EN_F32;
    if (o.in_flight == 0) o.in_flight = 1;
    if (o.first == 0 && o.end == 0) o.end = schema->nnodes;
    if (o.dtype != EN_F32 && o.dtype != EN_BF16 && o.dtype != EN_F16)
        return eni_fail(EN_EINVAL, "model",
                        "unknown activation type %u; expected float32, bfloat16 or float16", o.dtype);
    *options_out = o;
    return EN_OK;
}

static en_status take_memory(en_model *model)
{
    const en_gpu *gpu = model->device->gpu;
    model->pair = eni_alloc_pages(2 * sizeof *model->pair);
    model->batches = eni_alloc_array(model->options.in_flight, sizeof *model->batches);
    if (model->pair == NULL || model->batches == NULL) return EN_ENOMEM;
    return gpu != NULL ? gpu->register_memory(model->ctx, model->pair, 2 * sizeof *model->pair) : EN_OK;
}

en_status en_model_new(const en_schema *schema, const en_device *device, en_ctx *ctx,
                       const en_model_options *options, en_model **model_out)
{
    en_model_options o;
    eni_part part;
    EN_TRY(options_read(schema, options, &o));
    EN_TRY(eni_split_part(schema, o.first, o.end, &part));
    if (o.input != (uint32_t)part.input)
        return eni_fail(EN_EINVAL, "model", "%s: input node %u given for nodes %u to %u; expected node %d",
                        schema->network->name, o.input, o.first, o.end, part.input);
    en_model *model = eni_alloc(sizeof *model);
    if (model == NULL) return EN_ENOMEM;
    *model =
        (en_model){.schema = schema, .device = device, .ctx = ctx, .options = o, .part = part, .weights = 1};
    const en_status st = take_memory(model);
    if (st == EN_OK) {
        *model_out = model;
        return EN_OK;
    }
    eni_free(model->batches);
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
    eni_free(model->batches);
    eni_free(model->pair);
    eni_free(model);
}

static in_flight *current(const en_model *model)
{
    return &model->batches[model->turn];
}

en_status en_model_turn(en_model *model, uint32_t turn)
{
    if (turn >= model->options.in_flight)
        return eni_fail(EN_EINVAL, "model", "%s: no batch %u; the model keeps %u in flight",
                        model->schema->network->name, turn, model->options.in_flight);
    model->turn = turn;
    return EN_OK;
}

void en_model_new_weights(en_model *model)
{
    model->weights++;
}

/* ---- batch sizes ------------------------------------------------------------------------------------- */

/* Finds a prepared size, or returns NULL. */
static eni_prepared *size_find(en_model *model, int64_t n, int mode)
{
    for (int i = 0; i < EN_MODEL_SIZES; i++)
        if (model->sizes[i].n == n && model->sizes[i].mode == mode) return &model->sizes[i];
    return NULL;
}

/* An unused entry, or the least recently used one; NULL if all are kept. */
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
        return eni_fail(EN_EINVAL, "model", "%s: invalid batch of %lld samples in mode %d",
                        model->schema->network->name, (long long)n, mode);
    eni_prepared *size = size_find(model, n, mode);
    if (size == NULL) {
        size = size_oldest(model);
        if (size == NULL)
            return eni_fail(EN_EINVAL, "model",
                            "%s: no room to prepare batches of %lld samples: all %d sizes are kept",
                            model->schema->network->name, (long long)n, EN_MODEL_SIZES);
        for (uint32_t i = 0; i < model->options.in_flight; i++)
            if (model->batches[i].size == size) model->batches[i].size = NULL;
        eni_prepared_fini(size, model->device, model->ctx);
        EN_TRY(eni_prepare(model->schema, model->device, model->ctx, &model->options, n, mode, size));
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

/* Where a tensor begins in the part's range of a flat vector. */
static uint64_t tensor_at(const en_model *model, uint32_t tensor)
{
    return model->schema->tensors[tensor].offset - model->part.lo;
}

/* Sets the weights and the statistics of a node; NULL if it has none. */
static void give_tensors(const en_model *model, const en_node *node, const float *param, float *state,
                         en_args *args)
{
    if (node->ntensors > 0) args->w = param + tensor_at(model, node->first);
    if (node->ntensors > 1) args->b = param + tensor_at(model, node->first + 1);
    if (node->nbuffers > 0 && state != NULL)
        args->stats = state + (model->schema->buffers[node->first_buffer].offset - model->part.state_lo);
}

enum { FORWARD, BACKWARD_DATA }; /* of eni_kept_weights */

static void give_kept(const en_model *model, const eni_kept_weights *kept, int call, en_args *args)
{
    args->kept = kept->memory;
    args->is_same_w = model->options.keeps_weights && kept->of[call] == model->weights;
}

static en_status forward(en_model *model, const float *param, float *state, const en_batch *batch,
                         eni_prepared *size)
{
    in_flight *now = current(model);
    const eni_step_node *nodes = size->nodes;
    if (size->in_flight > 1) nodes += (size_t)model->turn * size->nnodes;
    now->size = NULL; /* no backward if a node fails */
    for (uint32_t i = model->part.first; i < model->part.end; i++) {
        const eni_step_node *step = &nodes[i];
        const en_node *node = &model->schema->nodes[i];
        if (step->plan == NULL) continue;
        en_args args = {.size = sizeof args,
                        .x = step->x != NULL ? step->x : batch->x,
                        .y = step->y,
                        .x2 = step->x2 == NULL && node->x2 >= 0 ? batch->x : step->x2,
                        .target = batch->target,
                        .saved = step->saved,
                        .workspace = step->scratch[0],
                        .label = node->name};
        give_tensors(model, node, param, state, &args);
        give_kept(model, &size->kept[i], FORWARD, &args);
        EN_TRY(model->device->forward(step->plan, &args));
        size->kept[i].of[FORWARD] = model->weights;
    }
    *now = (in_flight){.size = size, .nodes = nodes, .batch = *batch};
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
    if (model->part.state_hi > model->part.state_lo && state == NULL)
        return eni_fail(EN_EBUG, "model", "%s: evaluation without running statistics",
                        model->schema->network->name);
    return forward(model, param, (float *)(uintptr_t)state, batch, size); /* only read */
}

/* ---- backward ---------------------------------------------------------------------------------------- */

/* Adds a finished contribution to the gradient of the input. */
static en_status join(const en_model *model, const eni_contribution *c)
{
    if (c->join == ENI_JOIN_NONE) return EN_OK;
    if (c->join == ENI_JOIN_COPY)
        return model->device->copy(model->ctx, c->to, c->from, c->bytes, EN_COPY_ON);
    const en_args args = {.size = sizeof args, .x = c->to, .x2 = c->from, .y = c->to};
    return model->device->forward(c->add, &args);
}

/* One node: the weights' gradient, then the gradient of its input, which reads the weights; afterwards only on_ready's
 * caller uses either. */
static en_status node_backward(const en_model *model, uint32_t at, const float *param, float *grad)
{
    const in_flight *now = current(model);
    const eni_step_node *step = &now->nodes[at];
    const en_node *node = &model->schema->nodes[at];
    eni_kept_weights *kept = &now->size->kept[at];
    en_args args = {.size = sizeof args,
                    .x = step->x != NULL ? step->x : now->batch.x,
                    .y = step->y,
                    .dy = step->dy,
                    .dx = step->dx,
                    .target = now->batch.target,
                    .saved = step->saved,
                    .workspace = step->scratch[1],
                    .loss_scale = model->options.loss_scale,
                    .label = node->name};
    give_tensors(model, node, param, NULL, &args);
    if (node->ntensors > 0) {
        args.dw = grad + tensor_at(model, node->first);
        if (node->ntensors > 1) args.db = grad + tensor_at(model, node->first + 1);
        EN_TRY(model->device->backward_weights(step->plan, &args));
    }
    if (step->dx != NULL) {
        give_kept(model, kept, BACKWARD_DATA, &args);
        EN_TRY(model->device->backward_data(step->plan, &args));
        kept->of[BACKWARD_DATA] = model->weights;
    }
    EN_TRY(join(model, &step->joins[0]));
    return join(model, &step->joins[1]);
}

en_status en_model_backward(en_model *model, const float *param, float *grad, en_on_grad_ready on_ready,
                            void *user)
{
    const in_flight *now = current(model);
    const eni_part *part = &model->part;
    if (now->size == NULL || now->size->mode != EN_MODEL_TRAIN)
        return eni_fail(EN_EBUG, "model", "%s: backward without a forward before it",
                        model->schema->network->name);
    for (uint32_t i = part->end - 1; i > 0 && i >= part->first; i--) {
        const en_node *node = &model->schema->nodes[i];
        if (!now->nodes[i].has_backward) continue;
        EN_TRY(node_backward(model, i, param, grad));
        if (node->ntensors > 0 && on_ready != NULL) EN_TRY(on_ready(user, node->first, node->ntensors));
    }
    return EN_OK;
}

/* ---- results ----------------------------------------------------------------------------------------- */

static en_status after_forward(const en_model *model)
{
    if (current(model)->size != NULL) return EN_OK;
    return eni_fail(EN_EBUG, "model", "%s: result without a forward before it", model->schema->network->name);
}

/* The last node of the last forward. */
static en_status last_node(const en_model *model, const eni_step_node **node_out)
{
    const uint32_t nnodes = model->schema->nnodes;
    EN_TRY(after_forward(model));
    if (model->part.end < nnodes)
        return eni_fail(EN_EBUG, "model", "%s: nodes %u to %u have no result, since they end before the loss",
                        model->schema->network->name, model->part.first, model->part.end);
    *node_out = &current(model)->nodes[nnodes - 1];
    return EN_OK;
}

en_status en_model_ends_of(en_model *model, en_model_ends *ends_out)
{
    const eni_part *part = &model->part;
    EN_TRY(after_forward(model));
    const in_flight *now = current(model);
    en_model_ends ends = {0};
    if (part->end < model->schema->nnodes) {
        const eni_step_node *last = &now->nodes[eni_node_root(model->schema, (int32_t)part->end - 1)];
        ends.y = last->y;
        ends.y_bytes = now->size->y_bytes;
        ends.dy = last->dy;
    }
    if (part->input > 0) ends.dx = now->nodes[part->input].dy;
    if (ends.dx != NULL) ends.dx_bytes = now->size->dx_bytes;
    *ends_out = ends;
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
    const en_batch *batch = &current(model)->batch;
    const uint64_t bytes = (uint64_t)(batch->n * model->schema->outputs) * sizeof *outputs;
    return model->device->copy(model->ctx, outputs, loss->x != NULL ? loss->x : batch->x, bytes, EN_COPY_OUT);
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

uint64_t eni_model_bytes(const en_model *model)
{
    uint64_t bytes = 0;
    for (int i = 0; i < EN_MODEL_SIZES; i++)
        bytes += model->sizes[i].bytes * model->sizes[i].in_flight + model->sizes[i].kept_bytes;
    return bytes;
}
