/* model.h - the model that runs a network (graph.h) on a device.
 *
 * Three things, in the order in which a worker meets them:
 *
 *   en_network  a list of layers, or a function that adds nodes;
 *   en_schema   what follows from it without a device: the nodes, the tensors, their names, shapes and places
 *               in the flat vectors. All ranks of a run must have the same schema;
 *   en_model    the nodes planned on an opened device: forward, backward, evaluate.
 *
 * Parameters are ONE flat float32 vector, gradients another of the same length; both are the caller's, on
 * the model's device, and are passed to each call. So is the state: what batch normalisation learns of the
 * data in forward (running mean and variance), which no gradient reaches; a network without has none. Every
 * tensor starts on 64 bytes (16 elements); what lies between two tensors is padding: zero after
 * en_schema_init_param, never read by a model, and never written by backward, so that padding of a zeroed
 * gradient vector stays zero.
 *
 * A step:
 *
 *     en_model_forward(model, param, state, &batch);           state moves towards this batch's statistics
 *     en_model_backward(model, param, grad, on_ready, user);   buckets leave from within on_ready
 *     en_model_result(model, &score);                          mean loss, correct predictions
 *
 * On a device whose memory is not the host's (EN_DEVICE_HOST unset) the first two enqueue and return, and
 * en_model_result waits for all of it. Who does not want to wait takes en_model_fetch and looks behind a
 * event:
 *
 *     forward | backward | fetch -> pair[t % 2] | event        the host reads pair[t % 2] in step t + 1
 *
 * Captured work. Once a size is prepared, forward, backward and fetch of it only enqueue: they take no
 * memory, plan nothing and wait for nothing, so they may stand between capture_begin and capture_end (gpu.h).
 * What is captured holds the addresses of that call: param, grad, batch, pair, loss_scale and the activations
 * of the size, which is to be prepared with EN_MODEL_KEEP so that they stay. Launching it later is no call of
 * the model: en_model_result and en_model_backward go by the last call, so the fetch belongs into the
 * capture.
 *
 * Parts. A network can be cut where one tensor crosses (docs/models.md), and a model be one part of it: a stage
 * of a pipeline, on a device of its own. Calls are the same; what differs:
 *
 *     vectors   param, state and grad begin with the part's own first tensor (on_ready's numbers stay those of
 *               the schema): a device needs memory for its part only
 *     batch     .x is the tensor that enters, in the type that its node's output has; .target is read by the
 *               part that ends with the loss, and so only that one has a result
 *     ends      en_model_ends_of: what leaves, and the gradients that come and go
 *
 * With in_flight > 1, forward may run for several batches before the backward of the first.
 *
 *     turn(0) forward  ends_of: y out | turn(1) forward  y out | turn(0) dy in  backward  dx out | turn(1) ..
 *
 * A model belongs to one thread at a time, the one of its context. */
#ifndef ENTRAIN_MODEL_H
#define ENTRAIN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/device.h"
#include "entrain/graph.h"
#include "entrain/status.h"
#include "entrain/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- schema ------------------------------------------------------------------------------------------ */

enum { EN_MAX_DIMS = 8, EN_MAX_TENSOR_NAME = 64 };

/* Kinds of a tensor, as en_param.kind: a buffer (batch-norm statistics) is saved but not reduced. */
enum { EN_TENSOR_WEIGHT = 0, EN_TENSOR_BUFFER = 1 };

typedef struct en_model_tensor {
    char name[EN_MAX_TENSOR_NAME]; /* as PyTorch's state_dict: "conv1.weight" */
    uint32_t kind;                 /* EN_TENSOR_* */
    uint32_t ndim;                 /* 0: a scalar */
    int64_t shape[EN_MAX_DIMS];    /* as PyTorch: convolution (O, I, KH, KW), linear (O, I), bias (O) */
    uint64_t offset;               /* elements from the start of its flat vector, a multiple of 16 */
    uint64_t count;                /* elements, without the padding that follows; a num_batches_tracked: 1 */
    uint32_t is_int64;             /* a num_batches_tracked: an int64 in the place of two floats */
    uint32_t init;                 /* EN_INIT_* */
    uint64_t fan_in, fan_out;      /* inputs of one output, outputs of one input: scales of initial values */
} en_model_tensor;

/* One operation of a network. Inputs are earlier nodes; node 0 is the batch, an op of kind 0. */
typedef struct en_node {
    char name[EN_MAX_TENSOR_NAME]; /* "" for what has no weights */
    en_op op;                      /* for one sample, float32; flags as the network has them */
    en_extent y;                   /* of its output, n = 1 */
    int32_t x, x2;                 /* -1: none */
    uint32_t first, ntensors;      /* its weights: tensors[first ..]; weight, then bias */
    uint32_t first_buffer, nbuffers;
} en_node;

typedef struct en_schema {
    const en_network *network; /* borrowed; constant data that outlives it */
    char *spec;                /* its name and all its options: "resnet18:stem=cifar,width=64,classes=0" */
    uint32_t nnodes;
    en_node *nodes;  /* (nnodes), inputs before outputs; the last is the loss */
    en_extent input; /* of one sample */
    uint32_t ntensors;
    en_model_tensor *tensors; /* (ntensors) weights, in declaration order, which is that of their offsets */
    uint32_t nbuffers;
    en_model_tensor *buffers; /* (nbuffers) the same of the state */
    uint64_t count;           /* elements of the flat vector with padding, a multiple of 16 */
    uint64_t nstate;          /* of the state; 0: there is none */
    uint64_t nweights;        /* elements of all weights without padding: "number of parameters" */
    int64_t outputs;          /* classes, or numbers per sample that MSE compares */
    uint32_t loss;            /* EN_OP_NLL, EN_OP_CROSS_ENTROPY or EN_OP_MSE */
} en_schema;

/* What the data says of itself, for a network that leaves it open. Zeroes: not known. */
typedef struct en_data_shape {
    int64_t height, width, channels, classes;
} en_data_shape;

/* Runs the builder or the list, checks it (each node fits its inputs and is read, names are unique, a loss
 * ends it) and fills the schema; en_schema_fini frees it, and is safe on a zeroed struct. `options`: those of
 * the network, "width=8"; NULL: all defaults. EN_EINVAL names the node; EN_ENOMEM. */
en_status en_schema_init_for(const en_network *network, const char *options, const en_data_shape *data,
                             en_schema *schema_out);
void en_schema_fini(en_schema *schema);

/* With the network's defaults and its own input. */
static inline en_status en_schema_init(const en_network *network, en_schema *schema_out)
{
    return en_schema_init_for(network, NULL, NULL, schema_out);
}

/* Initial weights: overwrites all schema->count elements of `param`, which is host memory (copy it to
 * another device). Each tensor by its EN_INIT_*, padding 0. A function of the seed alone (ENI_RNG_INIT): the
 * same bytes on every machine. */
void en_schema_init_param(const en_schema *schema, uint64_t seed, float *param);

/* The state at the start: means 0, variances 1, no batches; (schema->nstate), host memory. */
void en_schema_init_state(const en_schema *schema, float *state);

/* ---- model ------------------------------------------------------------------------------------------- */

typedef struct en_model en_model;

/* n samples; device addresses that stay valid until backward (or evaluate) has returned and, on a GPU, is
 * done there. The model reads them where they are; they are 32 bits wide whatever the model's type is. */
typedef struct en_batch {
    int64_t n;      /* >= 1; a rank without a batch does not call the model */
    const float *x; /* (n, H, W, C), normalised, on en_device.align bytes; of a part that something else
                           enters: that, whatever its type is */
    const void
        *target; /* int32 (n) in [0, outputs), for MSE float (n, outputs); a part that does not end with
                           the loss never reads it */
} en_batch;

typedef struct en_score {
    double loss;     /* forward: mean over the batch; evaluate: sum over the samples */
    int64_t correct; /* predictions that hit the label; 0 with MSE */
} en_score;

/* How it computes. */
typedef struct en_model_options {
    uint32_t size;  /* sizeof(en_model_options) */
    uint32_t dtype; /* of activations and their gradients: EN_F32, EN_BF16, EN_F16; 0: EN_F32. Weights and
                       their gradients are float32 always; a device that has no such type refuses it
                       when a size is prepared */
    const float *loss_scale; /* device address that lasts as long as the model, or NULL: 1. A power of two,
                                read by every backward: the gradients of activations are so many times as
                                large, those of the weights as large as ever, or not finite where a factor in
                                between was not. The loss itself is never scaled */
    uint32_t first, end;     /* a part of the network: nodes [first, end); 0, 0: all of it */
    uint32_t input;          /* the node whose output enters the part; 0: the batch */
    uint32_t
        in_flight; /* batches of one size whose forward may be kept for backward at one time, each in memory
                            of its own; 0: 1 */
} en_model_options;

/* Plans nothing yet. Borrows schema, device and context: they outlive the model. options: NULL is float32, no
 * scale, the whole network, one batch in flight. EN_EINVAL (a type that is none, nodes that are no part), EN_ENOMEM. */
en_status en_model_new(const en_schema *schema, const en_device *device, en_ctx *ctx,
                       const en_model_options *options, en_model **model_out);
void en_model_free(en_model *model); /* NULL is fine; before the context is closed */

enum { EN_MODEL_TRAIN = 0, EN_MODEL_EVALUATE = 1, EN_MODEL_KEEP = 2 /* or'ed: see below */ };

/* Plans all layers for batches of exactly n samples and sizes the activations: slow, allocates. Call it
 * before step 0 for each size that the run will use (batch size, last ragged batch, evaluation batch and its
 * ragged one): those steps then allocate nothing. Another size is prepared when it is first met. The last
 * EN_MODEL_SIZES sizes are kept; one that was prepared with EN_MODEL_KEEP is never given up for another, and
 * EN_EINVAL says that there is no place left. Never between forward and backward. Sizes for evaluation have one
 * batch in flight, which all share. */
enum { EN_MODEL_SIZES = 16 };
en_status en_model_prepare(en_model *model, int64_t n, int mode);

/* Of a model with several batches in flight: selects the one that the following calls mean, forward and what follows it until the
 * backward of the same batch. 0 at first. EN_EINVAL: there is no such batch. */
en_status en_model_turn(en_model *model, uint32_t batch);

/* Enqueues (on host devices: does) the forward pass and the loss. `param` is read, (schema->count); `state`,
 * (schema->nstate), is moved, or NULL: nothing is remembered of this batch. */
en_status en_model_forward(en_model *model, const float *param, float *state, const en_batch *batch);

/* Called when the gradients of tensors [first, first + n) are enqueued (on host devices: complete) and
 * backward touches neither them nor these tensors' `param` again: both may be changed at once. From the last
 * layer to the first, each tensor of kind weight exactly once. What it returns other than EN_OK ends backward
 * with that status. */
typedef en_status (*en_on_grad_ready)(void *user, uint32_t first, uint32_t n);

/* Gradient of the mean loss of the last forward, with the same param: overwrites the weights' gradients in
 * `grad` (schema->count); padding is not touched. A node's weight gradient comes first, then the gradient of
 * its input, which reads the weights (and is not computed where no weights lie above), then on_ready (may be
 * NULL). A node that several read gets the sum of their gradients, the last reader's first: the same bits in
 * every run. */
en_status en_model_backward(en_model *model, const float *param, float *grad, en_on_grad_ready on_ready,
                            void *user);

/* The ends of a part, device addresses, of the last forward of the current batch in flight; they stay valid until its next
 * one, and hold: */
typedef struct en_model_ends {
    const void
        *y; /* the output of the last node, as forward (or evaluation) leaves it, until backward begins;
                      NULL: it is the loss */
    uint64_t y_bytes;
    void *dy; /* the gradient of y, y_bytes, which is to be there when backward begins, and may be written
                       by it; NULL: the last node is the loss, or this was evaluation */
    const void *dx; /* the gradient of what entered, as backward leaves it, until its next forward; NULL:
                       the batch entered, or this was evaluation */
    uint64_t dx_bytes;
} en_model_ends;

/* EN_EBUG: there was no forward. */
en_status en_model_ends_of(en_model *model, en_model_ends *ends_out);

/* Enqueues the copy of two numbers of the last forward to the host: mean loss, correct predictions. `pair` is
 * registered, and written once the device gets there: set an event behind this call and read them when it is
 * reached. On host devices any memory, written on return. Any time before the next forward or evaluate.
 * EN_EBUG: there was none, or it did not end with the loss. */
en_status en_model_fetch(en_model *model, float pair[2]);

/* The same two numbers; blocks until the device has done all that was enqueued. */
en_status en_model_result(en_model *model, en_score *score_out);

/* Forward only, over one batch, normalised by `state`, which is read (NULL: there is none); blocks. Add the
 * results of several batches up. */
en_status en_model_evaluate(en_model *model, const float *param, const float *state, const en_batch *batch,
                            en_score *score_out);

#ifdef __cplusplus
}
#endif
#endif
