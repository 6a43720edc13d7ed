/* jsonl.h - files of one JSON object a line, opened for a new run or for one that goes on. */
#ifndef RANK_JSONL_H
#define RANK_JSONL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "entrain/status.h"

/* Opens `path` for writing at its end. resumed 0: it begins empty. Else the lines whose "samples" are at most
 * that stay, and whose "t" is at most `seconds` (0: whatever it is), and the rest (a killed run's, perhaps
 * torn) goes: so the file is one run's. A file that is not there begins empty. EN_EIO, logged. */
en_status eni_jsonl_open(const char *path, uint64_t resumed, double seconds, FILE **file_out);

/* Whether a line of that time stays; six digits are written of it. */
static inline bool eni_jsonl_is_before(double t, double seconds)
{
    return !(seconds > 0) || t <= seconds + 1e-6;
}

#endif
