/* check.c - `entrain check`: can these processes reach each other, and what does it take? */
#include "cli/check.h"

#include <stdio.h>

#include "cli/launch.h"
#include "ops/device.h"
#include "core/clock.h"
#include "core/try.h"

static en_status set_job(const eni_command_context *context, const eni_check_job *job, eni_config *config)
{
    const char *const fixed[][2] = {{"strategy", job->strategy != NULL ? job->strategy : "ps-sync"},
                                    {"model", job->model},
                                    {"data", "synthetic"},
                                    {"device", job->device != NULL ? job->device : "ref"},
                                    {"steps", "1"},
                                    {"lr", "1"},
                                    {"momentum", "0"},
                                    {"transport", job->transport},
                                    {"limit-train-samples", "64"},
                                    {"limit-test-samples", "8"}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        EN_TRY(eni_config_set(config, fixed[i][0], fixed[i][1], "entrain check"));
    config->workers = job->workers;
    config->shards = job->shards;
    config->backend = job->backend;
    config->quiet = true;
    config->log_level =
        eni_config_is_given(context->config, "log-level") ? context->config->log_level : ENI_LEVEL_WARN;
    if (job->net != NULL) EN_TRY(eni_config_set(config, "net", job->net, "--net"));
    return eni_config_resolve(config);
}

en_status eni_check_run(const eni_command_context *context, const eni_check_job *job)
{
    eni_config config;
    EN_TRY(eni_config_init(ENI_RUN, &config));
    en_status st = set_job(context, job, &config);
    const eni_launch launch = {.config = &config,
                               .plugin_dir = context->plugin_dir,
                               .signal_fd = context->signal_fd,
                               .is_check = true,
                               .costs = job->costs};
    if (st == EN_OK) st = eni_launch_run(&launch);
    eni_config_fini(&config);
    return st;
}

/* On GPUs vectors travel in two ways (docs/gpu.md): staged through the host, as every strategy with a store
 * does, and from GPU to GPU, as ring does. */
static en_status check_gpus(const eni_command_context *context, const eni_check_job *staged)
{
    eni_check_job on_gpu = *staged;
    on_gpu.strategy = staged->workers == 1 ? "solo" : "ring";
    on_gpu.backend = context->config->backend;
    on_gpu.shards = 0;
    return eni_check_run(context, &on_gpu);
}

/* The smallest job that uses everything: the workers join psd, add known numbers up over the all-reduce and
 * through the server, and leave. */
en_status eni_command_check(const eni_command_context *context)
{
    const int64_t begin = eni_now_ns();
    const eni_config *c = context->config;
    eni_costs costs = {0};
    const eni_check_job job = {
        .workers = c->workers, .shards = c->shards, .model = "toy", .transport = "auto", .net = c->net};
    eni_check_job first = job;
    if (eni_config_is_given(c, "device")) first.device = c->device;
    EN_TRY(eni_check_run(context, &first));
    if (eni_device_is_gpu(c->device)) EN_TRY(check_gpus(context, &first));
    printf("check: all ranks%s reached each other (%.2f s)\n", eni_device_is_gpu(c->device) ? " and their GPUs" : "",
           (double)(eni_now_ns() - begin) * 1e-9);
    if (!c->verbose) return EN_OK;
    eni_check_job measured = job;
    measured.model = "mlp"; /* buckets of 10 kB and 800 kB */
    measured.costs = &costs;
    EN_TRY(eni_check_run(context, &measured));
    return eni_check_table(c, &costs, stdout);
}
