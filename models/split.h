/* split.h - legal cuts of a network, and its parts: arithmetic on a schema, without a device.
 *
 *     node   0      1      2     3      4      5     6
 *          batch  conv1  pool  conv2  pool    fc   loss          cuts in front of 2, 3, 4 and 5
 *
 * A cut in front of a node is legal if exactly one tensor crosses it, the batch included, and both sides have weights. A
 * tensor is identified by the node that produced it: a flattening that moves no byte counts as its input. */
#ifndef MODELS_SPLIT_H
#define MODELS_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/model.h"

enum { ENI_STAGES_MAX = 64 };

/* A part of a network: consecutive nodes [first, end); its input is the output of one earlier node. */
typedef struct eni_part {
    uint32_t first, end;         /* nodes; a whole network: [0, nnodes), node 0 being the batch */
    int32_t input;               /* the node whose output enters; 0: the batch */
    uint32_t tensor, tensor_end; /* its weights: tensors [tensor, tensor_end) */
    uint64_t lo, hi;             /* their elements of the flat vector with padding: parts tile [0, count) */
    uint32_t buffer, buffer_end; /* the same of the state */
    uint64_t state_lo, state_hi;
    int64_t multiply_adds; /* of one sample, forward */
} eni_part;

/* Whether a cut in front of node `at` is legal. */
bool eni_split_is_legal(const en_schema *schema, uint32_t at);

/* Nodes [first, end) as a part. EN_EINVAL: an end is not a legal cut, or it has no weights. */
en_status eni_split_part(const en_schema *schema, uint32_t first, uint32_t end, eni_part *part_out);

/* --stages: (nstages) parts, whose largest has as few multiply-adds as legal cuts allow; among equal splits the one with
 * the earliest cuts, so that it is the same on every machine. EN_EINVAL: more stages than legal cuts allow. EN_ENOMEM. */
en_status eni_split_balance(const en_schema *schema, int nstages, eni_part *parts_out);

/* --split=NAME,NAME: the first nodes of stages 1, 2, .., each a node with weights, by name; fills at most ENI_STAGES_MAX
 * parts. EN_EINVAL, logged: no such node, not in the network's order, two tensors that cross, a stage without weights. */
en_status eni_split_at(const en_schema *schema, const char *names, int *nstages_out, eni_part *parts_out);

#endif
