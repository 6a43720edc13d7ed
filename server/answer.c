/* answer.c - what a shard answers, and by which way: a client hears by the way on which it asked.
 *
 * The lowest file of a shard: all others answer through it, and it calls none of them. What an answer
 * promises of the disk is handed to it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "server/shard_impl.h"

/* The version buffer of `data`, acquired, if these are a partition's live weights and long enough for ZeroMQ
 * to send them where they lie. NULL: they are copied. */
static eni_version_buffer *acquire(eni_shard *shard, const eni_header *header, const float *data)
{
    if (!data || header->bytes < ENI_ZEROCOPY_MIN) return NULL;
    if (data != eni_store_weights(shard->store, header->bucket, NULL)) return NULL;
    return eni_store_acquire(shard->store, header->bucket);
}

/* Through the client's ring. 0: it must go by socket. */
static int post_to_ring(eni_shard *shard, const eni_header *header)
{
    eni_shm_ring *ring = eni_arenas_ring(shard->config.arenas, header->rank);
    return ring && eni_shm_ring_answer(ring, (uint32_t)shard->config.index, header) == EN_OK;
}

void eni_shard_post(eni_shard *shard, const eni_packet *to, eni_header *header, const float *data)
{
    const uint64_t on_wire = data ? header->bytes : 0;
    header->epoch = shard->config.epoch;
    header->shard = (uint32_t)shard->config.index;
    header->incarnation = shard->config.incarnation;
    header->dtype = ENI_DTYPE_F32;
    header->codec = ENI_CODEC_NONE;
    header->deliver_ns = eni_shaper_send(shard->config.shaper, eni_now_ns(), on_wire + ENI_HEADER_CHARGE);
    eni_packet by_socket;
    if (to->source == ENI_SHARD_RING) {
        if (!data && post_to_ring(shard, header)) return;
        by_socket = eni_shard_address(shard, header->rank);
        to = &by_socket;
    }
    if (to->route_bytes == 0) return; /* it has not found this psd yet, and will ask again */
    eni_version_buffer *held = acquire(shard, header, data);
    const en_status st =
        eni_router_send(shard->router, to, header, (void *)data, held ? eni_store_release : NULL, held);
    if (st == EN_OK) return;
    eni_debug("shard", "shard %d: no answer to rank %d: %s", shard->config.index, header->rank,
              en_status_str(st));
    if (st == EN_ETIMEOUT && header->type == ENI_MSG_REPLY)
        shard->config.on_failure(shard->config.user,
                                 "a worker does not read its answers: it would wait for ever");
}

void eni_shard_refuse(eni_shard *shard, const eni_packet *to, en_status status, const char *fmt, ...)
{
    eni_header header = {.type = ENI_MSG_REFUSED,
                         .rank = to->header.rank,
                         .bucket = to->header.bucket,
                         .seq = to->header.seq,
                         .status = (uint32_t)status};
    va_list args;
    va_start(args, fmt);
    vsnprintf(header.text, sizeof header.text, fmt, args);
    va_end(args);
    shard->figures.refused++;
    eni_log_every(&shard->refused_limit, ENI_LOG_WARN, "shard", "shard %d refused: %s", shard->config.index,
                  header.text);
    eni_shard_post(shard, to, &header, NULL);
}

eni_packet eni_shard_address(const eni_shard *shard, int32_t rank)
{
    eni_packet to = {.header = {.rank = rank}, .source = -1, .route_bytes = shard->route[rank].bytes};
    memcpy(to.route, shard->route[rank].route, sizeof to.route);
    return to;
}

/* A ticket says what the answer needs: the call's seq, and where in shared memory the worker wants it.
 *
 *     seq: 47 bits | slot: 14 bits, all ones: nowhere | by_ring | is_mapped | is_shared */
enum { TICKET_SLOT = 0x3fff, TICKET_RING = 4, TICKET_MAPPED = 2, TICKET_SHARED = 1 };

uint64_t eni_shard_ticket(const eni_packet *packet)
{
    const eni_header *h = &packet->header;
    const uint64_t slot = h->into < TICKET_SLOT ? h->into : TICKET_SLOT;
    return h->seq << 17 | slot << 3 | (packet->source == ENI_SHARD_RING ? TICKET_RING : 0) |
           (h->flags & ENI_FLAG_MAPPED ? TICKET_MAPPED : 0) | (h->flags & ENI_FLAG_SHM ? TICKET_SHARED : 0);
}

uint64_t eni_shard_old_ticket(uint64_t ticket)
{
    return ticket >> 17 << 17 | (uint64_t)TICKET_SLOT << 3;
}

static uint64_t ticket_seq(uint64_t ticket)
{
    return ticket >> 17;
}

/* Where the answer to an action goes. */
static eni_packet address_of(const eni_shard *shard, const eni_store_action *action)
{
    if (action->ticket & TICKET_RING)
        return (eni_packet){.header = {.rank = action->client}, .source = ENI_SHARD_RING};
    return eni_shard_address(shard, action->client);
}

float *eni_shard_arena_at(const eni_shard *shard, const eni_arena *arena, uint32_t slot, uint32_t bucket)
{
    const eni_setup *setup = shard->config.setup;
    const uint64_t lo = eni_slice_lo(setup->counts[bucket], shard->config.index, shard->config.nshards);
    return eni_arena_at(arena, slot, setup->offsets[bucket] + lo);
}

/* Puts the vector where the worker wants it: it sees the live weights already, or they go straight into the
 * slot of its call. 0: it must travel in the message. */
static int put_into_arena(eni_shard *shard, const eni_store_action *action, eni_header *header)
{
    const uint64_t ticket = action->ticket;
    const uint32_t slot = (uint32_t)(ticket >> 3) & TICKET_SLOT;
    const eni_arena *arena = NULL;
    if (ticket & TICKET_SHARED) arena = eni_arenas_find(shard->config.arenas, action->client);
    if (!arena) return 0;
    header->flags |= ENI_FLAG_SHM;
    header->slot = ENI_INTO_NOTHING;
    shard->figures.shm_bytes += header->bytes;
    if (ticket & TICKET_MAPPED && shard->config.weights &&
        action->data == eni_store_weights(shard->store, action->bucket, NULL)) {
        header->flags |= ENI_FLAG_MAPPED;
        return 1;
    }
    if (slot >= eni_arena_nslots(arena)) return 1; /* nobody wants it */
    header->slot = slot;
    memmove(eni_shard_arena_at(shard, arena, slot, action->bucket), action->data,
            header->bytes); /* may be its own */
    return 1;
}

void eni_shard_reply(eni_shard *shard, const eni_store_action *action, uint64_t stable)
{
    const eni_packet to = address_of(shard, action);
    const float *data = action->data;
    eni_header header = {.type = ENI_MSG_REPLY,
                         .rank = action->client,
                         .bucket = action->bucket,
                         .seq = ticket_seq(action->ticket),
                         .base_version = action->met,
                         .version = action->version,
                         .stable = stable,
                         .nsamples = action->samples,
                         .step = action->steps,
                         .count = action->count,
                         .bytes = data ? action->count * sizeof(float) : 0};
    if (action->flags & ENI_STORE_IS_REPEAT) header.flags |= ENI_FLAG_REPEAT;
    if (action->flags & ENI_STORE_IS_DATA) header.flags |= ENI_FLAG_DATA;
    if (data && put_into_arena(shard, action, &header)) data = NULL;
    eni_shard_post(shard, &to, &header, data);
}

void eni_shard_refuse_call(eni_shard *shard, const eni_store_action *action)
{
    eni_packet to = address_of(shard, action);
    to.header.bucket = action->bucket;
    to.header.seq = ticket_seq(action->ticket);
    eni_shard_refuse(shard, &to, action->status, "%s", action->text);
}

void eni_shard_goodbye(eni_shard *shard, int32_t rank, int is_secure)
{
    const eni_packet to = eni_shard_address(shard, rank);
    eni_header header = {.type = ENI_MSG_GOODBYE, .rank = rank, .stable = (uint64_t)is_secure};
    eni_shard_post(shard, &to, &header, NULL);
}
