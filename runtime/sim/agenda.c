#include "runtime/sim/agenda.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"

void eni_agenda_init(eni_agenda *agenda)
{
    memset(agenda, 0, sizeof *agenda);
}

void eni_agenda_fini(eni_agenda *agenda)
{
    free(agenda->heap);
    memset(agenda, 0, sizeof *agenda);
}

static int is_before(const eni_agenda_entry *a, const eni_agenda_entry *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static en_status grow(eni_agenda *agenda)
{
    const uint64_t room = agenda->room ? 2 * agenda->room : 1024;
    eni_agenda_entry *heap = realloc(agenda->heap, room * sizeof *heap);
    if (!heap) {
        eni_error("agenda", "out of memory with %llu events ahead", (unsigned long long)agenda->n);
        return EN_ENOMEM;
    }
    agenda->heap = heap;
    agenda->room = room;
    return EN_OK;
}

en_status eni_agenda_post(eni_agenda *agenda, int64_t at_ns, void (*happen)(void *user, void *subject),
                          void *user, void *subject)
{
    if (agenda->n == agenda->room && grow(agenda) != EN_OK) return EN_ENOMEM;
    const eni_agenda_entry entry = {at_ns > agenda->now_ns ? at_ns : agenda->now_ns, ++agenda->seq, happen,
                                    user, subject};
    uint64_t i = agenda->n++;
    for (; i > 0 && is_before(&entry, &agenda->heap[(i - 1) / 2]); i = (i - 1) / 2)
        agenda->heap[i] = agenda->heap[(i - 1) / 2];
    agenda->heap[i] = entry;
    return EN_OK;
}

int eni_agenda_take(eni_agenda *agenda, eni_agenda_entry *entry_out)
{
    if (agenda->n == 0) return 0;
    *entry_out = agenda->heap[0];
    agenda->now_ns = entry_out->at_ns;
    const eni_agenda_entry last = agenda->heap[--agenda->n];
    uint64_t i = 0;
    for (uint64_t child = 1; child < agenda->n; child = 2 * i + 1) {
        if (child + 1 < agenda->n && is_before(&agenda->heap[child + 1], &agenda->heap[child])) child++;
        if (!is_before(&agenda->heap[child], &last)) break;
        agenda->heap[i] = agenda->heap[child];
        i = child;
    }
    if (agenda->n) agenda->heap[i] = last;
    return 1;
}
