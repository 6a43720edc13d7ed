/* worker.c - the lifetime of a rank: open everything in order, train, report, close in reverse. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "data/plan.h"
#include "models/formats/weights.h"
#include "models/node.h"
#include "models/registry.h"
#include "ops/device.h"
#include "rank/save.h"
#include "run/units.h"
#include "runtime/spec/strategies.h"
#include "worker/gpu/gpus.h"
#include "worker/statistics.h"
#include "worker/parallel/team.h"
#include "worker/gpu/vectors.h"
#include "worker/worker.h"

/* ---- what is trained ---- */

static en_status find_strategy(eni_worker *w)
{
    eni_job *job = &w->rank.job;
    EN_TRY(eni_strategy_find(w->plugin_dir, w->config->strategy, &job->strategy));
    if (job->strategy->flags & EN_ALONE && w->rank.world.nranks > 1)
        return eni_fail(EN_EINVAL, "worker",
                        "%s trains in one process, but there are %d workers: use -n 1, and --accumulate=%d "
                        "for the same micro-batches",
                        job->strategy->name, w->rank.world.nranks, w->rank.world.nranks);
    if (job->strategy->flags & EN_STORE_ON_RANKS)
        return eni_fail(
            EN_EINVAL, "worker",
            "%s keeps a store in every rank (EN_STORE_ON_RANKS), which `entrain sim` supports and a run does "
            "not yet: try entrain sim --strategy=%s, or keep the store on servers (EN_STORE_ON_SERVERS)",
            job->strategy->name, w->config->strategy);
    if (w->config->server != NULL && !(job->strategy->flags & EN_STORE_ON_SERVERS))
        return eni_fail(EN_EINVAL, "worker",
                        "--server=%s: %s keeps nothing on a server, its ranks meet at rank 0: give "
                        "--rendezvous=tcp://HOST:PORT in place of --server, or a strategy with a server, "
                        "such as --strategy=ps-sync",
                        w->config->server, job->strategy->name);
    return eni_options_new(job->strategy, eni_spec_options(w->config->strategy), &job->options);
}

static en_status find_network(eni_worker *w)
{
    const eni_data_options data = {
        .name = w->config->data, .folder = w->config->data_dir, .transform = eni_config_transform(w->config)};
    en_data_shape shape;
    EN_TRY(eni_dataset_shape(&data, &shape));
    eni_job *job = &w->rank.job;
    EN_TRY(eni_network_schema("--model", w->config->model, &shape, &job->schema));
    EN_TRY(eni_schema_digest(&job->schema, job->schema_sha256));
    if (job->schema.nstate == 0) return EN_OK;
    job->state = eni_alloc_array(job->schema.nstate, sizeof *job->state);
    if (job->state == NULL) return EN_ENOMEM;
    en_schema_init_state(&job->schema, job->state);
    return EN_OK;
}

static en_status choose_statistics(eni_worker *w)
{
    eni_job *job = &w->rank.job;
    const uint32_t flags = job->strategy->flags;
    uint64_t n = 0;
    job->bn_stats = w->config->bn_stats;
    (void)eni_bn_stats_parse(job->bn_stats, &job->is_mean, &n); /* checked with the command */
    job->is_recomputed = n > 0;
    if (!job->is_mean || job->state == NULL) return EN_OK;
    if (!(flags & EN_SYNCHRONOUS) && flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS))
        return eni_fail(EN_EINVAL, "worker",
                        "--bn-stats=mean: the ranks of %s are never at the same step, so they have no mean "
                        "at a step; use --bn-stats=rank0 or recompute:N",
                        job->strategy->name);
    job->states =
        eni_alloc_array((size_t)w->rank.world.nranks * (size_t)w->config->accumulate * job->schema.nstate,
                        sizeof *job->states);
    return job->states == NULL ? EN_ENOMEM : EN_OK;
}

static en_status open_data(eni_worker *w)
{
    eni_data_options options = {.name = w->config->data,
                                .folder = w->config->data_dir,
                                .holdout = (uint64_t)w->config->holdout,
                                .limit_train = (uint64_t)w->config->limit_train_samples,
                                .limit_test = (uint64_t)w->config->limit_test_samples,
                                .seed = (uint64_t)w->config->seed,
                                .transform = eni_config_transform(w->config),
                                .want = eni_data_want_of(&w->rank.job.schema)};
    const bool is_alone = w->rank.world.nranks == 1 ||
                          (w->config->local_size == 1 && !eni_rank_has_seats(&w->rank)); /* on this host */
    const bool is_last = is_alone && w->config->data_fd < 0; /* no rank here will need it later */
    EN_TRY(is_last ? eni_dataset_open(&options, &w->dataset) : eni_share_open(w, &options));
    if (w->dataset->pixels.repeat > 1 && w->rank.world.rank == 0)
        eni_info("worker", "%s has one channel and %s takes three: the channel is repeated", w->dataset->name,
                 w->rank.job.schema.network->name);
    return eni_dataset_sha256(w->dataset, w->rank.job.data_sha256);
}

/* An amount of the command, in samples: the plan knows how many an epoch has. */
static uint64_t samples_of(const eni_worker *w, int64_t amount)
{
    return eni_amount_samples(amount, w->rank.job.plan.epoch_samples);
}

/* --max-workers: only workers that claim micro-batches, and meet the others at the store, can join later. */
static en_status check_seats(const eni_worker *w, bool may_claim)
{
    const eni_config *c = w->config;
    const long long most = (long long)c->max_workers;
    if (!eni_rank_has_seats(&w->rank)) return EN_OK;
    if (!may_claim || !eni_rank_has_store(&w->rank))
        return eni_fail(EN_EINVAL, "worker",
                        "--max-workers=%lld: workers of %s cannot join later, since each takes part in every "
                        "step; with ps-async and ssp they can, and `entrain run --elastic=2..%lld` restarts "
                        "any strategy with another number of workers",
                        most, w->rank.job.strategy->name, most);
    if (!w->rank.job.is_claiming)
        return eni_fail(EN_EINVAL, "worker",
                        "--max-workers=%lld: --assign=fixed gives each worker its samples, so no worker can "
                        "join later; omit it",
                        most);
    if (!eni_device_is_gpu(c->device)) return EN_OK;
    return eni_fail(EN_EINVAL, "worker",
                    "--max-workers=%lld: workers on GPUs cannot join later yet; give --device=cpu", most);
}

static en_status make_plan(eni_worker *w)
{
    eni_job *job = &w->rank.job;
    const eni_config *c = w->config;
    const bool is_alone = eni_rank_is_alone(&w->rank);
    job->accumulate = c->accumulate;
    if (c->accumulate > 1 && !is_alone)
        return eni_fail(
            EN_EINVAL, "worker",
            "--accumulate=%lld needs one process without servers (solo), but %d workers run %s; omit it",
            (long long)c->accumulate, w->rank.world.nranks, job->strategy->name);
    /* A strategy may claim if its ranks may make different numbers of steps, as clients of a store that waits
     * for nobody. All others take part in collectives, or in rounds. */
    const bool may_claim = job->strategy->flags & (EN_STORE_ON_SERVERS | EN_STORE_ON_RANKS) &&
                           !(job->strategy->flags & (EN_SYNCHRONOUS | EN_LEADERS_ARE_CLIENTS));
    job->is_claiming = may_claim && c->assign != ENI_ASSIGN_FIXED;
    if (c->assign == ENI_ASSIGN_CLAIM && !may_claim)
        return eni_fail(EN_EINVAL, "worker",
                        "--assign=claim: %s needs every rank in every step; use --assign=fixed",
                        job->strategy->name);
    if (c->on_worker_loss == ENI_LOSS_CONTINUE && !may_claim)
        return eni_fail(EN_EINVAL, "worker",
                        "--on-worker-loss=continue: %s needs every rank in every step, so it cannot continue "
                        "without one; ps-async and ssp can",
                        job->strategy->name);
    EN_TRY(check_seats(w, may_claim));
    eni_plan_options options = {.train_samples = w->dataset->split[ENI_TRAIN].count,
                                .world = (uint64_t)w->rank.nfirst * (uint64_t)job->accumulate,
                                .batch = (uint64_t)c->batch_size,
                                .epochs = (uint64_t)c->epochs,
                                .steps = (uint64_t)c->steps,
                                .max_samples = (uint64_t)c->max_samples,
                                .drop_last = c->drop_last};
    EN_TRY(eni_plan_make(&options, &job->plan));
    if (job->plan.train_samples < job->plan.global_batch && w->rank.world.rank == 0 && !c->check)
        eni_info(
            "worker",
            "%llu training samples do not fill a step of %llu (%llu batches of %llu): each step is an epoch, "
            "over all of them",
            (unsigned long long)job->plan.train_samples, (unsigned long long)job->plan.global_batch,
            (unsigned long long)job->plan.world, (unsigned long long)job->plan.batch);
    w->rank.records.asked.eval_every = samples_of(w, c->eval_every);
    w->rank.saving.asked.every = samples_of(w, c->checkpoint_every);
    job->order = !c->shuffle ? ENI_ORDER_FILE : c->reshuffle ? ENI_ORDER_EACH_EPOCH : ENI_ORDER_ONCE;
    return eni_sampler_order_sha256(&job->plan, (uint64_t)c->seed, job->order, job->order_sha256);
}

static en_status set_milestones(const eni_worker *w, eni_schedule *schedule)
{
    _Static_assert((int)ENI_AMOUNTS_MAX == (int)ENI_MILESTONES,
                   "the list cannot have more entries than a schedule");
    int64_t amounts[ENI_AMOUNTS_MAX];
    if (w->config->lr_milestones == NULL) return EN_OK;
    schedule->nmilestones = eni_parse_amounts(w->config->lr_milestones, amounts);
    for (int i = 0; i < schedule->nmilestones; i++) {
        schedule->milestone[i] = samples_of(w, amounts[i]);
        if (i > 0 && schedule->milestone[i] <= schedule->milestone[i - 1])
            return eni_fail(EN_EINVAL, "worker",
                            "--lr-milestones=%s: with %llu samples per epoch, milestone %d is not after the "
                            "one before; give them in ascending order",
                            w->config->lr_milestones, (unsigned long long)w->rank.job.plan.epoch_samples,
                            i + 1);
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
                EN_EINVAL, "worker",
                "--decay=weights: %s has more than %d changes between tensors of one dimension and others; "
                "use --decay=all",
                job->schema.network->name, ENI_GROUP_EDGES);
    }
    job->hyper.groups = job->groups;
    return EN_OK;
}

/* The smallest batch that the model ever gets: of a batch in chunks, its last chunk. */
static en_status check_batches(const eni_worker *w)
{
    uint64_t sizes[ENI_BATCH_SIZES];
    const int n = eni_batch_sizes(w, sizes), ndevices = eni_config_ndevices(w->config);
    const uint64_t most =
        w->team == NULL || ndevices == 0 ? 1 : (uint64_t)eni_team_chunks(w->config, ndevices);
    for (int i = 0; i < n; i++) {
        const uint64_t nchunks = sizes[i] < most ? sizes[i] : most;
        EN_TRY(eni_schema_check_batch(&w->rank.job.schema, (int64_t)(sizes[i] / nchunks)));
    }
    bool is_mean;
    uint64_t again; /* samples from which running statistics are recomputed, in batches as in training */
    (void)eni_bn_stats_parse(w->config->bn_stats, &is_mean, &again); /* checked with the command */
    if (again > 0)
        EN_TRY(eni_schema_check_batch(&w->rank.job.schema, again < INT32_MAX ? (int64_t)again : INT32_MAX));
    return EN_OK;
}

static en_status choose_optimizer(eni_worker *w)
{
    eni_job *job = &w->rank.job;
    const eni_config *c = w->config;
    job->optimizer = eni_optimizer_find(c->optimizer);
    if (job->optimizer == NULL)
        return eni_fail(EN_EINVAL, "worker", "--optimizer=%s: unknown optimizer; give " ENI_OPTIMIZERS,
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
                                   .step_samples = samples_of(w, c->lr_step),
                                   .warmup = samples_of(w, c->lr_warmup),
                                   .total = job->plan.samples};
    return set_milestones(w, &job->schedule);
}

/* ---- how it computes ---- */

/* A host's device is opened before the rank connects. A GPU is only checked as far as possible without its
 * context: its number depends on the other ranks of this host. */
static en_status open_device(eni_worker *w)
{
    const eni_config *c = w->config;
    const int most = c->max_workers > 0 ? (int)c->max_workers : w->rank.world.nranks;
    int local = c->local_size > 0 && c->max_workers == 0 ? (int)c->local_size : most;
    int share = eni_host_info_cores() / (local > 0 ? local : 1);
    if (eni_team_is_wanted(c)) return eni_team_open(w, share);
    w->threads = c->threads > 0 ? (int)c->threads : share > 0 ? share : 1;
    if (eni_device_is_gpu(c->device)) {
        EN_TRY(eni_device_load("cuda", w->plugin_dir, &w->device.ops));
        const eni_gpu_want want = {
            .spec = c->device, .n = eni_config_ndevices(c), .is_shared = c->gpu_sharing};
        return eni_gpu_check(&want, 1, w->device.ops, eni_device_host());
    }
    EN_TRY(eni_device_open(c->device, w->plugin_dir, w->threads, &w->device));
    return en_model_new(&w->rank.job.schema, w->device.ops, w->device.ctx, NULL, &w->model);
}

/* Every batch size of the run is planned before step 0: the step path allocates nothing. */
static en_status prepare_model(eni_worker *w)
{
    uint64_t sizes[ENI_BATCH_SIZES];
    const int nsizes = eni_batch_sizes(w, sizes);
    if (w->team != NULL) return eni_team_prepare(w, sizes, nsizes);
    const int keep = w->device.ops->gpu != NULL ? EN_MODEL_KEEP : 0; /* graphs hold its addresses */
    EN_TRY(en_model_prepare(w->model, (int64_t)w->rank.job.plan.batch, EN_MODEL_TRAIN | keep));
    for (int i = 0; i < nsizes; i++)
        if (sizes[i] != w->rank.job.plan.batch)
            EN_TRY(en_model_prepare(w->model, (int64_t)sizes[i], EN_MODEL_TRAIN));
    return w->rank.world.rank == 0 ? eni_evaluate_open(w) : EN_OK;
}

static en_status open_vectors(eni_worker *w)
{
    const bool is_alone = eni_rank_is_alone(&w->rank);
    const uint64_t count = w->rank.job.schema.count, room = eni_measure_room(w);
    EN_TRY(eni_arena_open(room > count ? room : count, ENI_ARENA_NSLOTS, !is_alone, &w->rank.exchange.arena));
    /* the only micro-batch of a step that is split into chunks holds their mean already */
    const bool is_mean = w->team != NULL && w->team->nchunks > 1 && w->rank.job.accumulate == 1;
    if (!is_alone || is_mean || eni_vectors_are_on_gpu(w)) return EN_OK;
    w->micro_grads = eni_alloc_array((size_t)w->rank.job.accumulate, sizeof *w->micro_grads);
    if (w->micro_grads == NULL) return EN_ENOMEM;
    for (int64_t i = 0; i < w->rank.job.accumulate; i++) {
        w->micro_grads[i] = eni_alloc_array(w->rank.job.schema.count, sizeof(float));
        if (w->micro_grads[i] == NULL) return EN_ENOMEM;
    }
    return EN_OK;
}

/* ---- the run ---- */

static void open_straggler(eni_worker *w)
{
    w->straggler =
        (eni_straggler){.factor = 1, .seed = (uint64_t)w->config->seed, .rank = w->rank.world.rank};
    for (int i = 0; i < w->config->straggler.count; i++) {
        int64_t rank;
        double factor;
        if (eni_straggler_parse(w->config->straggler.item[i], &rank, &factor) && rank == w->rank.world.rank)
            w->straggler.factor = factor;
    }
    if (w->straggler.factor > 1)
        eni_info("worker", "emulated straggler: rank %d takes %.3g times as long to compute",
                 w->rank.world.rank, w->straggler.factor);
    eni_straggler_open(&w->straggler);
}

/* Sets the rank's trainer, and the facts that the rank reports about it. */
static void describe_trainer(eni_worker *w)
{
    static const char *const types[] = {"", ", bf16", ", fp16"};
    const eni_config *c = w->config;
    const bool is_gpu = w->device.ops->gpu != NULL;
    eni_trainer *t = &w->rank.trainer;
    const char *const device = w->team != NULL ? w->team->device : w->device.ops->name;
    *t = (eni_trainer){.ops = w->team != NULL ? &eni_trainer_stages
                              : is_gpu        ? &eni_trainer_gpu
                                              : &eni_trainer_host,
                       .self = w};
    t->about = (eni_about){.model = w->rank.job.schema.spec,
                           .data = w->dataset->name,
                           .data_bytes = eni_dataset_bytes(w->dataset),
                           .holdout = w->dataset->split[ENI_HOLDOUT].count,
                           .test_samples = w->dataset->split[ENI_TEST].count,
                           .has_accuracy = w->dataset->classes > 0,
                           .set = w->dataset->split[ENI_HOLDOUT].count > 0 ? "holdout" : "test",
                           .device = device,
                           .threads = w->threads};
    eni_pixels_describe(&w->dataset->pixels.asked, &t->about.pixels);
    snprintf(t->about.computes, sizeof t->about.computes, "%.8s%s%s", device, types[c->precision],
             c->precision == ENI_PRECISION_FP32 && c->tf32 && eni_device_is_gpu(c->device) ? ", tf32" : "");
}

static en_status prepare(eni_worker *w)
{
    const bool is_newcomer = w->config->rank == ENI_RANK_NEW; /* the initial number does not concern it */
    const en_schema *schema = &w->rank.job.schema;
    w->rank.world =
        (en_world){.size = sizeof w->rank.world,
                   .rank = (int32_t)w->config->rank,
                   .nranks = w->config->world_size > 0 || is_newcomer ? eni_config_ranks(w->config) : 1};
    w->rank.nfirst = w->config->world_size > 0 ? (int32_t)w->config->world_size : 1;
    w->rank.is_newcomer = is_newcomer;
    if (w->rank.world.nranks == 1 && w->rank.world.rank < 0) w->rank.world.rank = 0;
    EN_TRY(eni_refuse_without_gpu(w->config));
    EN_TRY(find_strategy(w));
    EN_TRY(find_network(w));
    EN_TRY(choose_statistics(w));
    EN_TRY(eni_validate(w));
    EN_TRY(open_device(w)); /* before any thread starts: it sets OpenMP's environment */
    EN_TRY(open_data(w));   /* takes longest, so last of the calls that may refuse */
    describe_trainer(w);
    EN_TRY(make_plan(w));
    EN_TRY(check_batches(w));
    EN_TRY(choose_optimizer(w));
    EN_TRY(eni_buckets_new(schema->tensors, schema->ntensors, schema->count,
                           (uint64_t)(w->config->bucket_cap_mb * 1048576), &w->rank.job.buckets));
    if (!w->rank.is_newcomer) EN_TRY(eni_resume_find(&w->rank));
    return eni_save_check(&w->rank);
}

/* Rank 0's weights become everybody's; those of a checkpoint take their place. */
static void make_first_weights(eni_worker *w)
{
    const eni_job *job = &w->rank.job;
    float *param = eni_arena_at(w->rank.exchange.arena, ENI_SLOT_PARAM, 0);
    if (w->rank.world.rank != 0 || w->rank.saving.is_resumed) return;
    if (job->init != NULL)
        memcpy(param, job->init, job->schema.count * sizeof *param);
    else
        en_schema_init_param(&job->schema, (uint64_t)w->config->seed, param);
}

/* Rank and trainer open alternately: the memory of a device's vectors depends on who takes part, and the
 * strategy's shared memory on that of the device. */
static en_status open_all(eni_worker *w)
{
    eni_rank *rank = &w->rank;
    const eni_trainer *trainer = &rank->trainer;
    EN_TRY(eni_rank_join(rank));
    if (!eni_rank_has_seats(rank)) { /* all have the data now, and nobody joins later */
        eni_share_close(w->share);
        w->share = NULL;
    }
    eni_shutdown_watch(rank->shutdown, rank->member);
    open_straggler(w);
    EN_TRY(trainer->ops->open(w));
    EN_TRY(open_vectors(w));
    EN_TRY(prepare_model(w));
    EN_TRY(eni_statistics_open(w));
    EN_TRY(eni_begin_folders(w));
    EN_TRY(eni_records_open(rank));
    EN_TRY(eni_save_open(rank));
    make_first_weights(w);
    EN_TRY(eni_rank_connect(rank));
    EN_TRY(eni_trainer_do(trainer, trainer->ops->connect));
    EN_TRY(eni_rank_start(rank));
    EN_TRY(eni_save_check_strategy(rank));
    EN_TRY(eni_trainer_do(trainer, trainer->ops->start));
    return rank->world.rank == 0 ? EN_OK : eni_records_open_metrics(rank);
}

static en_status run(eni_worker *w)
{
    const eni_trainer *trainer = &w->rank.trainer;
    EN_TRY(eni_tell_rank(w));
    const en_status st = prepare(w);
    if (st == EN_ESTOP) return EN_OK; /* --resume=auto of a run that is finished */
    EN_TRY(st);
    EN_TRY(open_all(w));
    if (w->config->check) {
        EN_TRY(eni_check(w));
    } else {
        EN_TRY(eni_trainer_do(trainer, trainer->ops->warm_up));
        EN_TRY(eni_records_point_zero(&w->rank));
        EN_TRY(eni_snapshots_open(&w->rank));
        w->rank.has_begun = 1;
        EN_TRY(eni_train(&w->rank));
        if (!eni_member_is_leaving(w->rank.member)) EN_TRY(eni_result(&w->rank));
    }
    EN_TRY(eni_records_close(&w->rank));
    EN_TRY(eni_trainer_do(trainer, trainer->ops->leave));
    return eni_rank_bye(&w->rank);
}

static void close_all(eni_worker *w)
{
    eni_rank *rank = &w->rank;
    eni_loader_halt(w->loader);
    eni_save_close(rank);
    eni_exchange_close(rank);
    eni_gpu_close(w);
    eni_team_close(w);
    const bool is_stuck = w->gpu.is_stuck;
    if (!is_stuck) eni_loader_stop(w->loader); /* until here a GPU may read its buffers */
    eni_records_free(rank);
    for (int64_t i = 0; w->micro_grads != NULL && !is_stuck && i < rank->job.accumulate; i++)
        eni_free(w->micro_grads[i]);
    if (!is_stuck) eni_free(w->micro_grads);
    eni_free(rank->job.init);
    eni_groups_free(rank->job.groups);
    eni_free(rank->job.state);
    eni_free(rank->job.states);
    if (!is_stuck) eni_arena_close(rank->exchange.arena);
    eni_rank_leave(rank);
    eni_evaluate_close(w);
    eni_statistics_close(w);
    if (!is_stuck) en_model_free(w->model);
    if (!is_stuck) eni_device_close(&w->device);
    if (rank->records.out_fd >= 0) close(rank->records.out_fd);
    eni_gpus_close(w->gpu.gpus);
    eni_buckets_free(rank->job.buckets);
    eni_share_close(w->share);
    eni_dataset_close(w->dataset);
    en_schema_fini(&rank->job.schema);
    eni_options_free(rank->job.options);
    eni_free(w->spec);
}

/* Before anything is closed: releases threads that wait in the loader, on the device or in a socket. */
static void give_up(eni_worker *w, en_status st)
{
    const eni_trainer *trainer = &w->rank.trainer;
    if (w->loader != NULL) eni_loader_abort(w->loader);
    if (trainer->ops != NULL && trainer->ops->abort != NULL) trainer->ops->abort(w);
    eni_rank_give_up(&w->rank, st);
}

/* A failure before the first step is due to the command, a file or the machine: trying again cannot help. */
static en_status as_refusal(const eni_worker *w, en_status st)
{
    const bool is_ours = st == EN_EIO || st == EN_ENOMEM || st == EN_ETIMEOUT || st == EN_ENONFINITE;
    return !w->rank.has_begun && is_ours ? EN_EINVAL : st;
}

en_status eni_worker_run(eni_worker *w)
{
    eni_rank *rank = &w->rank;
    eni_rank_init(rank);
    en_status st = eni_rank_cause(rank, run(w));
    if (st != EN_OK) give_up(w, st);
    if (st == EN_OK && eni_shutdown_is_asked(rank->shutdown)) st = EN_EINTR; /* early, and in good order */
    eni_shutdown_heard(rank->shutdown);
    eni_shutdown_watch(rank->shutdown, NULL);
    close_all(w);
    return as_refusal(w, st);
}
