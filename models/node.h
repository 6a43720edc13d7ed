/* node.h - the nodes of a schema: built from a network, and translated into operations of a device, here only. */
#ifndef MODELS_NODE_H
#define MODELS_NODE_H

#include <stdbool.h>

#include "core/options.h"
#include "entrain/model.h"

/* Runs a network's builder or list of layers (entrain/graph.h) into a zeroed schema: nodes, tensors, buffers, and the sums over
 * them (graph.c). On failure en_schema_fini frees what was built. EN_EINVAL, logged with the node; EN_ENOMEM. */
en_status eni_graph_build(const en_network *network, const eni_options *options, const en_data_shape *data,
                          en_schema *schema);

/* The operation of `node` on a batch of n of type dtype; flags as in the network. */
en_op eni_node_op(const en_node *node, int64_t n, uint32_t dtype);

/* The operation that converts a float32 batch to the first operation's input type. */
en_op eni_cast_op(en_extent x, uint32_t dtype);

/* The type of an operation's output: its dtype, except where op.h says float32. */
uint32_t eni_op_y_dtype(const en_op *op);

/* Whether it can be trained on batches of n: a batch normalisation with one value per channel has no variance. EN_EINVAL
 * names the node, the batch and the remedy. */
en_status eni_schema_check_batch(const en_schema *schema, int64_t n);

/* The same of nodes [first, end). */
en_status eni_nodes_check_batch(const en_schema *schema, uint32_t first, uint32_t end, int64_t n);

/* Whether an operation of this kind ends a network. */
bool eni_op_is_loss(uint32_t kind);

/* Whether it moves no byte: flattening a tensor of one channel or one pixel. */
bool eni_op_is_view(const en_op *op);

/* The node that owns the output of node `at`: itself, except for views. */
int32_t eni_node_root(const en_schema *schema, int32_t at);

/* Multiply-adds of its forward pass; 0 for operations without weights. */
int64_t eni_op_multiply_adds(const en_op *op);

/* "conv2d", "relu", ...; "unknown" for other kinds. */
const char *eni_op_name(uint32_t kind);

/* Formats "layer2.0.conv1 (conv2d)" or "node 4 (flatten)" into text_out and returns it. */
enum { ENI_NODE_TEXT = EN_MAX_TENSOR_NAME + 32 };
const char *eni_node_text(const en_schema *schema, int32_t at, char text_out[ENI_NODE_TEXT]);

#endif
