/* client.c - a client's life and calls; see client.h. Its messages are in client_io.c, its connections in
 * client_connect.c. */
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "ops/mean.h"
#include "runtime/client/client_impl.h"

/* ---- life ---- */

static void lay_out_partitions(eni_client *client)
{
    int shards = client->shards;
    for (uint32_t b = 0; b < client->config.buckets->n; b++) {
        uint64_t count = client->config.buckets->bucket[b].hi - client->config.buckets->bucket[b].lo;
        for (int k = 0; k < shards; k++) {
            eni_client_partition *c = eni_client_partition_at(client, b, k);
            c->lo = eni_slice_lo(count, k, shards);
            c->count = eni_slice_lo(count, k + 1, shards) - c->lo;
        }
    }
}

en_status eni_client_open(const eni_client_config *config, eni_client **client_out)
{
    eni_client *client = eni_alloc(sizeof *client);
    if (client == NULL) return EN_ENOMEM;
    client->config = *config;
    client->weights_fd = -1;
    client->shards = config->psd.shards;
    size_t shards = (size_t)client->shards, n = config->buckets->n;
    client->dealers = eni_alloc_array(shards, sizeof *client->dealers);
    client->is_ready = eni_alloc_array(shards, sizeof *client->is_ready);
    client->finished = eni_alloc_array(shards, sizeof *client->finished);
    client->nagain = eni_alloc_array(shards, sizeof *client->nagain);
    client->parts = eni_alloc_array(n * shards, sizeof *client->parts);
    client->calls = eni_alloc_array(n, sizeof *client->calls);
    client->delayed = eni_alloc_array(n * shards, sizeof *client->delayed);
    en_status st = EN_ENOMEM;
    if (!client->dealers || !client->is_ready || !client->finished || !client->nagain || !client->parts ||
        !client->calls || !client->delayed)
        goto close_client;
    lay_out_partitions(client);
    EN_TRY_GOTO(eni_client_connect(client, &config->psd, config->join_deadline_ns), close_client);
    EN_TRY_GOTO(eni_client_watch_open(client), close_client);
    *client_out = client;
    return EN_OK;
close_client:
    eni_client_close(client);
    return st;
}

void eni_client_close(eni_client *client)
{
    if (client == NULL) return;
    eni_client_watch_close(client);
    eni_client_disconnect(client);
    eni_client_forget_weights(client);
    eni_client_free_kept(client);
    /* ZeroMQ may read what was lent a little longer, and then counts it back here. If a peer that takes
     * nothing keeps it beyond the sockets' linger, the count outlives us: it is left behind, not freed under
     * it. */
    int64_t deadline = eni_now_ns() + 3 * ENI_SECOND;
    while (atomic_load(&client->lent) > 0 && eni_now_ns() < deadline)
        eni_sleep_until(eni_now_ns() + ENI_MILLI);
    int is_lent = atomic_load(&client->lent) > 0;
    eni_free(client->delayed);
    eni_free(client->calls);
    eni_free(client->parts);
    eni_free(client->nagain);
    eni_free(client->finished);
    eni_free(client->is_ready);
    eni_free(client->dealers);
    if (!is_lent) eni_free(client);
}

/* ---- calls ---- */

/* Which memory of ours is read, and where the answer goes. What is sent again has nothing of this and travels
 * as a message: its answer may come when nobody waits for it. */
static void point_into_arena(eni_client *client, eni_header *header, int in_slot)
{
    header->flags |= ENI_FLAG_SHM;
    header->into = in_slot == ENI_SLOT_NONE ? ENI_INTO_NOTHING : (uint32_t)in_slot;
    if (client->is_mapped && in_slot == ENI_SLOT_PARAM) header->flags |= ENI_FLAG_MAPPED;
    client->counters.shm_bytes += header->bytes;
}

static en_status send_partition(eni_client *client, eni_header header, uint32_t bucket, int shard,
                                int out_slot)
{
    eni_client_partition *c = eni_client_partition_at(client, bucket, shard);
    float *payload = NULL;
    const float *data = NULL;
    header.bucket = bucket;
    header.shard = (uint32_t)shard;
    header.count = c->count;
    header.base_version = c->version;
    if (out_slot != ENI_SLOT_NONE) {
        data = payload = eni_client_partition_address(client, out_slot, bucket, c);
        header.bytes = c->count * sizeof(float);
        header.slot = (uint32_t)out_slot;
        client->counters.payload_sent += header.bytes;
    }
    if (header.type == ENI_MSG_CALL) header.seq = c->seq + 1;
    if (header.type == ENI_MSG_INIT) {
        header.base_version = c->past_version;
        header.step = c->past_steps;
        header.nsamples = c->past_samples;
    }
    EN_TRY(eni_client_make_room(client, c, &header));
    EN_TRY(eni_client_keep(client, c, &header, data));
    if (c->is_older) header.flags |= ENI_FLAG_REPLAY;
    if (header.type == ENI_MSG_CALL) c->seq++;
    if (client->is_shared) {
        point_into_arena(client, &header, client->calls[bucket].in_slot);
        payload = NULL;
    }
    c->is_push = header.type == ENI_MSG_CALL && out_slot != ENI_SLOT_NONE;
    c->awaited = header.seq;
    c->in_flight = 1;
    client->calls[bucket].pending++;
    if (c->again != NULL) return EN_OK; /* goes out when its turn comes */
    return eni_client_send(client, shard, &header, payload, 1);
}

static en_status call(eni_client *client, const eni_header *header, uint32_t bucket, int out_slot,
                      int in_slot)
{
    if (client->calls[bucket].pending > 0) {
        eni_error("client", "bucket %u already has a call in progress", bucket);
        return EN_EBUG;
    }
    EN_TRY(eni_client_tend(client));
    client->calls[bucket].in_slot = in_slot;
    client->calls[bucket].is_snapshot = header->type == ENI_MSG_SNAPSHOT;
    client->calls[bucket].is_aside = header->type == ENI_MSG_SNAPSHOT && in_slot != ENI_SLOT_PARAM;
    for (int k = 0; k < client->shards; k++)
        if (eni_client_partition_at(client, bucket, k)->count > 0)
            EN_TRY(send_partition(client, *header, bucket, k, out_slot));
    return EN_OK;
}

static en_status start(eni_client *client, eni_header header, uint32_t bucket, int out_slot, int in_slot)
{
    eni_client_enter(client);
    const en_status st = call(client, &header, bucket, out_slot, in_slot);
    eni_client_exit(client);
    return st;
}

en_status eni_client_push(eni_client *client, uint32_t bucket, uint32_t kind, uint32_t what, int out_slot,
                          int in_slot, uint64_t nsamples, uint64_t covered, uint64_t step)
{
    eni_header header = eni_client_header(client, ENI_MSG_CALL);
    header.kind = kind;
    header.what = what;
    header.nsamples = nsamples;
    header.covered = covered;
    header.step = step;
    return start(client, header, bucket, out_slot, in_slot);
}

en_status eni_client_call(eni_client *client, uint32_t type, uint32_t bucket, uint32_t kind, uint32_t what,
                          int out_slot, int in_slot, uint64_t nsamples, uint64_t step)
{
    eni_header header = eni_client_header(client, type);
    header.kind = kind;
    header.what = what;
    header.nsamples = header.covered = nsamples;
    header.step = step;
    return start(client, header, bucket, out_slot, in_slot);
}

/* ---- waits ---- */

/* Until the bucket's call is done. */
static en_status wait_for(eni_client *client, uint32_t bucket)
{
    EN_TRY(eni_client_tend(client));
    EN_TRY(eni_client_take(client));
    while (client->calls[bucket].pending > 0) {
        EN_TRY(eni_client_slice(client));
        EN_TRY(eni_client_tend(client));
        EN_TRY(eni_client_take(client));
    }
    return EN_OK;
}

en_status eni_client_wait(eni_client *client, uint32_t bucket)
{
    eni_client_enter(client);
    const en_status st = wait_for(client, bucket);
    eni_client_exit(client);
    return st;
}

en_status eni_client_progress(eni_client *client)
{
    eni_client_enter(client);
    en_status st = eni_client_tend(client);
    if (st == EN_OK) st = eni_client_take(client);
    eni_client_exit(client);
    return st;
}

static en_status finish(eni_client *client)
{
    const int64_t deadline = eni_now_ns() + 60 * ENI_SECOND;
    EN_TRY(eni_client_tend(client));
    client->is_finishing = 1;
    for (int k = 0; k < client->shards; k++)
        EN_TRY(eni_client_say_finished(client, k));
    while (client->nfinished < client->shards) {
        EN_TRY(eni_client_slice(client));
        EN_TRY(eni_client_tend(client));
        EN_TRY(eni_client_take(client));
        /* With `keep` psd may be away, which alive() bounds, or wait for a slow disk. */
        if (client->config.keep == 0 && eni_now_ns() > deadline)
            return eni_client_too_few(client->nfinished, client->shards);
    }
    return EN_OK;
}

en_status eni_client_finished(eni_client *client)
{
    eni_client_enter(client);
    const en_status st = finish(client);
    eni_client_exit(client);
    return st;
}

/* ---- questions ---- */

void eni_client_count(const eni_client *client, eni_client_counters *counters_out)
{
    eni_client_enter(client);
    *counters_out = client->counters;
    counters_out->wire_bytes += client->past_wire;
    for (int k = 0; k < client->shards; k++) {
        eni_socket_count wire = {0};
        if (client->dealers[k] != NULL) eni_dealer_count(client->dealers[k], &wire);
        counters_out->wire_bytes += wire.wire_in + wire.wire_out;
    }
    eni_client_exit(client);
}

int eni_client_shards(const eni_client *client)
{
    return client->shards;
}

void eni_client_past(const eni_client *client, uint32_t bucket, int shard, eni_partition_past *past_out)
{
    eni_client_enter(client);
    const eni_client_partition *c = eni_client_partition_at(client, bucket, shard);
    *past_out = (eni_partition_past){client->config.buckets->bucket[bucket].lo + c->lo, c->count,
                                     c->past_version, c->past_steps, c->past_samples};
    eni_client_exit(client);
}

void eni_client_set_past(eni_client *client, uint32_t bucket, int shard, const eni_partition_past *past)
{
    eni_client_enter(client);
    eni_client_partition *c = eni_client_partition_at(client, bucket, shard);
    c->past_version = past->version;
    c->past_steps = past->steps;
    c->past_samples = past->samples;
    eni_client_exit(client);
}

uint64_t eni_client_version(const eni_client *client, uint32_t bucket)
{
    uint64_t least = UINT64_MAX;
    eni_client_enter(client);
    for (int k = 0; k < client->shards; k++) {
        const eni_client_partition *c = eni_client_partition_at(client, bucket, k);
        if (c->count > 0 && c->version < least) least = c->version;
    }
    eni_client_exit(client);
    return least == UINT64_MAX ? 0 : least;
}

double eni_client_staleness(const eni_client *client, uint32_t bucket)
{
    double sum = 0;
    int n = 0;
    eni_client_enter(client);
    for (int k = 0; k < client->shards; k++) {
        const eni_client_partition *c = eni_client_partition_at(client, bucket, k);
        if (c->count == 0) continue;
        sum += (double)c->behind;
        n++;
    }
    eni_client_exit(client);
    return n > 0 ? sum / n : 0;
}

int eni_client_is_shared(const eni_client *client)
{
    return client->is_shared;
}
