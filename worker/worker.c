/* worker.c - the lifetime of a rank: open everything in order, train, report, close in reverse. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "job/job.h"
#include "models/node.h"
#include "ops/device.h"
#include "rank/run.h"
#include "worker/gpu/gpus.h"
#include "worker/statistics.h"
#include "worker/parallel/team.h"
#include "worker/gpu/vectors.h"
#include "worker/worker.h"

/* ---- what is trained ---- */

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

static en_status open_vectors(eni_worker *w)
{
    /* the only micro-batch of a step that is split into chunks holds their mean already */
    const bool is_mean = w->team != NULL && w->team->nchunks > 1 && w->rank.job.accumulate == 1;
    EN_TRY(eni_run_vectors(&w->rank, eni_measure_room(w), !is_mean && !eni_vectors_are_on_gpu(w)));
    make_first_weights(w);
    return EN_OK;
}

/* ---- the run ---- */

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
    EN_TRY(eni_refuse_without_gpu(w->config));
    EN_TRY(eni_job_open(&w->rank, w->config, w->plugin_dir));
    EN_TRY(eni_job_network(&w->rank.job, w->config));
    EN_TRY(eni_check_stragglers(w));
    EN_TRY(eni_job_check(&w->rank, w->config));
    EN_TRY(open_device(w)); /* before any thread starts: it sets OpenMP's environment */
    EN_TRY(open_data(w));   /* takes longest, so last of the calls that may refuse */
    describe_trainer(w);
    EN_TRY(eni_job_share(&w->rank, w->config, w->dataset->split[ENI_TRAIN].count));
    EN_TRY(check_batches(w));
    return eni_job_complete(&w->rank, w->config);
}

static en_status open_all(eni_worker *w)
{
    eni_rank *rank = &w->rank;
    EN_TRY(eni_rank_join(rank));
    if (!eni_rank_has_seats(rank)) { /* all have the data now, and nobody joins later */
        eni_share_close(w->share);
        w->share = NULL;
    }
    eni_shutdown_watch(rank->shutdown, rank->member);
    w->straggler = eni_straggler_of(&w->rank);
    eni_straggler_open(&w->straggler);
    EN_TRY(rank->trainer.ops->open(w));
    EN_TRY(open_vectors(w));
    EN_TRY(prepare_model(w));
    EN_TRY(eni_statistics_open(w));
    EN_TRY(eni_job_folders(rank, w->config));
    return eni_run_open(rank);
}

static en_status run(eni_worker *w)
{
    const en_status st = prepare(w);
    if (st == EN_ESTOP) return EN_OK; /* --resume=auto of a run that is finished */
    EN_TRY(st);
    EN_TRY(open_all(w));
    EN_TRY(w->config->check ? eni_check(w) : eni_train(&w->rank));
    return eni_run_leave(&w->rank);
}

static void close_all(eni_worker *w)
{
    eni_rank *rank = &w->rank;
    eni_loader_halt(w->loader);
    eni_run_close_exchange(rank);
    eni_gpu_close(w);
    eni_team_close(w);
    const bool is_stuck = w->gpu.is_stuck;
    if (!is_stuck) eni_loader_stop(w->loader); /* until here a GPU may read its buffers */
    eni_records_free(rank);
    eni_run_close_vectors(rank, is_stuck);
    eni_rank_leave(rank);
    eni_evaluate_close(w);
    eni_statistics_close(w);
    if (!is_stuck) en_model_free(w->model);
    if (!is_stuck) eni_device_close(&w->device);
    eni_gpus_close(w->gpu.gpus);
    eni_share_close(w->share);
    eni_dataset_close(w->dataset);
    eni_job_close(rank);
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
