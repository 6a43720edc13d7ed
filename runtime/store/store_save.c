/* store_save.c - a store as bytes; store_load.c reads what this writes, field by field in the same order. */
#include "runtime/store/store_save.h"

#include <string.h>

#include "core/memory.h"
#include "runtime/store/store_impl.h"

enum { PIECE = 64 * 1024 };

/* Gathers small fields into pieces. After a failed write nothing more is written. */
typedef struct sink {
    eni_log_write write;
    void *user;
    en_status status;
    size_t n;
    uint8_t piece[PIECE];
} sink;

static void flush(sink *out)
{
    if (out->status == EN_OK && out->n > 0) out->status = out->write(out->user, out->piece, out->n);
    out->n = 0;
}

static void put_bytes(sink *out, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes > 0 && out->status == EN_OK) {
        const size_t room = PIECE - out->n, n = bytes < room ? bytes : room;
        memcpy(out->piece + out->n, at, n);
        out->n += n;
        at += n;
        bytes -= n;
        if (out->n == PIECE) flush(out);
    }
}

static void put(sink *out, uint64_t value, int bytes)
{
    uint8_t raw[8];
    for (int i = 0; i < bytes; i++)
        raw[i] = (uint8_t)(value >> 8 * i);
    put_bytes(out, raw, (size_t)bytes);
}

/* Little-endian machines only, as on the wire. */
static void put_floats(sink *out, const float *data, uint64_t count)
{
    put_bytes(out, data, count * sizeof(float));
}

static void put_histogram(sink *out, const eni_histogram *histogram)
{
    put(out, histogram->count, 8);
    put(out, histogram->sum, 8);
    put(out, histogram->max, 8);
    put(out, histogram->bins, 4);
    for (uint32_t i = 0; i < histogram->bins; i++)
        put(out, histogram->bin[i], 8);
}

static void put_store(sink *out, const eni_store *store)
{
    const eni_store_stats *stats = &store->stats;
    put(out, (uint64_t)store->now_ns, 8);
    put(out, (uint64_t)store->timer_told, 8);
    put(out, (uint64_t)store->has_timers, 1);
    put(out, store->rand_index, 8);
    put(out, stats->updates, 8);
    put(out, stats->touches, 8);
    put(out, stats->nonfinite, 8);
    put(out, stats->repeats, 8);
    put(out, stats->refused, 8);
    put(out, stats->detached, 8);
}

static void put_client(sink *out, const eni_client_record *client)
{
    const eni_store_client_stats *stats = &client->stats;
    put(out, client->incarnation, 8);
    put(out, client->presence, 1);
    put(out, stats->pushes, 8);
    put(out, stats->pulls, 8);
    put(out, stats->applied, 8);
    put(out, stats->dropped, 8);
    put(out, stats->holds, 8);
    put(out, stats->bytes_in, 8);
    put(out, stats->bytes_out, 8);
    put(out, stats->bytes_beside, 8);
    put(out, stats->clocks_ahead, 8);
    put_histogram(out, &stats->staleness);
    put_histogram(out, &stats->steady);
}

static void put_dedupe(sink *out, const eni_store *store, const eni_partition *part, const eni_dedupe *dedupe)
{
    put(out, dedupe->seq, 8);
    put(out, dedupe->clock, 8);
    put(out, dedupe->pushes, 8);
    put(out, dedupe->outcome, 1);
    put(out, (uint64_t)dedupe->status, 4);
    for (uint32_t i = 0; i < store->config.strategy->peer_vecs; i++) {
        const float *peer = dedupe->peer ? dedupe->peer[i] : NULL;
        put(out, peer != NULL, 1);
        if (peer) put_floats(out, peer, part->pub.count);
    }
}

static void put_call(sink *out, const eni_call *call)
{
    uint64_t weight;
    memcpy(&weight, &call->weight, sizeof weight);
    const int flags = call->is_held | call->is_staged << 1 | call->is_snapshot << 2 | call->is_counted << 3 |
                      call->is_steady << 4 | call->was_asked << 5 | call->was_absorbed << 6 |
                      (call->msg.data != NULL) << 7;
    put(out, (uint64_t)flags, 1);
    put(out, (uint64_t)call->pending_error, 4);
    put(out, (uint32_t)call->msg.src, 4);
    put(out, call->msg.kind, 4);
    put(out, call->msg.what, 4);
    put(out, call->msg.clock, 8);
    put(out, call->msg.base_version, 8);
    put(out, call->msg.nsamples, 8);
    put(out, call->covered, 8);
    put(out, call->ticket, 8);
    put(out, call->seq, 8);
    put(out, call->met, 8);
    put(out, weight, 8);
    if (call->msg.data) put_floats(out, call->msg.data, call->payload.count);
}

/* Those that are only staged still, then the held ones, both in their order: so staging them again gives the
 * same order of the sum, also where a client that joined again has reached a clock of its predecessor. */
static void put_calls(sink *out, const eni_partition *part)
{
    uint32_t n = 0;
    for (const eni_call *call = part->held_first; call; call = call->next)
        n++;
    for (uint32_t i = 0; i < part->nstaged; i++)
        n += !part->staged[i]->is_held;
    put(out, n, 4);
    for (uint32_t i = 0; i < part->nstaged; i++)
        if (!part->staged[i]->is_held) put_call(out, part->staged[i]);
    for (const eni_call *call = part->held_first; call; call = call->next)
        put_call(out, call);
}

static void put_partition(sink *out, const eni_store *store, const eni_partition *part)
{
    const uint64_t count = part->pub.count;
    put(out, (uint64_t)part->is_initialised, 1);
    put(out, part->pub.version, 8);
    put(out, part->steps, 8);
    put(out, part->samples, 8);
    put(out, (uint64_t)part->has_timer, 1);
    put(out, (uint64_t)part->timer_ns, 8);
    put_floats(out, part->pub.w, count);
    for (int i = 0; i < ENI_MAX_SLOTS; i++)
        if (part->slot[i]) put_floats(out, part->slot[i], count);
    if (part->first) put_floats(out, part->first, count);
    put(out, store->config.strategy->partition_state, 8);
    put_bytes(out, part->state, store->config.strategy->partition_state);
    for (int32_t r = 0; r < store->config.world; r++)
        put_dedupe(out, store, part, &part->dedupe[r]);
    put_calls(out, part);
}

static void put_header(sink *out, const char *text, size_t bytes)
{
    put_bytes(out, ENI_STATE_MAGIC, 8);
    put(out, ENI_STATE_VERSION, 4);
    put(out, bytes, 4);
    put_bytes(out, text, bytes);
}

en_status eni_store_save(const eni_store *store, eni_log_write write, void *user)
{
    size_t bytes;
    char *text = eni_store_config_text(&store->config, &bytes);
    sink *out = eni_alloc(sizeof *out);
    en_status st = EN_ENOMEM;
    if (text && out) {
        out->write = write;
        out->user = user;
        put_header(out, text, bytes);
        put_store(out, store);
        for (int32_t r = 0; r < store->config.world; r++)
            put_client(out, &store->client[r]);
        for (uint32_t b = 0; b < store->config.nbuckets; b++)
            if (store->part[b].pub.count > 0) put_partition(out, store, &store->part[b]);
        put_bytes(out, ENI_STATE_END, 4);
        flush(out);
        st = out->status;
    }
    eni_free(out);
    eni_free(text);
    return st;
}

/* ---- questions ----------------------------------------------------------------------------------------- */

uint64_t eni_store_seq(const eni_store *store, int32_t client, uint32_t bucket)
{
    if (client < 0 || client >= store->config.world || !eni_store_partition(store, bucket)) return 0;
    return store->part[bucket].dedupe[client].seq;
}

uint64_t eni_store_incarnation(const eni_store *store, int32_t client)
{
    return client < 0 || client >= store->config.world ? 0 : store->client[client].incarnation;
}

int64_t eni_store_timer(const eni_store *store)
{
    int64_t when = INT64_MAX;
    for (uint32_t b = 0; b < store->config.nbuckets; b++)
        if (store->part[b].has_timer && store->part[b].timer_ns < when) when = store->part[b].timer_ns;
    return when;
}
