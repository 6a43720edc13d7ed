/* event_queue.h - what will happen, ordered by (virtual_ns, seq): the event queue of virtual time.
 *
 * Two events of one moment happen in the order in which they were posted, so a run is a function of its
 * configuration alone. A binary heap. */
#ifndef SIM_EVENT_QUEUE_H
#define SIM_EVENT_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"

typedef struct eni_event_queue_entry {
    int64_t at_ns;
    uint64_t seq; /* 1, 2, .. in the order of post */
    void (*happen)(void *user, void *subject);
    void *user, *subject;
} eni_event_queue_entry;

typedef struct eni_event_queue {
    int64_t now_ns; /* the virtual clock: time of the entry last taken */
    uint64_t seq;
    eni_event_queue_entry *heap;
    uint64_t n, room;
} eni_event_queue;

void eni_event_queue_init(eni_event_queue *queue);

/* Drops what is left; safe on zeroed memory. */
void eni_event_queue_fini(eni_event_queue *queue);

/* happen(user, subject) at at_ns, at the earliest now. EN_ENOMEM, logged. */
en_status eni_event_queue_post(eni_event_queue *queue, int64_t at_ns, void (*happen)(void *user, void *subject),
                          void *user, void *subject);

/* Takes the next entry and sets the clock to its time; false when there is none. */
bool eni_event_queue_take(eni_event_queue *queue, eni_event_queue_entry *entry_out);

#endif
