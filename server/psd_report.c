/* psd_report.c - what the servers add to the last gather ("result"): one JSON object.
 *
 * {"role": "psd", "updates": .., "staleness": {..}, "per_worker": [{..}, ..], "lanes": [{..}, ..], ..}
 *
 * Stores count per partition. Updates and samples are given per model, that is divided by the number of
 * partitions; holds and histograms are given as counted, a push counting once per partition. With several
 * servers psd 1 and up send psd 0 the same object as counted ("is_part": true), and psd 0 adds them up. */
#include "server/psd.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* With more workers than that their histograms would not fit into a blob. */
enum { DETAILED_RANKS = 64 };

/* Sums over shards of what one worker, or all, did. */
typedef struct sums {
    uint64_t pushes, applied, dropped, holds, bytes, beside, clocks_ahead;
    eni_histogram staleness, steady;
} sums;

/* The report under construction, filled shard by shard. */
typedef struct draft {
    int32_t nranks, nshards, server;
    en_status status;
    uint64_t nservers, parts, updates, touches, nonfinite, repeats, refused, detached;
    eni_shard_figures figures;
    double cpu_seconds; /* of other servers, as the next one */
    uint64_t max_rss;
    sums all;
    sums *rank; /* (nranks) */
    json_t *shards;
} draft;

/* ---- adding up ----------------------------------------------------------------------------------------- */

static en_status add_client(sums *into, const eni_store_client_stats *from)
{
    into->pushes += from->pushes;
    into->applied += from->applied;
    into->dropped += from->dropped;
    into->holds += from->holds;
    into->bytes += from->bytes_in + from->bytes_out;
    into->beside += from->bytes_beside;
    if (from->clocks_ahead > into->clocks_ahead) into->clocks_ahead = from->clocks_ahead;
    const en_status st = eni_histogram_merge(&into->staleness, &from->staleness);
    return st == EN_OK ? eni_histogram_merge(&into->steady, &from->steady) : st;
}

/* What --state has cost. */
static void add_states(json_t *shard, const eni_shard_figures *figures)
{
    ENI_JSON_SET_INTS(
        shard, {"states", figures->snapshots.states}, {"states_failed", figures->snapshots.failures},
        {"state_bytes", figures->snapshots.bytes}, {"state_copy_ns", (uint64_t)figures->save_ns},
        {"state_write_ns", (uint64_t)figures->snapshots.write_ns});
}

static void add_figures(draft *d, const eni_shard_figures *figures)
{
    json_t *shard = json_object();
    ENI_JSON_SET_INTS(shard, {"server", (uint64_t)d->server}, {"update_ns", (uint64_t)figures->update_ns},
                      {"wait_ns", (uint64_t)figures->wait_ns},
                      {"wire_bytes", figures->wire.wire_in + figures->wire.wire_out},
                      {"shm_bytes", figures->shm_bytes});
    if (figures->snapshots.states + figures->snapshots.failures > 0) add_states(shard, figures);
    json_array_append_new(d->shards, shard);
    d->figures.update_ns += figures->update_ns;
    d->figures.wait_ns += figures->wait_ns;
    d->figures.wire.wire_in += figures->wire.wire_in;
    d->figures.wire.wire_out += figures->wire.wire_out;
    d->figures.wire.dropped += figures->wire.dropped;
    d->figures.shm_bytes += figures->shm_bytes;
    d->figures.refused += figures->refused;
    d->figures.wire.evicted += figures->wire.evicted;
    d->figures.refusals.token += figures->refusals.token;
    d->figures.refusals.member += figures->refusals.member;
    d->figures.refusals.unknown += figures->refusals.unknown;
    d->figures.refusals.payload += figures->refusals.payload;
    d->figures.refusals.damaged += figures->refusals.damaged;
}

/* On the shard's thread. */
static void visit_shard(void *user, const eni_store *store, const eni_shard_figures *figures)
{
    draft *d = user;
    const eni_store_stats *totals = eni_store_totals(store);
    d->parts += eni_store_nused(store);
    d->updates += totals->updates;
    d->touches += totals->touches;
    d->nonfinite += totals->nonfinite;
    d->repeats += totals->repeats;
    d->refused += totals->refused;
    d->detached += totals->detached;
    add_figures(d, figures);
    for (int32_t r = 0; r < d->nranks && d->status == EN_OK; r++) {
        d->status = add_client(&d->rank[r], eni_store_client(store, r));
        if (d->status == EN_OK) d->status = add_client(&d->all, eni_store_client(store, r));
    }
}

/* ---- writing ------------------------------------------------------------------------------------------- */

/* Counted per partition, told per model. */
static uint64_t per_model(const draft *d, uint64_t sum)
{
    if (d->server > 0) return sum; /* psd 0 divides */
    return d->parts ? (uint64_t)llround((double)sum / (double)d->parts) : 0;
}

static json_t *histogram_json(const eni_histogram *h, int has_bins)
{
    json_t *o = json_object(), *bins = json_array();
    eni_json_set_number(o, "mean", eni_histogram_mean(h));
    ENI_JSON_SET_INTS(o, {"p50", eni_histogram_quantile(h, 0.50)}, {"p95", eni_histogram_quantile(h, 0.95)},
                      {"p99", eni_histogram_quantile(h, 0.99)}, {"max", h->max}, {"count", h->count},
                      {"sum", h->sum});
    for (uint32_t v = 0; has_bins && v < h->bins; v++)
        if (h->bin[v] > 0)
            json_array_append_new(bins, json_pack("[I, I]", (json_int_t)v, (json_int_t)h->bin[v]));
    json_object_set_new(o, "histogram", bins);
    return o;
}

static void write_sums(const draft *d, json_t *o, const sums *s, int has_bins)
{
    ENI_JSON_SET_INTS(
        o, {"pushes", per_model(d, s->pushes)}, {"samples_applied", per_model(d, s->applied)},
        {"samples_dropped", per_model(d, s->dropped)}, {"holds", s->holds},
        {"max_clocks_ahead", s->clocks_ahead}, {"payload_bytes", s->bytes},
        {"payload_beside_steps", s->beside}); /* at the start, for evaluation, for checkpoints */
    json_object_set_new(o, "staleness", histogram_json(&s->staleness, has_bins));
    json_object_set_new(o, "staleness_steady", histogram_json(&s->steady, has_bins));
}

static void write_usage(const draft *d, json_t *o)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const double seconds = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
                           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    eni_json_set_number(o, "cpu_seconds", seconds + d->cpu_seconds);
    eni_json_set_int(o, "max_rss", (uint64_t)usage.ru_maxrss * 1024 + d->max_rss);
}

/* Why: of "refused" the first five, of "dropped_messages" the sixth, and connections that were closed. */
static json_t *refusals_json(const eni_shard_figures *figures)
{
    const eni_shard_refusals *why = &figures->refusals;
    json_t *o = json_object();
    ENI_JSON_SET_INTS(o, {"token", why->token}, {"member", why->member}, {"unknown", why->unknown},
                      {"payload", why->payload}, {"damaged", why->damaged},
                      {"malformed", figures->wire.dropped}, {"evicted", figures->wire.evicted});
    return o;
}

static char *write_report(const draft *d)
{
    json_t *o = json_object(), *workers = json_array();
    eni_json_set_text(o, "role", "psd");
    ENI_JSON_SET_INTS(o, {"pid", (uint64_t)getpid()}, {"shards", (uint64_t)d->nshards},
                      {"servers", d->nservers});
    if (d->server > 0) json_object_set_new(o, "is_part", json_true());
    ENI_JSON_SET_INTS(o, {"cells", d->parts}, {"updates", per_model(d, d->updates + d->touches)},
                      {"touches", d->touches}, {"nonfinite", d->nonfinite}, {"repeats", d->repeats},
                      {"refused", d->refused + d->figures.refused},
                      {"dropped_messages", d->figures.wire.dropped});
    json_object_set_new(o, "refusals", refusals_json(&d->figures));
    eni_json_set_int(o, "detached", d->detached);
    write_sums(d, o, &d->all, 1);
    for (int32_t r = 0; r < d->nranks; r++) {
        json_t *worker = json_object();
        eni_json_set_int(worker, "rank", (uint64_t)r);
        write_sums(d, worker, &d->rank[r], d->nranks <= DETAILED_RANKS);
        json_array_append_new(workers, worker);
    }
    json_object_set_new(o, "per_worker", workers);
    ENI_JSON_SET_INTS(o, {"wire_bytes", d->figures.wire.wire_in + d->figures.wire.wire_out},
                      {"shm_bytes", d->figures.shm_bytes}, {"update_ns", (uint64_t)d->figures.update_ns},
                      {"wait_ns", (uint64_t)d->figures.wait_ns});
    json_object_set(o, "lanes", d->shards);
    write_usage(d, o);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

static void sums_fini(sums *s)
{
    eni_histogram_fini(&s->staleness);
    eni_histogram_fini(&s->steady);
}

/* ---- the other servers' -------------------------------------------------------------------------------- */

static uint64_t int_of(const json_t *o, const char *key)
{
    const json_int_t value = json_integer_value(json_object_get(o, key));
    return value > 0 ? (uint64_t)value : 0;
}

/* The bins say all but what lies beyond the last one. */
static en_status add_histogram(eni_histogram *into, const json_t *o)
{
    const json_t *bins = json_object_get(o, "histogram");
    uint64_t bin[ENI_HISTOGRAM_MAX + 1];
    eni_histogram from = {
        .count = int_of(o, "count"), .sum = int_of(o, "sum"), .max = int_of(o, "max"), .bin = bin};
    memset(bin, 0, sizeof bin);
    for (size_t i = 0; i < json_array_size(bins); i++) {
        const json_t *pair = json_array_get(bins, i);
        const json_int_t value = json_integer_value(json_array_get(pair, 0));
        if (value < 0 || value > ENI_HISTOGRAM_MAX) return EN_EPROTO;
        bin[value] = (uint64_t)json_integer_value(json_array_get(pair, 1));
        if ((uint32_t)value >= from.bins) from.bins = (uint32_t)value + 1;
    }
    return eni_histogram_merge(into, &from);
}

static en_status add_sums(sums *into, const json_t *o)
{
    into->pushes += int_of(o, "pushes");
    into->applied += int_of(o, "samples_applied");
    into->dropped += int_of(o, "samples_dropped");
    into->holds += int_of(o, "holds");
    into->bytes += int_of(o, "payload_bytes");
    into->beside += int_of(o, "payload_beside_steps");
    if (int_of(o, "max_clocks_ahead") > into->clocks_ahead)
        into->clocks_ahead = int_of(o, "max_clocks_ahead");
    const en_status st = add_histogram(&into->staleness, json_object_get(o, "staleness"));
    return st == EN_OK ? add_histogram(&into->steady, json_object_get(o, "staleness_steady")) : st;
}

static void add_refusals(eni_shard_figures *figures, const json_t *o)
{
    figures->refusals.token += int_of(o, "token");
    figures->refusals.member += int_of(o, "member");
    figures->refusals.unknown += int_of(o, "unknown");
    figures->refusals.payload += int_of(o, "payload");
    figures->refusals.damaged += int_of(o, "damaged");
    figures->wire.evicted += int_of(o, "evicted");
}

static en_status add_part(draft *d, const json_t *o)
{
    const json_t *workers = json_object_get(o, "per_worker");
    if (!json_is_true(json_object_get(o, "is_part")) || json_array_size(workers) != (size_t)d->nranks)
        return EN_EPROTO;
    d->nservers++;
    d->nshards += (int32_t)int_of(o, "shards");
    d->parts += int_of(o, "cells");
    d->updates += int_of(o, "updates") - int_of(o, "touches");
    d->touches += int_of(o, "touches");
    d->nonfinite += int_of(o, "nonfinite");
    d->repeats += int_of(o, "repeats");
    d->refused += int_of(o, "refused");
    d->detached += int_of(o, "detached");
    d->figures.wire.dropped += int_of(o, "dropped_messages");
    add_refusals(&d->figures, json_object_get(o, "refusals"));
    d->figures.wire.wire_in += int_of(o, "wire_bytes");
    d->figures.shm_bytes += int_of(o, "shm_bytes");
    d->figures.update_ns += (int64_t)int_of(o, "update_ns");
    d->figures.wait_ns += (int64_t)int_of(o, "wait_ns");
    d->cpu_seconds += json_real_value(json_object_get(o, "cpu_seconds"));
    d->max_rss += int_of(o, "max_rss");
    json_array_extend(d->shards, json_object_get(o, "lanes"));
    EN_TRY(add_sums(&d->all, o));
    for (int32_t r = 0; r < d->nranks; r++)
        EN_TRY(add_sums(&d->rank[r], json_array_get(workers, (size_t)r)));
    return EN_OK;
}

static en_status add_others(draft *d, const eni_blob *others, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        json_t *part = json_loadb((const char *)others[i].data, others[i].bytes, 0, NULL);
        const en_status st = part ? add_part(d, part) : EN_EPROTO;
        json_decref(part);
        if (st == EN_OK) continue;
        return eni_fail(st, "report", "psd %zu sent no report", i + 1);
    }
    return EN_OK;
}

char *eni_psd_report(eni_shard *const *shards, int32_t nshards, int32_t nranks, int32_t server,
                     const eni_blob *others, size_t nothers)
{
    draft d = {.nranks = nranks, .nshards = nshards, .server = server, .nservers = 1, .shards = json_array()};
    char *text = NULL;
    d.rank = eni_alloc_array((size_t)d.nranks, sizeof *d.rank);
    d.status = d.rank ? EN_OK : EN_ENOMEM;
    for (int32_t k = 0; k < nshards && d.status == EN_OK; k++) {
        const en_status st = eni_shard_look(shards[k], visit_shard, &d);
        if (st != EN_OK) d.status = st;
    }
    if (d.status == EN_OK) d.status = add_others(&d, others, nothers);
    if (d.status == EN_OK && !(text = write_report(&d)))
        eni_error("report", "out of memory for psd's report");
    for (int32_t r = 0; d.rank && r < d.nranks; r++)
        sums_fini(&d.rank[r]);
    sums_fini(&d.all);
    eni_free(d.rank);
    json_decref(d.shards);
    return text;
}
