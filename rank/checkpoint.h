/* checkpoint.h - one moment of a run as one file: its contents, writing and reading.
 *
 *     DIR/checkpoint-000000012800.safetensors          the number: global samples applied
 *
 *     conv1.weight, conv1.bias, ..                     the weights, as --save writes them
 *     bn1.running_mean, ..                             and the running statistics, or memories of a program, that go with them
 *     rank.1/state/bn1.running_mean, ..                those of a rank, with --bn-stats=mean or EN_MEMORY_EACH
 *     optimizer.momentum_buffer/conv1.weight, ..       each slot of the optimizer
 *     rank.1/param/conv1.weight, ..                    weights of a rank, where the ranks' differ
 *     rank.1/optimizer.momentum_buffer/conv1.weight    slots of a rank, likewise
 *     rank.1/center/conv1.weight, ..                   a vector that the strategy keeps per rank
 *     rank.1/state                                     the strategy's state struct of that rank (U8)
 *     __metadata__: digest, format, entrain            sealed (safetensors.h); the run's facts as JSON text
 *
 * Canonical: nothing in it depends on buckets, shards or servers. So a run with another number of them can
 * resume it, and one with another number of workers too, unless ranks have state of their own.
 * docs/checkpoints.md has the rules.
 *
 * This file knows no worker: contents in, file out, and back. save.c collects contents, resume.c restores
 * them. Any thread; blocks on the disk. */
#ifndef RANK_CHECKPOINT_H
#define RANK_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "core/digest.h"
#include "entrain/model.h"
#include "entrain/status.h"
#include "models/formats/safetensors.h"
#include "run/rank_groups.h"

enum { ENI_CHECKPOINT_FORMAT = 2, ENI_CHECKPOINT_NAME = 96, ENI_CHECKPOINT_FACTS = 32 };

/* A fact that the resuming run must share, under the name of the flag that decides it. */
typedef struct eni_fact {
    char key[24], value[144];
} eni_fact;

/* The progress of one span [lo, hi) of the flat vector. */
typedef struct eni_saved_span {
    uint64_t lo, hi;
    uint64_t version; /* optimizer steps or touches */
    uint64_t steps;   /* optimizer steps */
    uint64_t samples; /* applied: the learning rate's argument */
} eni_saved_span;

/* One flat vector, by its name in the file: "" the weights, "optimizer.momentum_buffer", "rank.1/center". */
typedef struct eni_saved_vector {
    char name[ENI_CHECKPOINT_NAME];
    float *flat; /* (schema->count) */
} eni_saved_vector;

/* fp16 on a GPU: a rank's loss scale (worker/gpu/scaler.h). */
typedef struct eni_scale_facts {
    double scale; /* a power of two; 0: no loss scale */
    uint64_t good, overflows;
    uint64_t samples; /* whose gradients did not count */
} eni_scale_facts;

/* One rank's results; sums over the whole run so far. */
typedef struct eni_tally {
    uint64_t steps, samples;
    uint64_t last_samples, last_correct; /* of the last epoch */
    double last_loss;                    /* sum over the samples of the last epoch; NaN: diverged */
} eni_tally;

typedef struct eni_rank_facts {
    eni_tally sum;
    uint8_t *state; /* (state_bytes) the strategy's, or NULL */
    size_t state_bytes;
    eni_scale_facts scale;
} eni_rank_facts;

/* The contents of one checkpoint. Zeroed memory is an empty one. */
typedef struct eni_checkpoint {
    /* the position */
    uint64_t samples, step, epoch, micro; /* applied; next step; its epoch; next micro-batch */
    uint64_t plan_samples;                /* the whole run's budget */

    /* must match: always; and where ranks have state of their own */
    eni_fact facts[ENI_CHECKPOINT_FACTS];
    uint32_t nfacts;
    char version[24], strategy[64], options[256], device[16]; /* device: "cuda, fp16" */
    uint64_t world, accumulate, batch, shards;
    char order_sha256[ENI_DIGEST_HEX], init_sha256[ENI_DIGEST_HEX];
    char groups[ENI_RANK_GROUPS_TEXT]; /* of the ranks, where the strategy uses them; "" */

    /* added to the resumed run's own figures in result.json */
    uint64_t updates, dropped; /* dropped: samples that a store dropped */
    int64_t train_ns, eval_ns;
    char **history; /* (nhistory) checkpoints that the run was resumed from, the oldest first */
    size_t nhistory;

    eni_saved_span *spans; /* (nspans) in order, disjoint */
    size_t nspans;
    eni_rank_facts *ranks; /* (nranks) = world, where known; else of rank 0 only */
    size_t nranks;
    eni_saved_vector *vectors; /* (nvectors) */
    size_t nvectors;
    float *state;  /* (schema->nstate) running statistics, with the weights; NULL: the network has none */
    float *states; /* (nstates, schema->nstate) those of each rank (eni_job.states); else NULL */
    uint64_t nstates;

    char digest[ENI_DIGEST_HEX]; /* of the file: set by write and read */
} eni_checkpoint;

/* Frees what it holds and zeroes it; safe on zeroed memory. */
void eni_checkpoint_fini(eni_checkpoint *checkpoint);

/* The value of a fact, NULL if absent. */
const char *eni_checkpoint_fact(const eni_checkpoint *checkpoint, const char *key);

/* The vector of that name, NULL if absent; and a new one, zeroed, at the end (NULL: out of memory). */
const eni_saved_vector *eni_checkpoint_find(const eni_checkpoint *checkpoint, const char *name);
eni_saved_vector *eni_checkpoint_add(eni_checkpoint *checkpoint, const en_schema *schema, const char *name);

/* Writes it under its name into `dir`: temporary file, sync, rename, sync of the folder. Not logged: why_out
 * gets one clause ("cannot write /x/y.tmp: No space left on device"). EN_EIO; EN_ENONFINITE: the run has
 * diverged, so the checkpoint would not be worth resuming; EN_ENOMEM. */
en_status eni_checkpoint_write(eni_checkpoint *checkpoint, const en_schema *schema, const char *dir,
                               char why_out[ENI_ST_WHY]);

/* Reads a whole one, or nothing. why_out gets what is wrong with the file: EN_ENOENT, EN_EIO, EN_EFORMAT
 * (damaged, truncated, not a checkpoint), EN_EVERSION (a newer format), EN_EMISMATCH (of another network).
 * Nothing is logged. The caller calls eni_checkpoint_fini. */
en_status eni_checkpoint_read(const char *path, const en_schema *schema, eni_checkpoint *checkpoint_out,
                              char why_out[ENI_ST_WHY]);

/* The same from memory; `name` stands for the file in why_out. */
en_status eni_checkpoint_parse(const char *name, const void *data, size_t bytes, const en_schema *schema,
                               eni_checkpoint *checkpoint_out, char why_out[ENI_ST_WHY]);

/* The facts as the metadata holds them: JSON, freed with free(); NULL when out of memory. And the reverse,
 * which trusts nothing. */
char *eni_checkpoint_facts(const eni_checkpoint *checkpoint);
en_status eni_checkpoint_take_facts(const char *text, const en_schema *schema, eni_checkpoint *checkpoint_out,
                                    char why_out[ENI_ST_WHY]);

/* ---- the folder (names: core/checkpoint_name.h) ---- */

/* Removes the files that killed writers left (eni_checkpoint_is_left); returns their number. */
int eni_checkpoint_sweep(const char *dir);

/* Removes all but the two newest of those with at most `samples`: call it when that one is durable. While
 * another process uploads them (ENI_MIRROR_LOCK), they become NAME.retired.tmp instead, which it removes. At
 * most eight of these wait: then the oldest that is not just being uploaded is removed, with a warning. */
void eni_checkpoint_retire(const char *dir, uint64_t samples);

#endif
