/* settings.c - what a configuration tells a rank: the options of its parts (rank/rank_options.h), and its files
 * and folders. */
#include "job/job.h"

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
static en_status tell_flags(const eni_config *c, eni_join_options *out)
{
    out->spec = eni_alloc(sizeof *out->spec);
    if (out->spec == NULL) return EN_ENOMEM;
    EN_TRY(eni_run_spec_add_protocol(out->spec));
    return eni_config_each_match(c, add_config_key, out->spec);
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
                                  .groups = c->groups,
                                  .is_check = c->check};
    if (c->net != NULL) (void)eni_net_parse(c->net, &out->net_bytes_per_s, &out->net_delay_ns);
}

void eni_job_records(const eni_config *c, eni_record_options *out)
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

en_status eni_job_tell(eni_rank *rank, const eni_config *c)
{
    eni_save_options *saving = &rank->saving.asked;
    tell_join(c, &rank->asked);
    tell_exchange(c, &rank->exchange.asked);
    eni_job_records(c, &rank->records.asked);
    *saving =
        (eni_save_options){.resume = c->resume, .may_replace = c->overwrite && c->checkpoint_dir == NULL};
    if (eni_out_checkpoints(c, saving->dir, sizeof saving->dir) != EN_OK) saving->dir[0] = 0;
    return tell_flags(c, &rank->asked);
}

/* ---- files and folders ---- */

/* Rank 0's weights become everybody's, and a rank without a number may become rank 0. */
static en_status read_init(eni_rank *rank, const eni_config *c)
{
    eni_job *job = &rank->job;
    if (c->init == NULL || rank->world.rank > 0 || c->resume != NULL) return EN_OK;
    job->init = eni_alloc_array(job->schema.count, sizeof *job->init);
    if (job->init == NULL) return EN_ENOMEM;
    return eni_weights_load(c->init, &job->schema, job->init, job->state);
}

/* Rank 0 takes it for all ranks before they meet; if a launcher started us, the launcher has taken it. */
static en_status take_out(eni_rank *rank, const eni_config *c)
{
    EN_TRY(eni_folder_check("--out", c->out));
    rank->records.out_fd = (int)c->out_fd;
    if (c->out == NULL || c->result_fd >= 0) return EN_OK;
    return rank->world.rank == 0 ? eni_out_take(c, c->out, ENI_OUT_RUN, &rank->records.out_fd)
                                 : eni_out_ask(c, c->out);
}

en_status eni_job_files(eni_rank *rank, const eni_config *c)
{
    EN_TRY(eni_strategy_groups(rank->job.strategy, c->groups));
    EN_TRY(take_out(rank, c));
    if (rank->world.rank <= 0) {
        EN_TRY(eni_target_check("--save", c->save));
        EN_TRY(eni_target_check("--trace", c->trace)); /* may lie in --out */
    }
    return read_init(rank, c);
}

/* Nothing is refused from here on: the folder's earlier contents make room before anybody writes to it. */
static en_status begin_out(eni_rank *rank, const eni_config *c)
{
    if (rank->records.out_fd < 0)
        EN_TRY(eni_out_take(c, c->out, ENI_OUT_RUN, &rank->records.out_fd)); /* rank 0 since the join */
    if (rank->saving.is_resumed)
        eni_result_clear(rank);
    else
        EN_TRY(eni_out_clear(rank->records.out_fd, c->out));
    return eni_config_write(c, c->out);
}

en_status eni_job_folders(eni_rank *rank, const eni_config *c)
{
    if (rank->world.rank != 0) return EN_OK;
    if (c->out != NULL) EN_TRY(begin_out(rank, c));
    if (c->tensorboard != NULL && rank->records.asked.tensorboard == NULL)
        return eni_fail(
            EN_EINVAL, "job",
            "--tensorboard has no folder: give --tensorboard=FOLDER, or --out=FOLDER for the run");
    EN_TRY(eni_folder_check("--tensorboard", rank->records.asked.tensorboard));
    return c->checkpoint_every != 0 ? eni_folder_check("--checkpoint-dir", rank->saving.asked.dir) : EN_OK;
}
