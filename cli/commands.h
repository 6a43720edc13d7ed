/* commands.h - the sub-commands of `entrain`. Each takes its parsed configuration and returns what main turns
 * into the exit code: EN_OK 0, EN_EINVAL and EN_ENOENT 2, EN_EINTR 128 + signal, anything else 1. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <stdio.h>

#include "config/config.h"
#include "entrain/status.h"

typedef struct eni_command_context {
    const eni_config *config;
    const char *plugin_dir;
    int signal_fd;
    int argc;
    char **argv;
    const char *version; /* eni_version, which only main may name */
} eni_command_context;

en_status eni_command_run(const eni_command_context *context);        /* launch.c */
en_status eni_command_compare(const eni_command_context *context);    /* compare.c */
en_status eni_command_check(const eni_command_context *context);      /* check_ranks.c */
en_status eni_command_report(const eni_command_context *context);     /* list.c */
en_status eni_command_eval(const eni_command_context *context);       /* eval.c */
en_status eni_command_strategies(const eni_command_context *context); /* list.c */
en_status eni_command_models(const eni_command_context *context);     /* list.c */
en_status eni_command_data(const eni_command_context *context);       /* list.c */
en_status eni_command_ps(const eni_command_context *context);         /* ps_stop.c */
en_status eni_command_stop(const eni_command_context *context);       /* ps_stop.c */
en_status eni_command_advise(const eni_command_context *context);     /* advise.c */
en_status eni_command_scale(const eni_command_context *context);      /* scale.c */
en_status eni_command_gpus(const eni_command_context *context);       /* gpu_list.c */

/* `entrain sim --strategy=./mine.so:period=8 --workers=4 --straggler=1:4 --events=20`, a strategy tried on
 * the virtual host (sim_command.c): runs the quadratic problem of quadratic.h as the words say (argv[0] is
 * skipped; --help lists them) and writes to `out` what was measured beside what the strategy promised.
 * `plugin_folder` is where the built-in strategies are. EN_EINVAL, logged: a word that is none; else as
 * eni_sim_run. */
en_status eni_sim_cli(int argc, char **argv, const char *plugin_folder, FILE *out);

#endif
