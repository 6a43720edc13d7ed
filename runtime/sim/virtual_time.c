/* virtual_time.c - the event queue, a binary heap in an array that doubles: post moves an event up, take
 * moves the last one down; and the network, two clocks per link, which say when each of its directions is idle again: a
 * message reserves one of the sender's and one of the receiver's. */
#include "runtime/sim/virtual_time.h"

#include <stdlib.h>

#include "core/memory.h"
#include "core/try.h"

void eni_event_queue_fini(eni_event_queue *queue)
{
    free(queue->heap);
    *queue = (eni_event_queue){0};
}

static bool is_before(const eni_event_queue_entry *a, const eni_event_queue_entry *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

en_status eni_event_queue_post(eni_event_queue *queue, int64_t at_ns,
                               void (*happen)(void *user, void *subject), void *user, void *subject)
{
    EN_TRY(eni_grow((void **)&queue->heap, &queue->room, queue->n + 1, sizeof *queue->heap));
    const eni_event_queue_entry entry = {at_ns > queue->now_ns ? at_ns : queue->now_ns, ++queue->seq, happen,
                                         user, subject};
    uint64_t i = queue->n++;
    for (; i > 0 && is_before(&entry, &queue->heap[(i - 1) / 2]); i = (i - 1) / 2)
        queue->heap[i] = queue->heap[(i - 1) / 2];
    queue->heap[i] = entry;
    return EN_OK;
}

bool eni_event_queue_take(eni_event_queue *queue, eni_event_queue_entry *entry_out)
{
    if (queue->n == 0) return false;
    *entry_out = queue->heap[0];
    queue->now_ns = entry_out->at_ns;
    const eni_event_queue_entry last = queue->heap[--queue->n];
    uint64_t i = 0;
    for (uint64_t child = 1; child < queue->n; child = 2 * i + 1) {
        if (child + 1 < queue->n && is_before(&queue->heap[child + 1], &queue->heap[child])) child++;
        if (!is_before(&queue->heap[child], &last)) break;
        queue->heap[i] = queue->heap[child];
        i = child;
    }
    if (queue->n) queue->heap[i] = last;
    return true;
}

/* ---- the network --------------------------------------------------------------------------------------- */

en_status eni_network_init(eni_network *network, const eni_sim_network *model, int32_t nnodes)
{
    static const eni_net_link none = {0};
    const int32_t n = model->nlinks > nnodes ? model->nlinks : nnodes, last = model->nlinks - 1;
    network->links = eni_alloc_array((size_t)n, sizeof *network->links);
    network->shared = eni_alloc_array((size_t)nnodes, sizeof *network->shared);
    if (network->links == NULL || network->shared == NULL) return EN_ENOMEM;
    for (int32_t i = 0; i < n; i++) {
        const eni_net_link *link = last < 0 ? &none : &model->links[i < last ? i : last];
        network->links[i].latency_ns =
            link->delay_ns < ENI_VIRTUAL_END_NS ? link->delay_ns : ENI_VIRTUAL_END_NS;
        network->links[i].ns_per_byte = link->bytes_per_s > 0 ? 1e9 / link->bytes_per_s : 0;
    }
    for (int32_t i = 0; i < nnodes; i++)
        network->shared[i] = model->shared != NULL ? model->shared[i] : i;
    return EN_OK;
}

void eni_network_fini(eni_network *network)
{
    eni_free(network->links);
    eni_free(network->shared);
    *network = (eni_network){0};
}

/* The link of `node` on the way to or from `other`. */
static eni_network_link *link_of(const eni_network *network, int32_t node, int32_t other)
{
    const int32_t shared = network->shared[node];
    return &network->links[shared == network->shared[other] ? node : shared];
}

static int64_t cost(const eni_network_link *link, uint64_t bytes)
{
    return eni_virtual_span(link->ns_per_byte * (double)bytes);
}

static int64_t latency(const eni_network *network, int32_t from, int32_t to)
{
    const int64_t out = link_of(network, from, to)->latency_ns, in = link_of(network, to, from)->latency_ns;
    return out > in ? out : in;
}

int64_t eni_network_depart(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes)
{
    if (from == to) return now_ns;
    eni_network_link *link = link_of(network, from, to);
    const int64_t took = cost(link, bytes);
    return eni_virtual_occupy(&link->out_free_ns, now_ns, took) - took + latency(network, from, to);
}

int64_t eni_network_arrive(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes)
{
    if (from == to) return now_ns;
    eni_network_link *link = link_of(network, to, from);
    const int64_t here = eni_virtual_occupy(&link->in_free_ns, now_ns, cost(link, bytes)),
                  sent = now_ns + cost(link_of(network, from, to), bytes);
    return here > sent ? here : sent;
}

double eni_network_hop(const eni_network *network, int32_t from, int32_t to, double bytes)
{
    const double out = link_of(network, from, to)->ns_per_byte, in = link_of(network, to, from)->ns_per_byte;
    return (double)latency(network, from, to) + bytes * (out > in ? out : in);
}
