/* run.c - `entrain run`: one run on this host. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/merge_trace.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"

en_status eni_command_run(const eni_command_context *context)
{
    int64_t begin = eni_now_ns();
    eni_launch launch = {
        .config = context->config, .plugin_dir = context->plugin_dir, .signal_fd = context->signal_fd};
    const en_status st = eni_launch_run(&launch);
    if (st == EN_ESTOP) return EN_OK; /* it was finished before */
    EN_TRY(st);
    if (context->config->trace != NULL && context->config->node_rank == 0) /* its own ranks; others stay apart */
        EN_TRY(eni_merge_trace(context->config->trace, (int)context->config->workers));
    if (!context->config->quiet) printf("Time elapsed: %.2f s\n", (double)(eni_now_ns() - begin) * 1e-9);
    return EN_OK;
}
