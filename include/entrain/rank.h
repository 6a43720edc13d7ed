/* rank.h - a program of your own as one rank of a run: gradients in, weights out, under any strategy.
 *
 *     const char *const settings[] = {"strategy=ssp:bound=2", "server=tcp://127.0.0.1:5555", "world-size=2", "rank=0",
 *                                     "batch-size=32", "epochs=3", "lr=0.05"};
 *     en_rank_open(&options, settings, 7, &rank);            joins; every rank has rank 0's weights and memories
 *     while ((st = en_rank_next(rank, &batch)) == EN_OK && (st = en_rank_begin(rank, batch.count)) == EN_OK) {
 *         ...                                                the gradient of the mean loss over batch.samples; as soon as
 *         en_rank_ready(rank, tensor);                       a tensor's is complete and nobody reads its weights any more
 *         en_rank_finish(rank, &score);                      now the weights are those of the next step
 *     }
 *     en_rank_end(rank);                                     after EN_ESTOP: evaluates, reports, says goodbye
 *     en_rank_close(rank);
 *
 * Strategy, exchange, records and checkpoints are those of the program `worker`: the same code and the same bytes.
 * Start a program once for each rank, with a rank and a world-size each. For strategies that keep their weights on servers
 * also start `entrain psd --strategy=.. --world-size=..`; the ranks of the others meet at `rendezvous` (init-method), where
 * rank 0 listens. examples/rank/rank_line.c is a whole program.
 *
 * Settings are the flags of `worker` without their dashes ("lr=0.1", "nesterov"), except those about its networks, data sets
 * and devices. They must be equal on all ranks where `worker`'s must, and so must the tensors and the data: the ranks
 * compare them when they meet, and name the first that differs. The environment is only read with EN_RANK_ENVIRONMENT;
 * settings override it.
 *
 * Threads: one call at a time, from any thread (a second one is refused), but en_rank_status, en_rank_stop and en_rank_abort at any time from any.
 * A rank has threads of its own, which block all signals and call nothing of the program but `log`. No signal handler is
 * installed, and no call ends the process. A process has one rank at a time. In a child made by fork, all calls but
 * en_rank_close are refused (EN_EBUG), and that does nothing.
 *
 * Waiting: a call waits as long as its peers live, for however long they compute. It ends with EN_EPEER when another process
 * of the run dies (at once if the process ends, after peer-timeout if its host falls silent) or calls en_rank_abort.
 *
 * Errors: every cause is logged once, in one sentence, where it is first detected. EN_EINVAL changes nothing, and the rank
 * goes on. After any other status but EN_OK and EN_ESTOP the run has failed for all ranks: further calls return the same
 * status, and only en_rank_close is left to do.
 *
 * Output: log lines, progress and a summary as the program `worker`'s, or with `log` the log lines alone, which go there.
 * Files only in the folders that settings name (out, save, checkpoint-dir ..).
 *
 * Growth: `abi` is the major version, `size` the minor; structs that have it only grow at their end, and zero always means the
 * default. So zero a whole struct first, then set the fields you need. */
#ifndef ENTRAIN_RANK_H
#define ENTRAIN_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"
#include "entrain/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define EN_RANK_ABI 1u

#if defined(__GNUC__)
#define EN_RANK_API __attribute__((visibility("default")))
#else
#define EN_RANK_API
#endif

enum { EN_RANK_DIMS = 8 };   /* most dimensions of a shape */
enum { EN_RANK_NAME = 200 }; /* longest name of a tensor, in bytes */
enum { EN_RANK_AHEAD = 64 }; /* most batches handed out and not begun */

/* Flags. */
enum {
    /* Reads what `entrain run .. -- PROGRAM` tells (it wins over the program's own settings); else ENTRAIN_TOKEN_FILE,
     * XDG_RUNTIME_DIR and the variables of torchrun, Slurm, Open MPI, MPICH and MVAPICH2: rank, world size, and where the
     * ranks meet. */
    EN_RANK_ENVIRONMENT = 1,
    /* The program never writes to its weights: ranks of one host may read one copy (a write is then SIGSEGV). It must be the
     * same on all ranks. Without it each rank has a copy of its own, which the program may change between two steps: the
     * strategies that step in the ranks go on from there (EN_REPLICATED ones need the same on all ranks); those that step
     * on servers replace it. */
    EN_RANK_READS_WEIGHTS = 2,
    EN_RANK_HAS_ACCURACY = 4, /* en_rank_score.accuracy is set, and `evaluate` gives one */
    /* The program's own optimizer: after en_rank_finish the gradients are the mean over all ranks, the weights are as before,
     * and the program steps, on all ranks alike, before it calls en_rank_begin or en_rank_end again. For strategies whose ranks
     * step with the mean (ring), and solo, where every W-th call of en_rank_finish with accumulate=W has a mean; with
     * options.step also for those whose ranks step with their own gradient (local-sgd). Checkpoints are refused: they would
     * lack its state. */
    EN_RANK_STEPS_ITSELF = 8
};

/* A tensor's own rates, as those of a parameter group in PyTorch. */
typedef struct en_rank_rates {
    float lr_factor;    /* times the run's rate */
    float weight_decay; /* instead of the setting's */
} en_rank_rates;

typedef struct en_rank_tensor {
    uint32_t size; /* sizeof(en_rank_tensor) */
    uint32_t reserved;
    const char *name; /* not empty, at most EN_RANK_NAME bytes, no two alike; as in PyTorch's state_dict */
    uint64_t shape[EN_RANK_DIMS]; /* ends at the first 0; {0}: a single number */
    const float *initial;         /* (count) initial values; only rank 0's are used. NULL: zeros */
    /* NULL: the run's. At most 15 different ones; equal on all ranks, and in a resumed run. */
    const en_rank_rates *rates;
    /* In which order its elements lie in memory, here and in weights, gradients and `evaluate`: dimensions from the outermost
     * to the innermost, such as {0, 2, 3, 1} for PyTorch's channels_last. All 0: row-major. Equal on all ranks. Files have
     * all tensors row-major: a resumed run may have another order. */
    uint8_t order[EN_RANK_DIMS];
} en_rank_tensor;

/* Flags of a memory. */
enum {
    EN_MEMORY_EACH = 1
}; /* each rank has its own, such as a generator; else rank 0's count, as of running statistics */

/* Bytes of the program that belong to a checkpoint beside the weights: running statistics, counters, generators, scalers. All
 * ranks declare the same ones. A run begins with rank 0's on all ranks (those of EN_MEMORY_EACH stay as they are), a resumed
 * one with the saved ones, which are rank 0's, or each rank's own. The final ones are saved with the weights (`save`), and
 * result.json has their hash (buffers_sha256). With bn-stats=mean the mean over ranks of those that are EN_F32 counts. */
typedef struct en_rank_memory {
    uint32_t size; /* sizeof(en_rank_memory) */
    uint32_t flags;
    uint32_t dtype; /* EN_F32 (finite numbers), EN_I64 .. of entrain/tensor.h; EN_U8 for any bytes */
    uint32_t reserved;
    const char *name; /* as of a tensor, and other than all tensors' */
    uint64_t shape[EN_RANK_DIMS];
    /* (count) elements, the program's until en_rank_close. It changes them before the first step, and as a part of a step: from
     * en_rank_begin to en_rank_finish. The library reads them in en_rank_begin, en_rank_finish and en_rank_end, and writes them in en_rank_open;
     * during `evaluate` they are those that belong to its weights. */
    void *data;
    uint8_t order[EN_RANK_DIMS]; /* as a tensor's */
} en_rank_memory;

/* How well the weights do: on the batch of a step, or on the set that `evaluate` chooses. */
typedef struct en_rank_score {
    uint32_t size; /* sizeof(en_rank_score) */
    uint32_t reserved;
    double loss;     /* mean over the samples */
    double accuracy; /* share of them, 0 to 1, that are right; with EN_RANK_HAS_ACCURACY only */
} en_rank_score;

/* Everything is read during en_rank_open only, except the callbacks, `user`, and the data of memories, which it keeps. */
typedef struct en_rank_options {
    uint32_t abi;  /* EN_RANK_ABI */
    uint32_t size; /* sizeof(en_rank_options) */
    uint32_t flags;
    /* In the order of forward: the gradient of the last one is complete first. */
    uint32_t ntensors;
    const en_rank_tensor *tensors;
    uint64_t train_samples; /* of the data set, 1 to 2^32 - 1: batches are indices below it */

    /* For records and reports, and, but for `computes`, compared between ranks. NULL: "program", "data", not known. */
    const char *model, *data, *data_sha256;
    const char *computes; /* "torch 2.15.0, cpu, 1 thread" */
    const char *plugins;  /* the folder of strategies; NULL: beside this library, as entrain/sim.h says */

    /* Rank 0, inside en_rank_open, en_rank_finish and en_rank_end: loss (and accuracy) of these weights on the set that the
     * run is judged by, off the clock of the run. weights: (ntensors) pointers to (count), the program's to read until it
     * returns. Anything but EN_OK ends the run with that status (EN_EBUG for EN_ESTOP, EN_EINVAL and EN_EMEMBER, after which
     * a run goes on). It makes no call of this header on the rank. NULL: never. */
    en_status (*evaluate)(void *user, const float *const *weights, en_rank_score *score_out);

    /* Takes the log lines of the whole process from now on, instead of stderr; any thread, must not block. level 0 error ..
     * 4 trace; `text` is valid during the call. `user` must live until another rank names another log, or the process ends.
     * NULL: unchanged. */
    void (*log)(void *user, int level, const char *subsystem, const char *text);
    void *user; /* of all callbacks */

    uint32_t nmemories, reserved;
    const en_rank_memory *memories;

    /* The file whose contents make the program what it is, for records: a script. NULL: the executable of this process. */
    const char *program;

    /* NULL: none. A schedule of the program's own: the factor of the rate in step `step` of the run, which lies in epoch
     * `epoch` (both from 0); 0 to 1e6, else en_rank_open fails. A function of these alone, and the same one on all ranks,
     * since en_rank_open reads it on the caller's thread, step by step, up to 4 million steps, wherever the weights are
     * stepped. Between two steps, as those of an asynchronous strategy may be, the rate changes in a straight line. Not
     * with EN_RANK_STEPS_ITSELF. */
    double (*schedule)(void *user, uint64_t step, uint64_t epoch);

    /* With EN_RANK_STEPS_ITSELF, inside en_rank_ready and en_rank_finish: the gradients of tensors [first, first +
     * ntensors) are complete (their mean, or under a strategy with local steps this rank's own); the program steps the
     * weights of these, and of no others. Anything but EN_OK ends the run, as for `evaluate`. It makes no call of this
     * header on the rank. NULL: the program steps them all after en_rank_finish, and strategies with local steps are
     * refused. */
    en_status (*step)(void *user, uint32_t first, uint32_t ntensors);
} en_rank_options;

/* The run, as settings and the meeting have made it. Texts are the library's, until en_rank_close. */
typedef struct en_rank_facts {
    uint32_t size; /* sizeof(en_rank_facts) as the library knows it */
    int32_t rank, nranks;
    int32_t local_rank, nlocal; /* among those of this host */
    int32_t is_claiming; /* 1: the next free rank takes the next batch; 0: batches are assigned by rank */
    uint64_t seed;
    uint64_t batch, global_batch; /* samples of a whole batch of one rank, and of a whole step */
    uint64_t samples, steps;      /* the budget, over all ranks */
    uint64_t first_step;          /* above 0: the run was resumed there */
    double lr;                    /* before its schedule */
    const char *strategy, *strategy_options;
    const char *out; /* the folder of the run; NULL: none */
} en_rank_facts;

/* It lies in the program's memory, so it does not grow. */
typedef struct en_rank_batch {
    uint64_t number, epoch; /* of the batch, over all ranks and the whole run; both from 0 */
    /* At most facts.batch. 0, in a short step at the end of an epoch: the rank has nothing to compute, and takes part all the
     * same, by begin and finish. */
    uint64_t count;
    const uint32_t *samples; /* (count) indices; the library's, until the next en_rank_next */
} en_rank_batch;

typedef struct en_rank en_rank;

/* A setting of the program's own, which `entrain run --set.NAME=VALUE .. -- PROGRAM`, or an arm of `entrain compare`, gives:
 * copies VALUE, truncated to `bytes`, and returns its length; -1: it is not given. Reads the environment, at any time: the
 * tensors may depend on it. */
EN_RANK_API int en_rank_setting(const char *name, char *text_out, size_t bytes);

/* Joins the run: blocks until all ranks are there, join-timeout (60 s) at most, and have rank 0's weights and memories, or those
 * of the checkpoint that `resume` names.
 *
 * Success: *rank_out is the caller's, to be closed. Failure: NULL. EN_EVERSION: the library has another abi, or a rank or psd
 * another protocol. EN_EINVAL: a setting, with the nearest one named, or the options. EN_ENOENT: no such strategy, folder of
 * strategies or file. EN_EMISMATCH: ranks that differ; both values are logged. EN_EDENIED: another token. EN_ETIMEOUT:
 * ranks are missing. EN_EPEER: a process died meanwhile. EN_ESTOP: `resume=auto` names a run that has finished. EN_EIO,
 * EN_EFORMAT, EN_EUNSUPPORTED: a file or plugin that cannot be used. EN_ENOMEM. */
EN_RANK_API en_status en_rank_open(const en_rank_options *options, const char *const *settings,
                                   size_t nsettings, en_rank **rank_out);

/* Valid until en_rank_close. Any time. */
EN_RANK_API const en_rank_facts *en_rank_about(const en_rank *rank);

/* The weights and the gradient of a tensor: (count), aligned to 64 bytes, at the same address for the whole run; NULL for
 * a number that is not below ntensors. The weights are the program's to read, except from en_rank_ready of the tensor to the
 * return of en_rank_finish. The gradient is the program's to write from en_rank_begin to en_rank_ready of the tensor; its
 * contents are not kept from one step to the next. With EN_RANK_STEPS_ITSELF it is also the program's from en_rank_finish to
 * the next en_rank_begin. */
EN_RANK_API float *en_rank_weights(en_rank *rank, uint32_t tensor);
EN_RANK_API float *en_rank_gradient(en_rank *rank, uint32_t tensor);

/* The next batch of this rank. Waits for a round trip if batches are claimed, else for nothing. Batches are begun in the
 * order in which they were handed out, which may be up to EN_RANK_AHEAD earlier.
 * EN_ESTOP: there is no other; those that are handed out are still to be begun. */
EN_RANK_API en_status en_rank_next(en_rank *rank, en_rank_batch *batch_out);

/* A step with the oldest batch that was handed out and not begun; nsamples: its count. May wait for the ranks to choose the
 * step before which the run ends early. EN_ESTOP: it ends here, on all ranks alike; the batch is not computed. EN_EINVAL: no
 * such batch, another count, or a step that has begun and not finished. */
EN_RANK_API en_status en_rank_begin(en_rank *rank, uint64_t nsamples);

/* The gradient of a tensor is complete, and its weights are not read in this step any more: both are the library's until
 * en_rank_finish, and may leave at once. Any order; early is good, and from the last tensor to the first: a bucket leaves
 * when its tensors and all behind them are ready. Waits for nothing but room on the wire. EN_EINVAL: not in a step, no such
 * tensor, or ready before in this step (backward ran twice). */
EN_RANK_API en_status en_rank_ready(en_rank *rank, uint32_t tensor);

/* Ends the step: gradients of tensors that are not ready count as zeros. Waits for what the strategy waits for: for all ranks'
 * gradients, for answers of the servers, or for nothing. On return the weights are those of the next step. Also evaluates
 * and writes a checkpoint where these are due. EN_ENONFINITE: the loss is not finite: training has diverged. EN_EINVAL: not
 * in a step. With the setting accumulate=W of the strategy solo, every W-th call makes a step of the mean of W batches. */
EN_RANK_API en_status en_rank_finish(en_rank *rank, const en_rank_score *score);

/* After EN_ESTOP: waits for all ranks to come here, evaluates, writes result.json and the final weights, and leaves the run.
 * From then on other ranks' ends do not concern this one. Weights keep their addresses until en_rank_close.
 * EN_EINVAL: the run has steps left (en_rank_stop ends it early). */
EN_RANK_API en_status en_rank_end(en_rank *rank);

/* Asks for an early end in good order, as Ctrl-C does under `entrain run`: returns at once, and all ranks get EN_ESTOP before
 * the same step, or at their next batch if batches are claimed. `why` is for people; NULL: none. With the name of a signal to
 * this process ("SIGTERM"), `entrain run` names this rank, and its exit code is 143. rank NULL is fine. Takes locks, so not in
 * a signal handler: in a thread that waits for signals (sigwait, signalfd). */
EN_RANK_API void en_rank_stop(en_rank *rank, const char *why);

/* The program cannot go on: every call that waits, here and on all ranks, ends, and the others name this rank with `why`
 * ("ValueError: .."). Takes a second at most; here the status becomes EN_EINTR. */
EN_RANK_API void en_rank_abort(en_rank *rank, const char *why);

/* EN_OK while the run goes on for this rank; else the status that calls return. One atomic load. */
EN_RANK_API en_status en_rank_status(const en_rank *rank);

/* The message of the last error of this process, truncated to `bytes`; "" without an error. Any thread. */
EN_RANK_API void en_rank_why(char *text_out, size_t bytes);

/* Frees all. Weights and gradients are gone. Without an en_rank_end that returned EN_OK this is a death, which ends the run
 * for all; the cause is the last error, or that the program closed its rank. NULL is fine. */
EN_RANK_API void en_rank_close(en_rank *rank);

#ifdef __cplusplus
}
#endif
#endif
