/* compare_keys.h - under which keys the arms of a comparison run, for compare.json: so that a report can tell
 * what they share from what they differ in, and needs no configuration to do so. */
#ifndef CLI_COMPARE_KEYS_H
#define CLI_COMPARE_KEYS_H

#include <jansson.h>

#include "config/config.h"

/* `base`: what all arms begin with; `arm` (narms): their runs. Fills `conditions` with the base's keys of the
 * condition, and each of `arms` (narms objects) with "own", its own keys, and "condition", the keys of the
 * condition in which it is not the base's. Values are the texts of flags, null where there is none. A key
 * that one of them was told, or whose default it has left, stands in all: defaults need not be known.
 * EN_ENOMEM. */
en_status eni_compare_keys(const eni_config *base, const eni_config *arm, int narms, json_t *conditions,
                           json_t *arms);

#endif
