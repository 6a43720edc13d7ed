/* sim.h - your own gradient under any strategy, on as many simulated workers as you like, in virtual time.
 *
 *     en_sim_problem problem = {.abi = EN_SIM_ABI, .size = sizeof problem, .count = n, .init = w0, .grad = mine};
 *     const char *const settings[] = {"strategy=ssp:bound=3", "workers=64", "steps=1000", "lr=0.1", "compute=exp:10ms"};
 *     en_sim_open(&problem, settings, 5, NULL, &sim);
 *     en_sim_run(sim);
 *     en_sim_result_of(sim)->weights ..
 *     en_sim_close(sim);
 *
 * Strategy, means, optimizer and parameter server are the same code as on real workers. Only time is simulated:
 * compute and straggler determine the time of a gradient, net that of a message, server-time that of a server's
 * work on it. So a run is a function of its problem and settings: the same weights and the same log, on every machine.
 * docs/virtual-time.md explains it by examples; `entrain sim --help=all` lists the settings.
 *
 * Threads: a run belongs to one thread, which also makes the callbacks; several runs may go on in several
 * threads. No thread, process, signal handler or file outlives a call. A callback returns (no longjmp, no exception of
 * C++); it may open and run others, but not close its own run.
 *
 * Errors: a call that fails has logged one sentence, on its thread, which en_sim_why repeats: with runs in several
 * threads, that of the last one. Log lines go to `log`, else to stderr.
 *
 * Growth: `abi` is the major version, `size` the minor; structs only grow at their end, and zero always means
 * the default. Set a whole struct to zero first, then what you need. */
#ifndef ENTRAIN_SIM_H
#define ENTRAIN_SIM_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EN_SIM_ABI 1u

#if defined(__GNUC__)
#define EN_SIM_API __attribute__((visibility("default")))
#else
#define EN_SIM_API
#endif

/* The training problem. Everything is borrowed from en_sim_open until en_sim_close, except `tensors`. */
typedef struct en_sim_problem {
    uint32_t abi;  /* EN_SIM_ABI */
    uint32_t size; /* sizeof(en_sim_problem) */

    uint64_t count;    /* weights, in one vector; at least 1 */
    const float *init; /* (count) initial weights of all ranks */
    uint64_t samples;  /* of each micro-batch, at most 2^31; 0: 1 */
    /* (ntensors) sizes of the parameters, in order; they add up to count. Buckets end at their edges, as PyTorch's do.
     * NULL: one parameter. */
    const uint64_t *tensors;
    uint32_t ntensors;

    /* Overwrites all of grad (count) with the gradient of the mean loss over a micro-batch at param (count). It must be
     * a function of (micro_batch, param) alone; `rank` is the rank that computes. Anything but EN_OK ends the run with
     * that status. */
    en_status (*grad)(void *user, int32_t rank, uint64_t micro_batch, const float *param, float *grad);

    /* Called with the model that the strategy's paper evaluates (count): at the start, each time that eval_every
     * samples more have been computed, and at the end. samples: computed so far, by all ranks. NULL: never;
     * eval_every 0: at the start and at the end. Anything but EN_OK ends the run with that status. */
    en_status (*eval)(void *user, uint64_t samples, int64_t virtual_ns, const float *param);
    uint64_t eval_every;

    void *user; /* of both */
} en_sim_problem;

/* Options of the library; NULL: all defaults. */
typedef struct en_sim_options {
    uint32_t size; /* sizeof(en_sim_options) */
    /* The folder of strategies; NULL: beside this library, plugins/ in a build folder or ../libexec/entrain/plugins
     * in an installation. */
    const char *plugins;

    /* Takes the log lines of the whole process from now on, instead of stderr; any thread, must not block.
     * level 0 error .. 4 trace; `text` is valid during the call. log_user must live until another open names
     * another log, or the process ends. NULL: unchanged. */
    void (*log)(void *user, int level, const char *subsystem, const char *text);
    void *log_user;
} en_sim_options;

/* Counts and times of a run. Arrays are the library's, until en_sim_close. Payloads: gradients and weights. */
typedef struct en_sim_result {
    uint32_t size; /* sizeof(en_sim_result) as the library knows it */
    int32_t nranks;
    const float *weights;                    /* (count) the model that the strategy's paper evaluates */
    char weights_sha256[65], log_sha256[65]; /* of these; of all events, with their times */
    int64_t virtual_ns;                      /* when the last rank ended */
    uint64_t events;                         /* of the queue */
    uint64_t updates; /* steps of the servers, each partition counted; 0 without servers */
    uint64_t samples; /* computed */
    /* Pushes of partitions; held answers; samples of pushes that a server applied, and dropped. */
    uint64_t pushes, holds, applied, dropped;
    uint64_t sent, received;                   /* payload bytes, of all ranks */
    const uint64_t *rank_steps, *rank_samples; /* (nranks) */
    const uint64_t *staleness; /* (nstaleness) pushes by staleness, while all ranks were active */
    uint64_t nstaleness;
    double staleness_mean;
    double theory_staleness;             /* the strategy's promise for this run; NAN: none */
    double theory_sent, theory_received; /* in models per step and rank; NAN: no promise */
    int32_t has_equal_ranks;             /* 1: the weights of all ranks have the same bytes */
} en_sim_result;

typedef struct en_sim en_sim;

/* Reads the settings ("lr=0.1": a flag of `entrain sim` without its dashes; of one given twice the last holds, but
 * straggler, join and leave add up) and finds the strategy. Settings that belong to the command (json, events, storm,
 * config ..) are refused.
 *
 * Success: *sim_out is the caller's, to be closed. Failure: NULL. EN_EVERSION: the library has another abi.
 * EN_EINVAL: a setting, with the nearest one named, the problem or the options. EN_ENOENT: no such strategy, no folder of
 * strategies, or no file or run that `compute` names; EN_EIO: it cannot be read. EN_EVERSION, EN_EFORMAT,
 * EN_EUNSUPPORTED: a plugin that cannot be loaded. EN_ENOMEM. */
EN_SIM_API en_status en_sim_open(const en_sim_problem *problem, const char *const *settings, size_t nsettings,
                                 const en_sim_options *options, en_sim **sim_out);

/* Runs it, once: blocks for as long as the callbacks take. EN_OK; what a callback returned; EN_ENONFINITE: a
 * gradient has a value that is not finite (rank, micro-batch and element are logged); EN_EBUG: the callback wrote
 * beyond its gradient or did not write all of it, or the strategy broke its contract; EN_ETIMEOUT: ranks wait for each
 * other in a deadlock (logged with what each waits for), or 100 million events brought no gradient; EN_EINVAL: run twice,
 * the strategy cannot run with these settings, or 36 years of virtual time have passed; EN_ENOMEM. */
EN_SIM_API en_status en_sim_run(en_sim *sim);

/* After a run that ended with EN_OK, else NULL. Valid until en_sim_close. */
EN_SIM_API const en_sim_result *en_sim_result_of(const en_sim *sim);

/* The message of the last error of this process, truncated to `bytes`; "" without an error. Any thread. */
EN_SIM_API void en_sim_why(char *text_out, size_t bytes);

/* NULL is fine. */
EN_SIM_API void en_sim_close(en_sim *sim);

#ifdef __cplusplus
}
#endif
#endif
