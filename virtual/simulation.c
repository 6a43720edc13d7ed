/* simulation.c - from the flags of `entrain sim` to a configuration of the virtual host. */
#include "virtual/simulation.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "run/rank_groups.h"
#include "run/units.h"
#include "runtime/spec/strategies.h"

/* ---- the network and the servers ---- */

/* A machine's ranks share its link where machines have links; all others use their own. */
static en_status set_network(const eni_config *c, eni_virtual *v)
{
    static const eni_net_link usual = {.delay_ns = 50000, .bytes_per_s = 1e9};
    const int32_t ranks = (int32_t)c->workers, servers = v->nshards;
    const int32_t size = c->local_size > 0 ? (int32_t)c->local_size : ranks;
    const int32_t machines = (ranks + size - 1) / size, nodes = ranks + servers;
    eni_net_link *all = eni_alloc_array((size_t)(nodes + machines), sizeof *all);
    v->shared = eni_alloc_array((size_t)nodes, sizeof *v->shared);
    v->links = (eni_net_links){.n = {ranks, machines, servers}, .of = {all, all + nodes, all + ranks}};
    if (all == NULL || v->shared == NULL) return EN_ENOMEM;
    for (int32_t i = 0; i < nodes + machines; i++)
        all[i] = usual;
    EN_TRY(eni_net_links_read(c->net, &v->links));
    for (int32_t i = 0; i < nodes; i++)
        v->shared[i] = v->links.has_machines && i < ranks ? nodes + i / size : i;
    v->sim.network = (eni_sim_network){.links = all, .nlinks = nodes + machines, .shared = v->shared};
    return EN_OK;
}

static en_status set_service(const eni_config *c, eni_virtual *v)
{
    char law[ENI_LAW_TEXT];
    if (c->server_time == NULL) return EN_OK;
    if ((v->sim.strategy->flags & EN_STORE_ON_SERVERS) == 0)
        return eni_fail(EN_EINVAL, "sim", "--server-time=%s: %s has no servers; omit it", c->server_time,
                        v->sim.strategy->name);
    (void)eni_service_split(c->server_time, law, &v->sim.service.ns_per_byte); /* config/ has checked it */
    if (law[0] == '\0') return EN_OK;
    v->service = eni_alloc_array((size_t)v->links.n[ENI_NET_SERVERS], sizeof *v->service);
    if (v->service == NULL) return EN_ENOMEM;
    v->sim.service.of_shard = v->service;
    return eni_law_read("--server-time", "server", law, v->links.n[ENI_NET_SERVERS], v->service);
}

/* ---- compute times from files ---- */

typedef struct times {
    double *at; /* ns; or micro-batches */
    uint32_t n, room;
    bool of_order; /* --replay-order: the micro-batch of each step, not its time */
} times;

/* NAN: not a step of metrics-RANK.jsonl, which has this number. */
static double number_of_step(const char *line, const char *key)
{
    json_t *step = json_loads(line, 0, NULL);
    const json_t *value = json_object_get(step, key);
    const double number = json_is_number(value) ? json_number_value(value) : NAN;
    json_decref(step);
    return number;
}

/* Adds a time of each line: "0.012" (seconds), or a step of metrics-RANK.jsonl. *is_trace_out: it has steps. */
static en_status read_times(const char *path, times *t, bool *is_trace_out)
{
    const char *flag = t->of_order ? "--replay-order" : "--compute";
    char line[1024];
    unsigned long number = 0;
    en_status st = EN_OK;
    FILE *file = eni_file_open(path, "r");
    if (file == NULL)
        return eni_fail(EN_ENOENT, "sim", "%s: cannot read %s: %s", flag, path, strerror(errno));
    *is_trace_out = false;
    while (st == EN_OK && fgets(line, sizeof line, file) != NULL) {
        char *end = line;
        double ns = NAN;
        number++;
        if (line[0] == '{') {
            ns = number_of_step(line, t->of_order ? "micro_batch" : "compute_ns");
            end = line + strcspn(line, "\n");
            *is_trace_out = true;
        } else if (!t->of_order) {
            ns = strtod(line, &end) * 1e9;
        }
        if (!(ns > 0 || (t->of_order && ns == 0)) || !isfinite(ns) || end == line ||
            (*end != '\n' && *end != '\0'))
            st = eni_fail(EN_EINVAL, "sim", "%s: line %lu of %s should be %sa step of a metrics-RANK.jsonl",
                          flag, number, path, t->of_order ? "" : "a time in seconds above 0, or ");
        else
            st = eni_grow((void **)&t->at, &t->room, t->n + 1, sizeof *t->at);
        if (st == EN_OK) t->at[t->n++] = ns;
    }
    if (st == EN_OK && ferror(file))
        st = eni_fail(errno == EISDIR ? EN_EINVAL : EN_EIO, "sim", "%s: cannot read %s: %s", flag, path,
                      strerror(errno));
    fclose(file);
    return st;
}

/* The law of times [first, end). */
static eni_law law_of(const times *t, eni_law_kind kind, size_t first, size_t end)
{
    eni_law law = {.kind = kind, .samples = t->at + first, .nsamples = end - first};
    for (size_t i = first; i < end; i++)
        law.mean_ns += t->at[i] / (double)(end - first);
    return law;
}

/* --compute=FILE: a time for each rank, or a trace from which all ranks draw; trace:FILE: a trace in order. */
static en_status laws_of_file(const eni_config *c, const char *path, eni_law_kind kind, eni_virtual *v)
{
    times t = {0};
    bool is_trace;
    en_status st = read_times(path, &t, &is_trace);
    is_trace = is_trace || kind == ENI_LAW_TRACE;
    v->times = t.at;
    if (st == EN_OK && (t.n == 0 || (!is_trace && t.n < (size_t)c->workers)))
        st = eni_fail(EN_EINVAL, "sim", "--compute=%s: it has %u times for %lld workers; give %s", c->compute,
                      t.n, (long long)c->workers,
                      is_trace ? "one at least" : "a line for each, or trace:FILE for steps in order");
    const eni_law all = st == EN_OK ? law_of(&t, kind, 0, t.n) : (eni_law){0};
    for (int64_t r = 0; st == EN_OK && r < c->workers; r++)
        v->laws[r] = is_trace ? all : (eni_law){.kind = ENI_LAW_FIXED, .mean_ns = t.at[r]};
    return st;
}

/* --compute=from:OUT: each rank draws from the steps of one of that run's, without the first, which warms up. trace:OUT: it
 * takes all of them in order. */
static en_status laws_of_run(const eni_config *c, const char *out, eni_law_kind kind, eni_virtual *v)
{
    enum { RANKS = 1024 };
    const size_t skipped = kind == ENI_LAW_TRACE ? 0 : 1;
    size_t first[RANKS + 1] = {0}, n = 0;
    char path[4200];
    times t = {0};
    bool is_trace;
    en_status st = EN_OK;
    while (st == EN_OK && n < RANKS) {
        snprintf(path, sizeof path, "%s/metrics-%zu.jsonl", out, n);
        if (n > 0 && access(path, F_OK) != 0) break;
        st = read_times(path, &t, &is_trace);
        if (st == EN_OK && t.n < first[n] + 2)
            st = eni_fail(EN_EINVAL, "sim", "--compute=%s: %s has fewer than two steps", c->compute, path);
        first[++n] = t.n;
    }
    v->times = t.at;
    for (int64_t r = 0; st == EN_OK && r < c->workers; r++) {
        const size_t from = (size_t)r % n;
        v->laws[r] = (size_t)r < n ? law_of(&t, kind, first[from] + skipped, first[from + 1]) : v->laws[from];
    }
    return st;
}

static en_status set_laws(const eni_config *c, eni_virtual *v)
{
    struct stat file;
    const char *text = c->compute;
    if (strncmp(text, "from:", 5) == 0) return laws_of_run(c, text + 5, ENI_LAW_SAMPLES, v);
    if (strncmp(text, "trace:", 6) == 0)
        return stat(text + 6, &file) == 0 && S_ISDIR(file.st_mode)
                   ? laws_of_run(c, text + 6, ENI_LAW_TRACE, v)
                   : laws_of_file(c, text + 6, ENI_LAW_TRACE, v);
    if (strpbrk(text, ":=;") == NULL) return laws_of_file(c, text, ENI_LAW_SAMPLES, v);
    return eni_law_read("--compute", "rank", text, (int32_t)c->workers, v->laws);
}

/* ---- --replay-order ---- */

static en_status read_order(const eni_config *c, eni_virtual *v)
{
    times t = {.of_order = true};
    char path[4200];
    bool is_trace;
    en_status st = EN_OK;
    v->arrivals = eni_alloc_array((size_t)v->nshards, sizeof *v->arrivals);
    v->first = eni_alloc_array((size_t)c->workers + 1, sizeof *v->first);
    if (v->arrivals == NULL || v->first == NULL) return EN_ENOMEM;
    for (int32_t k = 0; st == EN_OK && k < v->nshards; k++)
        st = eni_arrivals_read(c->replay_order, k, &v->arrivals[k]);
    for (int64_t r = 0; st == EN_OK && r < c->workers; r++) {
        snprintf(path, sizeof path, "%s/metrics-%lld.jsonl", c->replay_order, (long long)r);
        st = read_times(path, &t, &is_trace);
        v->first[r + 1] = t.n;
    }
    v->batches = t.at;
    v->order = (eni_sim_order){.arrivals = v->arrivals, .batches = v->batches, .first = v->first};
    return st;
}

/* ---- ranks ---- */

static en_status take_visits(const char *flag, const eni_list *list, int64_t nranks, int64_t *at_ns)
{
    int64_t rank, at;
    for (int i = 0; i < list->count; i++) {
        (void)eni_visit_parse(list->item[i], &rank, &at); /* config/ has checked it */
        if (rank >= nranks)
            return eni_fail(EN_EINVAL, "sim",
                            "%s=%s: there are ranks 0 to %lld; give one of them, or a larger -n", flag,
                            list->item[i], (long long)nranks - 1);
        at_ns[rank] = at;
    }
    return EN_OK;
}

/* Sets speed, link, group, arrival and departure of each rank. */
static en_status set_ranks(const eni_config *c, eni_virtual *v)
{
    for (int r = 0; r < c->workers; r++)
        v->leave_ns[r] = INT64_MAX;
    if (c->groups != NULL) EN_TRY(eni_rank_groups_read(c->groups, (int32_t)c->workers, v->groups));
    EN_TRY(take_visits("--join", &c->join, c->workers, v->join_ns));
    EN_TRY(take_visits("--leave", &c->leave, c->workers, v->leave_ns));
    EN_TRY(set_laws(c, v));
    for (int i = 0; i < c->straggler.count; i++) {
        (void)eni_slowdown_read(c->straggler.item[i], &v->slow[i]); /* config/ has checked it */
        if (v->slow[i].hi == ENI_SLOW_ALL) v->slow[i].hi = (int32_t)c->workers - 1;
    }
    EN_TRY(set_network(c, v));
    return set_service(c, v);
}

en_status eni_virtual_open(const eni_config *c, const char *plugins, eni_virtual *v)
{
    const double ranks = (double)c->workers * (double)c->accumulate;
    const size_t n = (size_t)c->workers;
    const en_strategy *strategy;
    *v = (eni_virtual){.nshards = c->shards > 0 ? (int32_t)c->shards : 1};
    EN_TRY(eni_strategy_find(plugins, c->strategy, &strategy));
    EN_TRY(eni_strategy_groups(strategy, c->groups));
    en_status st = eni_options_new(strategy, eni_spec_options(c->strategy), &v->options);
    v->slow = eni_alloc_array((size_t)c->straggler.count + 1, sizeof *v->slow);
    v->laws = eni_alloc_array(n, sizeof *v->laws);
    v->join_ns = eni_alloc_array(n, sizeof *v->join_ns);
    v->leave_ns = eni_alloc_array(n, sizeof *v->leave_ns);
    v->groups = eni_alloc_array(n, sizeof *v->groups);
    if (st == EN_OK && (v->slow == NULL || v->laws == NULL || v->join_ns == NULL || v->leave_ns == NULL ||
                        v->groups == NULL))
        st = EN_ENOMEM;
    if (st == EN_OK && c->replay_order != NULL) st = read_order(c, v);
    v->sim = (eni_sim_config){
        .strategy = strategy,
        .options = v->options,
        .nranks = (int32_t)c->workers,
        .nshards = v->nshards,
        .local_size = (int32_t)c->local_size,
        .groups = c->groups != NULL ? v->groups : NULL,
        .seed = (uint64_t)c->seed,
        .micro_batches = (uint64_t)fmin((double)c->steps * ranks, 1e18), /* nobody waits for so many */
        .accumulate = (uint64_t)c->accumulate,
        .bucket_cap_bytes = (uint64_t)c->bucket_cap,
        .optimizer = eni_optimizer_find(c->optimizer),
        .hyper = {.momentum = (float)c->momentum,
                  .weight_decay = (float)c->weight_decay,
                  .nesterov = c->nesterov,
                  .beta1 = c->beta1,
                  .beta2 = c->beta2,
                  .eps = c->eps},
        .schedule = {.kind = ENI_LR_CONSTANT, .base = c->lr},
        .compute = {v->laws, (int32_t)c->workers, v->slow, c->straggler.count},
        .join_ns = c->join.count > 0 ? v->join_ns : NULL,
        .leave_ns = c->leave.count > 0 ? v->leave_ns : NULL,
        .order = c->replay_order != NULL ? &v->order : NULL};
    if (st == EN_OK) st = set_ranks(c, v);
    if (st != EN_OK) eni_virtual_close(v);
    return st;
}

void eni_virtual_close(eni_virtual *v)
{
    eni_options_free(v->options);
    eni_free(v->laws);
    free(v->times);
    eni_free(v->slow);
    eni_free(v->links.of[ENI_NET_RANKS]); /* and all others */
    eni_free(v->shared);
    eni_free(v->service);
    eni_free(v->join_ns);
    eni_free(v->leave_ns);
    eni_free(v->groups);
    for (int32_t k = 0; v->arrivals != NULL && k < v->nshards; k++)
        eni_arrivals_fini(&v->arrivals[k]);
    eni_free(v->arrivals);
    free(v->batches);
    eni_free(v->first);
    *v = (eni_virtual){0};
}
