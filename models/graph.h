/* graph.h - runs a builder or a list of layers (entrain/graph.h) into a schema. */
#ifndef MODELS_GRAPH_H
#define MODELS_GRAPH_H

#include "core/options.h"
#include "entrain/model.h"

/* Fills a zeroed schema: nodes, tensors, buffers, and the sums over them. On failure en_schema_fini frees what was built.
 * EN_EINVAL, logged with the node; EN_ENOMEM. */
en_status eni_graph_build(const en_network *network, const eni_options *options, const en_data_shape *data,
                          en_schema *schema);

#endif
