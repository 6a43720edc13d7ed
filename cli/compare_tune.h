/* compare_tune.h - `compare --tune`: a record of each run of a sweep, and the value that wins. */
#ifndef CLI_COMPARE_TUNE_H
#define CLI_COMPARE_TUNE_H

#include <jansson.h>

#include "config/config.h"

/* The sweeps use the smallest seed that the study does not. */
int64_t eni_tune_seed(const eni_config *config);

/* The arm's sweep so far, as DIR/compare.json records it; an empty array if it has none. The caller's. */
json_t *eni_tune_past(const char *dir, const char *arm);

/* Whether the sweep has a run with this value. */
bool eni_tune_has(const json_t *sweep, double value);

/* Adds, in the order of values, the run in DIR/RELATIVE, which ended with `st`: its loss on held-out samples at the end (null:
 * the run failed or "diverged"), and the cause of a failure. */
void eni_tune_add(json_t *sweep, double value, const char *dir, const char *relative, en_status st,
                  const char *cause);

/* Marks the run with the lowest loss as "chosen", the first of equals. False: all have failed or diverged. */
bool eni_tune_choose(json_t *sweep, double *value_out);

#endif
