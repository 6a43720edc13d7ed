/* rank_groups.h - which ranks of a run are in one group: --groups, and the ranks of a host.
 *
 * A grouping of n ranks is an array (n) with each rank's first, that is lowest, group member, which leads the group. So
 * equal groupings are equal bytes, whatever text they came from. Pure functions, apart from logging. */
#ifndef RUN_RANK_GROUPS_H
#define RUN_RANK_GROUPS_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"
#include "entrain/strategy.h"

enum { ENI_RANK_GROUPS_TEXT = 4096 }; /* holds the text of any grouping of 1,024 ranks */

/* NULL if `text` has the form of --groups: "N", a number of groups of neighbours, or groups of ranks and ranges,
 * "0-1;2,4-5;3". Else the expected form. */
const char *eni_rank_groups_check(const char *text);

/* Reads a grouping. EN_EINVAL, logged with text, rank and remedy: a rank is in no group, in two, or not in the
 * world. EN_ENOMEM. */
en_status eni_rank_groups_read(const char *text, int32_t nranks, int32_t *first_out);

/* The shortest text of a grouping, equal for equal groupings: "0-1;2-3". Truncated if it does not fit. */
void eni_rank_groups_text(const int32_t *first, int32_t nranks, char *text_out, size_t bytes);

/* Fills in a rank's fields about its host and its group, from both groupings; rank and nranks are set. */
void eni_rank_groups_place(const int32_t *hosts, const int32_t *groups, en_world *world);

/* The same for all ranks at once: worlds (nranks), with size, rank and nranks set and the rest 0. */
void eni_rank_groups_place_all(const int32_t *hosts, const int32_t *groups, int32_t nranks, en_world *worlds);

#endif
