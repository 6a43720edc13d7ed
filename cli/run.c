/* run.c - `entrain run` and `entrain check`: one run on this host. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/merge_trace.h"
#include "runtime/core/clock.h"
#include "runtime/core/log.h"
#include "runtime/core/memory.h"
#include "runtime/core/try.h"

en_status eni_command_run(const eni_command_context *context)
{
    int64_t begin = eni_now_ns();
    eni_launch launch = {
        .config = context->config, .plugin_dir = context->plugin_dir, .signal_fd = context->signal_fd};
    EN_TRY(eni_launch_run(&launch));
    if (context->config->trace != NULL && context->config->node_rank == 0) /* its own ranks; others stay apart */
        EN_TRY(eni_merge_trace(context->config->trace, (int)context->config->workers));
    if (!context->config->quiet) printf("Time elapsed: %.2f s\n", (double)(eni_now_ns() - begin) * 1e-9);
    return EN_OK;
}

/* The smallest job that uses everything: the workers join psd, add known numbers up over the all-reduce and
 * through the server, and leave. */
en_status eni_command_check(const eni_command_context *context)
{
    int64_t begin = eni_now_ns();
    eni_config config;
    static const char *const fixed[][2] = {{"strategy", "ps-sync"},
                                           {"model", "toy"},
                                           {"data", "synthetic"},
                                           {"device", "ref"},
                                           {"steps", "1"},
                                           {"lr", "1"},
                                           {"momentum", "0"},
                                           {"limit-train-samples", "64"},
                                           {"limit-test-samples", "8"}};
    EN_TRY(eni_config_init(ENI_RUN, &config));
    en_status st = EN_OK;
    for (size_t i = 0; st == EN_OK && i < sizeof fixed / sizeof *fixed; i++)
        st = eni_config_set(&config, fixed[i][0], fixed[i][1], "entrain check");
    config.workers = context->config->workers;
    config.shards = context->config->shards;
    config.quiet = true;
    if (!eni_config_is_given(context->config, "log-level")) config.log_level = ENI_LEVEL_WARN;
    if (st == EN_OK && context->config->net != NULL)
        st = eni_config_set(&config, "net", context->config->net, "--net");
    if (st == EN_OK) st = eni_config_resolve(&config);
    eni_launch launch = {.config = &config,
                         .plugin_dir = context->plugin_dir,
                         .signal_fd = context->signal_fd,
                         .is_check = true};
    if (st == EN_OK) st = eni_launch_run(&launch);
    eni_config_fini(&config);
    if (st == EN_OK)
        printf("check: all ranks reached each other (%.2f s)\n", (double)(eni_now_ns() - begin) * 1e-9);
    return st;
}
