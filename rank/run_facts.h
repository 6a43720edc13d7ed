/* run_facts.h - the members of result.json that every run has: of real ranks (result.c), and in virtual time
 * (virtual/experiment.c). */
#ifndef RANK_RUN_FACTS_H
#define RANK_RUN_FACTS_H

#include <jansson.h>

#include "rank/rank.h"

/* A run that has ended, as rank 0 knows it. Borrowed. */
typedef struct eni_facts {
    const char *version, *host, *transport;
    const eni_job *job;
    const eni_about *about;
    const eni_record_options *asked;
    const eni_stats *stats; /* rank 0's */
    int32_t nranks, nfirst; /* all that there may be; those that began */
    const int32_t *groups;  /* (nranks) run/rank_groups.h; NULL: the strategy does not use them */
    int32_t nlocal;         /* ranks of rank 0's host */
    int shards;
    const char *net; /* that is emulated on the real one; NULL: none */

    /* Needed by eni_facts_outcome alone: */
    const json_t *reports; /* of each role, "rank 0" first: steps, samples, nanoseconds and bytes */
    const json_t *store;   /* psd's among them, if it counts what is applied; else NULL */
    en_theory theory;      /* for nfirst ranks */
    double staleness;      /* by theory; NAN: none */
    uint64_t updates;
    double computed;       /* samples of all ranks */
    const float *weights;  /* (schema.count) at the end; their running statistics are in job->state */
    double loss, accuracy; /* of these on the test set; NAN: not known */
} eni_facts;

/* The schema, the job, the flags that shaped it, and the machine. */
void eni_facts_identity(const eni_facts *facts, json_t *result);

/* Results: times, losses, hashes, staleness, bytes, slow ranks, and the reports themselves. Warns of a loss that has grown.
 * EN_ENOMEM. */
en_status eni_facts_outcome(const eni_facts *facts, json_t *result);

/* The report of a role; NULL: it has not reported, since a rank was lost. */
const json_t *eni_facts_of_role(const json_t *reports, const char *role);
const json_t *eni_facts_of_rank(const json_t *reports, int rank);

/* A number's sum over the ranks' reports. */
double eni_facts_sum(const json_t *reports, const char *key);

/* Samples of one rank, or of all. */
void eni_facts_samples(json_t *o, double computed, double applied, double dropped);

/* A rank that took part, in a run whose ranks come and go: from when to when on the training clock, and how it ended. */
void eni_facts_present(json_t *result, int rank, double from_s, double to_s, const char *end);

/* result.json in `dir` appears complete, or not at all. EN_EIO, logged for `who`; NULL: of a run that has failed, whose cause is
 * logged. */
en_status eni_facts_write(const char *who, const char *dir, const json_t *result);

#endif
