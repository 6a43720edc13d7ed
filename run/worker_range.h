/* worker_range.h - how many workers a run may have. With --max-workers=N there are N seats, and workers join and leave.
 * With --elastic the global batch stays constant, so only counts that divide it fit. Pure functions. */
#ifndef RUN_WORKER_RANGE_H
#define RUN_WORKER_RANGE_H

#include <stddef.h>
#include <stdint.h>

enum {
    ENI_RANK_NEW = -2, /* in place of a rank: a newcomer, which gets the next unused one */
    ENI_PLACES_MAX = 1024,
    ENI_RANKS_PER_PLACE = 4 /* over the run: a rank number is never reused */
};

enum { ENI_WORKER_RANGE_TEXT = 48 };

typedef struct eni_worker_range {
    int32_t min, max; /* workers; max 0: the number is fixed */
    int64_t batch;    /* samples per step over all workers; 0: not known */
} eni_worker_range;

/* Reads "MIN..MAX", as a user gives it, or with ":SAMPLES" appended, as a launcher hands it down. NULL: success;
 * else the expected form. */
const char *eni_worker_range_read(const char *text, eni_worker_range *elastic_out);

/* "2..8", or "2..8:64" if the batch is known. */
void eni_worker_range_text(const eni_worker_range *elastic, char text_out[ENI_WORKER_RANGE_TEXT]);

/* The largest number of workers that fits and is at most `most`; 0 if none fits. */
int32_t eni_worker_range_fit(const eni_worker_range *elastic, int32_t most);

/* Why a run that could have `wanted` workers has only `workers`: "; 3 workers cannot evenly share the 64 samples of a
 * step (--global-batch-size)". "" if it has as many. */
void eni_worker_range_why(const eni_worker_range *elastic, int32_t wanted, int32_t workers, char *text_out,
                          size_t bytes);

/* The numbers that fit, "2, 4, 8"; truncated. */
void eni_worker_range_list(const eni_worker_range *elastic, char *text_out, size_t bytes);

#endif
