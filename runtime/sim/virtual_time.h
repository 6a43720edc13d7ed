/* virtual_time.h - when things happen: the event queue of virtual time, and how long a message takes.
 *
 * The queue is ordered by (virtual_ns, seq): two events of one moment happen in the order in which they were
 * posted, so a run is a function of its configuration alone.
 *
 * A message takes latency + size/rate, FIFO per link and direction:
 *
 *     sender's link            latency            receiver's link
 *     |-- size/rate --|~~~~~~~~~~~~~~~~~|... queue ...|-- size/rate --|
 *
 * A message reserves the sender's link when it departs and the receiver's when its head arrives there, so
 * the answers and pushes of many workers queue at the one server that they share. Nodes are ranks first,
 * then shards. Messages of a node to itself take no time. */
#ifndef SIM_VIRTUAL_TIME_H
#define SIM_VIRTUAL_TIME_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/sim/sim.h"

/* 36 years: no span of time is longer, and a run whose clock passes it ends (sim.c). So sums of times, of which laws and
 * files may name any, stay within an int64_t. */
#define ENI_VIRTUAL_END_NS (INT64_C(1) << 60)

/* A span of this many ns; the longest where it is longer, or no number. */
static inline int64_t eni_virtual_span(double ns)
{
    return ns < (double)ENI_VIRTUAL_END_NS ? (int64_t)ns : ENI_VIRTUAL_END_NS;
}

/* Occupies a link from now on, or from when it is idle: returns when it is idle again. */
static inline int64_t eni_virtual_occupy(int64_t *free_ns, int64_t now_ns, int64_t span_ns)
{
    const int64_t begin = *free_ns > now_ns ? *free_ns : now_ns;
    *free_ns = begin < 2 * ENI_VIRTUAL_END_NS ? begin + span_ns : begin;
    return *free_ns;
}

typedef struct eni_event_queue_entry {
    int64_t at_ns;
    uint64_t seq; /* 1, 2, .. in the order of post */
    void (*happen)(void *user, void *subject);
    void *user, *subject;
} eni_event_queue_entry;

/* Zeroed memory is an empty queue. */
typedef struct eni_event_queue {
    int64_t now_ns; /* the virtual clock: time of the entry last taken */
    uint64_t seq;
    eni_event_queue_entry *heap;
    uint32_t n, room;
} eni_event_queue;

/* Drops the remaining entries; safe on zeroed memory. */
void eni_event_queue_fini(eni_event_queue *queue);

/* happen(user, subject) at at_ns, at the earliest now. EN_ENOMEM, logged. */
en_status eni_event_queue_post(eni_event_queue *queue, int64_t at_ns,
                               void (*happen)(void *user, void *subject), void *user, void *subject);

/* Takes the next entry and sets the clock to its time; false: the queue is empty. */
bool eni_event_queue_take(eni_event_queue *queue, eni_event_queue_entry *entry_out);

/* ---- the network --------------------------------------------------------------------------------------- */

/* A link, and when each of its directions is idle again. */
typedef struct eni_network_link {
    int64_t latency_ns;
    double ns_per_byte;
    int64_t out_free_ns, in_free_ns;
} eni_network_link;

typedef struct eni_network {
    eni_network_link *links; /* (nlinks) of the nodes, then shared ones */
    int32_t *shared;         /* (nodes) the link of each to nodes with another one */
} eni_network;

en_status eni_network_init(eni_network *network, const eni_sim_network *model, int32_t nnodes);

/* Safe on zeroed memory. */
void eni_network_fini(eni_network *network);

/* Sends `bytes` from `from` to `to` at now_ns; returns when their head arrives. */
int64_t eni_network_depart(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes);

/* The head arrives at now_ns; returns when the whole message has: not before the sender's link has passed it. */
int64_t eni_network_arrive(eni_network *network, int64_t now_ns, int32_t from, int32_t to, uint64_t bytes);

/* The time in ns of one exchange of `bytes` between two nodes that have their links to themselves. */
double eni_network_hop(const eni_network *network, int32_t from, int32_t to, double bytes);

#endif
