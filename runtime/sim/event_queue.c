/* event_queue.c - a binary heap in an array that doubles: post moves an event up, take moves the last one down. */
#include "runtime/sim/event_queue.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"

void eni_event_queue_init(eni_event_queue *queue)
{
    memset(queue, 0, sizeof *queue);
}

void eni_event_queue_fini(eni_event_queue *queue)
{
    free(queue->heap);
    memset(queue, 0, sizeof *queue);
}

static bool is_before(const eni_event_queue_entry *a, const eni_event_queue_entry *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static en_status grow(eni_event_queue *queue)
{
    const uint64_t room = queue->room ? 2 * queue->room : 1024;
    eni_event_queue_entry *heap = realloc(queue->heap, room * sizeof *heap);
    if (heap == NULL) {
        eni_error("event queue", "out of memory with %llu events ahead", (unsigned long long)queue->n);
        return EN_ENOMEM;
    }
    queue->heap = heap;
    queue->room = room;
    return EN_OK;
}

en_status eni_event_queue_post(eni_event_queue *queue, int64_t at_ns, void (*happen)(void *user, void *subject),
                          void *user, void *subject)
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
