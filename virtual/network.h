/* network.h - a network of `entrain models` on real data as a problem of the virtual host: the micro-batches, weights and
 * steps of a run on real ranks. */
#ifndef VIRTUAL_NETWORK_H
#define VIRTUAL_NETWORK_H

#include "core/digest.h"
#include "models/evaluation.h"
#include "virtual/simulation.h"

typedef struct eni_virtual_network eni_virtual_network;

/* Opens data set, network and device as the flags say, and sets in `simulation`: problem, micro_batches, assign,
 * optimizer, hyper, schedule, eval_every and buckets. Borrows config and simulation. On failure *network_out is NULL. Errors as of
 * job/job.h and ops/device.h; EN_EINVAL: a GPU; logged. */
en_status eni_virtual_network_open(const eni_config *config, const char *plugins, eni_virtual *simulation,
                                   eni_virtual_network **network_out);
void eni_virtual_network_close(eni_virtual_network *network); /* NULL is fine */

/* Loss and accuracy of weights (simulation.problem->count) on the held-out samples, or, without any, on the test set, with the
 * running statistics of rank 0. *has_accuracy_out: whether it has classes. */
en_status eni_virtual_network_evaluate(eni_virtual_network *network, const float *param,
                                       eni_set_score *score_out, bool *has_accuracy_out);

/* params_sha256 of result.json for these weights. */
en_status eni_virtual_network_digest(const eni_virtual_network *network, const float *param,
                                     char hex_out[ENI_DIGEST_HEX]);

/* Names for a report: the network with its options, the data set. */
void eni_virtual_network_names(const eni_virtual_network *network, const char **model_out,
                               const char **data_out);

#endif
