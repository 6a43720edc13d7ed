/* lab_compute.c - what a micro-batch of a model takes, and when its buckets leave, in n processes at once. */
#include <stdatomic.h>
#include <string.h>

#include "cli/lab.h"
#include "entrain/model.h"
#include "models/registry.h"
#include "ops/device.h"
#include "ops/optimizer.h"
#include "runtime/comm/buckets.h"
#include "runtime/comm/probe.h"
#include "runtime/core/clock.h"
#include "runtime/core/memory.h"
#include "runtime/core/rng.h"
#include "runtime/core/try.h"

enum { WARM_UP = 3 };

typedef struct order {
    const eni_config *config;
    const char *plugin_dir;
    int threads;
    int64_t budget_ns;
} order;

/* One process: a model with made-up data. */
typedef struct bench {
    const order *order;
    en_schema schema;
    eni_device device;
    en_model *model;
    eni_buckets *buckets;
    float *param, *grad, *x, *slot;
    void *target;
    uint32_t complete; /* buckets whose gradient is there, in this backward */
    int64_t begin_ns;
    double ready[ENI_COST_BUCKETS]; /* seconds after the begin, summed over the rounds */
    int rounds;
} bench;

static en_status cut(bench *b)
{
    const en_schema *s = &b->schema;
    eni_tensor_entry *table = eni_alloc_array(s->ntensors, sizeof *table);
    if (table == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < s->ntensors; i++) {
        const en_model_tensor *t = &s->tensors[i];
        const uint64_t rows = t->ndim > 0 ? (uint64_t)t->shape[0] : 1;
        table[i] = (eni_tensor_entry){t->name, t->offset, t->count, rows, t->count / rows, t->kind};
    }
    const en_status st = eni_buckets_new(table, s->ntensors, s->count,
                                         (uint64_t)(b->order->config->bucket_cap_mb * 1048576), &b->buckets);
    eni_free(table);
    return st;
}

/* Noise, as images are: zeros would take other paths through ReLU and pooling. */
static en_status make_data(bench *b)
{
    const uint64_t n = (uint64_t)b->order->config->batch_size;
    const uint64_t in = (uint64_t)en_extent_count(b->schema.network->input),
                   out = (uint64_t)b->schema.outputs;
    const eni_rng_key key = {1, ENI_RNG_SYNTHETIC, 7, 0};
    b->x = eni_alloc_array(n * in, sizeof(float));
    b->target = eni_alloc_array(n * (out > 0 ? out : 1), sizeof(float));
    if (b->x == NULL || b->target == NULL) return EN_ENOMEM;
    for (uint64_t i = 0; i < n * in; i++)
        b->x[i] = (float)(eni_rng_u64(&key, i) >> 40) * 0x1p-23f - 1;
    return EN_OK;
}

static en_status open_bench(bench *b)
{
    const eni_config *c = b->order->config;
    const en_network *network;
    EN_TRY(eni_network_get("--model", c->model, &network));
    EN_TRY(en_schema_init(network, &b->schema));
    EN_TRY(cut(b));
    EN_TRY(eni_device_open(c->device, b->order->plugin_dir, b->order->threads, &b->device));
    EN_TRY(en_model_new(&b->schema, b->device.ops, b->device.ctx, NULL, &b->model));
    EN_TRY(en_model_prepare(b->model, c->batch_size, EN_MODEL_TRAIN));
    b->param = eni_alloc_array(b->schema.count, sizeof(float));
    b->grad = eni_alloc_array(b->schema.count, sizeof(float));
    b->slot = eni_alloc_array(b->schema.count * ENI_MAX_SLOTS, sizeof(float));
    if (b->param == NULL || b->grad == NULL || b->slot == NULL) return EN_ENOMEM;
    en_schema_init_param(&b->schema, 1, b->param);
    return make_data(b);
}

/* A bucket leaves when the layer before it comes back: as in worker/train.c. */
static en_status on_ready(void *user, uint32_t first, uint32_t n)
{
    bench *b = user;
    (void)n;
    const double now = (double)(eni_now_ns() - b->begin_ns) * 1e-9;
    for (; b->complete < b->buckets->n && b->buckets->bucket[b->complete].first >= first; b->complete++)
        if (b->complete < ENI_COST_BUCKETS) b->ready[b->complete] += now;
    return EN_OK;
}

static en_status one_batch(bench *b, double *seconds_out)
{
    const en_batch batch = {.n = b->order->config->batch_size, .x = b->x, .target = b->target};
    en_score score;
    b->complete = 0;
    b->begin_ns = eni_now_ns();
    EN_TRY(en_model_forward(b->model, b->param, &batch));
    EN_TRY(en_model_backward(b->model, b->param, b->grad, on_ready, b));
    EN_TRY(en_model_result(b->model, &score));
    *seconds_out = (double)(eni_now_ns() - b->begin_ns) * 1e-9;
    return EN_OK;
}

static double one_update(bench *b)
{
    const eni_config *c = b->order->config;
    const eni_optimizer *optimizer = eni_optimizer_find(c->optimizer);
    const eni_hyper hyper = {.lr = 1e-9f, .momentum = (float)c->momentum, .step = 1};
    float *slots[ENI_MAX_SLOTS];
    double seconds[9];
    for (int i = 0; i < ENI_MAX_SLOTS; i++)
        slots[i] = b->slot + (uint64_t)i * b->schema.count;
    for (int i = -1; i < 9; i++) {
        const int64_t begin = eni_now_ns();
        optimizer->step(b->param, slots, b->grad, b->schema.count, &hyper);
        if (i >= 0) seconds[i] = (double)(eni_now_ns() - begin) * 1e-9;
    }
    return eni_probe_median(seconds, 9);
}

/* What the processes share. */
typedef struct figures {
    _Atomic int is_over;
    eni_lab_model each[ENI_LAB_MAX];
} figures;

/* In lock step, as ranks are: a round is over when the slowest is, and the mean over the rounds has what a
 * busy machine adds to some of them. Rank 0 looks at the watch. */
static en_status run_rounds(bench *b, const eni_lab_crew *crew, double *total_out)
{
    figures *f = crew->shared;
    double own = 0;
    int times = 0, is_over = 0;
    if (eni_lab_meet(crew, &times)) return EN_EPEER;
    const int64_t begin = eni_now_ns();
    while (!is_over) {
        double seconds;
        EN_TRY(one_batch(b, &seconds));
        own += seconds;
        b->rounds++;
        if (crew->rank == 0 && eni_now_ns() - begin > b->order->budget_ns) atomic_store(&f->is_over, 1);
        if (eni_lab_meet(crew, &times)) return EN_EPEER;
        is_over = atomic_load(&f->is_over);
        if (eni_lab_meet(crew, &times)) return EN_EPEER; /* all have seen the same */
    }
    f->each[crew->rank].compute = (double)(eni_now_ns() - begin) * 1e-9 / b->rounds;
    *total_out = own;
    return EN_OK;
}

static en_status measure(bench *b, const eni_lab_crew *crew)
{
    eni_lab_model *out = &((figures *)crew->shared)->each[crew->rank];
    double total, unused;
    for (int i = 0; i < WARM_UP; i++)
        EN_TRY(one_batch(b, &unused));
    memset(b->ready, 0, sizeof b->ready);
    EN_TRY(run_rounds(b, crew, &total));
    out->nbuckets = b->buckets->n < ENI_COST_BUCKETS ? (int)b->buckets->n : ENI_COST_BUCKETS;
    for (int i = 0; i < out->nbuckets; i++) {
        out->bytes[i] = (double)(b->buckets->bucket[i].hi - b->buckets->bucket[i].lo) * sizeof(float);
        out->ready[i] = b->ready[i] / total;
    }
    out->update = one_update(b);
    return EN_OK;
}

/* The process ends: nothing needs to be given back. */
static int compute_main(const eni_lab_crew *crew)
{
    bench *b = eni_alloc(sizeof *b);
    if (b == NULL) return 1;
    b->order = crew->user;
    const en_status st = open_bench(b);
    return st != EN_OK || measure(b, crew) != EN_OK;
}

en_status eni_lab_compute(int n, const eni_config *config, const char *plugin_dir, int threads,
                          int64_t budget_ns, eni_lab_model *model_out)
{
    order o = {config, plugin_dir, threads, budget_ns};
    void *shared;
    const size_t bytes = sizeof(figures);
    EN_TRY(eni_lab_run(n, bytes, &shared, compute_main, &o, eni_now_ns() + 60 * ENI_SECOND));
    const eni_lab_model *each = ((const figures *)shared)->each;
    *model_out = each[0];
    model_out->compute = model_out->update = 0;
    for (int r = 0; r < n; r++) {
        model_out->compute += each[r].compute / n;
        model_out->update += each[r].update / n;
    }
    eni_lab_release(shared, bytes);
    return EN_OK;
}
