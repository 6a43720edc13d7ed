/* job.h - what a run trains, from its configuration: for a worker's rank and for virtual time alike.
 *
 * Each call fills its part of *job (rank/rank.h), in this order. `config` is resolved and outlives the job. Errors are logged
 * with flag, value and remedy: EN_EINVAL, or what the data set, the network or the plan returns; EN_ENOMEM. Memory of a failed call is freed with the job. */
#ifndef JOB_JOB_H
#define JOB_JOB_H

#include "config/config.h"
#include "data/dataset.h"
#include "rank/rank.h"
#include "run/units.h"

/* The network for the shape of the data, and its initial running statistics: schema, schema_sha256, state. Reads the heads of
 * the data set's files. */
en_status eni_job_network(eni_job *job, const eni_config *config);

/* The data set's options, for eni_dataset_open. The texts are those of config. */
eni_data_options eni_job_data(const eni_job *job, const eni_config *config);

/* Whether ranks claim their micro-batches (is_claiming), and how many a step has (accumulate); the strategy is
 * known. is_alone: one rank without a store. *may_out: whether the strategy could claim. */
en_status eni_job_assign(eni_job *job, const eni_config *config, int32_t nranks, bool is_alone,
                         bool *may_out);

/* Plan, order and order_sha256 for so many training samples and ranks. */
en_status eni_job_plan(eni_job *job, const eni_config *config, uint64_t train_samples, int32_t nranks);

/* Optimizer, parameter groups, rates and their schedule. */
en_status eni_job_optimizer(eni_job *job, const eni_config *config);

/* An amount of the command, in samples: the plan knows how many an epoch has. */
static inline uint64_t eni_job_samples(const eni_job *job, int64_t amount)
{
    return eni_amount_samples(amount, job->plan.epoch_samples);
}

#endif
