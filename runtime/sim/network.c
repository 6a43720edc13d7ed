/* network.c - two clocks per node, when each direction of its link is idle again; a message reserves one of the sender's
 * and one of the receiver's. */
#include "runtime/sim/network.h"

#include "core/memory.h"

en_status eni_network_init(eni_network *network, const eni_sim_network *model, int32_t nnodes)
{
    network->latency_ns = model->latency_ns;
    network->ns_per_byte = model->bytes_per_s > 0 ? 1e9 / model->bytes_per_s : 0;
    network->nnodes = nnodes;
    network->out_free_ns = eni_alloc_array((size_t)nnodes, sizeof *network->out_free_ns);
    network->in_free_ns = eni_alloc_array((size_t)nnodes, sizeof *network->in_free_ns);
    return network->out_free_ns && network->in_free_ns ? EN_OK : EN_ENOMEM;
}

void eni_network_fini(eni_network *network)
{
    eni_free(network->out_free_ns);
    eni_free(network->in_free_ns);
    network->out_free_ns = network->in_free_ns = NULL;
}

static int64_t cost(const eni_network *network, uint64_t bytes)
{
    return (int64_t)(network->ns_per_byte * (double)bytes);
}

/* Reserves a link for `bytes` behind what it carries already; returns when the last byte has passed. */
static int64_t reserve(const eni_network *network, int64_t *free_ns, int64_t now_ns, uint64_t bytes)
{
    const int64_t begin = *free_ns > now_ns ? *free_ns : now_ns;
    *free_ns = begin + cost(network, bytes);
    return *free_ns;
}

int64_t eni_network_depart(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes)
{
    if (from == to) return now_ns;
    const int64_t last_byte_ns = reserve(network, &network->out_free_ns[from], now_ns, bytes);
    return last_byte_ns - cost(network, bytes) + network->latency_ns;
}

int64_t eni_network_arrive(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes)
{
    if (from == to) return now_ns;
    return reserve(network, &network->in_free_ns[to], now_ns, bytes);
}

int64_t eni_network_hops(const eni_network *network, uint64_t hops, double bytes)
{
    return (int64_t)((double)hops * ((double)network->latency_ns + bytes * network->ns_per_byte));
}
