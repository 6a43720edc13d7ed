/* arrivals.h - in which order calls reached the stores of a run: written by its shards (--record-order), played in virtual
 * time (--replay-order). With the micro-batches of each rank (metrics-RANK.jsonl), it determines the weights.
 *
 * OUT/arrivals-SHARD.txt has a line for each event of that shard's store: when, in ns; a rank; what. So the store is told
 * the recorded times, whatever virtual time it is:
 *
 *     entrain arrivals 1: shard 0 of 2, 3 ranks, 5 buckets of 203530 elements
 *     1040217 2 0      the next call of rank 2 on bucket 0
 *     1040955 2 -1     rank 2 makes no more calls
 *     1100000 0 -2     a timer of the strategy
 *     3 events */
#ifndef RUN_ARRIVALS_H
#define RUN_ARRIVALS_H

#include <stdint.h>
#include <stdio.h>

#include "entrain/status.h"

/* In place of a bucket. VISIT: the rank joined later, or was lost; such runs cannot be played. */
enum { ENI_ARRIVAL_END = -1, ENI_ARRIVAL_TIMER = -2, ENI_ARRIVAL_VISIT = -3 };

typedef struct eni_arrival {
    int64_t ns; /* on the host's clock; in the file since its beginning; never goes back */
    int32_t rank, bucket;
} eni_arrival;

typedef struct eni_arrivals {
    int32_t shard, nshards, nranks;
    uint32_t nbuckets;
    uint64_t elements; /* of the whole model */
    uint64_t n;
    eni_arrival *item; /* (n) */
} eni_arrivals;

typedef struct eni_arrivals_file {
    FILE *file; /* NULL: none */
    uint64_t n;
    int64_t begin_ns;
} eni_arrivals_file;

/* Begins the file of a shard in `folder`, which exists. EN_EIO, logged. */
en_status eni_arrivals_create(const char *folder, const eni_arrivals *about, eni_arrivals_file *out);

/* Buffered. */
void eni_arrivals_add(eni_arrivals_file *out, eni_arrival arrival);

/* Completes the file with the number of its events, and closes it. EN_EIO, logged. */
en_status eni_arrivals_close(eni_arrivals_file *out);

/* Reads a shard's file. EN_EINVAL (a missing or wrong line; VISIT), EN_ENOENT, logged. */
en_status eni_arrivals_read(const char *folder, int32_t shard, eni_arrivals *arrivals_out);

/* Safe on zeroed memory. */
void eni_arrivals_fini(eni_arrivals *arrivals);

#endif
