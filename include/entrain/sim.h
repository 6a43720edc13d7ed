/* sim.h - your own gradient under any strategy, on as many simulated workers as you like, in virtual time.
 *
 *     en_sim_problem problem = {.abi = EN_SIM_ABI, .size = sizeof problem, .count = n, .init = w0, .grad = mine};
 *     const char *const settings[] = {"strategy=ssp:bound=3", "workers=64", "steps=1000", "lr=0.1", "sigma=0.5"};
 *     en_sim_open(&problem, settings, 5, NULL, &sim);
 *     en_sim_run(sim);
 *     en_sim_result_of(sim)->weights ..
 *     en_sim_close(sim);
 *
 * The strategy is the very plugin that runs on real workers, and so are means, optimizer and parameter server.
 * Only time is made up: a gradient takes what step-ms, sigma and straggler say, a message what net says. So a
 * run is a function of its problem and settings: the same weights and the same log, on every machine.
 * docs/virtual-time.md explains it by examples; `entrain sim --help=all` lists the settings.
 *
 * Threads: a run belongs to one thread, which also makes the callbacks; several runs may go on in several
 * threads. No thread, process, signal handler or file outlives a call.
 *
 * Errors: a call that fails has logged one sentence, which en_sim_why repeats. Log lines go to `log`, else
 * to stderr.
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

/* The problem to train. Everything is borrowed from en_sim_open until en_sim_close, but for `tensors`. */
typedef struct en_sim_problem {
    uint32_t abi;  /* EN_SIM_ABI */
    uint32_t size; /* sizeof(en_sim_problem) */

    uint64_t count;    /* weights, in one vector; at least 1 */
    const float *init; /* (count) initial weights of all ranks */
    uint64_t samples;  /* of each micro-batch; 0: 1 */
    const uint64_t
        *tensors; /* (ntensors) weights of each parameter, in order; they add up to count. Buckets end
                              * at their edges, as PyTorch's do. NULL: one parameter */
    uint32_t ntensors;

    /* Overwrites grad (count) with the gradient of the mean loss over a micro-batch at param (count). It must be
     * a function of (micro_batch, param) alone; `rank` says whose turn it is. Anything but EN_OK ends the run with
     * that status. */
    en_status (*grad)(void *user, int32_t rank, uint64_t micro_batch, const float *param, float *grad);

    /* Called with the model that the strategy's paper evaluates (count): at the start, each time that eval_every
     * samples more have been computed, and at the end. samples: computed so far, by all ranks. NULL: never;
     * eval_every 0: at the start and at the end. Anything but EN_OK ends the run with that status. */
    en_status (*eval)(void *user, uint64_t samples, int64_t virtual_ns, const float *param);
    uint64_t eval_every;

    void *user; /* of both */
} en_sim_problem;

/* Where things are; NULL in its place: all defaults. */
typedef struct en_sim_options {
    uint32_t size; /* sizeof(en_sim_options) */
    const char
        *plugins; /* the folder of strategies; NULL: beside this library, in plugins/ of a build folder or
                          * ../libexec/entrain/plugins of an installed one */

    /* Takes the log lines of the whole process from now on, instead of stderr; any thread, must not block.
     * level 0 error .. 4 trace; `text` is valid during the call. NULL: as it was. */
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
    uint64_t pushes, holds, applied, dropped; /* pushes of partitions; answers that were held back; samples of
                                               * pushes that a server applied and did not */
    uint64_t sent, received;                  /* payload bytes, of all ranks */
    const uint64_t *rank_steps, *rank_samples; /* (nranks) */
    const uint64_t *staleness; /* (nstaleness) pushes by staleness, while all ranks were active */
    uint64_t nstaleness;
    double staleness_mean;
    double theory_staleness;             /* what the strategy promises of this run; NAN: nothing */
    double theory_sent, theory_received; /* of the model's bytes, per step and rank; NAN: nothing */
    int32_t has_equal_ranks;             /* 1: the weights of all ranks have the same bytes */
} en_sim_result;

typedef struct en_sim en_sim;

/* Reads the settings ("lr=0.1": a flag of `entrain sim` without its dashes; "nesterov" alone: on) and finds the
 * strategy. Settings that belong to the command (json, events, storm, config ..) are refused.
 *
 * Success: *sim_out is the caller's, to be closed. Failure: NULL. EN_EVERSION: the library has another abi.
 * EN_EINVAL: a setting, with the nearest one named, or the problem. EN_ENOENT: no such strategy, or no folder of
 * strategies. EN_ENOMEM. */
EN_SIM_API en_status en_sim_open(const en_sim_problem *problem, const char *const *settings, size_t nsettings,
                                 const en_sim_options *options, en_sim **sim_out);

/* Runs it, once: blocks for as long as the callbacks take. EN_OK; what a callback returned; EN_ENONFINITE: a
 * gradient has a value that is not finite (rank, micro-batch and element are named); EN_EBUG: the callback wrote
 * beyond its gradient, or the strategy broke its contract; EN_ETIMEOUT: ranks wait for each other without end, and
 * who for what; EN_EINVAL: run twice, or the strategy cannot run like this. */
EN_SIM_API en_status en_sim_run(en_sim *sim);

/* After a run that ended with EN_OK, else NULL. Valid until en_sim_close. */
EN_SIM_API const en_sim_result *en_sim_result_of(const en_sim *sim);

/* The sentence of the last error of this process, cut off at `bytes`; "" if there was none. Any thread. */
EN_SIM_API void en_sim_why(char *text_out, size_t bytes);

/* NULL is fine. */
EN_SIM_API void en_sim_close(en_sim *sim);

#ifdef __cplusplus
}
#endif
#endif
