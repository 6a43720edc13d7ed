/* faults.h - faults for the virtual host: messages are lost, doubled, delayed and out of order, links are
 * cut one way or both, stores and ranks die and come back. All of it drawn from one seed.
 *
 * The ranks' calls are made by the client that workers run (runtime/client/client_step.h): it sends again
 * what is not answered, keeps what no saved state has, and replays it to a store that came back.
 *
 * A store is saved (runtime/store/store_save.h) at random moments; a state counts once its write is over. One
 * that dies comes back from its last such state. A rank that dies is LEFT, and JOINED again with a new
 * incarnation; only strategies that claim their data allow that. The leader's words (epochs, members) are
 * delayed, never lost. */
#ifndef FAULTS_FAULTS_H
#define FAULTS_FAULTS_H

#include <stdint.h>

#include "entrain/strategy.h"

enum {
    ENI_NEWS_CALLED = 1, /* a rank made a call */
    ENI_NEWS_ANSWERED,   /* it has its answer: from now on the push must not be lost */
    ENI_NEWS_ORPHANED,   /* answered, not yet stable, and its rank died: it may be lost with the store */
    ENI_NEWS_FINISHED    /* a rank calls no more */
};

/* What happens to one call of one rank on one partition. */
typedef struct eni_news {
    int type;
    int32_t rank, store;
    uint32_t bucket;
    uint64_t seq, micro_batch, nsamples;
} eni_news;

/* What went on, for reports. */
typedef struct eni_fault_stats {
    uint64_t messages, dropped, doubled, delayed, cut,
        stale; /* messages; stale: of an earlier incarnation, refused */
    uint64_t resends, replays, saves, store_deaths, rank_deaths;
    uint64_t applied; /* samples, over all partitions */
} eni_fault_stats;

typedef struct eni_fault_plan {
    uint64_t seed;
    int64_t quiet_ns; /* no faults from then on */
    int64_t limit_ns; /* not finished so long after the faults end: EN_ETIMEOUT */
    double drop, twice, slow;
    int64_t slow_ns;                         /* the most that a slow message is delayed */
    int64_t resend_ns;                       /* how long a client waits for an answer */
    int64_t save_ns;                         /* a store is saved about so often */
    int64_t write_ns;                        /* the most that writing it takes */
    int64_t outage_ns;                       /* the most that a link, a store or a rank is away */
    int32_t cuts, store_deaths, rank_deaths; /* how many, spread over the time before that */
    int steps_at_once; /* the strategy steps on every push: staleness is counted a second time and compared */
    void (*news)(void *user, const eni_news *news); /* NULL: nobody listens */
    void *user;
    eni_fault_stats *figures; /* filled */
} eni_fault_plan;

/* A run's `faults`; its faults_config is then an eni_fault_plan. */
extern const struct eni_sim_faults eni_faults;

#endif
