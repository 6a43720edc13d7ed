/* main.c - the program `worker`: one rank of a run. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "config/folders.h"
#include "runtime/comm/plugin.h"
#include "runtime/core/log.h"
#include "worker/worker.h"

/* SIGINT and SIGTERM become readable; no handler, no global. Threads started later inherit the mask. */
static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int exit_code(en_status st, int signal_fd)
{
    struct signalfd_siginfo info;
    if (st == EN_EINTR && read(signal_fd, &info, sizeof info) == sizeof info)
        return 128 + (int)info.ssi_signo;
    switch (st) {
    case EN_OK: return 0;
    case EN_EINVAL: return 2;
    case EN_ENOENT: return 2;
    default: return 1;
    }
}

/* `worker --strategy=ssp --help`: what that strategy takes. */
static void describe_strategy(const eni_config *config)
{
    char plugins[4096], word[ENI_STRATEGY_WORD_MAX], text[4096];
    const en_strategy *strategy;
    const char *options;
    if (!eni_config_is_given(config, "strategy") || eni_folder_plugins(plugins, sizeof plugins) != EN_OK)
        return;
    if (eni_plugin_split(config->strategy, word, &options) != EN_OK) return;
    if (eni_plugin_find(plugins, word, &strategy) != EN_OK) return;
    eni_plugin_describe(strategy, text, sizeof text);
    printf("\n%s", text);
}

int main(int argc, char **argv)
{
    eni_config config;
    char plugins[4096];
    eni_log_set_who("worker");
    if (eni_config_parse(ENI_WORKER, argc, argv, &config) != EN_OK) return 2;
    if (config.version) {
        puts("worker (Entrain) " EN_VERSION);
        eni_config_fini(&config);
        return 0;
    }
    if (config.help) {
        eni_config_help(ENI_WORKER, stdout);
        describe_strategy(&config);
        eni_config_fini(&config);
        return 0;
    }
    eni_log_set_level((int)config.log_level);
    int code = 1;
    if (eni_folder_plugins(plugins, sizeof plugins) == EN_OK) {
        eni_worker worker = {.config = &config,
                             .argc = argc,
                             .argv = argv,
                             .plugin_dir = plugins,
                             .signal_fd = open_signals()};
        code = exit_code(eni_worker_run(&worker), worker.signal_fd);
        close(worker.signal_fd);
    }
    eni_config_fini(&config);
    return code;
}
