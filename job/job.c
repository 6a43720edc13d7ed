/* job.c - from a configuration to strategy, network, plan and optimizer (job.h). */
#include "job/job.h"

#include <math.h>
#include <unistd.h>

#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "models/formats/weights.h"
#include "models/node.h"
#include "models/registry.h"
#include "ops/device.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "rank/save.h"
#include "runtime/spec/strategies.h"

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
                             .eps = c->eps,
                             .groups = job->groups};
    if (c->decay == ENI_DECAY_WEIGHTS) EN_TRY(spare_vectors(job));
    double scale = 1, world = (double)job->plan.world;
    if (eni_options_are_synchronous(job->strategy, job->options))
        scale = c->lr_scale == ENI_SCALE_LINEAR ? world : c->lr_scale == ENI_SCALE_SQRT ? sqrt(world) : 1;
    static const eni_schedule_kind kinds[] = {ENI_LR_CONSTANT, ENI_LR_STEP, ENI_LR_COSINE, ENI_LR_MULTISTEP,
                                              ENI_LR_LINEAR};
    job->clip_norm = c->clip_norm;
    job->schedule = (eni_schedule){.kind = job->points != NULL ? ENI_LR_POINTS : kinds[c->lr_schedule],
                                   .points = job->points,
                                   .base = c->lr * scale,
                                   .gamma = c->lr_gamma,
                                   .step_samples = eni_job_samples(job, c->lr_step),
                                   .warmup = eni_job_samples(job, c->lr_warmup),
                                   .total = job->plan.samples};
    return set_milestones(job, c, &job->schedule);
}

/* ---- for one rank ---- */

static en_status find_strategy(eni_rank *rank, const eni_config *c, const char *plugins)
{
    eni_job *job = &rank->job;
    EN_TRY(eni_strategy_find(plugins, c->strategy, &job->strategy));
    if (job->strategy->flags & EN_ALONE && rank->world.nranks > 1)
        return eni_fail(EN_EINVAL, "job",
                        "%s trains in one process, but there are %d workers: use -n 1, and --accumulate=%d "
                        "for the same micro-batches",
                        job->strategy->name, rank->world.nranks, rank->world.nranks);
    if (job->strategy->flags & EN_STORE_ON_RANKS)
        return eni_fail(
            EN_EINVAL, "job",
            "%s keeps a store in every rank (EN_STORE_ON_RANKS), which `entrain sim` supports and a run does "
            "not yet: try entrain sim --strategy=%s, or keep the store on servers (EN_STORE_ON_SERVERS)",
            job->strategy->name, c->strategy);
    if (c->server != NULL && !(job->strategy->flags & EN_STORE_ON_SERVERS))
        return eni_fail(EN_EINVAL, "job",
                        "--server=%s: %s keeps nothing on a server, its ranks meet at rank 0: give "
                        "--rendezvous=tcp://HOST:PORT in place of --server, or a strategy with a server, "
                        "such as --strategy=ps-sync",
                        c->server, job->strategy->name);
    return eni_options_new(job->strategy, eni_spec_options(c->strategy), &job->options);
}

en_status eni_job_open(eni_rank *rank, const eni_config *c, const char *plugins)
{
    const bool is_newcomer = c->rank == ENI_RANK_NEW; /* the initial number does not concern it */
    EN_TRY(eni_job_tell(rank, c));
    rank->world = (en_world){.size = sizeof rank->world,
                             .rank = (int32_t)c->rank,
                             .nranks = c->world_size > 0 || is_newcomer ? eni_config_ranks(c) : 1};
    rank->nfirst = c->world_size > 0 ? (int32_t)c->world_size : 1;
    rank->is_newcomer = is_newcomer;
    if (rank->world.nranks == 1 && rank->world.rank < 0) rank->world.rank = 0;
    return find_strategy(rank, c, plugins);
}

en_status eni_job_statistics(eni_job *job, const eni_config *c, int32_t nranks)
{
    const uint32_t flags = job->strategy->flags;
    const size_t nstates = (size_t)nranks * (size_t)c->accumulate;
    uint64_t n = 0;
    job->bn_stats = c->bn_stats;
    (void)eni_bn_stats_parse(job->bn_stats, &job->is_mean, &n); /* checked with the command */
    job->is_recomputed = n > 0;
    for (uint32_t b = 0; b < job->schema.nbuffers; b++)
        job->has_own = job->has_own || job->schema.buffers[b].kind == EN_TENSOR_OWN;
    if (job->is_recomputed && job->schema.nnodes == 0)
        return eni_fail(EN_EINVAL, "job",
                        "--bn-stats=%s: a program's memories cannot be recomputed; use rank0 or mean",
                        job->bn_stats);
    if ((!job->is_mean && !job->has_own) || job->state == NULL) return EN_OK;
    const bool is_apart = flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS) &&
                          !eni_options_are_synchronous(job->strategy, job->options);
    if (is_apart && job->is_mean)
        return eni_fail(EN_EINVAL, "job",
                        "--bn-stats=mean: the ranks of %s are never at the same step, so no step has a mean "
                        "over them; use --bn-stats=rank0 or recompute:N",
                        job->strategy->name);
    if (is_apart) return EN_OK; /* a checkpoint is refused (save.c) */
    if (nstates > ENI_MEAN_MAX)
        return eni_fail(
            EN_EINVAL, "job",
            "%s: %zu states would be kept, one for each micro-batch of a step, but at most %d can "
            "be: %s",
            job->is_mean ? "--bn-stats=mean" : "memories of each rank (EN_MEMORY_EACH)", nstates,
            ENI_MEAN_MAX, job->is_mean ? "use rank0" : "use a smaller --accumulate");
    job->states = eni_alloc_array(nstates * job->schema.nstate, sizeof *job->states);
    return job->states == NULL ? EN_ENOMEM : EN_OK;
}

en_status eni_job_check(eni_rank *rank, const eni_config *c)
{
    EN_TRY(eni_job_statistics(&rank->job, c, rank->world.nranks));
    return eni_job_files(rank, c);
}

/* --max-workers: only workers that claim micro-batches, and meet the others at the store, can join later. */
static en_status check_seats(const eni_rank *rank, const eni_config *c, bool may_claim)
{
    const long long most = (long long)c->max_workers;
    if (!eni_rank_has_seats(rank)) return EN_OK;
    if (!may_claim || !eni_rank_has_store(rank))
        return eni_fail(EN_EINVAL, "job",
                        "--max-workers=%lld: workers of %s cannot join later, since each takes part in every "
                        "step; with ps-async and ssp they can, and `entrain run --elastic=2..%lld` restarts "
                        "any strategy with another number of workers",
                        most, rank->job.strategy->name, most);
    if (!rank->job.is_claiming)
        return eni_fail(EN_EINVAL, "job",
                        "--max-workers=%lld: --assign=fixed gives each worker its samples, so no worker can "
                        "join later; omit it",
                        most);
    if (!eni_device_is_gpu(c->device)) return EN_OK;
    return eni_fail(EN_EINVAL, "job",
                    "--max-workers=%lld: workers on GPUs cannot join later yet; give --device=cpu", most);
}

en_status eni_job_share(eni_rank *rank, const eni_config *c, uint64_t train_samples)
{
    eni_job *job = &rank->job;
    bool may_claim;
    EN_TRY(eni_job_assign(job, c, rank->world.nranks, eni_rank_is_alone(rank), &may_claim));
    if (c->on_worker_loss == ENI_LOSS_CONTINUE && !may_claim)
        return eni_fail(EN_EINVAL, "job",
                        "--on-worker-loss=continue: %s needs every rank in every step, so it cannot continue "
                        "without one; ps-async and ssp can",
                        job->strategy->name);
    EN_TRY(check_seats(rank, c, may_claim));
    EN_TRY(eni_job_plan(job, c, train_samples, rank->nfirst));
    if (job->plan.train_samples < job->plan.global_batch && rank->world.rank == 0 && !c->check)
        eni_info("job",
                 "%llu training samples do not fill one global batch of %llu (%llu batches of %llu): each "
                 "step takes all of them, and is an epoch",
                 (unsigned long long)job->plan.train_samples, (unsigned long long)job->plan.global_batch,
                 (unsigned long long)job->plan.world, (unsigned long long)job->plan.batch);
    rank->records.asked.eval_every = eni_job_samples(job, c->eval_every);
    rank->saving.asked.every = eni_job_samples(job, c->checkpoint_every);
    return EN_OK;
}

uint64_t eni_job_bucket_cap(const en_schema *schema, const eni_config *c)
{
    const uint64_t least = 1 << 20, most = 32 << 20, part = schema->count * sizeof(float) / 128;
    if (c->bucket_cap_mb > 0) return (uint64_t)(c->bucket_cap_mb * 1048576);
    return part < least ? least : part > most ? most : part;
}

en_status eni_job_complete(eni_rank *rank, const eni_config *c)
{
    const en_schema *schema = &rank->job.schema;
    const uint64_t cap = eni_job_bucket_cap(schema, c);
    EN_TRY(eni_job_optimizer(&rank->job, c));
    rank->exchange.asked.bucket_cap_mb = c->bucket_cap_mb > 0 ? c->bucket_cap_mb : (double)cap / 1048576;
    EN_TRY(eni_buckets_new(schema->tensors, schema->ntensors, schema->count, cap, &rank->job.buckets));
    if (!rank->is_newcomer) EN_TRY(eni_resume_find(rank));
    return eni_save_check(rank);
}

void eni_job_close(eni_rank *rank)
{
    eni_job *job = &rank->job;
    eni_free(job->init);
    eni_groups_free(job->groups);
    eni_rate_points_free(job->points);
    eni_free(job->state);
    eni_free(job->states);
    if (rank->records.out_fd >= 0) close(rank->records.out_fd);
    eni_buckets_free(job->buckets);
    en_schema_fini(&job->schema);
    eni_options_free(job->options);
    eni_free(rank->asked.spec);
}
