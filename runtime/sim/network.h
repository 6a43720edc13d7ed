/* network.h - how long a message takes: latency + size/rate, FIFO per link and direction.
 *
 *     sender's link            latency            receiver's link
 *     |-- size/rate --|~~~~~~~~~~~~~~~~~|... queue ...|-- size/rate --|
 *
 * A message reserves the sender's link when it departs and the receiver's when its head arrives there, so
 * the answers and pushes of many workers queue at the one server that they share. Nodes are ranks first,
 * then shards. Messages of a node to itself take no time. */
#ifndef SIM_NETWORK_H
#define SIM_NETWORK_H

#include <stdint.h>

#include "runtime/sim/sim.h"

typedef struct eni_network {
    int64_t latency_ns;
    double ns_per_byte;
    int32_t nnodes;
    int64_t *out_free_ns, *in_free_ns; /* (nnodes) when the link is idle again */
} eni_network;

en_status eni_network_init(eni_network *network, const eni_sim_network *model, int32_t nnodes);

/* Safe on zeroed memory. */
void eni_network_fini(eni_network *network);

/* `bytes` leave `from` for `to` at now_ns: when the head arrives. */
int64_t eni_network_depart(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes);

/* The head arrives at now_ns: when the whole message has. */
int64_t eni_network_arrive(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes);

/* What `hops` exchanges of `bytes` between neighbours take: a ring's collective. */
int64_t eni_network_hops(const eni_network *network, uint64_t hops, double bytes);

#endif
