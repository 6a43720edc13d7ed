/* conform.h - is a strategy the one that it cites? Its plugin runs on the virtual host under schedules drawn at random,
 * and everything it decides is compared with a sequential reference of its paper (docs/conformance.md).
 *
 *     schedule.c  draws a run from a seed, and records it:      inputs: who, when, which samples, which gradient
 *        |                                                      outputs: versions, drops, answers, weights
 *        v
 *     judge.c     replays the inputs through the reference and compares the outputs; the first that differs is a finding
 *        |
 *        v
 *     servers.c, rounds.c   the references (paper.h), on the arithmetic of paper.c */
#ifndef CONFORM_CONFORM_H
#define CONFORM_CONFORM_H

#include "conform/paper.h"
#include "entrain/strategy.h"
#include "plugin/hook.h"
#include "runtime/sim/sim.h"

/* ---- a recorded run: the judge's whole input, which tests also write by hand ------------------------------- */

typedef struct eni_recording {
    int nranks, per_host, nshards;
    int32_t group[ENI_PAPER_RANKS];
    bool claims; /* else micro-batch t * W + rank in step t */
    uint64_t micro_batches;
    uint64_t (*samples)(void *user, uint64_t micro_batch); /* of the problem */
    float (*gradient)(void *user, uint64_t micro_batch, uint64_t element, float x);
    void *user;
    eni_paper_rates rates;
    uint64_t count;
    const float *init;  /* (count) */
    const float *model; /* (count) at the end, by `eval`; NULL: not known */
    uint32_t nbuckets;
    const eni_bucket_range *bucket; /* (nbuckets) */
    const eni_sim_event *event;     /* (nevents) */
    const float *const
        *seen; /* (nevents) STEP: the rank's weights (count), or NULL: it had no batch, or died before it */
    uint64_t nevents;
    bool has_ended; /* else the run failed after the last event */
} eni_recording;

enum { ENI_FINDING_LINES = 6, ENI_FINDING_TEXT = 320 };

typedef struct eni_judgement {
    bool agrees;
    uint64_t decisions, vectors; /* compared so far, over all runs that were judged into it */
    double worst;                /* the largest difference of weights, relative to 1 or the weight */
    uint64_t defaults; /* schedules whose options the plugin does not take: run with its own defaults */
    /* The first difference in the order of the log, unless it agrees. */
    uint64_t event;
    char finding[ENI_FINDING_TEXT];
    char before[ENI_FINDING_LINES]
               [ENI_FINDING_TEXT / 2]; /* the events before it on its partition; "": none */
} eni_judgement;

/* Judges a run into *judgement, whose counts grow. */
void eni_judge(const eni_recording *recording, const eni_reference *reference, const char *options,
               eni_judgement *judgement);

/* ---- schedules --------------------------------------------------------------------------------------------- */

typedef struct eni_conform_config {
    const en_strategy *strategy;
    const char *options; /* of the strategy; NULL or "": drawn from the reference's */
    const eni_reference *reference;
    const char *reference_options; /* NULL: the strategy's */
    eni_hook_guard *hooks;
} eni_conform_config;

enum { ENI_SCHEDULE_TEXT = 256 };

/* The reference of a strategy of that name; NULL: none. */
const eni_reference *eni_reference_find(const char *name);

/* Runs the schedule of one seed and judges it. schedule_out: the schedule in words. EN_OK also when it does not agree,
 * or the plugin broke the contract (that is a finding); EN_EINVAL, logged: options that the plugin does not take;
 * EN_ENOMEM. */
en_status eni_conform_run(const eni_conform_config *config, uint64_t seed,
                          char schedule_out[ENI_SCHEDULE_TEXT], eni_judgement *judgement);

#endif
