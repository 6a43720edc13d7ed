/* main.c - the program `psd`: the parameter server of one run. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config/env.h"
#include "config/folders.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/signals.h"
#include "core/version.h"
#include "plugin/hook.h"
#include "runtime/control/control.h"
#include "server/psd.h"

/* One connection per worker, shard and server, and as many unauthenticated peers: the soft limit of 1,024 is
 * soon reached. */
static void raise_file_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static int run(eni_config *config)
{
    char plugins[4096];
    eni_log_set_level((int)config->log_level);
    eni_log_set_launcher((int)config->result_fd);
    if (eni_folder_plugins(plugins, sizeof plugins) != EN_OK) return 2;
    raise_file_limit();
    const int signal_fd = eni_signals_open();
    const eni_hook_guard_config guard = {config->hook_timeout_ns, eni_cause_tell, &config->result_fd};
    eni_hook_guard *hooks = eni_hook_guard_begin(&guard);
    const en_status st = eni_psd_run(config, eni_version, plugins, signal_fd, hooks);
    const bool is_signalled = eni_signals_wait(signal_fd, 0);
    const int code = eni_signals_exit_code(st, signal_fd);
    eni_hook_guard_end(hooks);
    /* The launcher does not blame psd for an end that a rank has asked for. */
    eni_end_write((int)config->result_fd, st == EN_EINTR && !is_signalled ? EN_ESTOP : st);
    close(signal_fd);
    return code;
}

int main(int argc, char **argv)
{
    eni_config config;
    int code = 0;
    eni_log_set_who("psd");
    if (eni_memory_limits() != EN_OK) return 2;
    if (eni_config_parse(ENI_PSD, argc, argv, &config) != EN_OK) return 2;
    eni_env_forget_keys(); /* it has no use for them */
    if (config.version)
        printf("psd (Entrain) %s\n", eni_version);
    else if (config.help != NULL)
        eni_config_help(ENI_PSD, strcmp(config.help, "all") == 0, stdout);
    else
        code = run(&config);
    eni_config_fini(&config);
    return code;
}
