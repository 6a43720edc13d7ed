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
#include "job/job.h"
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
                        "--bn-stats=mean: the ranks of %s are never at the same step, so no step has a mean "
                        "over them; use --bn-stats=rank0 or recompute:N",
                        job->strategy->name);
    job->states =
        eni_alloc_array((size_t)w->rank.world.nranks * (size_t)w->config->accumulate * job->schema.nstate,
                        sizeof *job->states);
    return job->states == NULL ? EN_ENOMEM : EN_OK;
}

static en_status open_data(eni_worker *w)
{
    eni_data_options options = eni_job_data(&w->rank.job, w->config);
    const bool is_alone = w->rank.world.nranks == 1 ||
                          (w->config->local_size == 1 && !eni_rank_has_seats(&w->rank)); /* on this host */
    const bool is_last = is_alone && w->config->data_fd < 0; /* no rank here will need it later */
    EN_TRY(is_last ? eni_dataset_open(&options, &w->dataset) : eni_share_open(w, &options));
    if (w->dataset->pixels.repeat > 1 && w->rank.world.rank == 0)
        eni_info("worker", "%s has one channel and %s takes three: the channel is repeated", w->dataset->name,
                 w->rank.job.schema.network->name);
    return eni_dataset_sha256(w->dataset, w->rank.job.data_sha256);
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
    bool may_claim;
    EN_TRY(eni_job_assign(job, c, w->rank.world.nranks, eni_rank_is_alone(&w->rank), &may_claim));
    if (c->on_worker_loss == ENI_LOSS_CONTINUE && !may_claim)
        return eni_fail(EN_EINVAL, "worker",
                        "--on-worker-loss=continue: %s needs every rank in every step, so it cannot continue "
                        "without one; ps-async and ssp can",
                        job->strategy->name);
    EN_TRY(check_seats(w, may_claim));
    EN_TRY(eni_job_plan(job, c, w->dataset->split[ENI_TRAIN].count, w->rank.nfirst));
    if (job->plan.train_samples < job->plan.global_batch && w->rank.world.rank == 0 && !c->check)
        eni_info("worker",
                 "%llu training samples do not fill one global batch of %llu (%llu batches of %llu): each "
                 "step takes all of them, and is an epoch",
                 (unsigned long long)job->plan.train_samples, (unsigned long long)job->plan.global_batch,
                 (unsigned long long)job->plan.world, (unsigned long long)job->plan.batch);
    w->rank.records.asked.eval_every = eni_job_samples(job, c->eval_every);
    w->rank.saving.asked.every = eni_job_samples(job, c->checkpoint_every);
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
    const eni_device_options how = {
        .plugin_dir = w->plugin_dir, .threads = w->threads, .flags = eni_config_open_flags(c)};
    EN_TRY(eni_device_open_with(c->device, &how, &w->device));
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
    EN_TRY(eni_job_network(&w->rank.job, w->config));
    EN_TRY(choose_statistics(w));
    EN_TRY(eni_validate(w));
    EN_TRY(open_device(w)); /* before any thread starts: it sets OpenMP's environment */
    EN_TRY(open_data(w));   /* takes longest, so last of the calls that may refuse */
    describe_trainer(w);
    EN_TRY(make_plan(w));
    EN_TRY(check_batches(w));
    EN_TRY(eni_job_optimizer(&w->rank.job, w->config));
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
