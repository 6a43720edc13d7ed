/* virtual_time.c - the event queue, a binary heap in an array that doubles: post moves an event up, take
 * moves the last one down; and the network, two clocks per node, which say when each direction of its link is
 * idle again: a message reserves one of the sender's and one of the receiver's. */
#include "runtime/sim/virtual_time.h"

#include <stdlib.h>

#include "core/log.h"
#include "core/memory.h"

void eni_event_queue_fini(eni_event_queue *queue)
{
    free(queue->heap);
    *queue = (eni_event_queue){0};
}

static bool is_before(const eni_event_queue_entry *a, const eni_event_queue_entry *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static en_status grow(eni_event_queue *queue)
{
    const uint64_t room = queue->room ? 2 * queue->room : 1024;
    eni_event_queue_entry *heap = realloc(queue->heap, room * sizeof *heap);
    if (heap == NULL)
        return eni_fail(EN_ENOMEM, "sim", "out of memory with %llu events ahead",
                        (unsigned long long)queue->n);
    queue->heap = heap;
    queue->room = room;
    return EN_OK;
}

en_status eni_event_queue_post(eni_event_queue *queue, int64_t at_ns,
                               void (*happen)(void *user, void *subject), void *user, void *subject)
{
    if (queue->n == queue->room && grow(queue) != EN_OK) return EN_ENOMEM;
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
    network->latency_ns = model->latency_ns < ENI_VIRTUAL_END_NS ? model->latency_ns : ENI_VIRTUAL_END_NS;
    network->ns_per_byte = model->bytes_per_s > 0 ? 1e9 / model->bytes_per_s : 0;
    network->out_free_ns = eni_alloc_array((size_t)nnodes, sizeof *network->out_free_ns);
    network->in_free_ns = eni_alloc_array((size_t)nnodes, sizeof *network->in_free_ns);
    return network->out_free_ns != NULL && network->in_free_ns != NULL ? EN_OK : EN_ENOMEM;
}

void eni_network_fini(eni_network *network)
{
    eni_free(network->out_free_ns);
    eni_free(network->in_free_ns);
    network->out_free_ns = network->in_free_ns = NULL;
}

static int64_t cost(const eni_network *network, uint64_t bytes)
{
    return eni_virtual_span(network->ns_per_byte * (double)bytes);
}

/* Reserves a link for `bytes` behind what it carries already; returns when the last byte has passed. */
static int64_t reserve(const eni_network *network, int64_t *free_ns, int64_t now_ns, uint64_t bytes)
{
    return eni_virtual_occupy(free_ns, now_ns, cost(network, bytes));
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
    return eni_virtual_span((double)hops * ((double)network->latency_ns + bytes * network->ns_per_byte));
}
