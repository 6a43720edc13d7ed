/* microbenchmark.c - what a micro-batch of a model takes among processes, and when its buckets leave. */
#include "cli/microbenchmark.h"

#include <sched.h>
#include <string.h>

#include "cli/compute.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"
#include "entrain/model.h"
#include "data/dataset.h"
#include "models/registry.h"
#include "ops/optimizer.h"
#include "runtime/collective/probe.h"
#include "runtime/spec/buckets.h"

/* `main` in n processes that have some seconds for it. */
static en_status measure_in(int signal_fd, int n, size_t shared_bytes, void **shared_out,
                            int (*main)(const eni_process *self), void *user, int seconds)
{
    const eni_processes processes = {.who = "microbenchmark",
                                     .n = n,
                                     .shared_bytes = shared_bytes,
                                     .main = main,
                                     .user = user,
                                     .deadline_ns = eni_now_ns() + seconds * ENI_SECOND,
                                     .signal_fd = signal_fd};
    return eni_processes_run(&processes, shared_out);
}

/* ---- a micro-batch of a model, in n processes at once ---- */

/* On a GPU a bucket leaves when its gradient lies in host memory, and the weights come in from there, as when
 * the host exchanges them (worker/vectors.h, staged). */
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
    eni_compute compute;
    eni_buckets *buckets;
    float *param, *grad, *x, *slot; /* host memory; on a GPU registered, but for the slots */
    void *target;
    struct {
        float *param, *grad, *x;
        void *target;
    } there;           /* addresses of the device: the same on host devices */
    en_event **events; /* (buckets) on a GPU: the gradient has arrived */
    uint32_t complete; /* buckets whose gradient is there, in this backward */
    int64_t begin_ns;
    double ready[ENI_COST_BUCKETS]; /* seconds after the begin, summed over the rounds */
    int rounds;
} bench;

/* Noise, as images are: zeros would take other paths through ReLU and pooling. */
static void make_data(bench *b, uint64_t count)
{
    const eni_rng_key key = {1, ENI_RNG_SYNTHETIC, 7, 0};
    for (uint64_t i = 0; i < count; i++)
        b->x[i] = (float)(eni_rng_u64(&key, i) >> 40) * 0x1p-23f - 1;
}

/* Host memory for `count` floats, and the device's beside it. */
static en_status take(const bench *b, uint64_t count, float **host_out, float **there_out)
{
    const en_device *ops = b->compute.device.ops;
    en_ctx *ctx = b->compute.device.ctx;
    void *there = NULL;
    *host_out = eni_alloc_pages(count * sizeof(float));
    if (*host_out == NULL) return EN_ENOMEM;
    *there_out = *host_out;
    if (ops->gpu == NULL) return EN_OK;
    EN_TRY(ops->gpu->register_memory(ctx, *host_out, count * sizeof(float)));
    EN_TRY(ops->alloc(ctx, count * sizeof(float), &there));
    *there_out = there;
    return EN_OK;
}

static en_status take_vectors(bench *b)
{
    const uint64_t n = (uint64_t)b->order->config->batch_size, count = b->schema.count;
    const uint64_t in = (uint64_t)en_extent_count(b->schema.input),
                   out = b->schema.outputs > 0 ? (uint64_t)b->schema.outputs : 1;
    float *target, *target_there;
    EN_TRY(take(b, count, &b->param, &b->there.param));
    EN_TRY(take(b, count, &b->grad, &b->there.grad));
    EN_TRY(take(b, n * in, &b->x, &b->there.x));
    EN_TRY(take(b, n * out, &target, &target_there));
    b->target = target;
    b->there.target = target_there;
    b->slot = eni_alloc_array(count * ENI_MAX_SLOTS, sizeof(float));
    if (b->slot == NULL) return EN_ENOMEM;
    en_schema_init_param(&b->schema, 1, b->param);
    make_data(b, n * in);
    const en_device *ops = b->compute.device.ops;
    if (ops->gpu == NULL) return EN_OK;
    EN_TRY(ops->copy(b->compute.device.ctx, b->there.x, b->x, n * in * sizeof(float), EN_COPY_IN));
    EN_TRY(ops->copy(b->compute.device.ctx, b->there.target, b->target, n * out * sizeof(float), EN_COPY_IN));
    b->events = eni_alloc_array(b->buckets->n, sizeof *b->events);
    if (b->events == NULL) return EN_ENOMEM;
    for (uint32_t i = 0; i < b->buckets->n; i++)
        EN_TRY(ops->gpu->event_new(b->compute.device.ctx, &b->events[i]));
    return EN_OK;
}

static en_status open_bench(bench *b, const eni_process *self)
{
    const eni_config *c = b->order->config;
    const eni_data_options data = {
        .name = c->data, .folder = c->data_dir, .transform = eni_config_transform(c)};
    en_data_shape shape;
    EN_TRY(eni_dataset_shape(&data, &shape));
    EN_TRY(eni_network_schema("--model", c->model, &shape, &b->schema));
    EN_TRY(eni_buckets_new(b->schema.tensors, b->schema.ntensors, b->schema.count,
                           (uint64_t)(c->bucket_cap_mb * 1048576), &b->buckets));
    EN_TRY(eni_compute_open(c, b->order->plugin_dir, b->order->threads, self->rank, self->n, &b->schema,
                            &b->compute));
    EN_TRY(en_model_prepare(b->compute.model, c->batch_size, EN_MODEL_TRAIN));
    return take_vectors(b);
}

static void note_ready(bench *b, uint32_t bucket)
{
    if (bucket < ENI_COST_BUCKETS) b->ready[bucket] += (double)(eni_now_ns() - b->begin_ns) * 1e-9;
}

/* Behind what backward has enqueued by now. */
static en_status send_out(bench *b, uint32_t bucket)
{
    const en_gpu *gpu = b->compute.device.ops->gpu;
    const uint64_t lo = b->buckets->bucket[bucket].lo, hi = b->buckets->bucket[bucket].hi;
    en_event *event = b->events[bucket];
    EN_TRY(gpu->event_record(event, EN_STREAM_COMPUTE));
    EN_TRY(gpu->wait_event(b->compute.device.ctx, EN_STREAM_EXCHANGE, event));
    EN_TRY(gpu->copy(b->compute.device.ctx, EN_STREAM_EXCHANGE, b->grad + lo, b->there.grad + lo,
                     (hi - lo) * sizeof(float), EN_COPY_OUT));
    return gpu->event_record(event, EN_STREAM_EXCHANGE);
}

/* They arrive in the order in which they left. Who started this process ends it when it takes too long. */
static en_status await_buckets(bench *b)
{
    const en_gpu *gpu = b->compute.device.ops->gpu;
    for (uint32_t i = 0; i < b->buckets->n; i++) {
        en_status st;
        while ((st = gpu->poll(b->events[i])) == EN_ETIMEOUT)
            sched_yield();
        EN_TRY(st);
        note_ready(b, i);
    }
    return EN_OK;
}

/* A bucket leaves when the layer before it comes back: as in worker/train.c. */
static en_status on_ready(void *user, uint32_t first, uint32_t n)
{
    bench *b = user;
    (void)n;
    for (; b->complete < b->buckets->n && b->buckets->bucket[b->complete].first >= first; b->complete++) {
        if (b->events != NULL)
            EN_TRY(send_out(b, b->complete));
        else
            note_ready(b, b->complete);
    }
    return EN_OK;
}

static en_status one_batch(bench *b, double *seconds_out)
{
    const en_batch batch = {.n = b->order->config->batch_size, .x = b->there.x, .target = b->there.target};
    const eni_device *device = &b->compute.device;
    en_model *model = b->compute.model;
    en_score score;
    b->complete = 0;
    b->begin_ns = eni_now_ns();
    if (b->events != NULL)
        EN_TRY(device->ops->copy(device->ctx, b->there.param, b->param, b->schema.count * sizeof(float),
                                 EN_COPY_IN));
    EN_TRY(en_model_forward(model, b->there.param, NULL, &batch));
    EN_TRY(en_model_backward(model, b->there.param, b->there.grad, on_ready, b));
    if (b->events != NULL) EN_TRY(await_buckets(b));
    EN_TRY(en_model_result(model, &score));
    *seconds_out = (double)(eni_now_ns() - b->begin_ns) * 1e-9;
    return EN_OK;
}

static double one_update(bench *b)
{
    const eni_config *c = b->order->config;
    const eni_optimizer *optimizer = eni_optimizer_find(c->optimizer);
    const eni_hyper hyper = {.lr = 1e-9f,
                             .momentum = (float)c->momentum,
                             .beta1 = c->beta1,
                             .beta2 = c->beta2,
                             .eps = c->eps,
                             .step = 1};
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
typedef struct compute_figures {
    _Atomic int is_over;
    eni_measure_model each[ENI_PROCESSES_MAX];
} compute_figures;

/* In lock step, as ranks are: a round is over when the slowest is, and the mean over the rounds has what a
 * busy machine adds to some of them. Rank 0 looks at the watch. */
static en_status run_rounds(bench *b, const eni_process *self, double *total_out)
{
    compute_figures *f = self->shared;
    double own = 0;
    int times = 0, is_over = 0;
    if (eni_processes_meet(self, &times)) return EN_EPEER;
    const int64_t begin = eni_now_ns();
    while (!is_over) {
        double seconds;
        EN_TRY(one_batch(b, &seconds));
        own += seconds;
        b->rounds++;
        if (self->rank == 0 && eni_now_ns() - begin > b->order->budget_ns) atomic_store(&f->is_over, 1);
        if (eni_processes_meet(self, &times)) return EN_EPEER;
        is_over = atomic_load(&f->is_over);
        if (eni_processes_meet(self, &times)) return EN_EPEER; /* all have seen the same */
    }
    f->each[self->rank].compute = (double)(eni_now_ns() - begin) * 1e-9 / b->rounds;
    *total_out = own;
    return EN_OK;
}

static en_status measure(bench *b, const eni_process *self)
{
    eni_measure_model *out = &((compute_figures *)self->shared)->each[self->rank];
    double total, unused;
    for (int i = 0; i < WARM_UP; i++)
        EN_TRY(one_batch(b, &unused));
    memset(b->ready, 0, sizeof b->ready);
    EN_TRY(run_rounds(b, self, &total));
    out->nbuckets = b->buckets->n < ENI_COST_BUCKETS ? (int)b->buckets->n : ENI_COST_BUCKETS;
    for (int i = 0; i < out->nbuckets; i++) {
        out->bytes[i] = (double)(b->buckets->bucket[i].hi - b->buckets->bucket[i].lo) * sizeof(float);
        out->ready[i] = b->ready[i] / total;
    }
    out->update = one_update(b);
    return EN_OK;
}

/* The process ends: nothing needs to be given back. */
static int compute_main(const eni_process *self)
{
    bench *b = eni_alloc(sizeof *b);
    if (b == NULL) return 1;
    b->order = self->user;
    const en_status st = open_bench(b, self);
    return st != EN_OK || measure(b, self) != EN_OK;
}

en_status eni_measure_compute(int signal_fd, int n, const eni_config *config, const char *plugin_dir,
                              int threads, int64_t budget_ns, eni_measure_model *model_out)
{
    order o = {config, plugin_dir, threads, budget_ns};
    void *shared;
    const size_t bytes = sizeof(compute_figures);
    EN_TRY(measure_in(signal_fd, n, bytes, &shared, compute_main, &o, 60));
    const eni_measure_model *each = ((const compute_figures *)shared)->each;
    *model_out = each[0];
    model_out->compute = model_out->update = 0;
    for (int r = 0; r < n; r++) {
        model_out->compute += each[r].compute / n;
        model_out->update += each[r].update / n;
    }
    eni_processes_release(shared, bytes);
    return EN_OK;
}
