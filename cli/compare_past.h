/* compare_past.h - what makes a comparison: under which keys its arms run, for compare.json, so that a report
 * can tell what they share from what they differ in; and what an interrupted one of the same study has left,
 * for `entrain compare --resume`. */
#ifndef CLI_COMPARE_PAST_H
#define CLI_COMPARE_PAST_H

#include <jansson.h>

#include "config/config.h"

/* `base`: what all arms begin with; `arm` (narms): the configuration of each arm. Fills `conditions` with the base's keys of
 * the condition (report/may_differ.h), and adds to each of `arms` (narms objects):
 *
 *     "own"        the keys in which arms may differ
 *     "given"      those of them that the arm's text sets
 *     "condition"  the keys of the condition in which the arm differs from the base
 *
 * Values are the texts of flags, null where there is none. A key that any of them was told, or whose default any of them has
 * left, stands in all, so that a reader need not know defaults. EN_ENOMEM. */
en_status eni_compare_keys(const eni_config *base, const eni_config *arm, int narms, json_t *conditions,
                           json_t *arms);

/* `study` is what compare.json would say before the first run. If DIR/compare.json is of the same study
 * (arms, settings, seeds, conditions, claims; by the same program on the same kind of machine), its runs that
 * ended well, and whose result is there, are added to those of `study`, with its command line and
 * environment, and *order_out is that of the next run. Without such a file nothing happens. EN_EINVAL,
 * logged: it is another study, or cannot be read. */
en_status eni_compare_past(const char *dir, json_t *study, int *order_out);

#endif
