/* arrivals.h - in which order calls reached the stores of a run: written by its shards (--record-order), played in virtual
 * time (--replay-order). With the micro-batches of each rank (metrics-RANK.jsonl), it determines the weights.
 *
 * OUT/arrivals-SHARD.txt has a line for each event of that shard's store:
 *
 *     entrain arrivals 1: shard 0 of 2, 3 ranks, 5 buckets of 203530 elements
 *     1040217 2 0      after 1,040,217 ns the next call of rank 2 on bucket 0
 *     1040955 2 end    rank 2 makes no more calls
 *     1100000 timer    a timer of the strategy
 *     1200000 2 join   it joined later, or was lost (left): such runs are not played
 *     4 events
 *
 * A store is a function of these events and their times, so no call of it depends on what virtual time it is. */
#ifndef RUN_ARRIVALS_H
#define RUN_ARRIVALS_H

#include <stdint.h>
#include <stdio.h>

#include "entrain/status.h"

/* In place of a bucket. */
enum { ENI_ARRIVAL_END = -1, ENI_ARRIVAL_TIMER = -2, ENI_ARRIVAL_JOIN = -3, ENI_ARRIVAL_LEFT = -4 };

typedef struct eni_arrival {
    int64_t now_ns; /* as the store was told; never goes back */
    int32_t rank;   /* TIMER: 0 */
    int32_t bucket;
} eni_arrival;

typedef struct eni_arrivals {
    int32_t shard, nshards, nranks;
    uint32_t nbuckets;
    uint64_t elements; /* of the whole model */
    uint64_t n;
    eni_arrival *item; /* (n) */
} eni_arrivals;

typedef struct eni_arrivals_file eni_arrivals_file;

/* Begins the file of a shard in `folder`, which is there. EN_EIO, logged. */
en_status eni_arrivals_create(const char *folder, const eni_arrivals *about, eni_arrivals_file **file_out);

/* An event is handled; now_ns on this host's clock. Buffered. NULL records nothing. */
void eni_arrivals_add(eni_arrivals_file *file, eni_arrival arrival);

/* Without this the file is not complete. EN_EIO, logged. NULL is fine. */
en_status eni_arrivals_close(eni_arrivals_file *file);

/* Reads a shard's file. EN_EINVAL (a line that is none, or missing; a run whose ranks came and went), EN_ENOENT; logged. */
en_status eni_arrivals_read(const char *folder, int32_t shard, eni_arrivals *arrivals_out);

/* Safe on zeroed memory. */
void eni_arrivals_fini(eni_arrivals *arrivals);

#endif
