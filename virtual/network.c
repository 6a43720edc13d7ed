/* network.c - real gradients for the virtual host: micro-batch m of the plan through forward and backward, on the weights and
 * the running statistics that its rank has at that moment. */
#include "virtual/network.h"

#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/weights.h"
#include "runtime/net/host_info.h"

/* ---- the problem ---- */

static uint64_t samples(void *user, uint64_t micro_batch)
{
    const eni_virtual_network *n = user;
    eni_micro micro;
    return eni_plan_micro(&n->job.plan, micro_batch, &micro) == EN_OK ? micro.count : 0;
}

static en_status compute(eni_virtual_network *n, eni_virtual_thread *t, int rank, const eni_micro *micro,
                         const float *param, float *grad)
{
    en_score score;
    eni_dataset_gather(n->dataset, ENI_TRAIN, micro->epoch, t->indices, micro->count, t->x, t->target);
    const en_batch batch = {.n = (int64_t)micro->count, .x = t->x, .target = t->target};
    const uint64_t whose = n->job.is_claiming ? (uint64_t)rank : micro->rank;
    float *state = n->states != NULL ? n->states + whose * n->job.schema.nstate : NULL;
    EN_TRY(en_model_forward(t->model, param, state, &batch));
    EN_TRY(en_model_backward(t->model, param, grad, NULL, NULL));
    EN_TRY(en_model_result(t->model, &score));
    n->scores[rank].loss += score.loss * (double)micro->count;
    n->scores[rank].correct += (uint64_t)score.correct;
    return EN_OK;
}

/* Up to nthreads threads at a time. */
static en_status gradient(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    eni_virtual_network *n = user;
    eni_micro micro;
    EN_TRY(eni_plan_micro(&n->job.plan, micro_batch, &micro));
    if (micro.count == 0) { /* of a step that is smaller */
        memset(grad, 0, n->job.schema.count * sizeof *grad);
        return EN_OK;
    }
    pthread_mutex_lock(&n->lock);
    eni_virtual_thread *t = n->free;
    n->free = t->next;
    eni_sampler_indices(n->sampler[micro.epoch % 2], &micro, t->indices);
    pthread_mutex_unlock(&n->lock);
    const en_status st = compute(n, t, rank, &micro, param, grad);
    pthread_mutex_lock(&n->lock);
    t->next = n->free;
    n->free = t;
    pthread_mutex_unlock(&n->lock);
    return st;
}

/* ---- open ---- */

static en_status open_job(eni_virtual_network *n, const eni_config *c, eni_virtual *simulation)
{
    const eni_sim_config *sim = &simulation->sim;
    const bool has_store = (sim->strategy->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS)) != 0;
    bool may_claim;
    n->job.strategy = sim->strategy;
    n->job.options = simulation->options;
    EN_TRY(eni_job_network(&n->job, c));
    EN_TRY(eni_job_statistics(&n->job, c, sim->nranks));
    if (n->job.is_recomputed)
        return eni_fail(EN_EINVAL, "sim",
                        "--bn-stats=%s: a run in virtual time recomputes no statistics; give rank0 or mean",
                        c->bn_stats);
    const eni_data_options data = eni_job_data(&n->job, c);
    EN_TRY(eni_dataset_open(&data, &n->dataset));
    EN_TRY(eni_job_assign(&n->job, c, sim->nranks, sim->nranks == 1 && !has_store, &may_claim));
    EN_TRY(eni_job_plan(&n->job, c, n->dataset->split[ENI_TRAIN].count, sim->nranks));
    return eni_job_optimizer(&n->job, c);
}

static eni_set set_of(const eni_virtual_network *n, int split)
{
    const uint64_t count = n->dataset->split[split].count;
    return (eni_set){.count = count,
                     .batch = count < 256 ? count : 256,
                     .sample_bytes = n->dataset->sample_floats * sizeof(float),
                     .target_bytes = eni_dataset_target_bytes(n->dataset),
                     .fill = split == ENI_TEST ? eni_dataset_fill_test : eni_dataset_fill_holdout,
                     .user = n->dataset};
}

static en_status open_thread(eni_virtual_network *n, const eni_config *c, const char *plugins,
                             eni_virtual_thread *t)
{
    const uint64_t batch = n->job.plan.batch;
    EN_TRY(eni_device_open(c->device, plugins, c->threads > 0 ? (int)c->threads : 1, &t->device));
    EN_TRY(en_model_new(&n->job.schema, t->device.ops, t->device.ctx, NULL, &t->model));
    EN_TRY(en_model_prepare(t->model, (int64_t)batch, EN_MODEL_TRAIN));
    t->indices = eni_alloc_array(batch, sizeof *t->indices);
    t->x = eni_alloc_array(batch, n->dataset->sample_floats * sizeof *t->x);
    t->target = eni_alloc_array(batch, eni_dataset_target_bytes(n->dataset));
    if (t->indices == NULL || t->x == NULL || t->target == NULL) return EN_ENOMEM;
    t->next = n->free;
    n->free = t;
    return EN_OK;
}

/* As many threads as there are cores for, each with a model of its own; evaluations use the first one. */
static en_status open_threads(eni_virtual_network *n, const eni_config *c, const char *plugins,
                              int32_t nranks)
{
    if (eni_device_is_gpu(c->device))
        return eni_fail(EN_EINVAL, "sim",
                        "--device=%s: virtual time computes on the processor; give cpu or ref", c->device);
    const int each = c->threads > 0 ? (int)c->threads : 1, most = eni_host_info_cores() / each;
    n->nthreads = most < 1 ? 1 : most < nranks ? most : nranks;
    n->threads = eni_alloc_array((size_t)n->nthreads, sizeof *n->threads);
    if (n->threads == NULL) return EN_ENOMEM;
    for (int i = 0; i < n->nthreads; i++)
        EN_TRY(open_thread(n, c, plugins, &n->threads[i]));
    n->split = n->dataset->split[ENI_HOLDOUT].count > 0 ? ENI_HOLDOUT : ENI_TEST;
    const eni_set set = set_of(n, n->split);
    return eni_evaluation_open(n->threads[0].model, &set, true, &n->evaluation);
}

static en_status open_vectors(eni_virtual_network *n, const eni_config *c, int32_t nranks)
{
    const en_schema *schema = &n->job.schema;
    const eni_plan *plan = &n->job.plan;
    for (int i = 0; i < 2; i++) {
        n->sampler[i] = eni_sampler_new(plan->train_samples, n->job.seed, n->job.order);
        if (n->sampler[i] == NULL) return EN_ENOMEM;
    }
    n->init = eni_alloc_array(schema->count, sizeof *n->init);
    n->scores = eni_alloc_array((size_t)nranks, sizeof *n->scores);
    if (n->init == NULL || n->scores == NULL) return EN_ENOMEM;
    en_schema_init_param(schema, n->job.seed, n->init);
    if (c->init != NULL) EN_TRY(eni_weights_load(c->init, schema, n->init, n->job.state));
    if (schema->nstate == 0) return EN_OK;
    n->states = eni_alloc_array(plan->world * schema->nstate, sizeof *n->states);
    if (n->states == NULL) return EN_ENOMEM;
    for (uint64_t i = 0; i < plan->world * schema->nstate; i += schema->nstate)
        memcpy(n->states + i, n->job.state, schema->nstate * sizeof *n->states);
    return EN_OK;
}

en_status eni_virtual_network_open(const eni_config *c, const char *plugins, eni_virtual *simulation,
                                   eni_virtual_network **network_out)
{
    *network_out = NULL;
    eni_virtual_network *n = eni_alloc(sizeof *n);
    if (n == NULL) return EN_ENOMEM;
    pthread_mutex_init(&n->lock, NULL);
    eni_sim_config *sim = &simulation->sim;
    en_status st = open_job(n, c, simulation);
    if (st == EN_OK) st = open_threads(n, c, plugins, sim->nranks);
    if (st == EN_OK) st = open_vectors(n, c, sim->nranks);
    if (st != EN_OK) {
        eni_virtual_network_close(n);
        return st;
    }
    const eni_job *job = &n->job;
    n->problem = (eni_sim_problem){.count = job->schema.count,
                                   .tensors = job->schema.tensors,
                                   .ntensors = job->schema.ntensors,
                                   .init = n->init,
                                   .samples = samples,
                                   .grad = gradient,
                                   .user = n,
                                   .threads = n->nthreads};
    sim->problem = &n->problem;
    sim->micro_batches = job->plan.micro_batches;
    sim->assign = job->is_claiming ? ENI_SIM_CLAIM : ENI_SIM_FIXED;
    sim->bucket_cap_bytes = eni_job_bucket_cap(&job->schema, c);
    sim->optimizer = job->optimizer;
    sim->hyper = job->hyper;
    sim->schedule = job->schedule;
    sim->sum_order = (eni_sum_order)c->sum_order;
    sim->eval_every = eni_job_samples(job, c->eval_every);
    *network_out = n;
    return EN_OK;
}

void eni_virtual_network_close(eni_virtual_network *n)
{
    if (n == NULL) return;
    eni_evaluation_close(n->evaluation);
    for (int i = 0; n->threads != NULL && i < n->nthreads; i++) {
        eni_virtual_thread *t = &n->threads[i];
        en_model_free(t->model);
        eni_device_close(&t->device);
        eni_free(t->indices);
        eni_free(t->x);
        eni_free(t->target);
    }
    eni_free(n->threads);
    pthread_mutex_destroy(&n->lock);
    eni_sampler_free(n->sampler[0]);
    eni_sampler_free(n->sampler[1]);
    eni_dataset_close(n->dataset);
    eni_buckets_free(n->job.buckets);
    eni_groups_free(n->job.groups);
    eni_free(n->job.state);
    eni_free(n->job.states);
    en_schema_fini(&n->job.schema);
    eni_free(n->init);
    eni_free(n->states);
    eni_free(n->scores);
    eni_free(n);
}

/* ---- results ---- */

en_status eni_virtual_network_evaluate(eni_virtual_network *n, const float *param, const float *state,
                                       eni_set_score *score_out)
{
    EN_TRY(eni_evaluation_run(n->evaluation, param, state, score_out));
    if (n->dataset->classes == 0) score_out->accuracy = NAN;
    return EN_OK;
}

en_status eni_virtual_network_test(eni_virtual_network *n, const float *param, const float *state,
                                   eni_set_score *score_out)
{
    const eni_set set = set_of(n, ENI_TEST);
    EN_TRY(eni_model_evaluate_set(n->threads[0].model, param, state, &set, score_out));
    if (n->dataset->classes == 0) score_out->accuracy = NAN;
    return EN_OK;
}
