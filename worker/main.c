/* main.c - the program `worker`: one rank of a run. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/folders.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/version.h"
#include "plugin/hook.h"
#include "remote/transfer.h"
#include "runtime/control/control.h"
#include "runtime/spec/strategies.h"
#include "worker/worker.h"

/* `worker --strategy=ssp --help`: the options of that strategy. */
static void describe_strategy(const eni_config *config)
{
    char plugins[4096];
    const en_strategy *strategy;
    if (!eni_config_is_given(config, "strategy") || eni_folder_plugins(plugins, sizeof plugins) != EN_OK)
        return;
    if (eni_strategy_find(plugins, config->strategy, &strategy) != EN_OK) return;
    printf("\n");
    eni_strategy_show(stdout, strategy);
}

/* The last resort of shutdown.h, on another thread: the compute thread is inside a long kernel. */
static void leave_at_once(void *user, int code)
{
    eni_worker *worker = user;
    const bool is_failed = code == 1;
    eni_result_cut_short(&worker->rank, is_failed ? "failed" : "interrupted",
                         is_failed ? "a process was lost" : "");
    if (worker->rank.token.path[0] != 0) eni_token_remove(worker->rank.token.path);
    eni_end_write((int)worker->config->result_fd, is_failed ? EN_EPEER : EN_EINTR);
    _exit(code);
}

/* A GPU hangs: the exit handlers of libraries would wait for it. */
static void leave_stuck(int code)
{
    fflush(NULL);
    _exit(code);
}

static int run(eni_worker *worker, int signal_fd, en_status *st_out)
{
    const eni_shutdown_config config = {.signal_fd = signal_fd,
                                        .report_fd = (int)worker->config->result_fd,
                                        .ended = &worker->rank.ended,
                                        .leave_at_once = leave_at_once,
                                        .user = worker};
    if (eni_shutdown_start(&config, &worker->rank.shutdown) != EN_OK) return 1;
    int64_t launcher_fd = worker->config->result_fd;
    const eni_hook_guard_config guard = {worker->config->hook_timeout_ns, eni_cause_tell, &launcher_fd};
    worker->rank.job.hooks = eni_hook_guard_begin(&guard);
    const en_status st = *st_out = eni_worker_run(worker);
    eni_hook_guard_end(worker->rank.job.hooks);
    const int code =
        st == EN_EINTR ? 128 + eni_shutdown_signal(worker->rank.shutdown) : eni_signals_exit_code(st, -1);
    eni_shutdown_stop(worker->rank.shutdown);
    return code;
}

int main(int argc, char **argv)
{
    eni_config config;
    char plugins[4096];
    eni_log_set_who("worker");
    if (eni_memory_limits() != EN_OK) return 2;
    if (eni_config_parse(ENI_WORKER, argc, argv, &config) != EN_OK) return 2;
    if (config.version) {
        printf("worker (Entrain) %s\n", eni_version);
        eni_config_fini(&config);
        return 0;
    }
    if (config.help != NULL) {
        eni_config_help(ENI_WORKER, strcmp(config.help, "all") == 0, stdout);
        describe_strategy(&config);
        eni_config_fini(&config);
        return 0;
    }
    eni_log_set_level((int)config.log_level);
    eni_log_set_launcher((int)config.result_fd);
    int code = 1;
    if (eni_folder_plugins(plugins, sizeof plugins) == EN_OK) {
        eni_worker worker = {.config = &config,
                             .plugin_dir = plugins,
                             .rank = {.version = eni_version, .records.asked = {.argv = argv, .argc = argc}}};
        const int signal_fd = eni_signals_open();
        eni_uploads *uploads;
        const bool is_writer =
            config.rank == 0 && config.result_fd < 0; /* otherwise the launcher's transfer uploads */
        en_status st = eni_transfer_begin(&config, is_writer, signal_fd, &uploads);
        code = st == EN_OK ? run(&worker, signal_fd, &st) : eni_signals_exit_code(st, signal_fd);
        const en_status gone = eni_transfer_end(uploads, code == 0 ? EN_OK : EN_EIO);
        if (code == 0 && gone != EN_OK) code = eni_signals_exit_code(gone, signal_fd);
        close(signal_fd);
        eni_end_write((int)config.result_fd, st);
        if (worker.gpu.is_stuck) leave_stuck(code);
    }
    eni_config_fini(&config);
    return code;
}
