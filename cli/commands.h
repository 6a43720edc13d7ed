/* commands.h - the sub-commands of `entrain`. Each takes its parsed configuration and returns a status that main
 * turns into the exit code: EN_OK 0, EN_EINVAL and EN_ENOENT 2, EN_EINTR 128 + signal, anything else 1.
 *
 *     main.c                        finds the sub-command, parses its flags, runs it
 *     elastic.c                     run: one launch or, with --elastic, a sequence of attempts
 *     compare.c, compare_past.h     compare: many runs, whose folders make a study
 *     trial.h                       one short run and its step time; for advise.c, check_ranks.c and scale.c
 *     eval.c, compute.h,            eval and predict: weights on a test set, in
 *       processes.h                 several forked processes
 *     find_run.h                    finds the run that is meant; for ps_stop.c, join_leave.c and newcomers.c
 *     gpu_list.h                    gpus
 *     list.c                        strategies, models, data, report
 *     sim_command.c                 sim
 *     conform_command.c             conform
 *     launcher/                     starts the processes of one run and ensures that none outlives it: launch.c (read
 *                                   this first), spawn.c, watch.c, relay.h (their messages), live.h, machine.h */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "config/config.h"
#include "entrain/status.h"
#include "plugin/hook.h"

typedef struct eni_command_context {
    const eni_config *config;
    const char *plugin_dir;
    eni_hook_guard *hooks; /* of this process */
    int signal_fd;         /* -1 for sim and conform, which never wait: a signal ends them */
    int argc;
    char **argv;
    const char *version; /* eni_version; only main may name it */
} eni_command_context;

en_status eni_command_run(const eni_command_context *context);        /* elastic.c */
en_status eni_command_compare(const eni_command_context *context);    /* compare.c */
en_status eni_command_check(const eni_command_context *context);      /* check_ranks.c */
en_status eni_command_report(const eni_command_context *context);     /* list.c */
en_status eni_command_eval(const eni_command_context *context);       /* eval.c; predict too */
en_status eni_command_strategies(const eni_command_context *context); /* list.c */
en_status eni_command_models(const eni_command_context *context);     /* list.c */
en_status eni_command_data(const eni_command_context *context);       /* list.c */
en_status eni_command_ps(const eni_command_context *context);         /* ps_stop.c */
en_status eni_command_stop(const eni_command_context *context);       /* ps_stop.c */
en_status eni_command_join(const eni_command_context *context);       /* join_leave.c */
en_status eni_command_leave(const eni_command_context *context);      /* join_leave.c */
en_status eni_command_advise(const eni_command_context *context);     /* advise.c */
en_status eni_command_scale(const eni_command_context *context);      /* scale.c */
en_status eni_command_gpus(const eni_command_context *context);       /* gpu_list.c */
en_status eni_command_sim(const eni_command_context *context);        /* sim_command.c */
en_status eni_command_conform(const eni_command_context *context);    /* conform_command.c */

#endif
