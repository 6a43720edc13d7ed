/* prepared.c - plans the operations of a size, finds the lifetime of each value, and lays the values out. */
#include "models/prepared.h"

#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/memory_plan.h"
#include "models/node.h"

/* A value's index among the lifetimes; NONE: no value, or not ours (the part's input). */
enum { NONE = -1 };

/* A node's values while a size is planned. Times: node i runs forward at i, backward at 2 nnodes - i; at nnodes the
 * neighbours of a part fetch its output, and deliver the gradient of it. */
typedef struct plan_node {
    en_op op;     /* of this size */
    int32_t root; /* the node that owns this output: itself, except for views */
    int32_t y, saved;
    int32_t scratch[2];     /* of forward, of backward */
    int32_t gradient;       /* of this root's output; NONE: no contribution yet */
    int32_t dx;             /* where backward writes its contribution */
    int32_t from[2], to[2]; /* of the joins */
    bool wants_gradient;    /* weights lie here or above */
} plan_node;

typedef struct planning {
    const en_schema *schema;
    const en_device *device;
    en_ctx *ctx;
    const en_model_options *options;
    int32_t input, output; /* roots of the part's input, and of the last node */
    eni_prepared *p;
    plan_node *nodes; /* (nnodes) */
    eni_lifetime *values;
    uint32_t nvalues;
} planning;

enum { VALUES = 8 }; /* of a node at most: output, saved, scratch twice, gradients */

static bool is_train(const planning *g)
{
    return g->p->mode == EN_MODEL_TRAIN;
}

/* Whether another part reads this one's output. */
static bool is_cut(const planning *g)
{
    return g->options->end < g->schema->nnodes;
}

static int32_t backward_time(const planning *g, int32_t at)
{
    return 2 * (int32_t)g->p->nnodes - at;
}

static int32_t value_new(planning *g, uint64_t bytes, int32_t first, int32_t last)
{
    g->values[g->nvalues] = (eni_lifetime){.bytes = bytes, .first = first, .last = last};
    return (int32_t)g->nvalues++;
}

static void value_is_live(planning *g, int32_t value, int32_t until)
{
    if (value != NONE && g->values[value].last < until) g->values[value].last = until;
}

static uint64_t extent_bytes(en_extent e, uint32_t dtype)
{
    return (uint64_t)en_extent_count(e) * en_dtype_bytes(dtype);
}

static en_extent sized(en_extent e, int64_t n, bool is_loss)
{
    if (!is_loss) e.n = n;
    return e;
}

/* ---- which operations -------------------------------------------------------------------------------- */

/* The type of a root's output. */
static uint32_t y_dtype(const planning *g, int32_t root)
{
    return root == 0 ? g->options->dtype : eni_op_y_dtype(&g->nodes[root].op);
}

static uint64_t y_bytes(const planning *g, int32_t root)
{
    const en_node *node = &g->schema->nodes[root];
    return extent_bytes(sized(node->y, g->p->n, eni_op_is_loss(node->op.kind)), y_dtype(g, root));
}

static en_status take_kept(planning *g, uint64_t bytes, eni_kept_weights *kept)
{
    if (bytes == 0 || !g->options->keeps_weights || !is_train(g)) return EN_OK;
    g->p->kept_bytes += bytes;
    return g->device->alloc(g->ctx, bytes, &kept->memory);
}

/* Plans one operation; its saved data and scratch become values. */
static en_status plan_op(planning *g, int32_t at, en_op *op, en_plan **plan_out)
{
    plan_node *node = &g->nodes[at];
    en_plan_info info = {.size = sizeof info};
    if (!is_train(g)) op->flags |= EN_OP_FORWARD_ONLY;
    EN_TRY(g->device->plan(g->ctx, op, plan_out));
    g->device->plan_info(*plan_out, &info);
    EN_TRY(take_kept(g, info.kept_bytes, &g->p->kept[at]));
    const int32_t back = backward_time(g, at);
    const bool has_backward = is_train(g) && node->wants_gradient;
    node->saved = value_new(g, info.saved_bytes, at, has_backward ? back : at);
    node->scratch[0] = value_new(g, info.workspace_bytes, at, at);
    node->scratch[1] = has_backward ? value_new(g, info.workspace_bytes, back, back) : NONE;
    return EN_OK;
}

/* The batch is float32: converts it to the first values of another type. */
static en_status plan_batch(planning *g)
{
    plan_node *batch = &g->nodes[0];
    const uint32_t dtype = g->options->dtype;
    if (dtype == EN_F32 || g->input > 0) return EN_OK;
    batch->op = eni_cast_op(sized(g->schema->nodes[0].y, g->p->n, false), dtype);
    EN_TRY(plan_op(g, 0, &batch->op, &g->p->nodes[0].plan));
    batch->y = value_new(g, extent_bytes(batch->op.x, dtype), 0, 0);
    return EN_OK;
}

/* Nodes of an earlier part are planned only for the extent of their output. */
static en_status plan_node_op(planning *g, int32_t at)
{
    const en_node *from = &g->schema->nodes[at];
    plan_node *node = &g->nodes[at];
    const plan_node *x = &g->nodes[from->x];
    en_extent y;
    node->op = eni_node_op(from, g->p->n, y_dtype(g, x->root));
    node->wants_gradient =
        from->ntensors > 0 || x->wants_gradient || (from->x2 > 0 && g->nodes[from->x2].wants_gradient);
    node->root = eni_node_root(g->schema, at);
    if (en_op_output(&node->op, &y) != EN_OK)
        return eni_fail(EN_EINVAL, "model", "%s: a batch of %lld samples is too large to address",
                        g->schema->network->name, (long long)g->p->n);
    if (node->root != at || at < (int32_t)g->options->first) return EN_OK;
    const bool is_masked_here = node->op.kind == EN_OP_ADD && node->wants_gradient; /* for both inputs */
    if (!x->wants_gradient && !is_masked_here) node->op.flags |= EN_OP_NO_DX;
    EN_TRY(plan_op(g, at, &node->op, &g->p->nodes[at].plan));
    node->y = value_new(g, y_bytes(g, at), at, at);
    return EN_OK;
}

/* ---- forward: how long outputs live ------------------------------------------------------------------ */

static void outputs_live(planning *g)
{
    for (int32_t i = 1; i < (int32_t)g->options->end; i++) {
        const en_node *from = &g->schema->nodes[i];
        const plan_node *node = &g->nodes[i];
        if (g->p->nodes[i].plan == NULL) continue;
        const int32_t x = g->nodes[g->nodes[from->x].root].y;
        const bool goes_back = is_train(g) && node->wants_gradient;
        const unsigned reads = goes_back ? en_op_backward_reads(&node->op) : 0;
        value_is_live(g, x, reads & EN_OP_READS_X ? backward_time(g, i) : i);
        if (from->x2 >= 0) value_is_live(g, g->nodes[g->nodes[from->x2].root].y, i);
        if (reads & EN_OP_READS_Y) value_is_live(g, node->y, backward_time(g, i));
    }
    /* Loss and hits may be fetched at any time. */
    value_is_live(g, g->nodes[g->output].y, (int32_t)g->p->nnodes * (is_cut(g) ? 1 : 2));
}

/* ---- backward: the flow of gradients ----------------------------------------------------------------- */

/* A contribution to the gradient of root `to`, which lies in the value `from` and is complete at `time`. `is_free`: its
 * memory has no other use. */
static en_status contribute(planning *g, int32_t at, int which, int32_t to, int32_t from, bool is_free)
{
    plan_node *root = &g->nodes[to];
    eni_contribution *join = &g->p->nodes[at].joins[which];
    const int32_t time = backward_time(g, at);
    if (root->gradient == NONE && is_free) {
        root->gradient = from;
        return EN_OK;
    }
    join->join = root->gradient == NONE ? ENI_JOIN_COPY : ENI_JOIN_ADD;
    if (root->gradient == NONE) root->gradient = value_new(g, y_bytes(g, to), time, time);
    join->bytes = y_bytes(g, to);
    value_is_live(g, from, time);
    value_is_live(g, root->gradient, time);
    g->nodes[at].from[which] = from;
    g->nodes[at].to[which] = root->gradient;
    if (join->join == ENI_JOIN_COPY) return EN_OK;
    en_op add = {.size = sizeof add,
                 .kind = EN_OP_ADD,
                 .dtype = y_dtype(g, to),
                 .flags = EN_OP_NO_DX | EN_OP_FORWARD_ONLY,
                 .x = sized(g->schema->nodes[to].y, g->p->n, false)};
    EN_TRY(g->device->plan(g->ctx, &add, &g->p->adds[g->p->nadds]));
    join->add = g->p->adds[g->p->nadds++];
    return EN_OK;
}

/* Whether it writes its contribution over the gradient of its output. */
static bool is_in_place(const en_op *op)
{
    return op->kind == EN_OP_RELU || op->kind == EN_OP_ADD ||
           (op->kind == EN_OP_BATCHNORM && !(op->flags & EN_OP_FUSE_ADD));
}

/* The contribution to x is the output of backward_data; that to x2 is dy, once it is masked. */
static en_status plan_backward(planning *g, int32_t at)
{
    const en_node *from = &g->schema->nodes[at];
    plan_node *node = &g->nodes[at];
    const int32_t time = backward_time(g, at), dy = node->gradient;
    const int32_t x = g->nodes[from->x].root, x2 = from->x2 >= 0 ? g->nodes[from->x2].root : NONE;
    const bool wants_x = g->nodes[x].wants_gradient, wants_x2 = x2 >= 0 && g->nodes[x2].wants_gradient;
    g->p->nodes[at].has_backward = true;
    value_is_live(g, dy, time);
    if (!(node->op.flags & EN_OP_NO_DX))
        node->dx = is_in_place(&node->op) ? dy : value_new(g, y_bytes(g, x), time, time);
    if (wants_x) EN_TRY(contribute(g, at, 0, x, node->dx, true));
    return wants_x2 ? contribute(g, at, 1, x2, dy, g->nodes[x].gradient != dy) : EN_OK;
}

static en_status gradients_live(planning *g)
{
    const int32_t nnodes = (int32_t)g->p->nnodes;
    if (!is_train(g)) return EN_OK;
    if (is_cut(g)) g->nodes[g->output].gradient = value_new(g, y_bytes(g, g->output), nnodes, nnodes);
    for (int32_t i = (int32_t)g->options->end - 1; i > 0; i--)
        if (g->p->nodes[i].plan != NULL && g->nodes[i].wants_gradient) EN_TRY(plan_backward(g, i));
    return EN_OK;
}

/* ---- addresses --------------------------------------------------------------------------------------- */

static void *address(const planning *g, uint32_t batch, int32_t value)
{
    if (value == NONE) return NULL;
    return (unsigned char *)g->p->memory + batch * g->p->bytes + g->values[value].offset;
}

/* The nodes of a batch in flight: copies of the first one's, in memory of their own. */
static void give_addresses(const planning *g, uint32_t batch)
{
    eni_step_node *steps = g->p->nodes + (size_t)batch * g->p->nnodes;
    for (uint32_t i = 0; i < g->options->end; i++) {
        const en_node *from = &g->schema->nodes[i];
        const plan_node *node = &g->nodes[i];
        eni_step_node *step = &steps[i];
        *step = g->p->nodes[i];
        if (step->plan == NULL) continue;
        if (i > 0) step->x = address(g, batch, g->nodes[g->nodes[from->x].root].y);
        if (from->x2 >= 0) step->x2 = address(g, batch, g->nodes[g->nodes[from->x2].root].y);
        step->y = address(g, batch, node->y);
        step->saved = address(g, batch, node->saved);
        step->dy = address(g, batch, node->gradient);
        step->dx = address(g, batch, node->dx);
        for (int k = 0; k < 2; k++) {
            step->scratch[k] = address(g, batch, node->scratch[k]);
            step->joins[k].from = address(g, batch, node->from[k]);
            step->joins[k].to = address(g, batch, node->to[k]);
        }
    }
    if (g->input > 0) steps[g->input].dy = address(g, batch, g->nodes[g->input].gradient);
}

/* The most bytes live at one time. */
static uint64_t most_live(const planning *g)
{
    uint64_t most = 0;
    for (int32_t t = 0; t <= 2 * (int32_t)g->p->nnodes; t++) {
        uint64_t live = 0;
        for (uint32_t v = 0; v < g->nvalues; v++)
            if (g->values[v].first <= t && t <= g->values[v].last)
                live += eni_round_up(g->values[v].bytes, g->device->align);
        if (live > most) most = live;
    }
    return most;
}

/* ---- the whole --------------------------------------------------------------------------------------- */

static en_status take_memory(planning *g)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(g->p->bytes, g->p->in_flight, &bytes))
        return eni_fail(EN_ENOMEM, "model",
                        "%s: %u batches in flight of %llu bytes each exceed the address space",
                        g->schema->network->name, g->p->in_flight, (unsigned long long)g->p->bytes);
    return g->device->alloc(g->ctx, bytes, &g->p->memory);
}

static en_status plan_all(planning *g)
{
    const uint32_t first = g->options->first, end = g->options->end;
    if (is_train(g)) EN_TRY(eni_nodes_check_batch(g->schema, first, end, g->p->n));
    for (uint32_t i = 0; i < g->p->nnodes; i++)
        g->nodes[i] = (plan_node){.root = (int32_t)i,
                                  .y = NONE,
                                  .saved = NONE,
                                  .scratch = {NONE, NONE},
                                  .gradient = NONE,
                                  .dx = NONE,
                                  .from = {NONE, NONE},
                                  .to = {NONE, NONE}};
    EN_TRY(plan_batch(g));
    for (uint32_t i = 1; i < end; i++)
        EN_TRY(plan_node_op(g, (int32_t)i));
    outputs_live(g);
    EN_TRY(gradients_live(g));
    EN_TRY(eni_memory_plan(g->values, g->nvalues, g->device->align, &g->p->bytes));
    g->p->bytes_live = most_live(g);
    if (is_cut(g)) g->p->y_bytes = y_bytes(g, g->output);
    if (g->input > 0) g->p->dx_bytes = y_bytes(g, g->input);
    EN_TRY(take_memory(g));
    for (uint32_t batch = 0; batch < g->p->in_flight; batch++)
        give_addresses(g, batch);
    return EN_OK;
}

en_status eni_prepare(const en_schema *schema, const en_device *device, en_ctx *ctx,
                      const en_model_options *options, int64_t n, int mode, eni_prepared *prepared_out)
{
    eni_prepared p = {.n = n,
                      .mode = mode,
                      .nnodes = schema->nnodes,
                      .in_flight = mode == EN_MODEL_TRAIN ? options->in_flight : 1};
    planning g = {.schema = schema,
                  .device = device,
                  .ctx = ctx,
                  .options = options,
                  .input = (int32_t)options->input,
                  .output = eni_node_root(schema, (int32_t)options->end - 1),
                  .p = &p};
    p.nodes = eni_alloc_array((size_t)p.in_flight * p.nnodes, sizeof *p.nodes);
    p.kept = eni_alloc_array(p.nnodes, sizeof *p.kept);
    p.adds = eni_alloc_array(2 * (size_t)p.nnodes, sizeof *p.adds);
    g.nodes = eni_alloc_array(p.nnodes, sizeof *g.nodes);
    g.values = eni_alloc_array(VALUES * (size_t)p.nnodes, sizeof *g.values);
    en_status st = EN_ENOMEM;
    if (p.nodes != NULL && p.kept != NULL && p.adds != NULL && g.nodes != NULL && g.values != NULL)
        st = plan_all(&g);
    eni_free(g.nodes);
    eni_free(g.values);
    if (st != EN_OK)
        eni_prepared_fini(&p, device, ctx);
    else
        *prepared_out = p;
    return st;
}

void eni_prepared_fini(eni_prepared *p, const en_device *device, en_ctx *ctx)
{
    for (uint32_t i = 0; p->nodes != NULL && i < p->nnodes; i++)
        if (p->nodes[i].plan != NULL) device->plan_free(p->nodes[i].plan);
    for (uint32_t i = 0; p->adds != NULL && i < p->nadds; i++)
        if (p->adds[i] != NULL) device->plan_free(p->adds[i]);
    for (uint32_t i = 0; p->kept != NULL && i < p->nnodes; i++)
        if (p->kept[i].memory != NULL) device->free(ctx, p->kept[i].memory);
    if (p->memory != NULL) device->free(ctx, p->memory);
    eni_free(p->nodes);
    eni_free(p->kept);
    eni_free(p->adds);
    *p = (eni_prepared){0};
}
