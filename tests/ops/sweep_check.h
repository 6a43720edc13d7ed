/* sweep_check.h - one operation on one device, many times: are the numbers ref's, the bits the same each
 * time, and the memory beside its tensors left alone?
 *
 * In each run outputs and workspace begin as no numbers, each tensor lies between guards (guarded.h), and a
 * pass may write what is its own and nothing else. Backward runs on ref's y: otherwise, with y near 0, a
 * fused relu may be open on one side and closed on the other without an error.
 *
 * What is wrong ends the process, for after it nothing in there can be trusted: so check in a child. */
#ifndef TESTS_OPS_SWEEP_CHECK_H
#define TESTS_OPS_SWEEP_CHECK_H

#include <stdbool.h>

#include "tests/ops/trial.h"

enum {
    SWEEP_TENSORS = 13,
    SWEEP_LEAST_RUNS = 4,
    SWEEP_FOUND = 3 /* the status of a child that found something */
};

extern const char *const sweep_tensors[SWEEP_TENSORS]; /* their names */

/* Where a child is, and what it found there: in memory that it shares with its parent. */
typedef struct sweep_place {
    int run;
    char name[256], pass[32], by[48], what[256];
    double worst[EN_OP_KINDS][SWEEP_TENSORS]; /* gap to ref, of all cases so far */
} sweep_place;

typedef struct sweep_limits {
    int repeats;
    double seconds;       /* after which there are no more repeats, but SWEEP_LEAST_RUNS */
    unsigned hangs_after; /* seconds; then SIGALRM ends the process */
    bool is_bf16;         /* the device multiplies in bf16: its factors are rounded, on ref too */
} sweep_limits;

/* ref's results, and those of the first run. */
typedef struct sweep_expected {
    trial ref;
    float *dy, *stats; /* before backward, before forward */
    void *first[SWEEP_TENSORS];
    bool has_first[3]; /* of a pass */
} sweep_expected;

/* Once per process. */
void sweep_begin(sweep_place *place, const sweep_limits *limits);

/* Runs the operation on ref. */
void sweep_expect(sweep_expected *e, const eni_device *ref, const en_op *op);
void sweep_expect_no_more(sweep_expected *e);

/* Called for devices of more and more threads: loops of our own are to give the same bits on each. */
void sweep_check(const eni_device *device, sweep_expected *e);

__attribute__((format(printf, 1, 2))) _Noreturn void sweep_found(const char *format, ...);

double sweep_now(void);

#endif
