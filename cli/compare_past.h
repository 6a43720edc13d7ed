/* compare_past.h - what an interrupted comparison has left, for `entrain compare --resume`. */
#ifndef CLI_COMPARE_PAST_H
#define CLI_COMPARE_PAST_H

#include <jansson.h>

#include "entrain/status.h"

/* `study` is what compare.json would say before the first run. If DIR/compare.json is of the same study
 * (arms, settings, seeds, conditions, claims; by the same program on the same kind of machine), its runs that
 * ended well, and whose result is there, are added to those of `study`, with its command line and
 * environment, and *order_out is that of the next run. Without such a file nothing happens. EN_EINVAL,
 * logged: it is another study, or cannot be read. */
en_status eni_compare_past(const char *dir, json_t *study, int *order_out);

/* Whether `runs` has this one. */
int eni_compare_has(const json_t *runs, const char *setting, const char *arm, json_int_t seed);

#endif
