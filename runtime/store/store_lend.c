/* store_lend.c - weights that another thread reads while the store goes on. An answer need not be copied into
 * a message: the message points at the weights themselves, and the step that would change them writes another
 * copy.
 *
 *     lend    ->  edition of version 7  <- a message being sent
 *     step    ->  7 is lent: copy it, step the copy: that is the partition's edition now, 7 waits beside it
 *     return  ->  7 is free for the next step that finds its edition lent
 *
 * Where clients have received before they push again, as in rounds, a step finds nothing lent. */
#include <stdatomic.h>
#include <string.h>

#include "core/memory.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

struct eni_edition {
    atomic_uint holders; /* the store, and whoever it is lent to: the last one frees it */
    float *data;         /* (the partition's count) */
    struct eni_edition *next;
};

eni_edition *eni_edition_new(uint64_t count)
{
    eni_edition *edition = eni_alloc(sizeof *edition);
    if (!edition) return NULL;
    atomic_init(&edition->holders, 1);
    edition->data = eni_alloc_array(count, sizeof(float));
    if (edition->data) return edition;
    eni_free(edition);
    return NULL;
}

float *eni_edition_data(const eni_edition *edition)
{
    return edition->data;
}

static void let_go(eni_edition *edition)
{
    if (atomic_fetch_sub_explicit(&edition->holders, 1, memory_order_acq_rel) > 1) return;
    eni_free(edition->data);
    eni_free(edition);
}

void eni_edition_free_all(eni_edition *first)
{
    for (eni_edition *next; first; first = next) {
        next = first->next;
        let_go(first);
    }
}

static int is_lent(const eni_edition *edition)
{
    return atomic_load_explicit(&edition->holders, memory_order_acquire) > 1;
}

/* An edition that has come back, or a new one. */
static eni_edition *take_spare(eni_partition *part)
{
    for (eni_edition **at = &part->edition->next; *at; at = &(*at)->next) {
        eni_edition *edition = *at;
        if (is_lent(edition)) continue;
        *at = edition->next;
        return edition;
    }
    return eni_edition_new(part->pub.count);
}

en_status eni_partition_own(eni_store *store, eni_partition *part)
{
    if (!part->edition || !is_lent(part->edition) || eni_mutant("live-weights-lent")) return EN_OK;
    eni_edition *spare = take_spare(part);
    if (!spare) return EN_ENOMEM;
    memcpy(spare->data, part->pub.w, part->pub.count * sizeof(float));
    spare->next = part->edition;
    part->edition = spare;
    part->pub.w = spare->data;
    if (store->hook_part == part) store->hook_given.w = spare->data; /* it is not the hook that moved it */
    store->stats.moved++;
    return EN_OK;
}

eni_edition *eni_store_lend(eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    eni_edition *edition = part ? part->edition : NULL;
    if (edition) atomic_fetch_add_explicit(&edition->holders, 1, memory_order_relaxed);
    return edition;
}

void eni_store_take_back(void *weights, void *edition)
{
    (void)weights;
    let_go(edition);
}
