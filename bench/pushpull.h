/* pushpull.h - one push-pull trial: a psd process, and workers that push gradients and pull weights.
 *
 *     worker r, every round       rewrite the gradient -> call every bucket -> wait for all -> check
 *                                                         |<------ timed ------>|
 *
 * Every pulled weight is compared bit for bit with the result of ops/ alone on the same gradients: a gradient
 * repeats with a period, so a reference of one period covers the whole vector. If the server steps on every
 * gradient as it arrives (ps-async, ssp) the order is not known: then momentum is 0, gradients are small whole
 * numbers and the rate is a power of two, so that any order gives the same bits, and the check is at the end. */
#ifndef BENCH_PUSHPULL_H
#define BENCH_PUSHPULL_H

#include <stdatomic.h>
#include <stdint.h>

#include "runtime/collective/sync.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

/* prime: no shift stays hidden */
enum { PUSHPULL_WORKERS = 16, PUSHPULL_ROUNDS = 10000, PUSHPULL_PERIOD = 1009 };

/* Shared by the workers of a trial, mapped by all. */
typedef struct pushpull_board {
    eni_flag round[PUSHPULL_WORKERS]; /* the round that a worker is ready for, + 1 */
    _Atomic int is_over;              /* psd or a worker failed: further waits fail */
    uint64_t wrong[PUSHPULL_WORKERS]; /* elements with unexpected values */
    int64_t round_ns[PUSHPULL_WORKERS];
    int64_t times[PUSHPULL_ROUNDS][PUSHPULL_WORKERS]; /* ns of an exchange */
} pushpull_board;

typedef struct pushpull_trial {
    const char *strategy;
    int workers, shards, warmup, rounds, check, over_tcp, is_sync;
    uint64_t count;       /* elements of the vector */
    uint64_t bucket_size; /* elements of a bucket */
    double momentum;
    eni_address psd;
    eni_token token;
    pushpull_board *board;
} pushpull_trial;

/* The number of buckets of the vector. */
uint32_t pushpull_buckets(const pushpull_trial *trial);

/* Runs worker `rank`: joins psd, does its rounds, leaves. 0, or 1 with the cause on stderr. Fills its columns
 * of the board. */
int pushpull_worker(const pushpull_trial *trial, int rank);

#endif
