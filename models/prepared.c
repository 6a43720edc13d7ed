/* prepared.c - see prepared.h.
 *
 * Memory is laid out twice with the same code: first from address 0 to learn the size, then in the block
 * that was allocated. While training every output is kept for backward; evaluation needs only the last, so
 * two areas take turns, each as wide as what it will hold. The gradients of activations do so too. */
#include "models/prepared.h"

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/layer.h"

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
static en_status stage_plan(eni_prepared *p, const en_schema *schema, const en_device *device, en_ctx *ctx,
                            en_op *op, eni_stage *stage, need *need_out)
{
    en_extent y;
    en_plan_info info = {.size = sizeof info};
    if (en_op_output(op, &y) != EN_OK) {
        eni_error("prepared", "%s: a batch of %lld samples is too large", schema->network->name,
                  (long long)p->n);
        return EN_EINVAL;
    }
    if (p->mode == EN_MODEL_EVALUATE) op->flags |= EN_OP_FORWARD_ONLY;
    EN_TRY(device->plan(ctx, op, &stage->plan));
    device->plan_info(stage->plan, &info);
    *need_out = (need){extent_bytes(op->x, eni_op_x_dtype(op)), extent_bytes(y, eni_op_y_dtype(op)),
                       info.saved_bytes, info.workspace_bytes};
    return EN_OK;
}

/* The layers from stage `i` on; the first of them gets x, of type dtype. */
static en_status layers_plan(eni_prepared *p, const en_schema *schema, const en_device *device, en_ctx *ctx,
                             int i, en_extent x, uint32_t dtype, need *needs)
{
    uint32_t tensor = 0;
    p->first_weights = -1;
    for (const en_layer *layer = schema->network->layers; layer->op != 0; layer++, i++) {
        eni_stage *stage = &p->stages[i];
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

static en_status stages_plan(eni_prepared *p, const en_schema *schema, const en_device *device, en_ctx *ctx,
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
static void turn_widths(const eni_prepared *p, const need *needs, uint64_t width_out[2])
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
static uint64_t layout(eni_prepared *p, const need *needs, uint64_t base, uint64_t align)
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
        eni_stage *stage = &p->stages[i];
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

en_status eni_prepared_init(const en_schema *schema, const en_device *device, en_ctx *ctx, uint32_t dtype,
                            int64_t n, int mode, eni_prepared *prepared_out)
{
    eni_prepared p = {.n = n, .mode = mode, .nstages = dtype == EN_F32 ? 0 : 1};
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
    eni_prepared_fini(&p, device, ctx);
    return st;
}

void eni_prepared_fini(eni_prepared *prepared, const en_device *device, en_ctx *ctx)
{
    for (int i = 0; prepared->stages != NULL && i < prepared->nstages; i++) {
        if (prepared->stages[i].plan != NULL) device->plan_free(prepared->stages[i].plan);
    }
    if (prepared->memory != NULL) device->free(ctx, prepared->memory);
    eni_free(prepared->stages);
    *prepared = (eni_prepared){0};
}
