/* model.h - the model that runs a network (graph.h) on a device.
 *
 * Three things, in the order in which a worker uses them:
 *
 *   en_network  a list of layers, or a function that adds nodes;
 *   en_schema   what follows from it without a device: the nodes, the tensors, their names, shapes and offsets in the flat
 *               vectors. All ranks of a run must have the same schema;
 *   en_model    the nodes planned on an opened device: forward, backward, evaluate.
 *
 * Parameters are ONE flat float32 vector, gradients another of the same length; the caller owns both, on the model's device,
 * and passes them to each call. So is the state: batch normalisation's running mean and variance, updated by forward, without
 * gradients; networks without it have no state. Every tensor is aligned to 64 bytes (16 elements); padding between tensors is zero
 * after en_schema_init_param, never read by a model, and never written by backward, so the padding of a zeroed gradient vector
 * stays zero.
 *
 * A step:
 *
 *     en_model_forward(model, param, state, &batch);           state moves towards this batch's statistics
 *     en_model_backward(model, param, grad, on_ready, user);   buckets leave from within on_ready
 *     en_model_result(model, &score);                          mean loss, correct predictions
 *
 * On a device with its own memory (EN_DEVICE_HOST unset) the first two enqueue and return, and en_model_result waits for all
 * of it. To avoid the wait use en_model_fetch and an event:
 *
 *     forward | backward | fetch -> pair[t % 2] | event        the host reads pair[t % 2] in step t + 1
 *
 * Captured work. Once a size is prepared, forward, backward and fetch of it only enqueue: they do not allocate, plan or wait,
 * so they may stand between capture_begin and capture_end (gpu.h). The capture holds the addresses of that call: param, grad,
 * batch, pair, loss_scale and the activations of the size, which must be prepared with EN_MODEL_KEEP so that they stay. A
 * launch does not count as a call of the model: en_model_result and en_model_backward refer to the last call, so fetch must be
 * inside the capture.
 *
 * Parts. A network can be cut where one tensor crosses (docs/models.md), and a model can be one part of it: a stage of a
 * pipeline, on its own device. The calls are the same, with these differences:
 *
 *     vectors   param, state and grad begin with the part's own first tensor (on_ready's numbers stay those of the schema): a
 *               device needs memory for its part only
 *     batch     .x is the tensor that enters, in the type of its node's output; .target is read only by the part that ends
 *               with the loss, and only that part has a result
 *     ends      en_model_ends_of: the output, and the gradients exchanged with neighbours
 *
 * With in_flight > 1, forward may run for several batches before the backward of the first.
 *
 *     turn(0) forward  ends_of: y out | turn(1) forward  y out | turn(0) dy in  backward  dx out | turn(1) ..
 *
 * A model belongs to one thread at a time, that of its context. */
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

enum { EN_MAX_DIMS = 8, EN_MAX_TENSOR_NAME = 201 };

/* Kinds of a tensor, as en_param.kind. A buffer (batch-norm statistics) has no gradient: rank 0's is saved with the weights. A
 * buffer of kind EN_TENSOR_OWN differs between ranks: a checkpoint has that of each. */
enum { EN_TENSOR_WEIGHT = 0, EN_TENSOR_BUFFER = 1, EN_TENSOR_OWN = 2 };

typedef struct en_model_tensor {
    char name[EN_MAX_TENSOR_NAME]; /* as PyTorch's state_dict: "conv1.weight" */
    uint32_t kind;                 /* EN_TENSOR_* */
    uint32_t ndim;                 /* 0: a scalar */
    int64_t shape[EN_MAX_DIMS];    /* as PyTorch: convolution (O, I, KH, KW), linear (O, I), bias (O) */
    uint64_t offset;               /* elements from the start of its flat vector, a multiple of 16 */
    uint64_t count;                /* elements, without the padding after it; num_batches_tracked: 1 */
    uint32_t dtype;                /* tensor.h; weights: EN_F32. Others lie in the state in place of floats */
    uint32_t init;                 /* EN_INIT_* */
    uint64_t fan_in, fan_out;      /* inputs of one output, outputs of one input: scales of initial values */
    /* Dimensions from the outermost to the innermost, as the elements lie in the flat vector; all 0: row-major. Only a program's
     * tensors have another (rank.h). Files and hashes are row-major (models/formats/rows.h). */
    uint8_t order[EN_MAX_DIMS];
} en_model_tensor;

/* One operation of a network. Inputs are earlier nodes; node 0 is the batch, an op of kind 0. */
typedef struct en_node {
    char name[EN_MAX_TENSOR_NAME]; /* "" without weights */
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
    en_model_tensor *tensors; /* (ntensors) weights, in order of declaration and offset */
    uint32_t nbuffers;
    en_model_tensor *buffers; /* (nbuffers) the same for the state */
    uint64_t count;           /* elements of the flat vector with padding, a multiple of 16 */
    uint64_t nstate;          /* of the state; 0: no state */
    uint64_t nweights;        /* elements of all weights without padding: "number of parameters" */
    int64_t outputs;          /* classes, or numbers per sample that MSE compares */
    uint32_t loss;            /* EN_OP_NLL, EN_OP_CROSS_ENTROPY or EN_OP_MSE */
} en_schema;

/* The data's shape, for a network that leaves it open. Zeroes: not known. */
typedef struct en_data_shape {
    int64_t height, width, channels, classes;
} en_data_shape;

/* Runs the builder or the list, checks it (each node fits its inputs and is read, names are unique, it ends with a loss) and
 * fills the schema; en_schema_fini frees it, and is safe on a zeroed struct. `options` of the network, "width=8"; NULL: all
 * defaults. EN_EINVAL, logged with the node; EN_ENOMEM. */
en_status en_schema_init_for(const en_network *network, const char *options, const en_data_shape *data,
                             en_schema *schema_out);
void en_schema_fini(en_schema *schema);

/* The same with the network's default options and its own input. */
static inline en_status en_schema_init(const en_network *network, en_schema *schema_out)
{
    return en_schema_init_for(network, NULL, NULL, schema_out);
}

/* Initial weights: overwrites all schema->count elements of `param`, which is host memory (copy it to other devices). Each
 * tensor by its EN_INIT_*, padding 0. A function of the seed alone (ENI_RNG_INIT): the same bytes on every machine. */
void en_schema_init_param(const en_schema *schema, uint64_t seed, float *param);

/* The initial state: means 0, variances 1, no batches; (schema->nstate), host memory. */
void en_schema_init_state(const en_schema *schema, float *state);

/* ---- model ------------------------------------------------------------------------------------------- */

typedef struct en_model en_model;

/* n samples; device addresses that stay valid until backward (or evaluate) has returned and, on a GPU, has finished there. The
 * model reads them in place; they are 32 bits wide whatever the model's type. */
typedef struct en_batch {
    int64_t n; /* >= 1; a rank without a batch does not call the model */
    /* (n, H, W, C), normalised, on en_device.align bytes; for a later part: the tensor that enters, of its own type. */
    const float *x;
    /* int32 (n) in [0, outputs), for MSE float (n, outputs); not read by a part that does not end with the loss. */
    const void *target;
} en_batch;

typedef struct en_score {
    double loss;     /* forward: mean over the batch; evaluate: sum over the samples */
    int64_t correct; /* correct predictions; 0 with MSE */
} en_score;

/* How a model computes. */
typedef struct en_model_options {
    uint32_t size; /* sizeof(en_model_options) */
    /* Type of activations and their gradients: EN_F32, EN_BF16, EN_F16; 0: EN_F32. Weights and their gradients are always float32;
     * a device without that type refuses it when a size is prepared. */
    uint32_t dtype;
    /* Device address that lives as long as the model, or NULL: 1. A power of two, read by every backward: it scales the
     * gradients of activations, but not those of the weights, which are not finite if a factor in between was not. The loss
     * itself is never scaled. */
    const float *loss_scale;
    uint32_t first, end; /* a part of the network: nodes [first, end); 0, 0: all of it */
    uint32_t input;      /* the node whose output enters the part; 0: the batch */
    /* Batches of one size that forward may run before backward, each with its own memory; 0: 1. */
    uint32_t in_flight;
    /* 1: layers keep what they make of their weights from batch to batch of training, which takes memory, until
     * en_model_new_weights. */
    uint32_t keeps_weights;
} en_model_options;

/* Plans nothing yet. Borrows schema, device and context, which must outlive the model. options NULL: float32, no scale, the
 * whole network, one batch in flight. EN_EINVAL (an unknown type, nodes that do not form a part), EN_ENOMEM. */
en_status en_model_new(const en_schema *schema, const en_device *device, en_ctx *ctx,
                       const en_model_options *options, en_model **model_out);
void en_model_free(en_model *model); /* NULL is fine; before the context is closed */

enum { EN_MODEL_TRAIN = 0, EN_MODEL_EVALUATE = 1, EN_MODEL_KEEP = 2 /* or'ed: see below */ };

/* Plans all layers for batches of exactly n samples and allocates the activations: slow. Call it before step 0 for each size
 * that the run will use (batch size, last ragged batch, evaluation batch and its ragged one): those steps then allocate
 * nothing. Other sizes are prepared at first use. The EN_MODEL_SIZES latest sizes are kept; a size prepared with EN_MODEL_KEEP
 * is never evicted, and EN_EINVAL means that all are kept. Never between forward and backward. Evaluation sizes have one batch
 * in flight, which all share. */
enum { EN_MODEL_SIZES = 16 };
en_status en_model_prepare(en_model *model, int64_t n, int mode);

/* With several batches in flight: selects the one for the following calls, forward up to the backward of the same batch. 0 at
 * first. EN_EINVAL: no such batch. */
en_status en_model_turn(en_model *model, uint32_t batch);

/* With keeps_weights: tells that `param` has changed since the last call. */
void en_model_new_weights(en_model *model);

/* Enqueues (on host devices: runs) the forward pass and the loss. Reads `param`, (schema->count); updates `state`,
 * (schema->nstate), unless it is NULL. */
en_status en_model_forward(en_model *model, const float *param, float *state, const en_batch *batch);

/* Called when the gradients of tensors [first, first + n) are enqueued (on host devices: complete) and backward will not touch
 * them or these tensors' `param` again: both may be changed at once. From the last layer to the first, each weight tensor
 * exactly once. A status other than EN_OK ends backward with that status. */
typedef en_status (*en_on_grad_ready)(void *user, uint32_t first, uint32_t n);

/* Gradient of the mean loss of the last forward, with the same param: overwrites the weights' gradients in `grad`
 * (schema->count), but not the padding. For each node: the weight gradient, then the gradient of its input, which reads the
 * weights (skipped if no weights lie above), then on_ready (may be NULL). A node with several readers gets the sum of their
 * gradients, the last reader's first: the same bits in every run. */
en_status en_model_backward(en_model *model, const float *param, float *grad, en_on_grad_ready on_ready,
                            void *user);

/* The ends of a part for the last forward of the current batch in flight, as device addresses; valid until its next forward. */
typedef struct en_model_ends {
    /* The output of the last node after forward (or evaluation), until backward begins; NULL: the last node is the loss. */
    const void *y;
    uint64_t y_bytes;
    /* The gradient of y, y_bytes: the caller writes it before backward, which may overwrite it; NULL: the last node is the
     * loss, or this was evaluation. */
    void *dy;
    /* The gradient of the part's input after backward, until its next forward; NULL: the input is the batch, or this was
     * evaluation. */
    const void *dx;
    uint64_t dx_bytes;
} en_model_ends;

/* EN_EBUG: no forward before. */
en_status en_model_ends_of(en_model *model, en_model_ends *ends_out);

/* Enqueues the copy of two numbers of the last forward to the host: mean loss, correct predictions. `pair` must be registered,
 * and is written by the device: record an event after this call and read them when it is reached. On host devices any memory,
 * written on return. Any time before the next forward or evaluate. EN_EBUG: no forward before, or it did not end with the
 * loss. */
en_status en_model_fetch(en_model *model, float pair[2]);

/* The same two numbers; blocks until the device has done all enqueued work. */
en_status en_model_result(en_model *model, en_score *score_out);

/* Forward only, over one batch, normalised by `state`, which is only read (NULL: no state); blocks. Add up the results of
 * several batches. */
en_status en_model_evaluate(en_model *model, const float *param, const float *state, const en_batch *batch,
                            en_score *score_out);

#ifdef __cplusplus
}
#endif
#endif
