/* fault_test.h - one strategy under faults, and whether it kept what is promised.
 *
 * Everything but the strategy is drawn from the seed: ranks, shards, buckets, steps, how much goes wrong.
 * The oracle: plain SGD of rate 1 from weights 0; the gradient of micro-batch m is -1 at element m of every
 * partition and 0 elsewhere. So an element is the history of one push to one partition: 1 / (pushes in its
 * step) if it was applied once, 0 if never; and the sum over a partition is its number of steps.
 *
 *     answered        applied exactly once                       not answered    once or never
 *     EN_SYNCHRONOUS  and once more, with momentum and a noisy quadratic: the bytes of a run without faults
 *     bound=N         no answer to a rank more than N ahead
 *     at once         staleness counted a second time, outside of the store, is the store's
 *     all             finished within the limit after the faults end
 *
 * A rank that dies takes what it retained with it: what was answered but not yet stable may then be lost with
 * the store, and only then. */
#ifndef FAULTS_FAULT_TEST_H
#define FAULTS_FAULT_TEST_H

#include "core/options.h"
#include "runtime/sim/faults/faults.h"

typedef enum eni_promise {
    ENI_PROMISE_ENDS = 0, /* it finishes, and (EN_SYNCHRONOUS) with the bytes of the undisturbed run */
    ENI_PROMISE_MAY_DROP, /* each push at most once, the dropped ones are counted */
    ENI_PROMISE_EXACT,    /* each answered push exactly once */
    ENI_PROMISE_AT_ONCE   /* and in a step of its own */
} eni_promise;

/* ends, may-drop, exact, at-once; NULL: what the built-in strategies promise, for others ENDS. -1: no such
 * word. */
int eni_promise_parse(const char *word, const char *strategy_name);

/* Runs one seed. `spec` is how the strategy was named, for the line that repeats it. Adds to *figures. EN_OK;
 * EN_EBUG: a promise was broken; or as eni_sim_run. A failure is logged with the line that repeats it. */
en_status eni_fault_test(const en_strategy *strategy, const eni_options *options, const char *spec,
                         eni_promise promise, uint64_t seed, eni_fault_stats *figures);

#endif
