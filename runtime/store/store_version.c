/* store_version.c - weights that another thread reads while the store goes on. An answer need not be copied into a
 * message: the message points at the weights themselves, and the step that would change them writes another copy.
 *
 *     acquire  ->  the buffer of version 7 has a reader: a message being sent
 *     step     ->  7 is in use: the step works on a copy, which is the partition's buffer now; 7 waits behind it
 *     release  ->  7 is free for the next step that finds its buffer in use
 *
 * Where clients have received before they push again, as in rounds, a step finds nothing in use. */
#include <stdatomic.h>
#include <string.h>

#include "core/memory.h"
#include "core/mutation.h"
#include "core/try.h"
#include "runtime/store/store_impl.h"

struct eni_version_buffer {
    atomic_uint holders; /* the store, and its readers: the last one frees it */
    float *data;         /* (the partition's count) */
    struct eni_version_buffer *next;
};

eni_version_buffer *eni_version_buffer_new(uint64_t count)
{
    eni_version_buffer *buffer = eni_alloc(sizeof *buffer);
    if (!buffer) return NULL;
    atomic_init(&buffer->holders, 1);
    buffer->data = eni_alloc_array(count, sizeof(float));
    if (buffer->data) return buffer;
    eni_free(buffer);
    return NULL;
}

float *eni_version_buffer_data(const eni_version_buffer *buffer)
{
    return buffer->data;
}

static void release(eni_version_buffer *buffer)
{
    if (atomic_fetch_sub_explicit(&buffer->holders, 1, memory_order_acq_rel) > 1) return;
    eni_free(buffer->data);
    eni_free(buffer);
}

void eni_version_buffer_free_all(eni_version_buffer *first)
{
    for (eni_version_buffer *next; first; first = next) {
        next = first->next;
        release(first);
    }
}

static int is_acquired(const eni_version_buffer *buffer)
{
    return atomic_load_explicit(&buffer->holders, memory_order_acquire) > 1;
}

/* A version buffer that was released, or a new one. */
static eni_version_buffer *take_spare(eni_partition *part)
{
    for (eni_version_buffer **at = &part->buffer->next; *at; at = &(*at)->next) {
        eni_version_buffer *buffer = *at;
        if (is_acquired(buffer)) continue;
        *at = buffer->next;
        return buffer;
    }
    return eni_version_buffer_new(part->pub.count);
}

en_status eni_partition_own(eni_store *store, eni_partition *part)
{
    if (!part->buffer || !is_acquired(part->buffer) || eni_mutant("live-weights-lent")) return EN_OK;
    eni_version_buffer *spare = take_spare(part);
    if (!spare) return EN_ENOMEM;
    memcpy(spare->data, part->pub.w, part->pub.count * sizeof(float));
    spare->next = part->buffer;
    part->buffer = spare;
    part->pub.w = spare->data;
    if (store->hook_part == part) store->hook_given.w = spare->data; /* it is not the hook that moved it */
    store->stats.moved++;
    return EN_OK;
}

eni_version_buffer *eni_store_acquire(eni_store *store, uint32_t bucket)
{
    const eni_partition *part = eni_store_partition(store, bucket);
    eni_version_buffer *buffer = part ? part->buffer : NULL;
    if (buffer) atomic_fetch_add_explicit(&buffer->holders, 1, memory_order_relaxed);
    return buffer;
}

void eni_store_release(void *weights, void *buffer)
{
    (void)weights;
    release(buffer);
}
