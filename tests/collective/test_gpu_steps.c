/* test_gpu_steps.c - mean and step in the streams of a GPU: the bits of eni_mean and the optimizer, for one
 * rank with several micro-batches, for ranks with a GPU each and for ranks that share one; weights that a
 * forward reads are those of its step; and a dead rank ends the others' waits. Ranks are processes.
 *
 * The plugin is looked for in the folder of the argument, else $ENTRAIN_PLUGIN_PATH: the simulated GPU or a
 * real one. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "ops/device.h"
#include "runtime/host/host.h"
#include "tests/collective/group_fixture.h"

/* More steps than registered slots; one bucket of several slices and a ragged one, one smaller than a line a
 * rank. */
enum {
    MAX_RANKS = 4,
    FIRST = 48,
    SECOND = 5003,
    COUNT = FIRST + SECOND,
    STEPS = 11,
    NKINDS = 4,
    NBUCKETS = 2
};

static const en_model_tensor tensors[] = {
    {.name = "a", .offset = 0, .count = FIRST, .ndim = 2, .shape = {1, FIRST}},
    {.name = "b", .offset = FIRST, .count = SECOND, .ndim = 2, .shape = {1, SECOND}}};

static const eni_hyper kinds[NKINDS] = {
    {.momentum = 0},
    {.momentum = 0.9f},
    {.momentum = 0.9f, .weight_decay = 0.001f, .nesterov = 1},
    {.weight_decay = 0.01f},
};

/* What ranks tell each other, in place of the control plane. */
typedef struct shared {
    uint8_t grad[MAX_RANKS][EN_GPU_HANDLE], param[EN_GPU_HANDLE], slot[EN_GPU_HANDLE], id[EN_GPU_GROUP_ID];
} shared;

typedef struct trial {
    struct fixture fixture; /* ranks of several */
    shared *shared;
    int way, kind, order, ngrads;
    int is_counted;  /* GROUP: no rank is told the samples of all */
    int is_captured; /* steps 0 and 1 as they are, 2 captured, the others replayed; everybody has samples */
    int is_awaited;  /* SHARED: the caller waits for gradients, as behind a graph */
    int dies;        /* rank 1 dies before this step; 0: nobody */
    uint32_t epoch;
} trial;

static const char *folder;

/* ---- the strategy ---- */

static struct {
    en_host *table;
    const en_bucket *bucket;
} probe;

static en_status plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    probe.table = host;
    probe.bucket = bucket;
    return EN_OK;
}

static en_status submit_mean(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->mean_step(host, bucket);
    return EN_OK;
}

static en_status submit_step(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state, (void)req;
    return host->step(host, bucket);
}

static const en_strategy one = {.abi = EN_STRATEGY_ABI,
                                .size = sizeof(en_strategy),
                                .name = "one",
                                .flags = EN_SHARED_PARAMS,
                                .submit = submit_mean};
static const en_strategy alone = {.abi = EN_STRATEGY_ABI,
                                  .size = sizeof(en_strategy),
                                  .name = "alone",
                                  .plan = plan,
                                  .submit = submit_step};

/* ---- what must come out ---- */

static uint64_t samples_of(const trial *t, int rank, int step)
{
    if (t->is_captured) return 8 + (uint64_t)(rank + step) % 3;
    return step == 2 ? 0 : (uint64_t)((rank + step) % 3) * 8; /* now and then none, once nobody has any */
}

/* What a rank without samples holds is nobody's business. */
static float grad_value(const trial *t, int rank, int step, int i)
{
    return samples_of(t, rank, step) == 0 ? NAN : fixture_value(rank, (uint64_t)step, (uint64_t)i);
}

/* w[t] before step t, of n gradients. */
static void reference(const trial *t, int n, float (*w)[COUNT])
{
    static float g[MAX_RANKS][COUNT], mean[COUNT], m[COUNT];
    const int lo[NBUCKETS] = {FIRST, 0}, hi[NBUCKETS] = {COUNT, FIRST};
    float *slots[] = {m};
    memset(m, 0, sizeof m);
    for (int i = 0; i < COUNT; i++)
        w[0][i] = 0.5f + 0.001f * (float)(i % 7);
    for (int s = 0; s < STEPS; s++) {
        uint64_t nsamples[MAX_RANKS], total = 0;
        memcpy(w[s + 1], w[s], sizeof w[s]);
        for (int r = 0; r < n; r++) {
            nsamples[r] = samples_of(t, r, s);
            total += nsamples[r];
            for (int i = 0; i < COUNT; i++)
                g[r][i] = grad_value(t, r, s, i);
        }
        if (total == 0) continue; /* nothing moves, momentum neither */
        for (int b = 0; b < NBUCKETS; b++) {
            const float *from[MAX_RANKS];
            const uint64_t count = (uint64_t)(hi[b] - lo[b]);
            for (int r = 0; r < n; r++)
                from[r] = g[r] + lo[b];
            eni_mean_ranks(mean + lo[b], from, nsamples, n, (eni_sum_order)t->order, count, 0, count);
        }
        eni_hyper hyper = kinds[t->kind];
        hyper.lr = 0.1f;
        eni_optimizer_find("sgd")->step(w[s + 1], slots, mean, COUNT, &hyper);
    }
}

/* ---- one rank ---- */

typedef struct rig {
    const en_device *dev;
    const en_gpu *gpu;
    en_ctx *ctx;
    en_event *event;
    en_group *group;
    eni_arena *own_arena;
    eni_coll *coll;
    eni_buckets *buckets;
    eni_options *options;
    eni_gpu_steps *steps;
    eni_host *host;
    int nslots, ngrads, nown;
    float *param, *slot, *grads[MAX_RANKS], *own[MAX_RANKS];
    float *in;   /* (STEPS, nown, COUNT) registered */
    float *seen; /* (STEPS + 1, COUNT) registered: what a forward would read */
} rig;

static uint64_t bytes_of(const rig *r)
{
    return r->buckets->count * sizeof(float);
}

static int open_device(rig *r, int rank, int index)
{
    CLUSTER_CHECK(eni_device_load("cuda", folder, &r->dev) == EN_OK);
    const en_device_config config = {
        .size = sizeof config, .index = index, .threads = 1, .host = eni_device_host()};
    r->gpu = r->dev->gpu;
    CLUSTER_CHECK(r->dev->open(&config, &r->ctx) == EN_OK);
    CLUSTER_CHECK(r->gpu->event_new(r->ctx, &r->event) == EN_OK);
    CLUSTER_CHECK(eni_buckets_new(tensors, 2, COUNT, 20100, &r->buckets) == EN_OK &&
                  r->buckets->n == NBUCKETS);
    return 0;
}

static int alloc_registered(rig *r, int rank, size_t vectors, float **out)
{
    *out = eni_alloc_pages(vectors * bytes_of(r));
    CLUSTER_CHECK(*out != NULL && r->gpu->register_memory(r->ctx, *out, vectors * bytes_of(r)) == EN_OK);
    return 0;
}

/* All ranks are at this point. */
static int meet(rig *r, int rank)
{
    const eni_coll_op barrier = {.op = ENI_COLL_BARRIER};
    CLUSTER_CHECK(r->coll == NULL || eni_coll_run(r->coll, &barrier) == EN_OK);
    return 0;
}

static int open_shared(rig *r, int rank, const trial *t)
{
    shared *s = t->shared;
    CLUSTER_CHECK(r->gpu->export_memory(r->ctx, r->own[0], s->grad[rank]) == EN_OK);
    if (rank == 0) {
        CLUSTER_CHECK(r->gpu->export_memory(r->ctx, r->param, s->param) == EN_OK);
        CLUSTER_CHECK(r->gpu->export_memory(r->ctx, r->slot, s->slot) == EN_OK);
    }
    if (meet(r, rank) != 0) return 1;
    for (int q = 0; q < r->ngrads; q++) {
        r->grads[q] = r->own[0];
        if (q != rank)
            CLUSTER_CHECK(r->gpu->import_memory(r->ctx, s->grad[q], (void **)&r->grads[q]) == EN_OK);
    }
    if (rank == 0) return 0;
    CLUSTER_CHECK(r->gpu->import_memory(r->ctx, s->param, (void **)&r->param) == EN_OK);
    CLUSTER_CHECK(r->gpu->import_memory(r->ctx, s->slot, (void **)&r->slot) == EN_OK);
    return 0;
}

static int open_group(rig *r, int rank, int n, cluster_board *board, const trial *t)
{
    if (rank == 0) CLUSTER_CHECK(r->gpu->group_id(eni_device_host(), t->shared->id) == EN_OK);
    if (meet(r, rank) != 0) return 1;
    CLUSTER_CHECK(r->gpu->group_open(r->ctx, t->shared->id, rank, n, cluster_alive, board, &r->group) ==
                  EN_OK);
    return 0;
}

static int open_vectors(rig *r, int rank, int n, cluster_board *board, const trial *t)
{
    const int is_guest = t->way == ENI_GPU_SHARED && rank > 0;
    r->nslots = kinds[t->kind].momentum != 0;
    r->nown = t->way == ENI_GPU_ALONE ? t->ngrads : 1;
    r->ngrads = t->way == ENI_GPU_GROUP ? 1 : t->ngrads;
    for (int i = 0; i < r->nown; i++) {
        CLUSTER_CHECK(r->dev->alloc(r->ctx, bytes_of(r), (void **)&r->own[i]) == EN_OK);
        r->grads[i] = r->own[i];
    }
    if (!is_guest) {
        CLUSTER_CHECK(r->dev->alloc(r->ctx, bytes_of(r), (void **)&r->param) == EN_OK);
        CLUSTER_CHECK(r->dev->alloc(r->ctx, bytes_of(r), (void **)&r->slot) == EN_OK);
    }
    if (alloc_registered(r, rank, (size_t)(STEPS * r->nown), &r->in) != 0) return 1;
    if (alloc_registered(r, rank, STEPS + 1, &r->seen) != 0) return 1;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < r->nown * COUNT; i++)
            r->in[s * r->nown * COUNT + i] = grad_value(t, rank + i / COUNT, s, i % COUNT);
    if (t->way == ENI_GPU_SHARED && open_shared(r, rank, t) != 0) return 1;
    if (t->way == ENI_GPU_GROUP && open_group(r, rank, n, board, t) != 0) return 1;
    return 0;
}

static int open_host(rig *r, int rank, int n, cluster_board *board, const trial *t)
{
    const en_strategy *strategy = t->way == ENI_GPU_ALONE ? &alone : &one;
    const eni_gpu_steps_config steps = {.way = t->way,
                                        .rank = rank,
                                        .nranks = n,
                                        .device = r->dev,
                                        .ctx = r->ctx,
                                        .buckets = r->buckets,
                                        .optimizer = eni_optimizer_find("sgd"),
                                        .sum_order = (eni_sum_order)t->order,
                                        .nslots = r->nslots,
                                        .param = r->param,
                                        .slot = {r->slot},
                                        .grads = r->grads,
                                        .ngrads = r->ngrads,
                                        .group = r->group,
                                        .alive = {cluster_alive, board, -1}};
    CLUSTER_CHECK(eni_gpu_steps_open(&steps, &r->steps) == EN_OK);
    CLUSTER_CHECK(eni_options_new(strategy, "", &r->options) == EN_OK);
    if (n == 1) CLUSTER_CHECK(eni_arena_open(COUNT, FIXTURE_NSLOTS, 0, &r->own_arena) == EN_OK);
    const eni_host_config config = {
        .strategy = strategy,
        .options = r->options,
        .world = {.size = sizeof(en_world), .epoch = 1, .rank = rank, .nranks = n, .nlocal = n, .nhosts = 1},
        .buckets = r->buckets,
        .arena = n == 1 ? r->own_arena : t->fixture.arenas[rank],
        .coll = r->coll,
        .coll_algorithm = ENI_COLL_DIRECT,
        .optimizer = eni_optimizer_find("sgd"),
        .hyper = kinds[t->kind],
        .schedule = {.kind = ENI_LR_CONSTANT, .base = 0.1},
        .alive_status = cluster_alive,
        .alive_user = board,
        .gpu = r->steps};
    CLUSTER_CHECK(eni_host_open(&config, &r->host) == EN_OK);
    return 0;
}

static int copy_in(rig *r, int rank, float *dst, const float *src)
{
    CLUSTER_CHECK(r->gpu->copy(r->ctx, EN_STREAM_COMPUTE, dst, src, bytes_of(r), EN_COPY_IN) == EN_OK);
    return 0;
}

/* Waits until COMPUTE has done all that it has. */
static en_status drain(rig *r)
{
    const en_status st = r->gpu->event_record(r->event, EN_STREAM_COMPUTE);
    return st == EN_OK ? eni_gpu_steps_await(r->steps, r->event, "all of it") : st;
}

static int send_start(rig *r, int rank, const float *start)
{
    memcpy(r->seen, start, bytes_of(r));
    if (copy_in(r, rank, r->param, r->seen) != 0) return 1;
    CLUSTER_CHECK(drain(r) == EN_OK);
    return 0;
}

static void rig_close(rig *r, int rank)
{
    eni_host_close(r->host);
    eni_gpu_steps_close(r->steps);
    r->gpu->group_close(r->group);
    for (int q = 0; q < r->ngrads; q++)
        if (r->grads[q] != r->own[q] && r->grads[q] != r->own[0]) r->gpu->release_memory(r->ctx, r->grads[q]);
    if (r->ngrads > r->nown && rank > 0) {
        r->gpu->release_memory(r->ctx, r->param);
        r->gpu->release_memory(r->ctx, r->slot);
        r->param = r->slot = NULL;
    }
    (void)meet(r, rank); /* nobody maps anybody's */
    for (int i = 0; i < r->nown; i++)
        r->dev->free(r->ctx, r->own[i]);
    r->dev->free(r->ctx, r->param);
    r->dev->free(r->ctx, r->slot);
    r->gpu->unregister_memory(r->ctx, r->in);
    r->gpu->unregister_memory(r->ctx, r->seen);
    r->gpu->event_free(r->event);
    r->dev->close(r->ctx);
    eni_free(r->in);
    eni_free(r->seen);
    eni_coll_close(r->coll);
    eni_arena_close(r->own_arena);
    eni_options_free(r->options);
    eni_buckets_free(r->buckets);
}

/* ---- a step ---- */

static en_status begin_step(rig *r, int rank, int n, int s, const trial *t)
{
    uint64_t micros[MAX_RANKS], all = 0, own = 0;
    for (int q = 0; q < t->ngrads; q++)
        all += samples_of(t, q, s);
    for (int i = 0; i < r->nown; i++)
        own += micros[i] = samples_of(t, rank + i, s);
    if (t->way == ENI_GPU_ALONE) eni_host_note_micros(r->host, micros, r->nown);
    if (n > 1 || t->way == ENI_GPU_GROUP) eni_host_note_samples(r->host, own, t->is_counted ? 0 : all);
    return eni_host_begin(r->host, (uint64_t)s, own, 0);
}

/* Forward reads the weights, backward writes the gradients bucket by bucket: `from` and `seen` are
 * registered. */
static en_status enqueue_step(rig *r, const float *from, float *seen, int is_awaited)
{
    en_status st = r->gpu->copy(r->ctx, EN_STREAM_COMPUTE, seen, r->param, bytes_of(r), EN_COPY_OUT);
    for (uint32_t b = 0; b < NBUCKETS && st == EN_OK; b++) {
        const eni_bucket_range *range = &r->buckets->bucket[b];
        for (int i = 0; i < r->nown && st == EN_OK; i++)
            st = r->gpu->copy(r->ctx, EN_STREAM_COMPUTE, r->own[i] + range->lo, from + i * COUNT + range->lo,
                              (range->hi - range->lo) * sizeof(float), EN_COPY_IN);
        if (st == EN_OK && !is_awaited) st = eni_host_submit(r->host, b);
    }
    if (st == EN_OK && is_awaited) st = drain(r);
    for (uint32_t b = 0; b < NBUCKETS && st == EN_OK && is_awaited; b++)
        st = eni_host_submit(r->host, b);
    return st == EN_OK ? eni_host_finish(r->host) : st;
}

static en_status plain_step(rig *r, int rank, int n, int s, const trial *t)
{
    const en_status st = begin_step(r, rank, n, s, t);
    return st == EN_OK ? enqueue_step(r, r->in + s * r->nown * COUNT, r->seen + s * COUNT, t->is_awaited)
                       : st;
}

/* The graph reads the gradients of step 2 and writes what it saw of step 2: they are changed between
 * launches. */
static int captured_steps(rig *r, int rank, int n, const trial *t)
{
    enum { RECORDED = 2 };
    static float saw[STEPS][COUNT];
    float *from = r->in + RECORDED * r->nown * COUNT, *seen = r->seen + RECORDED * COUNT;
    en_capture *graph = NULL;
    for (int s = RECORDED; s < STEPS; s++) {
        memcpy(from, r->in + s * r->nown * COUNT, (size_t)r->nown * bytes_of(r));
        CLUSTER_CHECK(begin_step(r, rank, n, s, t) == EN_OK);
        if (s == RECORDED) {
            CLUSTER_CHECK(r->gpu->capture_begin(r->ctx) == EN_OK);
            CLUSTER_CHECK(enqueue_step(r, from, seen, 0) == EN_OK);
            CLUSTER_CHECK(r->gpu->capture_end(r->ctx, &graph) == EN_OK);
            eni_gpu_steps_replay(r->steps, 1);
        } else {
            CLUSTER_CHECK(eni_host_submit(r->host, 0) == EN_OK && eni_host_submit(r->host, 1) == EN_OK);
            CLUSTER_CHECK(eni_host_finish(r->host) == EN_OK);
        }
        CLUSTER_CHECK(r->gpu->launch(graph) == EN_OK);
        CLUSTER_CHECK(drain(r) == EN_OK);
        memcpy(saw[s], seen, sizeof saw[s]);
    }
    memcpy(seen, saw[RECORDED], sizeof saw - sizeof saw[0] * RECORDED);
    r->gpu->graph_free(graph);
    return 0;
}

static int compare(const rig *r, int rank, float (*w)[COUNT], const trial *t)
{
    for (int s = 0; s <= STEPS; s++)
        for (int i = 0; i < COUNT; i++) {
            const float got = r->seen[s * COUNT + i], want = w[s][i];
            const float most = t->way == ENI_GPU_GROUP && t->ngrads > 2 ? 1e-6f : 0; /* an order of its own */
            if (fabsf(got - want) <= most && (most > 0 || memcmp(&got, &want, sizeof got) == 0)) continue;
            fprintf(stderr, "rank %d, kind %d, before step %d: w[%d] is %.9g, not %.9g\n", rank, t->kind, s,
                    i, (double)got, (double)want);
            return 1;
        }
    return 0;
}

static int trains(int rank, int n, cluster_board *board, void *user)
{
    static float w[STEPS + 1][COUNT];
    trial *t = user;
    rig r = {0};
    eni_host_counters count;
    const int is_shared = t->way == ENI_GPU_SHARED;
    alarm(100);
    if (n > 1) {
        r.coll = fixture_group(&t->fixture, rank, board, t->epoch);
        CLUSTER_CHECK(r.coll != NULL);
    }
    if (open_device(&r, rank, is_shared ? 0 : rank) != 0 || open_vectors(&r, rank, n, board, t) != 0 ||
        open_host(&r, rank, n, board, t) != 0)
        return 1;
    reference(t, t->ngrads, w);
    if ((rank == 0 || !is_shared) && send_start(&r, rank, w[0]) != 0) return 1;
    if (meet(&r, rank) != 0) return 1;
    if (t->is_awaited) eni_gpu_steps_replay(r.steps, 1);
    for (int s = 0; s < (t->is_captured ? 2 : STEPS); s++) {
        if (t->dies == s && s > 0 && rank == 1) raise(SIGKILL);
        const int64_t begin = eni_now_ns();
        en_status st = plain_step(&r, rank, n, s, t);
        if (t->dies > 0 && s >= t->dies && st == EN_OK) st = drain(&r); /* the host may be ahead of the GPU */
        if (t->dies > 0 && st == EN_EPEER) {
            CLUSTER_CHECK(eni_now_ns() - begin < 5 * ENI_SECOND);
            CLUSTER_CHECK(is_shared || eni_gpu_steps_submit(r.steps, 0) == EN_EPEER); /* for good */
            return 0;
        }
        CLUSTER_CHECK(s < t->dies || t->dies == 0);
        CLUSTER_CHECK(st == EN_OK);
    }
    if (t->is_captured && captured_steps(&r, rank, n, t) != 0) return 1;
    CLUSTER_CHECK(r.gpu->copy(r.ctx, EN_STREAM_COMPUTE, r.seen + STEPS * COUNT, r.param, bytes_of(&r),
                              EN_COPY_OUT) == EN_OK);
    CLUSTER_CHECK(drain(&r) == EN_OK);
    if (compare(&r, rank, w, t) != 0) return 1;
    eni_host_count(r.host, &count);
    CLUSTER_CHECK(count.steps == STEPS && count.version == STEPS && count.lr == 0.1f);
    CLUSTER_CHECK(eni_host_steps_taken(r.host, 1) == STEPS && eni_host_writes_param(r.host));
    if (meet(&r, rank) != 0) return 1; /* until all have compared */
    rig_close(&r, rank);
    return 0;
}

/* ---- the tests ---- */

static int count_gpus(int rank, int n, cluster_board *board, void *user);

/* The number of ranks that did not end well. */
static int run_main(trial t, int n, cluster_main body)
{
    static int seed;
    struct cluster cluster;
    char text[16];
    snprintf(text, sizeof text, "%d", ++seed);
    setenv("FAKE_GPU_SEED", text, 1);
    setenv("FAKE_GPUS", "4", 1);
    if (n > 1) assert_int_equal(fixture_open(&t.fixture, &ways[0], n), 0);
    t.shared = mmap(NULL, sizeof *t.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t.shared != MAP_FAILED);
    t.epoch = 1;
    if (t.ngrads == 0) t.ngrads = n;
    int bad = cluster_run(&cluster, n, body, &t, 120000);
    if (body == count_gpus) bad = cluster.exit_code[0];
    if (t.dies > 0) assert_int_equal(cluster.exit_code[1], 128 + SIGKILL);
    cluster_close(&cluster);
    munmap(t.shared, sizeof *t.shared);
    if (n > 1) fixture_close(&t.fixture);
    return bad;
}

static int run(trial t, int n)
{
    return run_main(t, n, trains);
}

/* In a process of its own: CUDA does not outlive a fork. */
static int count_gpus(int rank, int n, cluster_board *board, void *user)
{
    const en_device *device;
    int32_t count = 0;
    (void)rank, (void)n, (void)board, (void)user;
    if (eni_device_load("cuda", folder, &device) != EN_OK) return 0;
    return device->gpu->count(eni_device_host(), &count) == EN_OK ? count : 0;
}

/* As many ranks have a GPU each here. */
static int has_gpus(int n)
{
    return run_main((trial){0}, 1, count_gpus) >= n;
}

static void test_alone(void **state)
{
    (void)state;
    for (int kind = 0; kind < NKINDS; kind++)
        for (int ngrads = 1; ngrads <= MAX_RANKS; ngrads += ngrads == 2 ? 2 : 1)
            assert_int_equal(run((trial){.way = ENI_GPU_ALONE, .kind = kind, .ngrads = ngrads}, 1), 0);
}

static void test_alone_in_ring_order(void **state)
{
    (void)state;
    assert_int_equal(run((trial){.way = ENI_GPU_ALONE, .kind = 2, .ngrads = 4, .order = ENI_SUM_RING}, 1), 0);
    assert_int_equal(run((trial){.way = ENI_GPU_ALONE, .kind = 1, .ngrads = 3, .order = ENI_SUM_RING}, 1), 0);
}

static void test_alone_replayed(void **state)
{
    (void)state;
    for (int kind = 0; kind < NKINDS; kind++)
        assert_int_equal(run((trial){.way = ENI_GPU_ALONE, .kind = kind, .ngrads = 2, .is_captured = 1}, 1),
                         0);
    assert_int_equal(
        run((trial){.way = ENI_GPU_ALONE, .kind = 1, .ngrads = 3, .order = ENI_SUM_RING, .is_captured = 1},
            1),
        0);
}

static void test_shared(void **state)
{
    (void)state;
    for (int kind = 0; kind < NKINDS; kind++)
        for (int n = 2; n <= MAX_RANKS; n++)
            assert_int_equal(run((trial){.way = ENI_GPU_SHARED, .kind = kind}, n), 0);
}

static void test_shared_behind_graphs(void **state)
{
    (void)state;
    assert_int_equal(run((trial){.way = ENI_GPU_SHARED, .kind = 2, .is_awaited = 1}, 3), 0);
}

static void test_shared_death(void **state)
{
    (void)state;
    assert_int_equal(run((trial){.way = ENI_GPU_SHARED, .kind = 1, .dies = 3}, 3), 1);
}

static void test_group(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 4};
    for (int kind = 0; kind < NKINDS; kind++)
        for (int i = 0; i < 3; i++)
            for (int is_counted = 0; is_counted < 2 && has_gpus(sizes[i]); is_counted++)
                assert_int_equal(
                    run((trial){.way = ENI_GPU_GROUP, .kind = kind, .is_counted = is_counted}, sizes[i]), 0);
}

static void test_group_replayed(void **state)
{
    (void)state;
    assert_int_equal(run((trial){.way = ENI_GPU_GROUP, .kind = 2, .is_captured = 1}, 1), 0);
    if (has_gpus(2)) assert_int_equal(run((trial){.way = ENI_GPU_GROUP, .kind = 2, .is_captured = 1}, 2), 0);
}

static void test_group_death(void **state)
{
    (void)state;
    if (!has_gpus(3)) skip();
    assert_int_equal(run((trial){.way = ENI_GPU_GROUP, .kind = 1, .dies = 3}, 3), 1);
}

/* A step that the device cannot capture may be put in after all. */
static int break_record(rig *r, int rank)
{
    const en_gpu *gpu = r->gpu;
    en_capture *graph = NULL, *none = NULL;
    CLUSTER_CHECK(gpu->capture_begin(r->ctx) == EN_OK && gpu->capture_end(r->ctx, &graph) == EN_OK);
    CLUSTER_CHECK(gpu->capture_begin(r->ctx) == EN_OK);
    CLUSTER_CHECK(gpu->launch(graph) == EN_EUNSUPPORTED);
    CLUSTER_CHECK(eni_gpu_steps_submit(r->steps, 0) == EN_EUNSUPPORTED);
    CLUSTER_CHECK(gpu->capture_end(r->ctx, &none) == EN_EUNSUPPORTED && none == NULL);
    CLUSTER_CHECK(eni_gpu_steps_submit(r->steps, 0) == EN_OK);
    CLUSTER_CHECK(eni_gpu_steps_wait(r->steps, 0) == EN_OK);
    gpu->graph_free(graph);
    return 0;
}

/* What the host cannot keep its word for is refused: a strategy that lin's, a bucket in part, a world that
 * the steps are not for. */
static int misuse(int rank, int n, cluster_board *board, void *user)
{
    trial *t = user;
    rig r = {0};
    if (open_device(&r, rank, 0) != 0 || open_vectors(&r, rank, n, board, t) != 0 ||
        open_host(&r, rank, n, board, t) != 0)
        return 1;
    en_host *h = probe.table;
    CLUSTER_CHECK(h->lin(h, probe.bucket->param, 1, probe.bucket->grad, 1) == EN_EBUG);
    CLUSTER_CHECK(h->wait(h, h->call(h, EN_SERVERS, 1, EN_GRAD, probe.bucket, 0, 0, 0)) == EN_EBUG);
    CLUSTER_CHECK(h->coll(h, EN_ALLREDUCE, EN_WORLD, EN_GRAD, probe.bucket, probe.bucket->grad) == 0);
    /* who does not tell of micro-batches has one */
    eni_gpu_steps_replay(r.steps, 1);
    CLUSTER_CHECK(eni_host_begin(r.host, 0, 8, 0) == EN_EBUG);
    eni_host_note_micros(r.host, (uint64_t[]){8, 3}, 2);
    CLUSTER_CHECK(eni_host_begin(r.host, 0, 11, 0) == EN_OK);
    eni_gpu_steps_replay(r.steps, 0);
    if (break_record(&r, rank) != 0) return 1;
    eni_host_close(r.host);
    r.host = NULL;
    /* a world that may change its weights otherwise */
    eni_host_config several = {.strategy = &alone,
                               .options = r.options,
                               .world = {.size = sizeof(en_world), .nranks = 2},
                               .buckets = r.buckets,
                               .arena = r.own_arena,
                               .optimizer = eni_optimizer_find("sgd"),
                               .gpu = r.steps};
    CLUSTER_CHECK(eni_host_open(&several, &r.host) == EN_EBUG && r.host == NULL);
    /* replayed, and a micro-batch has no samples */
    eni_gpu_steps_replay(r.steps, 1);
    CLUSTER_CHECK(eni_gpu_steps_begin(r.steps, &kinds[0], (uint64_t[]){8, 0}, 0) == EN_EBUG);
    CLUSTER_CHECK(eni_gpu_steps_begin(r.steps, &kinds[0], (uint64_t[]){8, 3}, 0) == EN_OK);
    rig_close(&r, rank);
    return 0;
}

static void test_misuse(void **state)
{
    (void)state;
    assert_int_equal(run_main((trial){.way = ENI_GPU_ALONE, .ngrads = 2}, 1, misuse), 0);
}

int main(int argc, char **argv)
{
    char path[1024];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),          cmocka_unit_test(test_alone_in_ring_order),
        cmocka_unit_test(test_alone_replayed), cmocka_unit_test(test_shared),
        cmocka_unit_test(test_shared_death),   cmocka_unit_test(test_shared_behind_graphs),
        cmocka_unit_test(test_group),          cmocka_unit_test(test_group_replayed),
        cmocka_unit_test(test_group_death),    cmocka_unit_test(test_misuse),
    };
    folder = argc > 1 ? argv[1] : getenv("ENTRAIN_PLUGIN_PATH");
    snprintf(path, sizeof path, "%s/device_cuda.so", folder != NULL ? folder : "");
    if (access(path, R_OK) != 0) {
        printf("skipped: there is no %s\n", path);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
