/* trial.h - one short real run, made as by `entrain run`, for the commands that time runs. */
#ifndef CLI_TRIAL_H
#define CLI_TRIAL_H

#include "cli/commands.h"
#include "cli/launcher/live.h"
#include "cli/launcher/machine.h"
#include "runtime/host/cost_model.h"

typedef struct eni_trial {
    const char *strategy;   /* "ring", "ps-sync:.." */
    int64_t workers, batch; /* batch: per worker */
    int64_t servers;        /* 0: as the command's flags say */
    int64_t threads;        /* 0: as the command's flags say */
} eni_trial;

/* Refuses, before the first of several trials, flags that this one cannot follow. EN_EINVAL, logged. */
en_status eni_trial_check(const eni_command_context *context, const eni_trial *trial);

/* ---- several trials: shown while they run, and judged: is the machine quiet enough for a conclusion? ---- */

#define ENI_TRIAL_SPREAD 0.20 /* of the median; runs of one kind that differ by more support no conclusion */

typedef struct eni_trials {
    eni_live live; /* a line for each kind */
    eni_machine before;
    double spread; /* the widest so far, (most - least) / median */
} eni_trials;

void eni_trials_begin(eni_trials *trials, bool is_quiet);

/* Runs in `dir`, which is created if it is absent and gets result.json and the run's other files; it is one
 * of the runs of `line` of `live` (-1: of none). Returns the samples per second of all workers together,
 * after the warm-up, and the seconds of a step. Errors as eni_launch_run; EN_EINVAL, logged, also when the
 * result has no rate. */
en_status eni_trials_run(eni_trials *trials, int line, const eni_command_context *context,
                         const eni_trial *trial, const char *dir, double *samples_s_out, double *step_out);

/* Adds the results of runs of one kind, in any unit. Reorders `values`. */
void eni_trials_note(eni_trials *trials, double *values, size_t n);

/* Whether no conclusion may be drawn, and then one sentence with the reason and the remedy. `outside`: as
 * compare judges its runs (launcher/machine.h), since eni_trials_begin. */
bool eni_trials_doubt(const eni_trials *trials, double outside, char *text_out, size_t size);
double eni_trials_outside(const eni_trials *trials);

/* A private folder in /tmp, and its removal with the runs in it. */
en_status eni_trial_folder(char dir_out[64]);
void eni_trial_remove(const char *dir);

/* ---- the smallest job that uses every part, and its measurements on request ---- */

typedef struct eni_check_job {
    int64_t workers, shards;
    const char *strategy, *device; /* NULL: ps-sync, ref */
    int64_t backend;               /* ENI_BACKEND_* */
    const char *model;             /* the model whose buckets are exchanged */
    const char *transport;         /* "auto", "tcp" */
    const char *allreduce;         /* NULL: auto */
    const char *net;               /* NULL: not emulated */
    const char *probe;             /* what they measure, as worker's --probe; NULL: nothing */
    eni_measured *measured;
    bool is_here; /* on this host only, whatever the command says of others */
} eni_check_job;

/* The workers join, sum known numbers by the all-reduce and by a step of the strategy, print a line each or
 * measure, and leave. Returns as eni_launch_run. */
en_status eni_check_run(const eni_command_context *context, const eni_check_job *job);

/* Runs such a job with n workers on this host; they measure `probe` with that all-reduce (NULL: auto) over
 * "auto" or "tcp", and the network `net` (NULL: not emulated). */
en_status eni_check_measure(const eni_command_context *context, int n, const char *allreduce,
                            const char *transport, const char *net, const char *probe,
                            eni_measured *measured_out);

/* Times a micro-batch of the command's model while n workers, with `threads` threads each, compute one at
 * once and then wait for each other. */
en_status eni_check_compute(const eni_command_context *context, int n, int64_t threads,
                            eni_measured *measured_out);

/* Measures the constants of cost_model.h between two ranks of this host: for direct, the latency of a flag
 * and the seconds per byte that a core moves; for TCP, both of a hop. gamma is part of beta: the same core
 * does both. */
en_status eni_check_numbers(const eni_command_context *context, int cores, double *flag_out, double *move_out,
                            eni_cost_numbers *tcp_out);

#endif
