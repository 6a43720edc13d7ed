/* costs.c - measures buckets of a few sizes before step 0, and interpolates between them. */
#include "runtime/host/costs.h"

#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/wire.h"

enum { SIZES = 4, ROUNDS = 9 };

/* The times of one round; NAN: not measured. */
typedef struct round_ns {
    double allreduce[SIZES], pull[SIZES], push[SIZES], step[SIZES], barrier;
} round_ns;

typedef struct measuring {
    const eni_costs_config *config;
    uint32_t bucket[SIZES]; /* by ascending size */
    int nsizes, rounds;
    float *scratch; /* weights, gradient and slots of the largest bucket */
    round_ns round[ROUNDS];
} measuring;

static uint64_t count_of(const measuring *m, uint32_t bucket)
{
    const eni_bucket_range *range = &m->config->buckets->bucket[bucket];
    return range->hi - range->lo;
}

/* ---- which buckets ---- */

/* The largest bucket of at most `most` elements that is larger than `above`; n: none. */
static uint32_t largest_between(const eni_buckets *buckets, uint64_t above, uint64_t most)
{
    uint32_t best = buckets->n;
    uint64_t best_count = above;
    for (uint32_t b = 0; b < buckets->n; b++) {
        const uint64_t count = buckets->bucket[b].hi - buckets->bucket[b].lo;
        if (count <= best_count || count > most) continue;
        best = b;
        best_count = count;
    }
    return best;
}

/* The largest bucket, then each time the largest of at most a quarter of it; at last the smallest. */
static void choose_sizes(measuring *m)
{
    const eni_buckets *buckets = m->config->buckets;
    uint32_t smallest = 0, found[SIZES];
    uint64_t most = UINT64_MAX;
    int n = 0;
    for (uint32_t b = 1; b < buckets->n; b++)
        if (count_of(m, b) < count_of(m, smallest)) smallest = b;
    while (n < SIZES - 1) {
        const uint32_t b = largest_between(buckets, count_of(m, smallest), most);
        if (b == buckets->n) break;
        found[n++] = b;
        most = count_of(m, b) / 4;
    }
    found[n++] = smallest;
    for (int i = 0; i < n; i++)
        m->bucket[i] = found[n - 1 - i];
    m->nsizes = n;
}

/* ---- one of each ---- */

static en_status run_coll(const measuring *m, int op, uint32_t bucket)
{
    if (m->config->coll == NULL) return EN_OK;
    const eni_coll_op operation = {.op = op,
                                   .what = EN_GRAD,
                                   .bucket = bucket,
                                   .slot = ENI_SLOT_GRAD,
                                   .offset = m->config->buckets->bucket[bucket].lo,
                                   .count = op == ENI_COLL_BARRIER ? 0 : count_of(m, bucket),
                                   .nsamples = 1};
    return eni_coll_run(m->config->coll, &operation);
}

/* This rank's weights are received where they are, so nothing changes. */
static en_status run_call(const measuring *m, uint32_t type, uint32_t bucket)
{
    eni_client *client = m->config->client;
    const bool is_init = type == ENI_MSG_INIT;
    if (client == NULL || (is_init && m->config->rank != 0)) return EN_OK;
    EN_TRY(eni_client_call(client, bucket, is_init ? ENI_SLOT_PARAM : ENI_SLOT_NONE,
                           is_init ? ENI_SLOT_NONE : ENI_SLOT_PARAM,
                           &(eni_header){.type = type, .what = EN_WEIGHTS}));
    return eni_client_wait(client, bucket);
}

/* Times it from a common start until the last rank is done. */
static en_status run_call_together(const measuring *m, uint32_t type, uint32_t bucket, double *ns_out)
{
    EN_TRY(run_coll(m, ENI_COLL_BARRIER, bucket));
    const int64_t begin = eni_now_ns();
    EN_TRY(run_call(m, type, bucket));
    EN_TRY(run_coll(m, ENI_COLL_BARRIER, bucket));
    *ns_out = (double)(eni_now_ns() - begin);
    return EN_OK;
}

static double run_step(const measuring *m, uint64_t count, uint64_t room)
{
    const eni_costs_config *c = m->config;
    float *slots[ENI_MAX_SLOTS] = {NULL};
    const int nslots = c->optimizer->slots(&c->hyper);
    for (int i = 0; i < nslots; i++)
        slots[i] = m->scratch + (2 + (uint64_t)i) * room;
    eni_hyper hyper = c->hyper;
    hyper.step = 1;
    const int64_t begin = eni_now_ns();
    c->optimizer->step(m->scratch, slots, m->scratch + room, count, &hyper);
    return (double)(eni_now_ns() - begin);
}

static en_status run_round(const measuring *m, round_ns *r)
{
    const uint64_t room = eni_round_up(count_of(m, m->bucket[m->nsizes - 1]), 16);
    EN_TRY(run_coll(m, ENI_COLL_BARRIER, 0));
    int64_t begin = eni_now_ns();
    EN_TRY(run_coll(m, ENI_COLL_BARRIER, 0));
    r->barrier = (double)(eni_now_ns() - begin);
    for (int i = 0; i < m->nsizes; i++) {
        begin = eni_now_ns();
        EN_TRY(run_coll(m, EN_ALLREDUCE, m->bucket[i]));
        r->allreduce[i] = (double)(eni_now_ns() - begin);
        EN_TRY(run_call_together(m, ENI_MSG_SNAPSHOT, m->bucket[i], &r->pull[i]));
        EN_TRY(run_call_together(m, ENI_MSG_INIT, m->bucket[i], &r->push[i]));
        if (m->config->client != NULL) r->step[i] = run_step(m, count_of(m, m->bucket[i]), room);
    }
    return EN_OK;
}

/* ---- from times to costs ---- */

/* The median over the rounds of the double at `offset`, in seconds. */
static double median_s(const measuring *m, size_t offset)
{
    double value[ROUNDS];
    for (int i = 0; i < m->rounds; i++)
        memcpy(&value[i], (const char *)&m->round[i] + offset, sizeof value[i]);
    return eni_probe_median(value, m->rounds) * 1e-9;
}

#define MEDIAN_S(m, field) median_s(m, offsetof(round_ns, field))

static void conclude(const measuring *m, eni_costs *costs)
{
    const double barrier = MEDIAN_S(m, barrier), n = m->config->nranks;
    const double least = MEDIAN_S(m, push[0]);
    *costs = (eni_costs){0};
    for (int i = 0; i < m->nsizes; i++) {
        const size_t at = (size_t)i * sizeof(double);
        const double bytes = (double)count_of(m, m->bucket[i]) * sizeof(float);
        const double push = median_s(m, offsetof(round_ns, push) + at) - least;
        const double pull = median_s(m, offsetof(round_ns, pull) + at) - barrier;
        const double step = median_s(m, offsetof(round_ns, step) + at);
        if (m->config->coll != NULL)
            eni_cost_add(&costs->allreduce, bytes, median_s(m, offsetof(round_ns, allreduce) + at));
        if (m->config->client != NULL)
            eni_cost_add(&costs->call, bytes, (pull > 0 ? pull : 0) + n * (push > 0 ? push : 0) + step);
    }
}

/* As many rounds as the time allows, by rank 0's clock. */
static en_status choose_rounds(measuring *m, int64_t took_ns)
{
    const int64_t fit = ENI_COSTS_NS / (took_ns > 0 ? took_ns : 1);
    int32_t rounds = fit < 1 ? 1 : fit < ROUNDS ? (int32_t)fit : ROUNDS;
    EN_TRY(m->config->share(m->config->user, &rounds, sizeof rounds));
    m->rounds = rounds < 1 ? 1 : rounds > ROUNDS ? ROUNDS : rounds;
    return EN_OK;
}

static en_status measure(measuring *m, eni_costs *costs)
{
    EN_TRY(run_round(m, &m->round[0])); /* first touches, connections, caches */
    const int64_t begin = eni_now_ns();
    EN_TRY(run_round(m, &m->round[0]));
    EN_TRY(choose_rounds(m, eni_now_ns() - begin));
    for (int i = 0; i < m->rounds; i++)
        EN_TRY(run_round(m, &m->round[i]));
    conclude(m, costs);
    return m->config->share(m->config->user, costs, sizeof *costs);
}

en_status eni_costs_measure(const eni_costs_config *config, eni_costs *costs_out)
{
    eni_costs costs;
    measuring *m = eni_alloc(sizeof *m);
    if (m == NULL) return EN_ENOMEM;
    m->config = config;
    choose_sizes(m);
    const uint64_t room = eni_round_up(count_of(m, m->bucket[m->nsizes - 1]), 16);
    m->scratch = eni_alloc_array(room * (2 + ENI_MAX_SLOTS), sizeof *m->scratch);
    en_status st = m->scratch == NULL ? EN_ENOMEM : measure(m, &costs);
    if (st == EN_OK) *costs_out = costs;
    eni_free(m->scratch);
    eni_free(m);
    return st;
}

double eni_costs_of(const eni_costs *costs, int op, int nranks, uint64_t bytes)
{
    if (op == 0) return eni_cost_at(&costs->call, (double)bytes);
    if (op < EN_ALLREDUCE || op > EN_BCAST) return NAN;
    if (nranks == 1) return 0;
    const double whole = eni_coll_bytes(ENI_COLL_RING, EN_ALLREDUCE, nranks);
    return eni_cost_at(&costs->allreduce, (double)bytes) * eni_coll_bytes(ENI_COLL_RING, op, nranks) / whole;
}
