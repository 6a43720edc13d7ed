/* psd_report.c - the servers' part of the last gather ("result"): one JSON object.
 *
 * {"role": "psd", "updates": .., "staleness": {..}, "per_worker": [{..}, ..], "per_shard": [{..}, ..], ..}
 *
 * Stores count per partition. Updates and samples are given per model, that is divided by the number of
 * partitions; holds and histograms are given as counted, a push counting once per partition. With several
 * servers psd 1 and up send psd 0 the same object as counted ("is_part": true), and psd 0 adds them up. */
#include "server/psd.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

/* The histograms of more workers would not fit into a blob. */
enum { DETAILED_RANKS = 64 };

/* The report under construction: sums over shards, and over servers. */
typedef struct draft {
    int32_t nranks, nshards, server;
    en_status status;
    uint64_t nservers, parts;
    eni_store_stats did; /* updates includes touches */
    eni_shard_figures figures;
    double cpu_seconds; /* of other servers, as the next one */
    uint64_t max_rss;
    eni_store_client_stats all, *rank; /* (nranks) bytes_in: both directions */
    json_t *shards;
} draft;

/* A number of the report, and its offset in its struct. */
typedef struct count {
    const char *key;
    size_t at;
} count;

static const count totals[] = {{"parts", offsetof(draft, parts)},
                               {"updates", offsetof(draft, did.updates)},
                               {"touches", offsetof(draft, did.touches)},
                               {"nonfinite", offsetof(draft, did.nonfinite)},
                               {"repeats", offsetof(draft, did.repeats)},
                               {"refused", offsetof(draft, did.refused)},
                               {"dropped_messages", offsetof(draft, figures.wire.dropped)},
                               {"detached", offsetof(draft, did.detached)},
                               {"wire_bytes", offsetof(draft, figures.wire.wire_in)},
                               {"shm_bytes", offsetof(draft, figures.shm_bytes)},
                               {"update_ns", offsetof(draft, figures.update_ns)},
                               {"wait_ns", offsetof(draft, figures.wait_ns)},
                               {NULL, 0}};

/* The reasons: the first five of "refused", and connections that were closed. */
static const count reasons[] = {{"token", offsetof(draft, figures.refusals.token)},
                                {"member", offsetof(draft, figures.refusals.member)},
                                {"unknown", offsetof(draft, figures.refusals.unknown)},
                                {"payload", offsetof(draft, figures.refusals.payload)},
                                {"damaged", offsetof(draft, figures.refusals.damaged)},
                                {"evicted", offsetof(draft, figures.wire.evicted)},
                                {NULL, 0}};

/* The counts of one worker, or of all. */
static const count per_client[] = {{"pushes", offsetof(eni_store_client_stats, pushes)},
                                   {"samples_applied", offsetof(eni_store_client_stats, applied)},
                                   {"samples_dropped", offsetof(eni_store_client_stats, dropped)},
                                   {"holds", offsetof(eni_store_client_stats, holds)},
                                   {"max_clocks_ahead", offsetof(eni_store_client_stats, clocks_ahead)},
                                   {"payload_bytes", offsetof(eni_store_client_stats, bytes_in)},
                                   {"payload_beside_steps", offsetof(eni_store_client_stats, bytes_beside)},
                                   {NULL, 0}};

/* ---- adding up ----------------------------------------------------------------------------------------- */

/* Adds structs of 64-bit whole numbers. */
static void add(void *into, const void *more, size_t bytes)
{
    uint64_t *to = into;
    const uint64_t *from = more;
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] += from[i];
}

static en_status add_client(eni_store_client_stats *into, const eni_store_client_stats *from)
{
    const uint64_t ahead = into->clocks_ahead;
    add(into, from, offsetof(eni_store_client_stats, staleness));
    into->clocks_ahead = ahead > from->clocks_ahead ? ahead : from->clocks_ahead;
    into->bytes_in += from->bytes_out;
    EN_TRY(eni_histogram_merge(&into->staleness, &from->staleness));
    return eni_histogram_merge(&into->steady, &from->steady);
}

/* One shard's own figures, and the cost of --state. */
static json_t *shard_json(const draft *d, const eni_shard_figures *figures)
{
    const eni_snapshot_figures *state = &figures->snapshots;
    json_t *shard = json_object();
    ENI_JSON_SET_INTS(shard, {"server", (uint64_t)d->server}, {"update_ns", (uint64_t)figures->update_ns},
                      {"wait_ns", (uint64_t)figures->wait_ns},
                      {"wire_bytes", figures->wire.wire_in + figures->wire.wire_out},
                      {"shm_bytes", figures->shm_bytes});
    if (state->states + state->failures > 0)
        ENI_JSON_SET_INTS(shard, {"states", state->states}, {"states_failed", state->failures},
                          {"state_bytes", state->bytes}, {"state_copy_ns", (uint64_t)figures->save_ns},
                          {"state_write_ns", (uint64_t)state->write_ns});
    return shard;
}

/* On the shard's thread. */
static void visit_shard(void *user, const eni_store *store, const eni_shard_figures *figures)
{
    draft *d = user;
    const eni_store_stats *did = eni_store_totals(store);
    d->parts += eni_store_nused(store);
    add(&d->did, did, sizeof *did);
    add(&d->figures, figures, sizeof *figures);
    d->did.updates += did->touches;
    d->did.refused += figures->refused;
    d->figures.wire.wire_in += figures->wire.wire_out;
    d->rank[0].bytes_beside += figures->kept_bytes;
    d->all.bytes_beside += figures->kept_bytes;
    json_array_append_new(d->shards, shard_json(d, figures));
    for (int32_t r = 0; r < d->nranks && d->status == EN_OK; r++) {
        d->status = add_client(&d->rank[r], eni_store_client(store, r));
        if (d->status == EN_OK) d->status = add_client(&d->all, eni_store_client(store, r));
    }
}

/* ---- writing ------------------------------------------------------------------------------------------- */

/* A count per partition as a count per model. */
static uint64_t per_model(const draft *d, uint64_t sum)
{
    if (d->server > 0) return sum; /* psd 0 divides */
    return d->parts ? (uint64_t)llround((double)sum / (double)d->parts) : 0;
}

static void write_counts(json_t *o, const count *counts, const void *of)
{
    for (; counts->key; counts++)
        eni_json_set_int(o, counts->key, *(const uint64_t *)(const void *)((const char *)of + counts->at));
}

static void write_client(const draft *d, json_t *o, const eni_store_client_stats *client, bool has_bins)
{
    eni_store_client_stats told = *client;
    told.pushes = per_model(d, client->pushes);
    told.applied = per_model(d, client->applied);
    told.dropped = per_model(d, client->dropped);
    write_counts(o, per_client, &told);
    json_object_set_new(o, "staleness", eni_histogram_json(&client->staleness, has_bins));
    json_object_set_new(o, "staleness_steady", eni_histogram_json(&client->steady, has_bins));
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

static char *write_report(draft *d)
{
    json_t *o = json_object(), *why = json_object(), *workers = json_array();
    eni_json_set_text(o, "role", "psd");
    ENI_JSON_SET_INTS(o, {"pid", (uint64_t)getpid()}, {"shards", (uint64_t)d->nshards},
                      {"servers", d->nservers});
    if (d->server > 0) json_object_set_new(o, "is_part", json_true());
    d->did.updates = per_model(d, d->did.updates);
    write_counts(o, totals, d);
    write_counts(why, reasons, d);
    eni_json_set_int(why, "malformed", d->figures.wire.dropped);
    json_object_set_new(o, "refusals", why);
    write_client(d, o, &d->all, true);
    for (int32_t r = 0; r < d->nranks; r++) {
        json_t *worker = json_object();
        eni_json_set_int(worker, "rank", (uint64_t)r);
        write_client(d, worker, &d->rank[r], d->nranks <= DETAILED_RANKS);
        json_array_append_new(workers, worker);
    }
    json_object_set_new(o, "per_worker", workers);
    json_object_set(o, "per_shard", d->shards);
    write_usage(d, o);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

static void client_fini(eni_store_client_stats *client)
{
    eni_histogram_fini(&client->staleness);
    eni_histogram_fini(&client->steady);
}

/* ---- parts of the other servers ------------------------------------------------------------------------ */

static void add_counts(void *to, const count *counts, const json_t *o)
{
    for (; counts->key; counts++)
        *(uint64_t *)(void *)((char *)to + counts->at) += eni_json_int_of(o, counts->key);
}

/* The bins have everything but values beyond the last one. */
static en_status add_histogram(eni_histogram *into, const json_t *o)
{
    const json_t *bins = json_object_get(o, "histogram");
    const eni_histogram sums = {.count = eni_json_int_of(o, "count"),
                                .sum = eni_json_int_of(o, "sum"),
                                .max = eni_json_int_of(o, "max")};
    for (size_t i = 0; i < json_array_size(bins); i++) {
        const json_t *pair = json_array_get(bins, i);
        const json_int_t value = json_integer_value(json_array_get(pair, 0));
        if (value < 0 || value > ENI_HISTOGRAM_MAX) return EN_EPROTO;
        EN_TRY(
            eni_histogram_put(into, (uint32_t)value, (uint64_t)json_integer_value(json_array_get(pair, 1))));
    }
    return eni_histogram_merge(into, &sums);
}

static en_status add_worker(eni_store_client_stats *into, const json_t *o)
{
    eni_store_client_stats from = {0};
    add_counts(&from, per_client, o);
    EN_TRY(add_client(into, &from));
    EN_TRY(add_histogram(&into->staleness, json_object_get(o, "staleness")));
    return add_histogram(&into->steady, json_object_get(o, "staleness_steady"));
}

static en_status add_part(draft *d, const json_t *o)
{
    const json_t *workers = json_object_get(o, "per_worker");
    if (!json_is_true(json_object_get(o, "is_part")) || json_array_size(workers) != (size_t)d->nranks)
        return EN_EPROTO;
    d->nservers++;
    d->nshards += (int32_t)eni_json_int_of(o, "shards");
    add_counts(d, totals, o);
    add_counts(d, reasons, json_object_get(o, "refusals"));
    d->cpu_seconds += json_real_value(json_object_get(o, "cpu_seconds"));
    d->max_rss += eni_json_int_of(o, "max_rss");
    json_array_extend(d->shards, json_object_get(o, "per_shard"));
    EN_TRY(add_worker(&d->all, o));
    for (int32_t r = 0; r < d->nranks; r++)
        EN_TRY(add_worker(&d->rank[r], json_array_get(workers, (size_t)r)));
    return EN_OK;
}

static en_status add_others(draft *d, const eni_blob *others, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        json_t *part = json_loadb((const char *)others[i].data, others[i].bytes, 0, NULL);
        const en_status st = part ? add_part(d, part) : EN_EPROTO;
        json_decref(part);
        if (st == EN_OK) continue;
        return eni_fail(st, "report", "the report of psd %zu is missing or invalid", i + 1);
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
        client_fini(&d.rank[r]);
    client_fini(&d.all);
    eni_free(d.rank);
    json_decref(d.shards);
    return text;
}
