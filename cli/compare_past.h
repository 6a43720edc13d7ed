/* compare_past.h - identifies a comparison: the keys its arms run under, for compare.json, so that a report
 * can tell shared values from differing ones; and the runs that an interrupted comparison of the same study
 * has left, for `entrain compare --resume`. */
#ifndef CLI_COMPARE_PAST_H
#define CLI_COMPARE_PAST_H

#include <jansson.h>

#include "config/config.h"

/* `base`: the configuration that all arms begin with; `arm` (narms): each arm's. Fills `conditions` with the
 * base's keys of the condition (report/may_differ.h), and adds to each of `arms` (narms objects):
 *
 *     "own"        the keys in which arms may differ
 *     "given"      those of them that the arm's text sets
 *     "condition"  the keys of the condition in which the arm differs from the base
 *
 * Values are the texts of flags, null if unset. A key that is set, or not at its default, in any configuration is
 * written for all of them, so that a reader need not know defaults. EN_ENOMEM. */
en_status eni_compare_keys(const eni_config *base, const eni_config *arm, int narms, json_t *conditions,
                           json_t *arms);

/* `study` is compare.json as it would be before the first run. If DIR/compare.json is of the same study
 * (arms, settings, seeds, conditions, claims; by the same program on the same kind of machine), its runs that
 * ended well and have a result are added to those of `study`, with its command line and environment, and
 * *order_out is the order of the next run. Without such a file nothing happens. EN_EINVAL, logged: another
 * study, or unreadable. */
en_status eni_compare_past(const char *dir, json_t *study, int *order_out);

#endif
