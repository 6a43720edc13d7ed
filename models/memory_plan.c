/* memory_plan.c - greedy by size: the largest value first, into the lowest gap that holds it. */
#include "models/memory_plan.h"

#include <stdlib.h>

#include "core/memory.h"

/* Largest first; equal sizes in order, so that the plan is the same everywhere. */
static int by_size(const void *a, const void *b)
{
    const eni_lifetime *x = *(eni_lifetime *const *)a, *y = *(eni_lifetime *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Inserts into the `n` values placed so far, sorted by offset. */
static void place(eni_lifetime **placed, uint32_t n, eni_lifetime *value, uint64_t align)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (placed[i]->first > value->last || value->first > placed[i]->last) continue;
        if (placed[i]->offset >= at + value->bytes) break;
        const uint64_t end = eni_round_up(placed[i]->offset + placed[i]->bytes, align);
        if (end > at) at = end;
    }
    value->offset = at;
    uint32_t i = n;
    for (; i > 0 && placed[i - 1]->offset > at; i--)
        placed[i] = placed[i - 1];
    placed[i] = value;
}

en_status eni_memory_plan(eni_lifetime *values, uint32_t n, uint64_t align, uint64_t *bytes_out)
{
    eni_lifetime **order = eni_alloc_array(2 * (size_t)n + 1, sizeof *order), **placed = order + n;
    if (order == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        order[i] = &values[i];
    qsort(order, n, sizeof *order, by_size); /* NOLINT(bugprone-sizeof-expression): of pointers */
    *bytes_out = 0;
    for (uint32_t i = 0, nplaced = 0; i < n; i++) {
        order[i]->offset = 0;
        if (order[i]->bytes == 0) continue;
        place(placed, nplaced++, order[i], align);
        const uint64_t end = eni_round_up(order[i]->offset + order[i]->bytes, align);
        if (end > *bytes_out) *bytes_out = end;
    }
    eni_free(order);
    return EN_OK;
}
