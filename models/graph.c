/* graph.c - turns the calls of a builder, or a list of layers, into the nodes and tensors of a schema, checking each as it
 * comes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "models/node.h"
#include "plugin/hook.h"

enum {
    MAX_NODES = 4096,
    MAX_CHANNELS = 1 << 24,
    MAX_KERNEL = 1 << 10,
    MAX_SIDE = 1 << 20,
    UNKNOWN_SIDE = 32
};
enum { WEIGHTS = 2, BUFFERS = 3 }; /* most tensors of a node */

/* Texts made by a builder, chained to be freed with the graph. */
typedef struct text {
    struct text *before;
    char content[];
} text;

typedef struct graph {
    en_graph calls; /* the builder's view; first, so that it points to the graph */
    const en_network *network;
    en_schema *schema;
    uint32_t node_room, tensor_room, buffer_room; /* of its arrays */
    const eni_options *options;
    text *texts;
    uint32_t *readers; /* (MAX_NODES) readers of each node's output */
    en_status status;  /* of the first failed call */
} graph;

static graph *graph_of(const en_graph *calls)
{
    return (graph *)(uintptr_t)calls;
}

/* ---- refusing ---------------------------------------------------------------------------------------- */

/* Logs the first refusal as "network NAME: .."; those that follow from it are not logged. */
__attribute__((format(printf, 2, 3))) static en_at graph_refuse(en_graph *calls, const char *format, ...)
{
    graph *g = graph_of(calls);
    char why[400];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (g->status == EN_OK) g->status = eni_fail(EN_EINVAL, "graph", "network %s: %s", g->network->name, why);
    return -1;
}

/* Refuses and yields false: `return refuse(g, ..);` */
#define refuse(g, ...) (graph_refuse(&(g)->calls, __VA_ARGS__), false)

static void no_memory(graph *g)
{
    if (g->status == EN_OK) g->status = EN_ENOMEM;
}

/* ---- tensors ----------------------------------------------------------------------------------------- */

static en_model_tensor *tensor_add(en_schema *schema, const char *node, const char *suffix, uint64_t count)
{
    en_model_tensor *tensor = &schema->tensors[schema->ntensors++];
    *tensor = (en_model_tensor){.kind = EN_TENSOR_WEIGHT,
                                .dtype = EN_F32,
                                .ndim = 1,
                                .shape = {(int64_t)count},
                                .offset = schema->count,
                                .count = count};
    eni_text_add(tensor->name, sizeof tensor->name, "%s%s", node, suffix);
    schema->count += eni_round_up(count, ENI_LINE_FLOATS);
    schema->nweights += count;
    return tensor;
}

static void buffer_add(en_schema *schema, const char *node, const char *suffix, uint64_t count,
                       uint32_t dtype, uint32_t init)
{
    en_model_tensor *buffer = &schema->buffers[schema->nbuffers++];
    *buffer = (en_model_tensor){.kind = EN_TENSOR_BUFFER,
                                .ndim = dtype == EN_I64 ? 0 : 1,
                                .shape = {dtype == EN_I64 ? 0 : (int64_t)count},
                                .offset = schema->nstate,
                                .count = count,
                                .dtype = dtype,
                                .init = init};
    eni_text_add(buffer->name, sizeof buffer->name, "%s%s", node, suffix);
    schema->nstate += eni_round_up(count, ENI_LINE_FLOATS);
}

/* In the layout of en_op_stats (op.h). */
static void add_statistics(en_schema *schema, const en_node *node)
{
    const uint64_t channels = (uint64_t)node->op.channels;
    buffer_add(schema, node->name, ".running_mean", channels, EN_F32, EN_INIT_ZERO);
    buffer_add(schema, node->name, ".running_var", channels, EN_F32, EN_INIT_ONE);
    buffer_add(schema, node->name, ".num_batches_tracked", 1, EN_I64, EN_INIT_ZERO);
}

static void add_tensors(en_schema *schema, en_node *node)
{
    const en_op *op = &node->op;
    const bool is_norm = op->kind == EN_OP_BATCHNORM;
    const uint64_t count = (uint64_t)en_op_weights(op), outputs = (uint64_t)op->channels;
    node->first = schema->ntensors;
    node->first_buffer = schema->nbuffers;
    en_model_tensor *weight = tensor_add(schema, node->name, ".weight", count);
    weight->init = is_norm ? EN_INIT_ONE : EN_INIT_UNIFORM;
    weight->fan_in = count / outputs;
    weight->fan_out = count / (uint64_t)op->x.c;
    if (!is_norm) {
        weight->ndim = op->kind == EN_OP_CONV2D ? 4 : 2;
        weight->shape[0] = op->channels;
        weight->shape[1] = op->x.c;
    }
    if (op->kind == EN_OP_CONV2D) {
        weight->shape[2] = op->kernel_h;
        weight->shape[3] = op->kernel_w;
    }
    if (op->flags & EN_OP_BIAS) {
        en_model_tensor *bias = tensor_add(schema, node->name, ".bias", outputs);
        bias->init = is_norm ? EN_INIT_ZERO : EN_INIT_UNIFORM;
        bias->fan_in = weight->fan_in;
        bias->fan_out = weight->fan_out;
    }
    if (is_norm) add_statistics(schema, node);
    node->ntensors = schema->ntensors - node->first;
    node->nbuffers = schema->nbuffers - node->first_buffer;
}

/* ---- nodes ------------------------------------------------------------------------------------------- */

static bool has_two_inputs(const en_op *op)
{
    return op->kind == EN_OP_ADD || op->flags & EN_OP_FUSE_ADD;
}

/* Checks the nodes that it reads. */
static bool inputs_fit(graph *g, const char *what, const en_op *op, en_at x, en_at x2)
{
    const en_schema *schema = g->schema;
    const en_at n = (en_at)schema->nnodes;
    if (x < 0 || x >= n || x2 < -1 || x2 >= n)
        return refuse(g,
                      "%s reads node %d; existing nodes are 0 (the batch) to %d: pass a value that a call of "
                      "this graph returned",
                      what, x < 0 || x >= n ? x : x2, n - 1);
    if (has_two_inputs(op) != (x2 >= 0))
        return refuse(g, "%s has %d inputs; expected %d", what, x2 >= 0 ? 2 : 1, has_two_inputs(op) ? 2 : 1);
    if (schema->nnodes > 1 && eni_op_is_loss(schema->nodes[n - 1].op.kind))
        return refuse(g, "%s follows %s; a network has one loss, its last node", what,
                      eni_op_name(schema->nodes[n - 1].op.kind));
    return true;
}

/* Checks what the device contract does not: sizes whose product could overflow, and names. */
static bool is_sensible(graph *g, const char *what, const char *name, const en_op *op)
{
    const bool is_norm = op->kind == EN_OP_BATCHNORM;
    const long longest =
        EN_MAX_TENSOR_NAME - (long)(is_norm ? sizeof ".num_batches_tracked" : sizeof ".weight");
    if (op->kind < 1 || op->kind >= EN_OP_KINDS || op->kind == EN_OP_CAST ||
        op->flags & ~en_op_flags(op->kind))
        return refuse(g, "%s: unknown operation (kind %u, flags %u)", what, op->kind, op->flags);
    if (op->kind != EN_OP_CONV2D && op->kind != EN_OP_LINEAR && !is_norm) return true; /* no weights */
    if (name == NULL || name[0] == '\0') return refuse(g, "%s has weights but no name", what);
    if ((long)strlen(name) > longest || !eni_is_text(name))
        return refuse(g, "the name of %s is invalid; expected plain text of at most %ld bytes", what,
                      longest);
    if (strchr(name, '/') != NULL && (strncmp(name, "optimizer.", 10) == 0 || strncmp(name, "rank.", 5) == 0))
        return refuse(g,
                      "the name of %s clashes with a checkpoint's own, optimizer.SLOT/NAME or rank.R/NAME: "
                      "choose another, or one without a slash",
                      what);
    if (op->channels < 1 || op->channels > MAX_CHANNELS || op->kernel_h > MAX_KERNEL ||
        op->kernel_w > MAX_KERNEL)
        return refuse(g, "%s has %lld channels and kernel %lld; expected at least 1, at most %d and %d", what,
                      (long long)op->channels, (long long)op->kernel_h, MAX_CHANNELS, MAX_KERNEL);
    if (is_norm && !(op->flags & EN_OP_BIAS && op->eps > 0 && op->momentum >= 0 && op->momentum <= 1))
        return refuse(g, "%s: eps %g, momentum %g, flags %u; expected eps > 0, momentum 0 to 1, and a bias",
                      what, (double)op->eps, (double)op->momentum, op->flags);
    return true;
}

static bool extents_fit(graph *g, const char *what, en_node *node)
{
    const en_extent x = node->op.x;
    const en_op *op = &node->op;
    const bool is_odd = op->stride_h < 1 || op->stride_w < 1 || op->pad_h < 0 || op->pad_w < 0;
    if (en_op_output(op, &node->y) != EN_OK)
        return refuse(g, "%s cannot take an input of (%lld, %lld, %lld)%s", what, (long long)x.h,
                      (long long)x.w, (long long)x.c,
                      op->kernel_h <= 0 ? ""
                      : is_odd          ? "; a stride must be at least 1, padding at least 0"
                                        : "; its window is larger than the image: give larger images");
    const en_extent *x2 = node->x2 >= 0 ? &g->schema->nodes[node->x2].y : &x;
    if (x2->h != x.h || x2->w != x.w || x2->c != x.c)
        return refuse(g, "%s adds (%lld, %lld, %lld) to (%lld, %lld, %lld); shapes must be equal", what,
                      (long long)x2->h, (long long)x2->w, (long long)x2->c, (long long)x.h, (long long)x.w,
                      (long long)x.c);
    return true;
}

/* Makes room for one more node and its tensors. */
static bool has_room(graph *g)
{
    en_schema *s = g->schema;
    const uint32_t tensors = s->ntensors + WEIGHTS, buffers = s->nbuffers + BUFFERS;
    if (s->nnodes >= MAX_NODES) return refuse(g, "more than %d nodes", MAX_NODES - 1);
    if (eni_grow((void **)&s->nodes, &g->node_room, s->nnodes + 1, sizeof *s->nodes) != EN_OK ||
        eni_grow((void **)&s->tensors, &g->tensor_room, tensors, sizeof *s->tensors) != EN_OK ||
        eni_grow((void **)&s->buffers, &g->buffer_room, buffers, sizeof *s->buffers) != EN_OK)
        no_memory(g);
    return g->status == EN_OK;
}

static en_at graph_add(en_graph *calls, const char *name, const en_op *given, en_at x, en_at x2)
{
    graph *g = graph_of(calls);
    char what[ENI_NODE_TEXT];
    if (g->status != EN_OK) return -1;
    en_schema *schema = g->schema;
    en_node node = {.x = x, .x2 = x2};
    memcpy(&node.op, given, given->size > 0 && given->size < sizeof node.op ? given->size : sizeof node.op);
    if (name != NULL && name[0] != '\0')
        snprintf(what, sizeof what, "%.60s (%s)", name, eni_op_name(node.op.kind));
    else
        snprintf(what, sizeof what, "node %u (%s)", schema->nnodes, eni_op_name(node.op.kind));
    if (!inputs_fit(g, what, &node.op, x, x2) || !is_sensible(g, what, name, &node.op) || !has_room(g))
        return -1;
    node.op.size = sizeof node.op;
    node.op.dtype = EN_F32;
    node.op.x = schema->nodes[x].y;
    if (!extents_fit(g, what, &node)) return -1;
    snprintf(node.name, sizeof node.name, "%s", name != NULL ? name : "");
    if (en_op_weights(&node.op) > 0) add_tensors(schema, &node);
    g->readers[x]++;
    if (x2 >= 0) g->readers[x2]++;
    schema->nodes[schema->nnodes] = node;
    return (en_at)schema->nnodes++;
}

/* ---- other calls of a builder ---- */

static en_at graph_init(en_graph *calls, en_at at, uint32_t distribution)
{
    graph *g = graph_of(calls);
    if (g->status != EN_OK) return -1;
    const bool is_node = at > 0 && at < (en_at)g->schema->nnodes;
    if (!is_node || g->schema->nodes[at].ntensors == 0 || distribution > EN_INIT_ONE)
        return graph_refuse(calls, "initial values %u for node %d, which does not exist or has no weights",
                            distribution, at);
    g->schema->tensors[g->schema->nodes[at].first].init = distribution;
    return at;
}

__attribute__((format(printf, 2, 3))) static const char *graph_name(en_graph *calls, const char *format, ...)
{
    graph *g = graph_of(calls);
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    text *made = length < 0 ? NULL : eni_alloc(sizeof *made + (size_t)length + 1);
    if (made == NULL) {
        no_memory(g);
        return "";
    }
    va_start(args, format);
    vsnprintf(made->content, (size_t)length + 1, format, args);
    va_end(args);
    made->before = g->texts;
    g->texts = made;
    return made->content;
}

static en_extent graph_extent(const en_graph *calls, en_at at)
{
    const en_schema *schema = graph_of(calls)->schema;
    return at >= 0 && at < (en_at)schema->nnodes ? schema->nodes[at].y : (en_extent){0};
}

static const eni_options *option_of(graph *g, const char *key, bool is_text)
{
    if (eni_options_has(g->options, key, is_text)) return g->options;
    graph_refuse(&g->calls, "it reads option %s, which it does not declare as a %s", key,
                 is_text ? "text" : "number");
    return NULL;
}

static double graph_num(en_graph *calls, const char *key)
{
    const eni_options *options = option_of(graph_of(calls), key, false);
    return options != NULL ? eni_options_num(options, key, 1) : 0;
}

static const char *graph_text(en_graph *calls, const char *key)
{
    const eni_options *options = option_of(graph_of(calls), key, true);
    return options != NULL ? eni_options_text(options, key) : "";
}

/* ---- the whole --------------------------------------------------------------------------------------- */

static en_at build_list(graph *g, en_at x)
{
    for (const en_layer *layer = g->network->layers; layer->op != 0; layer++) {
        const int64_t classes = g->calls.classes > 10 ? g->calls.classes : 10;
        const en_op op = {.size = sizeof op,
                          .kind = layer->op,
                          .flags = layer->flags,
                          .channels = layer->channels == EN_CLASSES ? classes : layer->channels,
                          .kernel_h = layer->kernel,
                          .kernel_w = layer->kernel,
                          .stride_h = layer->stride,
                          .stride_w = layer->stride,
                          .pad_h = layer->pad,
                          .pad_w = layer->pad};
        x = graph_add(&g->calls, layer->name, &op, x, -1);
        if (x < 0) break;
    }
    return x;
}

/* Checks that the network ends with a loss, every node leads there, and tensor names are unique. */
static void check_whole(graph *g, en_at loss)
{
    const en_schema *s = g->schema;
    char what[ENI_NODE_TEXT];
    if (g->status != EN_OK) return;
    const en_at last = (en_at)s->nnodes - 1;
    if (loss != last || !eni_op_is_loss(s->nodes[last].op.kind))
        graph_refuse(&g->calls, "it ends with %s; it must end with a loss, which its builder returns",
                     last > 0 ? eni_node_text(s, last, what) : "the batch");
    for (en_at i = 0; i < last; i++)
        if (g->readers[i] == 0)
            graph_refuse(&g->calls, "nothing reads %s", i > 0 ? eni_node_text(s, i, what) : "the batch");
    if (s->ntensors == 0) graph_refuse(&g->calls, "no node has weights");
    for (uint32_t i = 0; i < s->ntensors; i++)
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(s->tensors[i].name, s->tensors[k].name) == 0)
                graph_refuse(&g->calls, "two tensors are named %s", s->tensors[i].name);
}

/* A side that the network leaves open is taken from the data. */
static int64_t side(int64_t own, int64_t data, int64_t unknown)
{
    return own > 0 ? own : data > 0 ? data : unknown;
}

static bool has_input(graph *g, const en_data_shape *data)
{
    const en_extent *own = &g->network->input;
    const en_extent x = {1, side(own->h, data->height, UNKNOWN_SIDE), side(own->w, data->width, UNKNOWN_SIDE),
                         side(own->c, data->channels, 1)};
    if (own->n != 1 || own->h < 0 || own->w < 0 || own->c < 0 || x.h > MAX_SIDE || x.w > MAX_SIDE ||
        x.c > MAX_CHANNELS)
        return refuse(g,
                      "an input of %lld samples of (%lld, %lld, %lld); expected one sample, sides up to %d",
                      (long long)own->n, (long long)x.h, (long long)x.w, (long long)x.c, MAX_SIDE);
    if (!has_room(g)) return false;
    g->schema->input = x;
    g->schema->nodes[0] = (en_node){.y = x, .x = -1, .x2 = -1};
    g->schema->nnodes = 1;
    return true;
}

static void build(graph *g, const en_data_shape *data)
{
    const en_network *network = g->network;
    if (!has_input(g, data)) return;
    if ((network->layers == NULL) == (network->build == NULL)) {
        graph_refuse(&g->calls, "it has %s of layers and build; set one",
                     network->build == NULL ? "neither" : "both");
        return;
    }
    eni_hook_enter_named("build", network->name);
    const en_at loss = network->layers != NULL ? build_list(g, 0) : network->build(&g->calls, 0);
    eni_hook_leave_named();
    if (loss < 0 && g->status == EN_OK)
        graph_refuse(&g->calls, "its builder returned %d although no call failed; return the loss", loss);
    check_whole(g, loss);
}

en_status eni_graph_build(const en_network *network, const eni_options *options, const en_data_shape *data,
                          en_schema *schema)
{
    graph g = {.calls = {.abi = EN_NETWORK_ABI,
                         .size = sizeof g.calls,
                         .classes = data->classes,
                         .add = graph_add,
                         .init = graph_init,
                         .name = graph_name,
                         .extent = graph_extent,
                         .num = graph_num,
                         .text = graph_text,
                         .refuse = graph_refuse},
               .network = network,
               .schema = schema,
               .options = options,
               .readers = eni_alloc_array(MAX_NODES, sizeof *g.readers)};
    if (g.readers == NULL)
        g.status = EN_ENOMEM;
    else
        build(&g, data);
    for (text *t = g.texts, *before; t != NULL; t = before) {
        before = t->before;
        eni_free(t);
    }
    eni_free(g.readers);
    return g.status;
}
