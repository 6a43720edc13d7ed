/* trial.h - one short real run as `entrain run` makes it, for the commands that time runs. */
#ifndef CLI_TRIAL_H
#define CLI_TRIAL_H

#include "cli/commands.h"
#include "runtime/host/costs.h"

typedef struct eni_trial {
    const char *strategy;   /* "ring", "ps-sync:.." */
    int64_t workers, batch; /* batch: per worker */
    int64_t servers;        /* 0: as the command says */
    int64_t threads;        /* 0: as the command says */
} eni_trial;

/* Runs in `dir`, which is made if it is not there and gets result.json and what else a run leaves. What comes
 * out: the samples per second of all workers together, after the warm-up, and the seconds of a step. As
 * eni_launch_run; EN_EINVAL, logged, also when the result has no rate. */
en_status eni_trial_run(const eni_command_context *context, const eni_trial *trial, const char *dir,
                        double *samples_s_out, double *step_out);

/* Before the first of several: what their flags say that this one cannot do is refused. EN_EINVAL, logged. */
en_status eni_trial_check(const eni_command_context *context, const eni_trial *trial);

/* A folder of our own in /tmp, and its removal with the runs in it. */
en_status eni_trial_folder(char dir_out[64]);
void eni_trial_remove(const char *dir);

/* ---- the smallest job that uses everything, and what it measures when asked ---- */

typedef struct eni_check_job {
    int64_t workers, shards;
    const char *strategy, *device; /* NULL: ps-sync, ref */
    int64_t backend;               /* ENI_BACKEND_* */
    const char *model;             /* whose buckets are exchanged */
    const char *transport;         /* "auto", "tcp" */
    const char *net;               /* NULL: as it is */
    eni_costs *costs;              /* what the exchange of a bucket takes; NULL: not asked */
} eni_check_job;

/* The workers join, add known numbers up over the all-reduce and in a step of the strategy, print a line each
 * unless `costs` is asked for, and leave. As eni_launch_run. */
en_status eni_check_run(const eni_command_context *context, const eni_check_job *job);

#endif
