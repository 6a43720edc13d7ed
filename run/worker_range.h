/* worker_range.h - how many workers a run may have. With --max-workers=N there are places for N of them, who come and go.
 * With --elastic the global batch stays what it is, so only numbers that share it out evenly fit. Pure functions. */
#ifndef RUN_WORKER_RANGE_H
#define RUN_WORKER_RANGE_H

#include <stddef.h>
#include <stdint.h>

enum {
    ENI_RANK_NEW = -2, /* in place of a rank: of one that comes while the run goes on, as its next rank */
    ENI_PLACES_MAX = 1024,
    ENI_RANKS_PER_PLACE = 4 /* that there can be, for none is given twice */
};

enum { ENI_WORKER_RANGE_TEXT = 48 };

typedef struct eni_worker_range {
    int32_t min, max; /* workers; max 0: their number does not change */
    int64_t batch;    /* samples per step over all workers; 0: not said */
} eni_worker_range;

/* Reads "MIN..MAX", as a user gives it, or with ":SAMPLES" behind it, as a launcher hands it down. NULL: it was
 * read; else what was expected. */
const char *eni_worker_range_read(const char *text, eni_worker_range *elastic_out);

/* "2..8", or "2..8:64" where the batch is known. */
void eni_worker_range_text(const eni_worker_range *elastic, char text_out[ENI_WORKER_RANGE_TEXT]);

/* The largest number of workers that fits and is at most `most`; 0: there is none. */
int32_t eni_worker_range_fit(const eni_worker_range *elastic, int32_t most);

/* Why a run that could have `wanted` workers has `workers`, fewer: "; 3 workers cannot share out the 64 samples of a step
 * (--global-batch-size) evenly". "" where it has as many. */
void eni_worker_range_why(const eni_worker_range *elastic, int32_t wanted, int32_t workers, char *text_out,
                          size_t bytes);

/* The numbers that fit, "2, 4, 8"; cut off where they have no room. */
void eni_worker_range_list(const eni_worker_range *elastic, char *text_out, size_t bytes);

#endif
