/* limits.h - what this machine can do with only the unavoidable work: the denominators of bench/RESULTS.md.
 *
 * Every limit is a group of processes that share a board. They do `warmup` rounds, then `rounds` that are
 * timed; each writes its own column of the board. Only the unavoidable work is timed. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { LIMIT_PROCESSES = 16, LIMIT_ROUNDS = 10000 };

typedef struct limit_board {
    _Alignas(64) _Atomic uint64_t arrived;        /* at barriers, since the start */
    _Atomic int is_bound;                         /* `endpoint` may be read */
    char endpoint[64];                            /* where the ROUTER of a limit of messages listens */
    int64_t times[LIMIT_ROUNDS][LIMIT_PROCESSES]; /* ns */
} limit_board;

typedef struct limit_trial {
    uint64_t bytes; /* of a vector or message; for sgemm of one of its square matrices */
    int processes;  /* that work at the same time; a ROUTER is one more */
    int warmup, rounds;
    float *vectors; /* for `sum`: (processes, bytes / 4) shared by all */
    limit_board *board;
} limit_trial;

/* One limit. Process `rank` of the group runs `main`; it returns 0, or 1 with a sentence on stderr. */
typedef struct limit_kind {
    const char *name, *unit, *what; /* for the table */
    int (*main)(const limit_trial *trial, int rank);
    int (*serve)(const limit_trial *trial); /* one more process: a ROUTER; NULL: none */
    int is_together;                        /* rounds begin at a barrier: the slowest process counts */
    const char *bytes, *processes;          /* the defaults, as lists */
    int batch;                              /* vectors moved in one round */
    /* Work of one round of all processes, in units of 1e-9 of `unit` a second. */
    double (*work)(const limit_trial *trial);
} limit_kind;

/* limits_core.c: load and store, checksum, in-place sum, sgemm. NULL if built without oneDNN. */
extern const limit_kind limit_copy, limit_checksum, limit_sum;
const limit_kind *limit_sgemm(void);

/* limits_message.c: bare ZeroMQ over TCP on loopback, DEALERs and one ROUTER as processes. */
extern const limit_kind limit_roundtrip, limit_meeting, limit_one_way, limit_echo;

/* Waits for all processes of the group. Yields: they may share cores. */
void limit_barrier(const limit_trial *trial);

/* Memory of at least `bytes`, aligned, every page touched; NULL on failure, reported on stderr. Freed when
 * the process ends. */
void *limit_memory(size_t bytes);

#endif
