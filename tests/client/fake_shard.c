/* fake_shard.c - see fake_shard.h. */
#include "tests/client/fake_shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "ops/mean.h"

static void shard_send(shard *l, const eni_packet *to, eni_header *header, float *payload)
{
    header->shard = (uint32_t)l->index;
    header->dtype = ENI_DTYPE_F32;
    header->seq = to->header.seq;
    header->epoch = to->header.epoch;
    eni_router_send(l->router, to, header, payload, NULL, NULL);
}

/* Weights: twice the payload; a pull gets the element's number within the partition. */
static void shard_answer(shard *l, const eni_packet *packet, uint32_t flags, uint64_t missing, int late_ms)
{
    const eni_header *h = &packet->header;
    uint64_t first = l->buckets->bucket[h->bucket].lo, length = l->buckets->bucket[h->bucket].hi - first;
    uint64_t lo = first + eni_slice_lo(length, l->index, SHARDS), count = h->count;
    float *weights = calloc(count + 1, sizeof *weights);
    const float *from = NULL;
    if (weights == NULL) return;
    if (h->bytes > 0)
        from = h->flags & ENI_FLAG_SHM ? eni_arena_at(l->arena, h->slot, lo)
                                       : (const float *)(const void *)packet->payload;
    for (uint64_t i = 0; i < count; i++)
        weights[i] = from != NULL ? 2 * from[i] : (float)i;
    eni_header reply = {.type = ENI_MSG_REPLY,
                        .flags = flags,
                        .rank = h->rank,
                        .bucket = h->bucket,
                        .count = count - missing,
                        .bytes = (count - missing) * sizeof(float),
                        .base_version = h->base_version + atomic_load(&l->met_ahead),
                        .version = ++l->version[h->bucket],
                        .deliver_ns = late_ms > 0 ? eni_now_ns() + late_ms * ENI_MILLI : 0};
    if (h->flags & ENI_FLAG_MAPPED && l->weights != NULL && h->kind != COPY) {
        memcpy(l->weights + lo, weights, reply.bytes);
        reply.flags |= ENI_FLAG_SHM | ENI_FLAG_MAPPED;
    } else if (h->flags & ENI_FLAG_SHM) {
        if (h->into != ENI_INTO_NOTHING) memcpy(eni_arena_at(l->arena, h->into, lo), weights, reply.bytes);
        reply.flags |= ENI_FLAG_SHM;
        reply.slot = h->into;
    }
    shard_send(l, packet, &reply, reply.flags & ENI_FLAG_SHM ? NULL : weights);
    free(weights);
}

/* The answer to an old call once more, with contents that must not be used. */
static void shard_repeat(shard *l)
{
    float poison[64];
    for (int i = 0; i < 64; i++)
        poison[i] = NAN;
    const eni_header *h = &l->repeat.header;
    eni_header reply = {.type = ENI_MSG_REPLY,
                        .flags = ENI_FLAG_REPEAT,
                        .rank = h->rank,
                        .bucket = h->bucket,
                        .count = h->count,
                        .bytes = h->count * sizeof(float),
                        .version = 999};
    shard_send(l, &l->repeat, &reply, poison);
    eni_packet_release(&l->repeat);
    l->repeat = (eni_packet){0};
}

static void shard_refuse(shard *l, const eni_packet *packet)
{
    eni_header no = {.type = ENI_MSG_REFUSED, .bucket = packet->header.bucket, .status = EN_EMISMATCH};
    snprintf(no.text, sizeof no.text, "not on a Sunday");
    shard_send(l, packet, &no, NULL);
}

static void shard_call(shard *l, eni_packet *packet)
{
    const eni_header *h = &packet->header;
    eni_header odd = {.type = ENI_MSG_REPLY, .bucket = 99};
    atomic_store(&l->deliver_ns, h->deliver_ns);
    atomic_store(&l->base[h->bucket], h->base_version);
    atomic_store(&l->nsamples, h->nsamples);
    atomic_store(&l->step, h->step);
    atomic_fetch_add(&l->calls, 1);
    if (l->repeat.header.type != 0 && l->repeat.header.bucket == h->bucket) shard_repeat(l);
    switch (h->kind) {
    case HOLD:
        l->held = *packet;
        *packet = (eni_packet){0}; /* ours now */
        return;
    case REFUSE: shard_refuse(l, packet); return;
    case SHORT: shard_answer(l, packet, 0, 1, 0); return;
    case LIE: shard_answer(l, packet, ENI_FLAG_SHM, 0, 0); return;
    case NOWHERE: shard_send(l, packet, &odd, NULL); return;
    case LATE: shard_answer(l, packet, 0, 0, LATE_MS); return;
    case MUTE: return;
    default: shard_answer(l, packet, 0, 0, 0);
    }
    if (h->kind == TWICE) {
        l->repeat = *packet;
        *packet = (eni_packet){0};
    }
    if (l->held.header.type == 0) return;
    shard_answer(l, &l->held, 0, 0, 0);
    eni_packet_release(&l->held);
    l->held = (eni_packet){0};
}

static void shard_take(shard *l, eni_packet *packet)
{
    eni_header reply = {.rank = packet->header.rank, .bucket = packet->header.bucket};
    switch (packet->header.type) {
    case ENI_MSG_HELLO:
        reply.type = ENI_MSG_WELCOME;
        if (atomic_load(&l->is_unwelcoming)) return;
        if (strcmp(packet->header.text, l->token) != 0)
            shard_refuse(l, packet);
        else
            shard_send(l, packet, &reply, NULL);
        return;
    case ENI_MSG_INIT:
        atomic_fetch_add(&l->inits, 1);
        reply.type = ENI_MSG_REPLY;
        reply.count = packet->header.count;
        shard_send(l, packet, &reply, NULL);
        return;
    case ENI_MSG_SNAPSHOT: shard_answer(l, packet, 0, 0, 0); return;
    case ENI_MSG_CALL: shard_call(l, packet); return;
    case ENI_MSG_FINISHED:
        atomic_fetch_add(&l->nfinished, 1);
        reply.type = ENI_MSG_GOODBYE;
        shard_send(l, packet, &reply, NULL);
        return;
    default: return;
    }
}

void *shard_main(void *user)
{
    shard *l = user;
    eni_packet packet = {0};
    while (!atomic_load(&l->is_stopping)) {
        if (eni_router_recv(l->router, 5, -1, &packet) != EN_OK) continue;
        shard_take(l, &packet);
        eni_packet_release(&packet);
    }
    eni_packet_release(&l->held);
    eni_packet_release(&l->repeat);
    return NULL;
}
