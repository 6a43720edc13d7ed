/* trial.c - one short real run, and the step time from its result; see trial.h. The run is a config, as of
 * `entrain run`, passed to the launcher; the caller removes its folder. */
#include "cli/trial.h"

#include <errno.h>
#include <ftw.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/launcher/launch.h"
#include "config/folders.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/options.h"
#include "core/try.h"
#include "report/report_study.h"
#include "report/stats.h"
#include "runtime/spec/strategies.h"

static en_status read_result(const char *dir, double *samples_s_out, double *step_out)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/result.json", dir);
    json_t *result = eni_json_file(path, NULL);
    *samples_s_out = json_number_value(json_object_get(result, "samples_per_s"));
    *step_out = json_number_value(json_object_get(result, "global_batch_size")) / *samples_s_out;
    json_decref(result);
    if (*samples_s_out > 0) return EN_OK;
    return eni_fail(EN_EINVAL, "trial", "%s has no samples per second: the run was too short; raise --steps",
                    path);
}

/* dir NULL: no folder. */
static en_status set_run(const eni_trial *trial, const char *dir, eni_config *run)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)trial->workers);
    EN_TRY(eni_config_set(run, "workers", text, "-n"));
    if (dir != NULL) EN_TRY(eni_config_set(run, "out", dir, "--out"));
    run->global_batch_size = 0;
    snprintf(text, sizeof text, "%lld", (long long)trial->batch);
    EN_TRY(eni_config_set(run, "batch-size", text, "--batch-size"));
    if (trial->servers > 0) run->servers = trial->servers;
    if (trial->threads > 0) run->threads = trial->threads;
    run->mute = true;
    run->log_every = 0;
    if (!eni_config_is_given(run, "log-level"))
        EN_TRY(eni_config_set(run, "log-level", "warn", "--log-level"));
    return eni_config_resolve(run);
}

static en_status make_run(const eni_command_context *context, const eni_trial *trial, eni_config *run_out)
{
    eni_config base = {0};
    EN_TRY(eni_config_copy(context->config, &base));
    base.global_batch_size = 0; /* the trial sets how it is divided */
    base.workers = trial->workers;
    en_status st = eni_config_arm(&base, trial->strategy, run_out);
    eni_config_fini(&base);
    return st;
}

en_status eni_trial_check(const eni_command_context *context, const eni_trial *trial)
{
    const en_strategy *strategy;
    eni_config run = {0};
    EN_TRY(eni_strategy_find(context->plugin_dir, trial->strategy, &strategy));
    EN_TRY(eni_options_check(strategy, eni_spec_options(trial->strategy)));
    EN_TRY(make_run(context, trial, &run));
    eni_config_fini(&run);
    return EN_OK;
}

en_status eni_trials_run(eni_trials *trials, int line, const eni_command_context *context,
                         const eni_trial *trial, const char *dir, double *samples_s_out, double *step_out)
{
    eni_config run = {0};
    EN_TRY(make_run(context, trial, &run));
    en_status st = eni_folder_check("--out", dir);
    if (st == EN_OK) st = set_run(trial, dir, &run);
    const eni_launch launch = {.config = &run,
                               .plugin_dir = context->plugin_dir,
                               .signal_fd = context->signal_fd,
                               .on_progress = eni_live_progress,
                               .user = &trials->live};
    if (line >= 0) eni_live_begin(&trials->live, line);
    if (st == EN_OK) st = eni_launch_run(&launch);
    if (st == EN_OK) st = read_result(dir, samples_s_out, step_out);
    if (st == EN_OK) eni_live_end(&trials->live, *samples_s_out, -1, NAN);
    eni_config_fini(&run);
    return st;
}

void eni_trials_begin(eni_trials *trials, bool is_quiet)
{
    *trials = (eni_trials){.before = eni_machine_now()};
    eni_live_init(&trials->live, is_quiet);
}

void eni_trials_note(eni_trials *trials, double *values, size_t n)
{
    const eni_summary all = eni_stats_summary(values, n);
    trials->spread = fmax(trials->spread, (all.max - all.min) / all.median);
}

double eni_trials_outside(const eni_trials *trials)
{
    const eni_machine now = eni_machine_now();
    return eni_machine_outside(&trials->before, &now);
}

bool eni_trials_doubt(const eni_trials *trials, double outside, char *text_out, size_t size)
{
    if (outside > ENI_BUSY_SHARE)
        snprintf(
            text_out, size,
            "No conclusion is drawn: other processes took %.0f %% of the cores meanwhile (over %.0f %%); end "
            "them, or wait for them, and measure again.",
            100 * outside, 100 * ENI_BUSY_SHARE);
    else if (trials->spread > ENI_TRIAL_SPREAD)
        snprintf(
            text_out, size,
            "No conclusion is drawn: runs of the same kind differ by %.0f %% (over %.0f %%); measure again "
            "on a quiet machine, with more --steps.",
            100 * trials->spread, 100 * ENI_TRIAL_SPREAD);
    else
        return false;
    return true;
}

static en_status set_job(const eni_command_context *context, const eni_check_job *job, eni_config *config)
{
    const eni_config none = {0}, *asked = job->is_here ? &none : context->config; /* of the hosts */
    char nnodes[24];
    snprintf(nnodes, sizeof nnodes, "%lld", job->is_here ? 1 : (long long)asked->nnodes);
    const char *const fixed[][2] = {{"strategy", job->strategy != NULL ? job->strategy : "ps-sync"},
                                    {"model", job->model},
                                    {"data", "synthetic"},
                                    {"device", job->device != NULL ? job->device : "ref"},
                                    {"steps", "1"},
                                    {"lr", "1"},
                                    {"momentum", "0"},
                                    {"transport", job->transport},
                                    {"limit-train-samples", "64"},
                                    {"limit-test-samples", "8"},
                                    {"allreduce", job->allreduce},
                                    {"net", job->net},
                                    {"nnodes", nnodes},
                                    {"master-addr", asked->master_addr},
                                    {"init-method", asked->init_method},
                                    {"token-file", asked->token_file},
                                    {"host-id", asked->host_id}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (fixed[i][1] != NULL) EN_TRY(eni_config_set(config, fixed[i][0], fixed[i][1], "entrain check"));
    config->workers = job->workers;
    config->shards = job->shards;
    config->backend = job->backend;
    config->mute = true;
    config->log_level =
        eni_config_is_given(context->config, "log-level") ? context->config->log_level : ENI_LEVEL_WARN;
    if (!job->is_here) {
        config->node_rank = asked->node_rank;
        config->master_port = asked->master_port;
        config->insecure = asked->insecure;
    }
    return eni_config_resolve(config);
}

static en_status launch_check(const eni_command_context *context, const eni_config *config, const char *probe,
                              eni_measured *measured)
{
    const eni_launch launch = {.config = config,
                               .plugin_dir = context->plugin_dir,
                               .signal_fd = context->signal_fd,
                               .is_check = true,
                               .probe = probe,
                               .measured = measured};
    return eni_launch_run(&launch);
}

en_status eni_check_run(const eni_command_context *context, const eni_check_job *job)
{
    eni_config config;
    EN_TRY(eni_config_init(ENI_RUN, &config));
    en_status st = set_job(context, job, &config);
    if (st == EN_OK) st = launch_check(context, &config, job->probe, job->measured);
    eni_config_fini(&config);
    return st;
}

/* With a store, which on a GPU copies gradients to the host. */
en_status eni_check_compute(const eni_command_context *context, int n, int64_t threads,
                            eni_measured *measured_out)
{
    const eni_trial trial = {.strategy = "ps-sync",
                             .workers = n,
                             .batch = context->config->batch_size,
                             .servers = 1,
                             .threads = threads};
    eni_config run = {0};
    *measured_out = (eni_measured){0};
    EN_TRY(make_run(context, &trial, &run));
    eni_free(run.out);
    eni_free(run.net); /* they only wait for each other */
    run.out = run.net = NULL;
    run.transport = ENI_TRANSPORT_AUTO;
    en_status st = set_run(&trial, NULL, &run);
    if (st == EN_OK) st = launch_check(context, &run, "compute", measured_out);
    eni_config_fini(&run);
    return st;
}

en_status eni_check_measure(const eni_command_context *context, int n, const char *allreduce,
                            const char *transport, const char *net, const char *probe,
                            eni_measured *measured_out)
{
    const eni_check_job job = {.workers = n,
                               .strategy = n == 1 ? "solo" : "ring",
                               .model = "toy",
                               .transport = transport,
                               .allreduce = allreduce,
                               .net = net,
                               .probe = probe,
                               .measured = measured_out,
                               .is_here = true};
    *measured_out = (eni_measured){0};
    return eni_check_run(context, &job);
}

/* Between two ranks direct takes 2 flags + 4 S moves / 2, and a ring 2 hops + S bytes (cost_model.h). */
en_status eni_check_numbers(const eni_command_context *context, int cores, double *flag_out, double *move_out,
                            eni_cost_numbers *tcp_out)
{
    static const char sizes[] = "4096..4194304";
    eni_measured direct, ring;
    double alpha, beta;
    EN_TRY(eni_check_measure(context, 2, "direct", "auto", NULL, sizes, &direct));
    eni_cost_line(&direct.allreduce, &alpha, &beta);
    *flag_out = alpha / 2;
    *move_out = beta * (cores < 2 ? cores : 2) / 4;
    EN_TRY(eni_check_measure(context, 2, "ring", "tcp", NULL, sizes, &ring));
    eni_cost_line(&ring.allreduce, &alpha, &beta);
    *tcp_out = (eni_cost_numbers){alpha / 2, beta, 0};
    return EN_OK;
}

en_status eni_trial_folder(char dir_out[64])
{
    snprintf(dir_out, 64, "/tmp/entrain-trial-XXXXXX");
    if (mkdtemp(dir_out) != NULL) return EN_OK;
    return eni_fail(EN_EIO, "trial", "cannot create a folder in /tmp: %s", strerror(errno));
}

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *place)
{
    (void)is, (void)kind, (void)place;
    remove(path);
    return 0;
}

void eni_trial_remove(const char *dir)
{
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
