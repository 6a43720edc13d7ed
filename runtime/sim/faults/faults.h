/* faults.h - faults for the virtual host: messages are lost, duplicated, delayed and out of order, links break
 * one way or both, stores and ranks die and come back. All of it is drawn from one seed.
 *
 * The ranks' calls are made by the client that workers run (runtime/client/client_step.h): it resends unanswered
 * calls, keeps those that are in no saved state, and replays them to a store that came back.
 *
 * A store is saved (runtime/store/store_save.h) at random moments; a state counts once its write is over. One
 * that dies comes back from its last such state. A rank that dies is LEFT, and JOINED again with a new
 * incarnation; only strategies that claim their data allow that. The leader's messages (epochs, members) are
 * delayed, never lost. */
#ifndef FAULTS_FAULTS_H
#define FAULTS_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/options.h"
#include "entrain/strategy.h"
#include "plugin/hook.h"

enum {
    ENI_NEWS_CALLED = 1, /* a rank made a call */
    ENI_NEWS_ANSWERED,   /* it has its answer: from now on the push must not be lost */
    ENI_NEWS_ORPHANED,   /* answered, not yet stable, and its rank died: it may be lost with the store */
    ENI_NEWS_FINISHED    /* a rank makes no more calls */
};

/* An event in the life of one call of one rank on one partition. */
typedef struct eni_news {
    int type;
    int32_t rank, store;
    uint32_t bucket;
    uint64_t seq, micro_batch;
} eni_news;

/* Counts, for reports. */
typedef struct eni_fault_stats {
    uint64_t messages, dropped, doubled, delayed, cut, stale; /* stale: of an earlier incarnation, refused */
    uint64_t resends, replays, saves, store_deaths, rank_deaths;
    uint64_t applied; /* samples, over all partitions */
} eni_fault_stats;

typedef struct eni_fault_plan {
    uint64_t seed;
    int64_t quiet_ns; /* no faults from then on */
    int64_t limit_ns; /* after the faults end; then EN_ETIMEOUT */
    double drop, twice, slow;
    int64_t slow_ns;                         /* longest delay of a slow message */
    int64_t resend_ns;                       /* a client's wait for an answer */
    int64_t save_ns;                         /* average interval of a store's saves */
    int64_t write_ns;                        /* longest write of a save */
    int64_t outage_ns;                       /* longest outage of a link, a store or a rank */
    int32_t cuts, store_deaths, rank_deaths; /* their numbers, spread over the time before quiet_ns */
    /* The strategy steps on every push: staleness is counted a second time and compared. */
    bool steps_at_once;
    void (*news)(void *user, const eni_news *news); /* NULL: not reported */
    void *user;
    eni_fault_stats *figures; /* filled */
} eni_fault_plan;

/* A run's `faults`; its faults_config is then an eni_fault_plan. */
extern const struct eni_sim_faults eni_faults;

/* ---- fault_test.c: one strategy under faults, and whether it kept its promise -------------------------- */

/* Everything but the strategy is drawn from the seed: ranks, shards, buckets, steps, rates of faults.
 * The oracle: plain SGD of rate 1 from weights 0; the gradient of micro-batch m is -1 at element m of every
 * partition and 0 elsewhere. So an element is the history of one push to one partition: 1 / (pushes in its
 * step) if it was applied once, 0 if never; and the sum over a partition is its number of steps.
 *
 *     answered        applied exactly once                       not answered    once or never
 *     EN_SYNCHRONOUS  and once more, with momentum and a noisy quadratic: the bytes of a run without faults
 *     bound=N         N >= 0: no answer to a client more than N ahead (then a synchronous strategy's bytes
 *                     depend on the order of arrival, and are not compared)
 *     at once         staleness counted a second time, outside of the store, is the store's
 *     all             finished within the limit after the faults end
 *
 * A rank that dies takes what it retained with it: what was answered but not yet stable may then be lost with
 * the store, and only then. */
typedef enum eni_promise {
    ENI_PROMISE_ENDS = 0, /* it finishes, and (EN_SYNCHRONOUS) with the bytes of the undisturbed run */
    ENI_PROMISE_MAY_DROP, /* each push at most once, the dropped ones are counted */
    ENI_PROMISE_EXACT,    /* each answered push exactly once */
    ENI_PROMISE_AT_ONCE   /* and in a step of its own */
} eni_promise;

/* The promise of a built-in strategy; ENDS for others. */
eni_promise eni_promise_of(const char *strategy_name);

/* Runs one seed. `spec` is how the strategy was named, for the line that repeats it. Adds to *figures. EN_OK;
 * EN_EBUG: a promise was broken; or as eni_sim_run. A failure is logged with the line that repeats it. */
en_status eni_fault_test(eni_hook_guard *hooks, const en_strategy *strategy, const eni_options *options,
                         const char *spec, eni_promise promise, uint64_t seed, eni_fault_stats *figures);

#endif
