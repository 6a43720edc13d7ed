/* job.h - what a run trains, from its configuration: for a worker's rank, for a program of the user's
 * (entrain/rank.h), and in virtual time.
 *
 * Each call fills its part of a rank or of its job (rank/rank.h), in this order. `config` is resolved and outlives the
 * rank. Errors are logged with flag, value and remedy: EN_EINVAL, or what the data set, the network or the plan returns;
 * EN_ENOMEM. Memory of a failed call is freed with the job. */
#ifndef JOB_JOB_H
#define JOB_JOB_H

#include "config/config.h"
#include "data/dataset.h"
#include "rank/rank.h"
#include "run/units.h"

/* ---- for one rank: calls of the program that has it ---- */

/* Its options, its place, the strategy from folder `plugins`. The rank is initialised and has its version. */
en_status eni_job_open(eni_rank *rank, const eni_config *config, const char *plugins);

/* Once the schema is there: running statistics, output files (rank 0 takes --out), --init. EN_ESTOP: the run that
 * --resume=auto names has finished. */
en_status eni_job_check(eni_rank *rank, const eni_config *config);

/* Once the trainer's description is there: who takes which of so many training samples. */
en_status eni_job_share(eni_rank *rank, const eni_config *config, uint64_t train_samples);

/* Optimizer, buckets, the checkpoint to resume. EN_ESTOP as above. */
en_status eni_job_complete(eni_rank *rank, const eni_config *config);

/* After the join, at rank 0, once nothing can be refused any more: makes room in --out, and creates all folders that are
 * written to. */
en_status eni_job_folders(eni_rank *rank, const eni_config *config);

/* Frees what the calls have allocated, and the schema; last. */
void eni_job_close(eni_rank *rank);

/* ---- for any job ---- */

/* The network for the shape of the data, and its initial running statistics: schema, schema_sha256, state. Reads the heads of
 * the data set's files. */
en_status eni_job_network(eni_job *job, const eni_config *config);

/* The data set's options, for eni_dataset_open. The texts are those of config. */
eni_data_options eni_job_data(const eni_job *job, const eni_config *config);

/* --bn-stats, once the network is there: bn_stats, is_mean, is_recomputed, states. */
en_status eni_job_statistics(eni_job *job, const eni_config *config, int32_t nranks);

/* Whether ranks claim their micro-batches (is_claiming), and how many a step has (accumulate); the strategy is
 * known. is_alone: one rank without a store. *may_out: whether the strategy could claim. */
en_status eni_job_assign(eni_job *job, const eni_config *config, int32_t nranks, bool is_alone,
                         bool *may_out);

/* Plan, order and order_sha256 for so many training samples and ranks. */
en_status eni_job_plan(eni_job *job, const eni_config *config, uint64_t train_samples, int32_t nranks);

/* Optimizer, parameter groups, rates and their schedule. */
en_status eni_job_optimizer(eni_job *job, const eni_config *config);

/* The options of its records; leaves argc and argv. */
void eni_job_records(const eni_config *config, eni_record_options *out);

/* The largest bucket, in bytes: what the command says, or, with auto, what the model needs to have few enough buckets. */
uint64_t eni_job_bucket_cap(const en_schema *schema, const eni_config *config);

/* An amount of the command, in samples: the plan knows how many an epoch has. */
static inline uint64_t eni_job_samples(const eni_job *job, int64_t amount)
{
    return eni_amount_samples(amount, job->plan.epoch_samples);
}

/* ---- settings.c, parts of the calls for one rank ---- */

en_status eni_job_tell(eni_rank *rank, const eni_config *config);
en_status eni_job_files(eni_rank *rank, const eni_config *config);

/* ---- program_schedule.c ---- */

/* A program's own schedule (en_rank_options.schedule; NULL: none) as the job's points, once the plan is there: at each step
 * the straight lines between them are within 1e-7 of the largest factor. EN_EINVAL, logged: lr-schedule is given, too; a
 * factor that is not 0 to 1e6; more steps, or changes, than there is room for. */
typedef double (*eni_factor_of)(void *user, uint64_t step, uint64_t epoch);
en_status eni_program_schedule(eni_job *job, const eni_config *config, eni_factor_of factor_of, void *user);

/* ---- program_facts.c ---- */

/* Describes a program of the user's for result.json: the file (NULL: this process's executable), the arguments of this process,
 * the hashes of both (null: they cannot be read), and what `set` told it. The caller's. */
json_t *eni_program_facts(const char *file, const eni_list *set);

#endif
