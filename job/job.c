/* job.c - from a configuration to network, plan and optimizer (job.h). */
#include "job/job.h"

#include <math.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/weights.h"
#include "models/node.h"
#include "models/registry.h"
#include "ops/optimizer.h"

en_status eni_job_network(eni_job *job, const eni_config *config)
{
    const eni_data_options data = {
        .name = config->data, .folder = config->data_dir, .transform = eni_config_transform(config)};
    en_data_shape shape;
    EN_TRY(eni_dataset_shape(&data, &shape));
    EN_TRY(eni_network_schema("--model", config->model, &shape, &job->schema));
    EN_TRY(eni_schema_digest(&job->schema, job->schema_sha256));
    if (job->schema.nstate == 0) return EN_OK;
    job->state = eni_alloc_array(job->schema.nstate, sizeof *job->state);
    if (job->state == NULL) return EN_ENOMEM;
    en_schema_init_state(&job->schema, job->state);
    return EN_OK;
}

eni_data_options eni_job_data(const eni_job *job, const eni_config *config)
{
    return (eni_data_options){.name = config->data,
                              .folder = config->data_dir,
                              .holdout = (uint64_t)config->holdout,
                              .limit_train = (uint64_t)config->limit_train_samples,
                              .limit_test = (uint64_t)config->limit_test_samples,
                              .seed = (uint64_t)config->seed,
                              .transform = eni_config_transform(config),
                              .want = eni_data_want_of(&job->schema)};
}

en_status eni_job_assign(eni_job *job, const eni_config *c, int32_t nranks, bool is_alone, bool *may_out)
{
    job->accumulate = c->accumulate;
    if (c->accumulate > 1 && !is_alone)
        return eni_fail(
            EN_EINVAL, "job",
            "--accumulate=%lld needs one process without servers (solo), but %d workers run %s; omit it",
            (long long)c->accumulate, nranks, job->strategy->name);
    /* A strategy may claim if its ranks may make different numbers of steps, as clients of a store that waits
     * for nobody. All others take part in collectives, or in rounds. */
    *may_out = job->strategy->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS) &&
               !(job->strategy->flags & (EN_SYNCHRONOUS | EN_LEADERS_ARE_CLIENTS));
    job->is_claiming = *may_out && c->assign != ENI_ASSIGN_FIXED;
    if (c->assign == ENI_ASSIGN_CLAIM && !*may_out)
        return eni_fail(EN_EINVAL, "job",
                        "--assign=claim: %s needs every rank in every step; use --assign=fixed",
                        job->strategy->name);
    return EN_OK;
}

en_status eni_job_plan(eni_job *job, const eni_config *c, uint64_t train_samples, int32_t nranks)
{
    const eni_plan_options options = {.train_samples = train_samples,
                                      .world = (uint64_t)nranks * (uint64_t)job->accumulate,
                                      .batch = (uint64_t)c->batch_size,
                                      .epochs = (uint64_t)c->epochs,
                                      .steps = (uint64_t)c->steps,
                                      .max_samples = (uint64_t)c->max_samples,
                                      .drop_last = c->drop_last};
    EN_TRY(eni_plan_make(&options, &job->plan));
    job->order = !c->shuffle ? ENI_ORDER_FILE : c->reshuffle ? ENI_ORDER_EACH_EPOCH : ENI_ORDER_ONCE;
    return eni_sampler_order_sha256(&job->plan, (uint64_t)c->seed, job->order, job->order_sha256);
}

static en_status set_milestones(const eni_job *job, const eni_config *c, eni_schedule *schedule)
{
    _Static_assert((int)ENI_AMOUNTS_MAX == (int)ENI_MILESTONES,
                   "the list cannot have more entries than a schedule");
    int64_t amounts[ENI_AMOUNTS_MAX];
    if (c->lr_milestones == NULL) return EN_OK;
    schedule->nmilestones = eni_parse_amounts(c->lr_milestones, amounts);
    for (int i = 0; i < schedule->nmilestones; i++) {
        schedule->milestone[i] = eni_job_samples(job, amounts[i]);
        if (i > 0 && schedule->milestone[i] <= schedule->milestone[i - 1])
            return eni_fail(EN_EINVAL, "job",
                            "--lr-milestones=%s: with %llu samples per epoch, milestone %d is not after the "
                            "one before; give them in ascending order",
                            c->lr_milestones, (unsigned long long)job->plan.epoch_samples, i + 1);
    }
    return EN_OK;
}

/* --decay=weights: two groups, one of them without decay for tensors of one dimension; no groups if they were
 * alike. */
static en_status spare_vectors(eni_job *job)
{
    if (job->hyper.weight_decay == 0.0f) return EN_OK;
    job->groups = eni_groups_new();
    if (job->groups == NULL) return EN_ENOMEM;
    job->groups->ngroups = 2;
    job->groups->group[0] = (eni_param_group){1, job->hyper.weight_decay};
    job->groups->group[1] = (eni_param_group){1, 0};
    for (uint32_t t = 0; t < job->schema.ntensors; t++) {
        const en_model_tensor *tensor = &job->schema.tensors[t];
        if (!eni_groups_add(job->groups, tensor->offset, tensor->ndim == 1))
            return eni_fail(
                EN_EINVAL, "job",
                "--decay=weights: %s has more than %d changes between tensors of one dimension and others; "
                "use --decay=all",
                job->schema.network->name, ENI_GROUP_EDGES);
    }
    job->hyper.groups = job->groups;
    return EN_OK;
}

en_status eni_job_optimizer(eni_job *job, const eni_config *c)
{
    job->optimizer = eni_optimizer_find(c->optimizer);
    if (job->optimizer == NULL)
        return eni_fail(EN_EINVAL, "job", "--optimizer=%s: unknown optimizer; give " ENI_OPTIMIZERS,
                        c->optimizer);
    job->momentum = c->momentum;
    job->weight_decay = c->weight_decay;
    job->seed = (uint64_t)c->seed;
    job->hyper = (eni_hyper){.momentum = (float)c->momentum,
                             .weight_decay = (float)c->weight_decay,
                             .nesterov = c->nesterov,
                             .beta1 = c->beta1,
                             .beta2 = c->beta2,
                             .eps = c->eps};
    if (c->decay == ENI_DECAY_WEIGHTS) EN_TRY(spare_vectors(job));
    double scale = 1, world = (double)job->plan.world;
    if (job->strategy->flags & EN_SYNCHRONOUS)
        scale = c->lr_scale == ENI_SCALE_LINEAR ? world : c->lr_scale == ENI_SCALE_SQRT ? sqrt(world) : 1;
    static const eni_schedule_kind kinds[] = {ENI_LR_CONSTANT, ENI_LR_STEP, ENI_LR_COSINE, ENI_LR_MULTISTEP,
                                              ENI_LR_LINEAR};
    job->schedule = (eni_schedule){.kind = kinds[c->lr_schedule],
                                   .base = c->lr * scale,
                                   .gamma = c->lr_gamma,
                                   .step_samples = eni_job_samples(job, c->lr_step),
                                   .warmup = eni_job_samples(job, c->lr_warmup),
                                   .total = job->plan.samples};
    return set_milestones(job, c, &job->schedule);
}
