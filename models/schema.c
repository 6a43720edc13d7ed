/* schema.c - from a list of layers to the tensors of the flat vector, and their first values; and a layer as
 * an operation of a device (layer.h). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "entrain/model.h"
#include "models/layer.h"

enum { MAX_LAYERS = 4096, MAX_CHANNELS = 1 << 24, MAX_KERNEL = 1 << 10 };

/* Checks what the device contract does not: sizes whose product could overflow, and names. */
static en_status layer_check(const en_network *network, int index)
{
    const en_layer *layer = &network->layers[index];
    if (layer->op != EN_OP_CONV2D && layer->op != EN_OP_LINEAR) return EN_OK;
    if (layer->name == NULL || layer->name[0] == '\0')
        return eni_fail(EN_EINVAL, "schema", "network %s: layer %d has weights but no name", network->name,
                        index);
    if (strlen(layer->name) > EN_MAX_TENSOR_NAME - sizeof ".weight")
        return eni_fail(EN_EINVAL, "schema", "network %s: the name of layer %d is longer than %zu bytes",
                        network->name, index, EN_MAX_TENSOR_NAME - sizeof ".weight");
    if (layer->channels < 1 || layer->channels > MAX_CHANNELS || layer->kernel > MAX_KERNEL)
        return eni_fail(EN_EINVAL, "schema",
                        "network %s: layer %s has %lld channels and kernel %lld; the limits are %d and %d",
                        network->name, layer->name, (long long)layer->channels, (long long)layer->kernel,
                        MAX_CHANNELS, MAX_KERNEL);
    return EN_OK;
}

/* Appends one tensor; the shape is set by the caller. */
static en_model_tensor *tensor_add(en_schema *schema, const char *layer, const char *suffix, uint64_t count,
                                   uint64_t fan_in)
{
    en_model_tensor *tensor = &schema->tensors[schema->ntensors++];
    snprintf(tensor->name, sizeof tensor->name, "%s%s", layer, suffix);
    tensor->kind = EN_TENSOR_WEIGHT;
    tensor->offset = schema->count;
    tensor->count = count;
    tensor->fan_in = fan_in;
    schema->count += eni_round_up(count, ENI_LINE_FLOATS);
    schema->nweights += count;
    return tensor;
}

static void layer_add_tensors(en_schema *schema, const en_layer *layer, const en_op *op)
{
    const uint64_t count = (uint64_t)en_op_weights(op);
    const uint64_t fan_in = count / (uint64_t)op->channels;
    en_model_tensor *weight = tensor_add(schema, layer->name, ".weight", count, fan_in);
    weight->shape[0] = op->channels;
    weight->shape[1] = op->x.c;
    weight->ndim = 2;
    if (layer->op == EN_OP_CONV2D) {
        weight->shape[2] = op->kernel_h;
        weight->shape[3] = op->kernel_w;
        weight->ndim = 4;
    }
    if (!(layer->flags & EN_OP_BIAS)) return;
    en_model_tensor *bias = tensor_add(schema, layer->name, ".bias", (uint64_t)op->channels, fan_in);
    bias->shape[0] = op->channels;
    bias->ndim = 1;
}

static en_status names_are_unique(const en_schema *schema)
{
    for (uint32_t i = 0; i < schema->ntensors; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(schema->tensors[i].name, schema->tensors[k].name) != 0) continue;
            return eni_fail(EN_EINVAL, "schema", "network %s: two tensors are called %s",
                            schema->network->name, schema->tensors[i].name);
        }
    }
    return EN_OK;
}

/* Walks the layers with a batch of one. */
static en_status layers_walk(en_schema *schema, int nlayers)
{
    const en_network *network = schema->network;
    en_extent x = network->input;
    for (int i = 0; i < nlayers; i++) {
        const en_layer *layer = &network->layers[i];
        EN_TRY(layer_check(network, i));
        const en_op op = eni_layer_op(layer, x, EN_F32);
        en_extent y;
        if (en_op_output(&op, &y) != EN_OK)
            return eni_fail(EN_EINVAL, "schema",
                            "network %s: layer %d (%s %s) does not take an input of (%lld, %lld, %lld)",
                            network->name, i, eni_layer_op_name(layer->op), layer->name ? layer->name : "",
                            (long long)x.h, (long long)x.w, (long long)x.c);
        if (eni_layer_is_loss(layer) != (i == nlayers - 1))
            return eni_fail(EN_EINVAL, "schema",
                            "network %s: layer %d is %s; a loss ends the list, and only there is one",
                            network->name, i, eni_layer_op_name(layer->op));
        if (en_op_weights(&op) > 0) layer_add_tensors(schema, layer, &op);
        if (i == nlayers - 1) {
            schema->outputs = x.h * x.w * x.c;
            schema->loss = layer->op;
        }
        x = y;
    }
    if (schema->ntensors == 0)
        return eni_fail(EN_EINVAL, "schema", "network %s has no layer with weights", network->name);
    return names_are_unique(schema);
}

en_status en_schema_init(const en_network *network, en_schema *schema_out)
{
    int nlayers = 0;
    while (nlayers < MAX_LAYERS && network->layers[nlayers].op != 0)
        nlayers++;
    if (nlayers == 0 || nlayers == MAX_LAYERS || network->input.n != 1)
        return eni_fail(EN_EINVAL, "schema",
                        "network %s: %d layers on an input of %lld samples; 1 to %d layers, one sample",
                        network->name, nlayers, (long long)network->input.n, MAX_LAYERS - 1);
    en_schema schema = {.network = network};
    schema.tensors = eni_alloc_array(2 * (size_t)nlayers, sizeof *schema.tensors);
    if (schema.tensors == NULL) return EN_ENOMEM;
    en_status st;
    EN_TRY_GOTO(layers_walk(&schema, nlayers), free_schema);
    *schema_out = schema;
    return EN_OK;

free_schema:
    en_schema_fini(&schema);
    return st;
}

void en_schema_fini(en_schema *schema)
{
    eni_free(schema->tensors);
    *schema = (en_schema){0};
}

/* kaiming_uniform(a) is uniform in +-sqrt(3) * gain / sqrt(fan_in), gain = sqrt(2 / (1 + a^2)) (He et al.,
 * ICCV'15); a = sqrt(5) leaves 1 / sqrt(fan_in), which PyTorch takes for the bias too. */
void en_schema_init_param(const en_schema *schema, uint64_t seed, float *param)
{
    memset(param, 0, schema->count * sizeof *param);
    for (uint32_t t = 0; t < schema->ntensors; t++) {
        const en_model_tensor *tensor = &schema->tensors[t];
        if (tensor->kind != EN_TENSOR_WEIGHT) continue;
        const eni_rng_key key = {.seed = seed, .purpose = ENI_RNG_INIT, .rank = 0, .step = t};
        const double bound = 1 / sqrt((double)tensor->fan_in);
        for (uint64_t i = 0; i < tensor->count; i++)
            param[tensor->offset + i] = (float)((2 * eni_rng_unit(&key, i) - 1) * bound);
    }
}

/* ---- a layer as an operation ---- */

en_op eni_layer_op(const en_layer *layer, en_extent x, uint32_t dtype)
{
    return (en_op){
        .size = sizeof(en_op),
        .kind = layer->op,
        .dtype = dtype,
        .flags = layer->flags,
        .x = x,
        .channels = layer->channels,
        .kernel_h = layer->kernel,
        .kernel_w = layer->kernel,
        .stride_h = layer->stride,
        .stride_w = layer->stride,
        .pad_h = layer->pad,
        .pad_w = layer->pad,
    };
}

en_op eni_cast_op(en_extent x, uint32_t dtype)
{
    return (en_op){.size = sizeof(en_op), .kind = EN_OP_CAST, .dtype = dtype, .flags = EN_OP_NO_DX, .x = x};
}

uint32_t eni_op_x_dtype(const en_op *op)
{
    return op->kind == EN_OP_CAST ? (uint32_t)EN_F32 : op->dtype;
}

static int is_loss(uint32_t kind)
{
    return kind == EN_OP_NLL || kind == EN_OP_CROSS_ENTROPY || kind == EN_OP_MSE;
}

uint32_t eni_op_y_dtype(const en_op *op)
{
    return op->kind == EN_OP_LOG_SOFTMAX || is_loss(op->kind) ? (uint32_t)EN_F32 : op->dtype;
}

int eni_layer_is_loss(const en_layer *layer)
{
    return is_loss(layer->op);
}

int eni_layer_is_view(const en_layer *layer, en_extent x)
{
    return layer->op == EN_OP_FLATTEN && (x.c == 1 || (x.h == 1 && x.w == 1));
}

const char *eni_layer_op_name(uint32_t op)
{
    switch (op) {
    case EN_OP_CONV2D: return "conv2d";
    case EN_OP_LINEAR: return "linear";
    case EN_OP_RELU: return "relu";
    case EN_OP_MAXPOOL: return "maxpool";
    case EN_OP_RELU_MAXPOOL: return "relu-maxpool";
    case EN_OP_FLATTEN: return "flatten";
    case EN_OP_LOG_SOFTMAX: return "log-softmax";
    case EN_OP_NLL: return "nll";
    case EN_OP_CROSS_ENTROPY: return "cross-entropy";
    case EN_OP_MSE: return "mse";
    case EN_OP_CAST: return "cast";
    default: return "unknown";
    }
}
