/* graph.h - networks: a list of layers, or a function that adds nodes. Everything needed for a network of your own.
 *
 * A chain is a list:
 *
 *     static const en_layer layers[] = {
 *         EN_CONV2D("conv1", 20, 5), EN_RELU_MAXPOOL(2), EN_FLATTEN, EN_LINEAR_RELU("fc1", 500),
 *         EN_LINEAR("fc2", 10), EN_LOG_SOFTMAX, EN_NLL, EN_END};
 *     static const en_network mine = {.abi = EN_NETWORK_ABI, .size = sizeof(en_network), .name = "mine",
 *                                     .help = "what it is", .input = {1, 28, 28, 1}, .layers = layers};
 *
 * A network with branches is a function, whose calls add nodes and return their numbers:
 *
 *     static en_at build(en_graph *g, en_at x)                                 x: the batch
 *     {
 *         en_at y = en_batchnorm_relu(g, en_conv(g, x, "conv1", 16, 3, 1, 1), "bn1");
 *         y = en_add_relu(g, y, en_conv(g, y, "conv2", 16, 3, 1, 1));          y is read twice
 *         return en_cross_entropy(g, en_linear(g, en_global_mean(g, y), "fc", en_classes(g)));
 *     }
 *
 * The first failing call logs why, with the node's name, and returns -1; later calls pass -1 on. So a builder needs no error
 * handling. The loss is added last; every other node must be read by a later one. Nodes and their tensors are numbered in the
 * order of the calls, and backward goes from the last to the first.
 *
 * A network in a file of its own is loaded by --model=./mine.so:
 *
 *     cc -shared -fPIC -I<include> mine.c -o mine.so
 *
 * A builder is called before training, on one thread, and keeps no state. */
#ifndef ENTRAIN_GRAPH_H
#define ENTRAIN_GRAPH_H

#include <string.h>

#include "entrain/op.h"
#include "entrain/option.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EN_NETWORK_ABI 1u

/* ---- lists ------------------------------------------------------------------------------------------- */

/* One layer. Its input is the output of the layer above it in the list; the last layer is the loss. */
typedef struct en_layer {
    uint32_t op;      /* EN_OP_*; 0 ends the list */
    uint32_t flags;   /* EN_OP_BIAS, EN_OP_FUSE_RELU; the model adds the others */
    const char *name; /* of a layer with weights: "conv1" owns conv1.weight and conv1.bias */
    int64_t channels; /* conv2d, linear: outputs; EN_CLASSES: the data's classes, at least 10 */
    int64_t kernel, stride, pad;
} en_layer;

#define EN_CLASSES (-10)

/* Valid convolution with bias; PyTorch's Conv2d(in, channels, kernel). */
/* clang-format off */
#define EN_CONV2D(name, channels, kernel) {EN_OP_CONV2D, EN_OP_BIAS, (name), (channels), (kernel), 1, 0}
#define EN_LINEAR(name, outputs) {EN_OP_LINEAR, EN_OP_BIAS, (name), (outputs), 0, 0, 0}
#define EN_LINEAR_RELU(name, outputs) {EN_OP_LINEAR, EN_OP_BIAS | EN_OP_FUSE_RELU, (name), (outputs), 0, 0, 0}
#define EN_RELU {EN_OP_RELU, 0, NULL, 0, 0, 0, 0}
#define EN_MAXPOOL(kernel) {EN_OP_MAXPOOL, 0, NULL, 0, (kernel), (kernel), 0}
#define EN_RELU_MAXPOOL(kernel) {EN_OP_RELU_MAXPOOL, 0, NULL, 0, (kernel), (kernel), 0}
#define EN_FLATTEN {EN_OP_FLATTEN, 0, NULL, 0, 0, 0, 0}
#define EN_LOG_SOFTMAX {EN_OP_LOG_SOFTMAX, 0, NULL, 0, 0, 0, 0}
#define EN_NLL {EN_OP_NLL, 0, NULL, 0, 0, 0, 0}
#define EN_CROSS_ENTROPY {EN_OP_CROSS_ENTROPY, 0, NULL, 0, 0, 0, 0}
#define EN_MSE {EN_OP_MSE, 0, NULL, 0, 0, 0, 0}
#define EN_END {0, 0, NULL, 0, 0, 0, 0}
/* clang-format on */

/* ---- graphs ------------------------------------------------------------------------------------------ */

typedef int32_t en_at; /* a node's number, 0 the batch; -1: an earlier call failed */

/* Initial values of weights and biases: a function of the seed and the tensor's position in the network alone. */
enum {
    EN_INIT_UNIFORM = 0, /* +- 1 / sqrt(fan_in): PyTorch's default for convolutions and linear layers */
    EN_INIT_NORMAL_FAN_OUT = 1, /* normal, sqrt(2 / fan_out): torchvision's for convolutions (He, ICCV'15) */
    EN_INIT_ZERO = 2,           /* biases of batch normalisation */
    EN_INIT_ONE = 3             /* weights of batch normalisation */
};

/* The program's services for a builder. */
typedef struct en_graph en_graph;
struct en_graph {
    uint32_t abi, size;
    int64_t classes; /* of the data; 0: none, or not known */
    /* Adds a node: fills in op's x, dtype and size. Copies `name` (NULL for nodes without weights); x2 is -1 if the operation
     * has one input. */
    en_at (*add)(en_graph *, const char *name, const en_op *op, en_at x, en_at x2);
    /* Sets the initial distribution of a node's weight; its bias keeps the default. Returns the node. */
    en_at (*init)(en_graph *, en_at, uint32_t distribution);
    /* Formats a name, as printf; lives as long as the graph. */
    const char *(*name)(en_graph *, const char *format, ...);
    en_extent (*extent)(const en_graph *, en_at); /* of the node's output, n = 1; zeroes for -1 */
    double (*num)(en_graph *, const char *key);   /* an option of the network */
    const char *(*text)(en_graph *, const char *key);
    /* Refuses on the builder's behalf, as printf: value, place, remedy. Returns -1. */
    en_at (*refuse)(en_graph *, const char *format, ...);
};

/* A network, as named by --model. */
typedef struct en_network {
    uint32_t abi, size;                      /* EN_NETWORK_ABI, sizeof(en_network) */
    const char *name, *help;                 /* "convnet": a-z, 0-9, '-'; one line */
    en_extent input;                         /* of one sample: n is 1; a side of 0: the data's */
    const en_layer *layers;                  /* ends with a loss, then EN_END; or NULL: */
    en_at (*build)(en_graph *, en_at batch); /* returns the loss */
    const en_option *options;                /* ends with an entry of size 0; NULL: none */
    const struct en_network *next;           /* another network in the same file, or NULL */
} en_network;

/* The only symbol that a network's file exports. Returns NULL if it does not support that ABI. */
#define EN_NETWORK_ENTRY "en_network_entry"
typedef const en_network *(*en_network_entry_fn)(uint32_t host_abi);
EN_EXPORT const en_network *en_network_entry(uint32_t host_abi);

/* ---- the calls ---- */

static inline en_extent en_extent_at(const en_graph *g, en_at x)
{
    return g->extent(g, x);
}

static inline int64_t en_channels(const en_graph *g, en_at x)
{
    return g->extent(g, x).c;
}

/* Outputs of the last layer: the data's classes, or 10 if not known. */
static inline int64_t en_classes(const en_graph *g)
{
    return g->classes > 0 ? g->classes : 10;
}

static inline en_op en_op_new(uint32_t kind, uint32_t flags)
{
    en_op op;
    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = kind;
    op.flags = flags;
    return op;
}

static inline en_at en_window(en_graph *g, en_at x, const char *name, uint32_t kind, uint32_t flags,
                              int64_t channels, int64_t kernel, int64_t stride, int64_t pad)
{
    en_op op = en_op_new(kind, flags);
    op.channels = channels;
    op.kernel_h = op.kernel_w = kernel;
    op.stride_h = op.stride_w = stride;
    op.pad_h = op.pad_w = pad;
    return g->add(g, name, &op, x, -1);
}

static inline en_at en_plain(en_graph *g, uint32_t kind, uint32_t flags, en_at x, en_at x2)
{
    const en_op op = en_op_new(kind, flags);
    return g->add(g, 0, &op, x, x2);
}

/* PyTorch's Conv2d(in, channels, kernel, stride, pad), without bias and with. */
static inline en_at en_conv(en_graph *g, en_at x, const char *name, int64_t channels, int64_t kernel,
                            int64_t stride, int64_t pad)
{
    return en_window(g, x, name, EN_OP_CONV2D, 0, channels, kernel, stride, pad);
}

static inline en_at en_conv_bias(en_graph *g, en_at x, const char *name, int64_t channels, int64_t kernel,
                                 int64_t stride, int64_t pad)
{
    return en_window(g, x, name, EN_OP_CONV2D, EN_OP_BIAS, channels, kernel, stride, pad);
}

static inline en_at en_linear(en_graph *g, en_at x, const char *name, int64_t outputs)
{
    return en_window(g, x, name, EN_OP_LINEAR, EN_OP_BIAS, outputs, 0, 0, 0);
}

static inline en_at en_linear_relu(en_graph *g, en_at x, const char *name, int64_t outputs)
{
    return en_window(g, x, name, EN_OP_LINEAR, EN_OP_BIAS | EN_OP_FUSE_RELU, outputs, 0, 0, 0);
}

/* PyTorch's BatchNorm2d(eps = 1e-5, momentum = 0.1); with relu; or with x2 added, then relu. */
static inline en_at en_norm(en_graph *g, en_at x, en_at x2, const char *name, uint32_t flags)
{
    en_op op = en_op_new(EN_OP_BATCHNORM, EN_OP_BIAS | flags);
    op.channels = en_channels(g, x);
    op.eps = 1e-5f;
    op.momentum = 0.1f;
    return g->add(g, name, &op, x, x2);
}

static inline en_at en_batchnorm(en_graph *g, en_at x, const char *name)
{
    return en_norm(g, x, -1, name, 0);
}

static inline en_at en_batchnorm_relu(en_graph *g, en_at x, const char *name)
{
    return en_norm(g, x, -1, name, EN_OP_FUSE_RELU);
}

static inline en_at en_batchnorm_add_relu(en_graph *g, en_at x, en_at x2, const char *name)
{
    return x2 < 0 ? -1 : en_norm(g, x, x2, name, EN_OP_FUSE_ADD | EN_OP_FUSE_RELU);
}

static inline en_at en_add(en_graph *g, en_at x, en_at x2)
{
    return x2 < 0 ? -1 : en_plain(g, EN_OP_ADD, 0, x, x2);
}

static inline en_at en_add_relu(en_graph *g, en_at x, en_at x2)
{
    return x2 < 0 ? -1 : en_plain(g, EN_OP_ADD, EN_OP_FUSE_RELU, x, x2);
}

static inline en_at en_relu(en_graph *g, en_at x)
{
    return en_plain(g, EN_OP_RELU, 0, x, -1);
}

/* Padding never wins in max pooling; in a mean it counts as zeros. */
static inline en_at en_maxpool(en_graph *g, en_at x, int64_t kernel, int64_t stride, int64_t pad)
{
    return en_window(g, x, 0, EN_OP_MAXPOOL, 0, 0, kernel, stride, pad);
}

static inline en_at en_avgpool(en_graph *g, en_at x, int64_t kernel, int64_t stride, int64_t pad)
{
    return en_window(g, x, 0, EN_OP_AVGPOOL, 0, 0, kernel, stride, pad);
}

/* (N, H, W, C) to (N, 1, 1, C): AdaptiveAvgPool2d(1). */
static inline en_at en_global_mean(en_graph *g, en_at x)
{
    return en_plain(g, EN_OP_AVGPOOL, 0, x, -1);
}

static inline en_at en_flatten(en_graph *g, en_at x)
{
    return en_plain(g, EN_OP_FLATTEN, 0, x, -1);
}

static inline en_at en_log_softmax(en_graph *g, en_at x)
{
    return en_plain(g, EN_OP_LOG_SOFTMAX, 0, x, -1);
}

/* The losses. */
static inline en_at en_nll(en_graph *g, en_at x)
{
    return en_plain(g, EN_OP_NLL, 0, x, -1);
}

static inline en_at en_cross_entropy(en_graph *g, en_at x)
{
    return en_plain(g, EN_OP_CROSS_ENTROPY, 0, x, -1);
}

static inline en_at en_mse(en_graph *g, en_at x)
{
    return en_plain(g, EN_OP_MSE, 0, x, -1);
}

#ifdef __cplusplus
}
#endif
#endif
