/* launch.h - starts the processes of one run on this host, watches them, and ends all of them when one fails.
 *
 * psd starts first if the strategy keeps its store on servers, then the workers. They inherit the listening
 * socket of the leader (so its address is known before any process starts, and no other can take the port in
 * between) and the job token; they die with the launcher. */
#ifndef CLI_LAUNCHER_LAUNCH_H
#define CLI_LAUNCHER_LAUNCH_H

#include <stdint.h>

#include "config/config.h"
#include "entrain/strategy.h"
#include "runtime/collective/probe.h"
#include "runtime/host/cost_model.h"

typedef struct eni_launch_progress {
    uint64_t samples, total;
    double rate, loss;
} eni_launch_progress;

enum { ENI_LAUNCH_CAUSE = 512 };

/* How far the run came, as reported by rank 0, and what ended it too early. */
typedef struct eni_launch_course {
    int64_t begun_ns; /* when training began; 0: it did not */
    uint64_t begun_steps, begun_samples, steps, samples;
    int64_t broken_ns; /* when the launcher first knew that it would end too early; 0: it did not */
    bool is_loss;      /* a worker or a psd died */
    int32_t lost;      /* workers that died */
    bool has_diverged; /* a process ended because a value was not finite */
    bool is_refused;   /* a program ended by the exit code of wrong use */
    int32_t asked;     /* it was asked to continue with this many workers (control/ask.h); 0: it was not */
    char why[ENI_LAUNCH_CAUSE]; /* "3 workers were asked for (entrain join)" */
} eni_launch_course;

typedef struct eni_launch_outcome {
    double outside; /* share of all cores that other processes took; NAN: not known (machine.h) */
    double load;    /* the load average before; negative: not known */
    /* why it failed, by the first error's text; "": it did not fail, or no process said why */
    char cause[ENI_LAUNCH_CAUSE];
    eni_launch_course course;
} eni_launch_outcome;

/* Measured by the workers of a check (worker/measure.c): the slowest rank's curves, and the mean over ranks
 * of the rest. */
typedef struct eni_measured {
    eni_cost_curve call, allreduce; /* seconds by bytes */
    double sent;                    /* bytes that a rank sends in the largest all-reduce */
    double move, sum; /* seconds per byte loaded or stored by a core while all copy; per byte added */
    double compute;   /* seconds of a micro-batch, forward and backward, until the slowest has done it */
    double update;    /* seconds of one step of the optimizer over all weights */
    int nbuckets;     /* rank 0's, as in cost_model.h */
    double bytes[ENI_COST_BUCKETS], ready[ENI_COST_BUCKETS];
} eni_measured;

typedef struct eni_launch {
    const eni_config *config; /* of `entrain run`: workers, strategy, .. */
    const char *plugin_dir;
    int signal_fd;                                                        /* SIGINT and SIGTERM; -1: none */
    void (*on_progress)(void *user, const eni_launch_progress *progress); /* or NULL */
    void *user;
    bool has_gpus;     /* the caller has checked that this host has the GPU of --device (eni_gpu_here) */
    int out_fd;        /* the folder of --out, already locked (config/outputs.h); 0: not locked */
    int data_fd;       /* a memfd: the ranks find the data set there or leave it there; 0: none */
    bool may_go_on;    /* a death is not yet an error: the caller may start the run again and reports it */
    const char *takes; /* the numbers of workers it may be asked for, "2..8:64"; NULL: fixed */
    bool is_check;     /* the workers only join, test the exchange, and leave */
    const char *probe; /* with is_check: what they measure, as worker's --probe; NULL: nothing */
    eni_measured *measured;      /* with probe: zeros, and then the results */
    eni_launch_outcome *outcome; /* filled however the run ends; or NULL */
} eni_launch;

/* Blocks until every process has ended. EN_OK; EN_ESTOP, reported, when --resume=auto finds a finished run in
 * --out; EN_EINTR after a signal; EN_EINVAL when the first process that failed ended with 2; EN_ENONFINITE when
 * training has diverged; EN_EPEER otherwise, with the cause logged. Nothing is left behind. */
en_status eni_launch_run(const eni_launch *launch);

/* EN_EINVAL, logged: flags about servers that conflict with each other or with this strategy. */
en_status eni_servers_check(const eni_config *config, const en_strategy *strategy);

/* Merges the traces of a run into PATH: rank 0's, which is PATH, PATH.rank1 .., PATH.psd and PATH.psd1 ..,
 * and removes the parts. A missing part is not an error. */
en_status eni_merge_trace(const char *path, int nranks, int nservers);

/* Checks that this host has the GPUs that the workers of a run will use, before any worker starts. EN_OK for
 * another device. EN_EINVAL, logged with the remedy: no CUDA in this build, no driver, no such GPU, or too
 * few. EN_EINTR: a signal is pending in signal_fd (-1: none) and stays there.
 *
 * A child process checks, because CUDA does not survive a fork and the launcher forks. */
en_status eni_gpu_here(const eni_config *run, const char *plugin_dir, int signal_fd);

#endif
