/* command.c - the command of a rank: the options that it gives the rank (rank/rank_options.h); the errors
 * that a rank can find alone, before it connects to anybody, since its peers would learn of them later and
 * from somebody else; and the folders that it names. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config/env.h"
#include "config/folders.h"
#include "config/outputs.h"
#include "core/files.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "models/formats/weights.h"
#include "run/units.h"
#include "runtime/spec/strategies.h"
#include "worker/worker.h"

/* ---- the rank's options ---- */

/* Keys that psd reads are written resolved (the rate after --lr-scale), so the raw ones stay out; so does the
 * text of --data, which is a folder's path on one host. */
static en_status add_config_key(void *user, const char *key, const char *value, bool is_reported)
{
    (void)is_reported;
    static const char *const resolved[] = {
        "optimizer", "momentum",    "nesterov",  "weight-decay", "beta1",    "lr-milestones", "beta2", "eps",
        "lr",        "lr-schedule", "lr-warmup", "lr-step",      "lr-gamma", "sum-order",     "data"};
    for (size_t i = 0; i < sizeof resolved / sizeof *resolved; i++)
        if (strcmp(key, resolved[i]) == 0) return EN_OK;
    return eni_run_spec_add(user, key, value == NULL ? "" : value);
}

/* The flags' part of the run spec: these must be equal on all ranks. */
static en_status tell_flags(eni_worker *w)
{
    w->spec = eni_alloc(sizeof *w->spec);
    if (w->spec == NULL) return EN_ENOMEM;
    EN_TRY(eni_run_spec_add_build(w->spec, w->rank.version));
    return eni_config_each_match(w->config, add_config_key, w->spec);
}

static void tell_join(const eni_config *c, eni_join_options *out)
{
    *out = (eni_join_options){.server = c->server,
                              .rendezvous = c->rendezvous,
                              .token_file = c->token_file,
                              .host_id = c->host_id,
                              .rendezvous_note = eni_env_rendezvous_note(c),
                              .has_rendezvous = eni_config_is_given(c, "rendezvous") != 0,
                              .is_insecure = c->insecure,
                              .local_size = eni_config_is_from_env(c, "local-size") ? c->local_size : 0,
                              .token_fd = (int)c->token_fd,
                              .listen_fd = (int)c->listen_fd,
                              .launcher_fd = (int)c->result_fd,
                              .join_timeout_ns = c->join_timeout_ns,
                              .peer_timeout_ns = c->peer_timeout_ns,
                              .server_timeout_ns = c->server_timeout_ns};
    if (c->takes != NULL) (void)eni_worker_range_read(c->takes, &out->elastic);
    eni_folder_absolute(c->out, out->out, sizeof out->out);
    (void)eni_env_has_runtime_dir(out->private_folder, sizeof out->private_folder);
}

static void tell_exchange(const eni_config *c, eni_exchange_options *out)
{
    static const int allreduce[] = {[ENI_ALLREDUCE_AUTO] = ENI_COLL_AUTO,
                                    [ENI_ALLREDUCE_DIRECT] = ENI_COLL_DIRECT,
                                    [ENI_ALLREDUCE_RING] = ENI_COLL_RING,
                                    [ENI_ALLREDUCE_NAIVE] = ENI_COLL_NAIVE};
    *out = (eni_exchange_options){.net = c->net,
                                  .allreduce = allreduce[c->allreduce],
                                  .no_shm = c->transport == ENI_TRANSPORT_TCP ? "--transport=tcp" : NULL,
                                  .sum_order = (eni_sum_order)c->sum_order,
                                  .bucket_cap_mb = c->bucket_cap_mb,
                                  .groups = c->groups,
                                  .is_check = c->check};
    if (c->net != NULL) (void)eni_net_parse(c->net, &out->net_bytes_per_s, &out->net_delay_ns);
}

static void tell_records(const eni_config *c, eni_record_options *out)
{
    const bool is_own = c->tensorboard != NULL && strcmp(c->tensorboard, "auto") == 0;
    *out = (eni_record_options){.out = c->out,
                                .save = c->save,
                                .trace = c->trace,
                                .tensorboard = is_own ? c->out : c->tensorboard,
                                .is_quiet = c->quiet || c->mute,
                                .is_mute = c->mute,
                                .log_every = (uint64_t)c->log_every,
                                .eval_first = c->eval_first,
                                .eval_points = (uint64_t)c->eval_points,
                                .target = c->target,
                                .begin_ns = c->begin_ns,
                                .epochs = (uint64_t)c->epochs,
                                .steps = (uint64_t)c->steps,
                                .max_samples = (uint64_t)c->max_samples,
                                .argv = out->argv,
                                .argc = out->argc,
                                .stragglers = c->straggler.item,
                                .nstragglers = c->straggler.count};
}

en_status eni_tell_rank(eni_worker *w)
{
    const eni_config *c = w->config;
    eni_save_options *saving = &w->rank.saving.asked;
    tell_join(c, &w->rank.asked);
    tell_exchange(c, &w->rank.exchange.asked);
    tell_records(c, &w->rank.records.asked);
    *saving =
        (eni_save_options){.resume = c->resume, .may_replace = c->overwrite && c->checkpoint_dir == NULL};
    if (eni_out_checkpoints(c, saving->dir, sizeof saving->dir) != EN_OK) saving->dir[0] = 0;
    EN_TRY(tell_flags(w));
    w->rank.asked.spec = w->spec;
    return EN_OK;
}

/* ---- errors that a rank finds alone ---- */

static en_status check_stragglers(const eni_worker *w)
{
    for (int i = 0; i < w->config->straggler.count; i++) {
        int64_t rank;
        double factor;
        if (eni_straggler_parse(w->config->straggler.item[i], &rank, &factor) && rank < w->rank.world.nranks)
            continue;
        return eni_fail(EN_EINVAL, "worker",
                        "--straggler=%s: write RANK:FACTOR with a rank below %d, such as 1:3",
                        w->config->straggler.item[i], w->rank.world.nranks);
    }
    return EN_OK;
}

/* Rank 0's weights become everybody's, and a rank without a number may become rank 0. */
static en_status read_init(eni_worker *w)
{
    if (w->config->init == NULL || w->rank.world.rank > 0 || w->config->resume != NULL) return EN_OK;
    w->rank.job.init = eni_alloc_array(w->rank.job.schema.count, sizeof *w->rank.job.init);
    if (w->rank.job.init == NULL) return EN_ENOMEM;
    return eni_weights_load(w->config->init, &w->rank.job.schema, w->rank.job.init, w->rank.job.state);
}

/* Rank 0 takes it for all ranks before they meet; if a launcher started us, the launcher has taken it. */
static en_status take_out(eni_worker *w)
{
    const eni_config *c = w->config;
    EN_TRY(eni_folder_check("--out", c->out));
    w->rank.records.out_fd = (int)c->out_fd;
    if (c->out == NULL || c->result_fd >= 0) return EN_OK;
    return w->rank.world.rank == 0 ? eni_out_take(c, c->out, ENI_OUT_RUN, &w->rank.records.out_fd)
                                   : eni_out_ask(c, c->out);
}

en_status eni_validate(eni_worker *w)
{
    EN_TRY(check_stragglers(w));
    EN_TRY(eni_strategy_groups(w->rank.job.strategy, w->config->groups));
    EN_TRY(take_out(w));
    if (w->rank.world.rank <= 0) {
        EN_TRY(eni_target_check("--save", w->config->save));
        EN_TRY(eni_target_check("--trace", w->config->trace)); /* may lie in --out */
    }
    return read_init(w);
}

/* Refuses flags that only a GPU can follow on a device that is not a GPU: a run that ignored them would be
 * found out too late. Flags that every host satisfies pass: it computes in 32 bits, so --tf32 has nothing to
 * round, and always in the same bits, so it is --deterministic. */
en_status eni_refuse_without_gpu(const eni_config *config)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    if (eni_device_is_gpu(config->device)) return EN_OK;
    if (config->backend == ENI_BACKEND_NCCL)
        eni_error("worker",
                  "--backend=nccl moves gradients between GPUs, but --device=%s is not a GPU: use "
                  "--device=cuda, or --backend=host",
                  config->device);
    else if (config->precision != ENI_PRECISION_FP32)
        eni_error("worker",
                  "--precision=%s needs a GPU, but --device=%s is not a GPU: use --device=cuda, or omit it",
                  precisions[config->precision], config->device);
    else
        return EN_OK;
    return EN_EINVAL;
}

/* ---- folders ---- */

/* Nothing is refused from here on: the folder's earlier contents make room before anybody writes to it. */
static en_status begin_out(eni_worker *w)
{
    const eni_config *c = w->config;
    if (w->rank.records.out_fd < 0)
        EN_TRY(eni_out_take(c, c->out, ENI_OUT_RUN, &w->rank.records.out_fd)); /* rank 0 since the join */
    if (w->rank.saving.is_resumed)
        eni_result_clear(&w->rank);
    else
        EN_TRY(eni_out_clear(w->rank.records.out_fd, c->out));
    return eni_config_write(c, c->out);
}

en_status eni_begin_folders(eni_worker *w)
{
    const eni_config *c = w->config;
    if (w->rank.world.rank != 0) return EN_OK;
    if (c->out != NULL) EN_TRY(begin_out(w));
    if (c->tensorboard != NULL && w->rank.records.asked.tensorboard == NULL)
        return eni_fail(
            EN_EINVAL, "worker",
            "--tensorboard has no folder: give --tensorboard=FOLDER, or --out=FOLDER for the run");
    EN_TRY(eni_folder_check("--tensorboard", w->rank.records.asked.tensorboard));
    return c->checkpoint_every != 0 ? eni_folder_check("--checkpoint-dir", w->rank.saving.asked.dir) : EN_OK;
}
