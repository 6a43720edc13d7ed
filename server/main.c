/* main.c - the program `psd`: the parameter server of one run. */
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "config/folders.h"
#include "runtime/core/log.h"
#include "server/psd.h"

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

static int run(const eni_config *config)
{
    char plugins[4096];
    eni_log_set_level((int)config->log_level);
    if (eni_folder_plugins(plugins, sizeof plugins) != EN_OK) return 1;
    const int signal_fd = open_signals();
    const int code = exit_code(eni_psd_run(config, plugins, signal_fd), signal_fd);
    close(signal_fd);
    return code;
}

int main(int argc, char **argv)
{
    eni_config config;
    int code = 0;
    eni_log_set_who("psd");
    if (eni_config_parse(ENI_PSD, argc, argv, &config) != EN_OK) return 2;
    if (config.version)
        puts("psd (Entrain) " EN_VERSION);
    else if (config.help)
        eni_config_help(ENI_PSD, stdout);
    else
        code = run(&config);
    eni_config_fini(&config);
    return code;
}
