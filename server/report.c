#include "server/report.h"

#include <jansson.h>
#include <math.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/core/log.h"
#include "runtime/core/memory.h"

/* With more workers than that their histograms would not fit into a blob. */
enum { DETAILED_RANKS = 64 };

/* Sums over lanes of what one worker, or all, did. */
typedef struct sums {
    uint64_t pushes, applied, dropped, holds, bytes, clocks_ahead;
    eni_histogram staleness, steady;
} sums;

/* The report under construction, filled lane by lane. */
typedef struct draft {
    int32_t nranks, nlanes;
    en_status status;
    uint64_t cells, updates, touches, nonfinite, repeats, refused, detached;
    eni_lane_figures figures;
    sums all;
    sums *rank; /* (nranks) */
    json_t *lanes;
} draft;

static void set_int(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

/* ---- adding up ----------------------------------------------------------------------------------------- */

static en_status add_client(sums *into, const eni_store_client_stats *from)
{
    into->pushes += from->pushes;
    into->applied += from->applied;
    into->dropped += from->dropped;
    into->holds += from->holds;
    into->bytes += from->bytes_in + from->bytes_out;
    if (from->clocks_ahead > into->clocks_ahead) into->clocks_ahead = from->clocks_ahead;
    const en_status st = eni_histogram_merge(&into->staleness, &from->staleness);
    return st == EN_OK ? eni_histogram_merge(&into->steady, &from->steady) : st;
}

static void add_figures(draft *d, const eni_lane_figures *figures)
{
    json_t *lane = json_object();
    set_int(lane, "update_ns", (uint64_t)figures->update_ns);
    set_int(lane, "wait_ns", (uint64_t)figures->wait_ns);
    set_int(lane, "wire_bytes", figures->wire.wire_in + figures->wire.wire_out);
    set_int(lane, "shm_bytes", figures->shm_bytes);
    json_array_append_new(d->lanes, lane);
    d->figures.update_ns += figures->update_ns;
    d->figures.wait_ns += figures->wait_ns;
    d->figures.wire.wire_in += figures->wire.wire_in;
    d->figures.wire.wire_out += figures->wire.wire_out;
    d->figures.wire.dropped += figures->wire.dropped;
    d->figures.shm_bytes += figures->shm_bytes;
    d->figures.refused += figures->refused;
}

/* On the lane's thread. */
static void visit_lane(void *user, const eni_store *store, const eni_lane_figures *figures)
{
    draft *d = user;
    const eni_store_stats *totals = eni_store_totals(store);
    d->cells += eni_store_ncells(store);
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

/* Counted per cell, told per model. */
static uint64_t per_model(const draft *d, uint64_t sum)
{
    return d->cells ? (uint64_t)llround((double)sum / (double)d->cells) : 0;
}

static json_t *histogram_json(const eni_histogram *h, int has_bins)
{
    json_t *o = json_object(), *bins = json_array();
    json_object_set_new(o, "mean", json_real(eni_histogram_mean(h)));
    set_int(o, "p50", eni_histogram_quantile(h, 0.50));
    set_int(o, "p95", eni_histogram_quantile(h, 0.95));
    set_int(o, "p99", eni_histogram_quantile(h, 0.99));
    set_int(o, "max", h->max);
    set_int(o, "count", h->count);
    for (uint32_t v = 0; has_bins && v < h->bins; v++)
        if (h->bin[v] > 0)
            json_array_append_new(bins, json_pack("[I, I]", (json_int_t)v, (json_int_t)h->bin[v]));
    json_object_set_new(o, "histogram", bins);
    return o;
}

static void write_sums(const draft *d, json_t *o, const sums *s, int has_bins)
{
    set_int(o, "pushes", per_model(d, s->pushes));
    set_int(o, "samples_applied", per_model(d, s->applied));
    set_int(o, "samples_dropped", per_model(d, s->dropped));
    set_int(o, "holds", s->holds);
    set_int(o, "max_clocks_ahead", s->clocks_ahead);
    set_int(o, "payload_bytes", s->bytes);
    json_object_set_new(o, "staleness", histogram_json(&s->staleness, has_bins));
    json_object_set_new(o, "staleness_steady", histogram_json(&s->steady, has_bins));
}

static void write_usage(json_t *o)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const double seconds = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
                           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    json_object_set_new(o, "cpu_seconds", json_real(seconds));
    set_int(o, "max_rss", (uint64_t)usage.ru_maxrss * 1024);
}

static char *write_report(const draft *d)
{
    json_t *o = json_object(), *workers = json_array();
    json_object_set_new(o, "role", json_string("psd"));
    set_int(o, "pid", (uint64_t)getpid());
    set_int(o, "shards", (uint64_t)d->nlanes);
    set_int(o, "cells", d->cells);
    set_int(o, "updates", per_model(d, d->updates + d->touches));
    set_int(o, "touches", d->touches);
    set_int(o, "nonfinite", d->nonfinite);
    set_int(o, "repeats", d->repeats);
    set_int(o, "refused", d->refused + d->figures.refused);
    set_int(o, "dropped_messages", d->figures.wire.dropped);
    set_int(o, "detached", d->detached);
    write_sums(d, o, &d->all, 1);
    for (int32_t r = 0; r < d->nranks; r++) {
        json_t *worker = json_object();
        set_int(worker, "rank", (uint64_t)r);
        write_sums(d, worker, &d->rank[r], d->nranks <= DETAILED_RANKS);
        json_array_append_new(workers, worker);
    }
    json_object_set_new(o, "per_worker", workers);
    set_int(o, "wire_bytes", d->figures.wire.wire_in + d->figures.wire.wire_out);
    set_int(o, "shm_bytes", d->figures.shm_bytes);
    set_int(o, "update_ns", (uint64_t)d->figures.update_ns);
    set_int(o, "wait_ns", (uint64_t)d->figures.wait_ns);
    json_object_set(o, "lanes", d->lanes);
    write_usage(o);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

static void sums_fini(sums *s)
{
    eni_histogram_fini(&s->staleness);
    eni_histogram_fini(&s->steady);
}

char *eni_report_make(eni_lane *const *lanes, int32_t nlanes, int32_t nranks)
{
    draft d = {.nranks = nranks, .nlanes = nlanes, .lanes = json_array()};
    char *text = NULL;
    d.rank = eni_alloc_array((size_t)nranks, sizeof *d.rank);
    d.status = d.rank ? EN_OK : EN_ENOMEM;
    for (int32_t k = 0; k < nlanes && d.status == EN_OK; k++) {
        const en_status st = eni_lane_look(lanes[k], visit_lane, &d);
        if (st != EN_OK) d.status = st;
    }
    if (d.status == EN_OK && !(text = write_report(&d)))
        eni_error("report", "out of memory for psd's report");
    for (int32_t r = 0; d.rank && r < nranks; r++)
        sums_fini(&d.rank[r]);
    sums_fini(&d.all);
    eni_free(d.rank);
    json_decref(d.lanes);
    return text;
}
