/* statistics.c - memory for the running statistics of a rank, and their copies to the host. */
#include "worker/statistics.h"

#include <string.h>

#include "core/memory.h"
#include "core/try.h"
#include "run/units.h"
#include "worker/parallel/team.h"

struct eni_statistics {
    int64_t n;     /* states: one, or one for each rank that this process plays */
    float **state; /* (n) device memory */
};

en_status eni_statistics_open(eni_worker *w)
{
    const en_schema *schema = &w->rank.job.schema;
    if (schema->nstate == 0) return EN_OK;
    eni_statistics *s = w->statistics = eni_alloc(sizeof *s);
    if (s == NULL) return EN_ENOMEM;
    s->n = w->rank.job.accumulate;
    s->state = eni_alloc_array((size_t)s->n, sizeof *s->state);
    if (s->state == NULL) return EN_ENOMEM;
    for (int64_t i = 0; i < s->n; i++)
        EN_TRY(w->device.ops->alloc(w->device.ctx, schema->nstate * sizeof(float), (void **)&s->state[i]));
    return EN_OK;
}

void eni_statistics_close(eni_worker *w)
{
    eni_statistics *s = w->statistics;
    if (s == NULL) return;
    for (int64_t i = 0; s->state != NULL && i < s->n && !w->gpu.is_stuck; i++)
        w->device.ops->free(w->device.ctx, s->state[i]);
    eni_free(s->state);
    eni_free(s);
    w->statistics = NULL;
}

float *eni_state_of(const eni_worker *w, int64_t micro)
{
    return w->statistics == NULL ? NULL : w->statistics->state[micro];
}

/* Copies a state from or to the device; blocks. */
static en_status copy_state(const eni_worker *w, void *to, const void *from, int direction)
{
    const uint64_t bytes = w->rank.job.schema.nstate * sizeof(float);
    EN_TRY(w->device.ops->copy(w->device.ctx, to, from, bytes, direction));
    return w->device.ops->sync(w->device.ctx);
}

en_status eni_statistics_get(void *worker, int64_t micro, float *state_out)
{
    const eni_worker *w = worker;
    return copy_state(w, state_out, w->statistics->state[micro], EN_COPY_OUT);
}

en_status eni_statistics_set(void *worker, int64_t micro, const float *state)
{
    const eni_worker *w = worker;
    return copy_state(w, w->statistics->state[micro], state, EN_COPY_IN);
}

/* ---- recomputing (Wu and Johnson 2021, "precise BN") ---- */

/* Buffers of a recomputation, on the host and on the device; freed together. */
typedef struct recount {
    eni_worker *w;
    uint64_t batch, nbatches;
    float *x, *moved;
    void *target;
    double *sum;                        /* (nstate) of the batches' own statistics */
    void *param, *state, *dx, *dtarget; /* on the device */
} recount;

static en_status put_in(const recount *r, void *to, const void *from, uint64_t bytes)
{
    return r->w->device.ops->copy(r->w->device.ctx, to, from, bytes, EN_COPY_IN);
}

static en_status take_memory(recount *r)
{
    const en_schema *schema = &r->w->rank.job.schema;
    const eni_dataset *d = r->w->dataset;
    const en_device *ops = r->w->device.ops;
    en_ctx *ctx = r->w->device.ctx;
    const uint64_t pixels = r->batch * d->sample_floats * sizeof(float);
    const uint64_t targets = r->batch * eni_dataset_target_bytes(d);
    r->x = eni_alloc(pixels);
    r->target = eni_alloc(targets);
    r->moved = eni_alloc_array(schema->nstate, sizeof *r->moved);
    r->sum = eni_alloc_array(schema->nstate, sizeof *r->sum);
    if (r->x == NULL || r->target == NULL || r->moved == NULL || r->sum == NULL) return EN_ENOMEM;
    EN_TRY(ops->alloc(ctx, schema->count * sizeof(float), &r->param));
    EN_TRY(ops->alloc(ctx, schema->nstate * sizeof(float), &r->state));
    EN_TRY(ops->alloc(ctx, pixels, &r->dx));
    return ops->alloc(ctx, targets, &r->dtarget);
}

static void give_memory(recount *r)
{
    void *const device[] = {r->param, r->state, r->dx, r->dtarget};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        r->w->device.ops->free(r->w->device.ctx, device[i]);
    eni_free(r->x);
    eni_free(r->target);
    eni_free(r->moved);
    eni_free(r->sum);
}

/* A state of zeroes becomes momentum x the batch's statistics. */
static en_status add_batch(recount *r, uint64_t first)
{
    eni_worker *w = r->w;
    const en_schema *schema = &w->rank.job.schema;
    const uint64_t bytes = schema->nstate * sizeof(float);
    const en_batch batch = {.n = (int64_t)r->batch, .x = r->dx, .target = r->dtarget};
    EN_TRY(eni_rank_alive(&w->rank));
    eni_dataset_range(w->dataset, ENI_TRAIN, first, r->batch, r->x, r->target);
    memset(r->moved, 0, bytes);
    EN_TRY(put_in(r, r->state, r->moved, bytes));
    EN_TRY(put_in(r, r->dx, r->x, r->batch * w->dataset->sample_floats * sizeof(float)));
    EN_TRY(put_in(r, r->dtarget, r->target, r->batch * eni_dataset_target_bytes(w->dataset)));
    EN_TRY(w->team != NULL ? eni_team_forward(w, r->param, r->state, &batch)
                           : en_model_forward(w->model, r->param, r->state, &batch));
    EN_TRY(copy_state(w, r->moved, r->state, EN_COPY_OUT));
    for (uint64_t i = 0; i < schema->nstate; i++)
        r->sum[i] += (double)r->moved[i]; /* also of an int64, which nobody reads */
    return EN_OK;
}

static void put_means(const recount *r, float *state_out)
{
    const en_schema *schema = &r->w->rank.job.schema;
    const int64_t nbatches = (int64_t)r->nbatches;
    for (uint32_t i = 0; i < schema->nnodes; i++) {
        const en_node *node = &schema->nodes[i];
        const double scale = 1 / ((double)node->op.momentum * (double)r->nbatches);
        for (uint32_t b = node->first_buffer; b < node->first_buffer + node->nbuffers; b++) {
            const en_model_tensor *buffer = &schema->buffers[b];
            float *into = state_out + buffer->offset;
            if (buffer->dtype == EN_I64) memcpy(into, &nbatches, sizeof nbatches);
            for (uint64_t k = 0; k < buffer->count && buffer->dtype == EN_F32; k++)
                into[k] = (float)(r->sum[buffer->offset + k] * scale);
        }
    }
}

en_status eni_statistics_recompute(void *worker, const float *flat, float *state_out)
{
    eni_worker *w = worker;
    const eni_job *job = &w->rank.job;
    bool is_mean;
    uint64_t n;
    (void)eni_bn_stats_parse(w->config->bn_stats, &is_mean, &n); /* checked with the command */
    if (n > w->dataset->split[ENI_TRAIN].count) n = w->dataset->split[ENI_TRAIN].count;
    const uint64_t rows = w->team != NULL ? eni_team_chunk_rows(w) : job->plan.batch; /* as in training */
    recount r = {.w = w, .batch = n < rows ? n : rows};
    r.nbatches = n / r.batch;
    en_status st = take_memory(&r);
    if (st == EN_OK) st = put_in(&r, r.param, flat, job->schema.count * sizeof(float));
    for (uint64_t k = 0; k < r.nbatches && st == EN_OK; k++)
        st = add_batch(&r, k * r.batch);
    if (st == EN_OK) put_means(&r, state_out);
    give_memory(&r);
    return st;
}
