/* node.c - a node as an operation: its types and names. */
#include "models/node.h"

#include <stdio.h>

#include "core/log.h"

en_op eni_node_op(const en_node *node, int64_t n, uint32_t dtype)
{
    en_op op = node->op;
    op.x.n = n;
    op.dtype = dtype;
    return op;
}

en_op eni_cast_op(en_extent x, uint32_t dtype)
{
    return (en_op){.size = sizeof(en_op), .kind = EN_OP_CAST, .dtype = dtype, .flags = EN_OP_NO_DX, .x = x};
}

uint32_t eni_op_y_dtype(const en_op *op)
{
    return op->kind == EN_OP_LOG_SOFTMAX || eni_op_is_loss(op->kind) ? (uint32_t)EN_F32 : op->dtype;
}

bool eni_op_is_loss(uint32_t kind)
{
    return kind == EN_OP_NLL || kind == EN_OP_CROSS_ENTROPY || kind == EN_OP_MSE;
}

bool eni_op_is_view(const en_op *op)
{
    return op->kind == EN_OP_FLATTEN && (op->x.c == 1 || (op->x.h == 1 && op->x.w == 1));
}

int32_t eni_node_root(const en_schema *schema, int32_t at)
{
    while (at > 0 && eni_op_is_view(&schema->nodes[at].op))
        at = schema->nodes[at].x;
    return at;
}

int64_t eni_op_multiply_adds(const en_op *op)
{
    en_extent y;
    if ((op->kind != EN_OP_CONV2D && op->kind != EN_OP_LINEAR) || en_op_output(op, &y) != EN_OK) return 0;
    return y.n * y.h * y.w * en_op_weights(op);
}

const char *eni_op_name(uint32_t kind)
{
    static const char *const names[EN_OP_KINDS] = {[EN_OP_CONV2D] = "conv2d",
                                                   [EN_OP_LINEAR] = "linear",
                                                   [EN_OP_RELU] = "relu",
                                                   [EN_OP_MAXPOOL] = "maxpool",
                                                   [EN_OP_RELU_MAXPOOL] = "relu-maxpool",
                                                   [EN_OP_FLATTEN] = "flatten",
                                                   [EN_OP_LOG_SOFTMAX] = "log-softmax",
                                                   [EN_OP_NLL] = "nll",
                                                   [EN_OP_CROSS_ENTROPY] = "cross-entropy",
                                                   [EN_OP_MSE] = "mse",
                                                   [EN_OP_CAST] = "cast",
                                                   [EN_OP_BATCHNORM] = "batchnorm",
                                                   [EN_OP_ADD] = "add",
                                                   [EN_OP_AVGPOOL] = "avgpool"};
    return kind < EN_OP_KINDS && names[kind] != NULL ? names[kind] : "unknown";
}

const char *eni_node_text(const en_schema *schema, int32_t at, char text_out[ENI_NODE_TEXT])
{
    const en_node *node = &schema->nodes[at];
    if (node->name[0] != '\0')
        snprintf(text_out, ENI_NODE_TEXT, "%s (%s)", node->name, eni_op_name(node->op.kind));
    else
        snprintf(text_out, ENI_NODE_TEXT, "node %d (%s)", at, eni_op_name(node->op.kind));
    return text_out;
}

en_status eni_nodes_check_batch(const en_schema *schema, uint32_t first, uint32_t end, int64_t n)
{
    char what[ENI_NODE_TEXT];
    for (uint32_t i = first; i < end; i++) {
        const en_op *op = &schema->nodes[i].op;
        if (op->kind != EN_OP_BATCHNORM || n * op->x.h * op->x.w != 1) continue;
        return eni_fail(
            EN_EINVAL, "model",
            "%s: %s gets one value per channel from a batch of %lld sample, which has no variance; give "
            "--drop-last, or sizes (--batch-size, --micro-batches) that never leave one sample",
            schema->network->name, eni_node_text(schema, (int32_t)i, what), (long long)n);
    }
    return EN_OK;
}

en_status eni_schema_check_batch(const en_schema *schema, int64_t n)
{
    return eni_nodes_check_batch(schema, 0, schema->nnodes, n);
}
