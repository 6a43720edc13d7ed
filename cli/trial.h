/* trial.h - one short real run as `entrain run` makes it, for the commands that time runs. */
#ifndef CLI_TRIAL_H
#define CLI_TRIAL_H

#include "cli/commands.h"
#include "cli/launcher/live.h"
#include "cli/launcher/machine.h"
#include "runtime/host/cost_model.h"

typedef struct eni_trial {
    const char *strategy;   /* "ring", "ps-sync:.." */
    int64_t workers, batch; /* batch: per worker */
    int64_t servers;        /* 0: as the command says */
    int64_t threads;        /* 0: as the command says */
} eni_trial;

/* Before the first of several: what their flags say that this one cannot do is refused. EN_EINVAL, logged. */
en_status eni_trial_check(const eni_command_context *context, const eni_trial *trial);

/* ---- several, shown while they run, and judged: is the machine quiet enough for a conclusion? ---- */

#define ENI_TRIAL_SPREAD 0.20 /* of the median: runs of one kind that differ by more are no basis */

typedef struct eni_trials {
    eni_live live; /* a line for each kind */
    eni_machine before;
    double spread; /* the widest so far, (most - least) / median */
} eni_trials;

void eni_trials_begin(eni_trials *trials, bool is_quiet);

/* Runs in `dir`, which is made if it is not there and gets result.json and what else a run leaves; it is one of the runs
 * of `line` of `live` (-1: of none). What comes out: the samples per second of all workers together, after the
 * warm-up, and the seconds of a step. As eni_launch_run; EN_EINVAL, logged, also when the result has no rate. */
en_status eni_trials_run(eni_trials *trials, int line, const eni_command_context *context,
                         const eni_trial *trial, const char *dir, double *samples_s_out, double *step_out);

/* What runs of one kind gave, in any unit. Reorders `values`. */
void eni_trials_note(eni_trials *trials, double *values, size_t n);

/* Whether nothing may be concluded, and then one sentence with the reason and the remedy. `outside`: as compare judges
 * its runs (launcher/machine.h), since eni_trials_begin. */
bool eni_trials_doubt(const eni_trials *trials, double outside, char *text_out, size_t size);
double eni_trials_outside(const eni_trials *trials);

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
    const char *allreduce;         /* NULL: auto */
    const char *net;               /* NULL: as it is */
    const char *probe;             /* what they measure, as worker's --probe; NULL: nothing */
    eni_measured *measured;
    bool is_here; /* on this host, whatever the command says of others */
} eni_check_job;

/* The workers join, add known numbers up over the all-reduce and in a step of the strategy, print a line each
 * or measure, and leave. As eni_launch_run. */
en_status eni_check_run(const eni_command_context *context, const eni_check_job *job);

/* Such a job of n workers on this host, which measures `probe` by that all-reduce (NULL: auto) over "auto" or "tcp", and
 * the network `net` (NULL: as it is). */
en_status eni_check_measure(const eni_command_context *context, int n, const char *allreduce,
                            const char *transport, const char *net, const char *probe,
                            eni_measured *measured_out);

/* A micro-batch of the command's model while n workers compute one at once and wait for each other after it, each with
 * `threads` threads. */
en_status eni_check_compute(const eni_command_context *context, int n, int64_t threads,
                            eni_measured *measured_out);

/* Measures the constants of cost_model.h between two ranks of this host: for direct, the latency of a flag and the seconds
 * per byte that a core moves; for TCP, both of a hop. gamma is in beta: both are work of the same core. */
en_status eni_check_numbers(const eni_command_context *context, int cores, double *flag_out, double *move_out,
                            eni_cost_numbers *tcp_out);

#endif
