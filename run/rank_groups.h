/* rank_groups.h - which ranks of a run are in one group: --groups, and the ranks of a host.
 *
 * A cut of n ranks into groups is an array (n): of each rank the first, that is the lowest, rank of its group, which
 * leads it. So equal cuts are equal bytes, whatever text they came from. Pure functions, but for what is logged. */
#ifndef RUN_RANK_GROUPS_H
#define RUN_RANK_GROUPS_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"
#include "entrain/strategy.h"

enum { ENI_RANK_GROUPS_TEXT = 4096 }; /* holds the text of any cut of 1,024 ranks */

/* NULL if `text` has the form of --groups: "N", so many groups of neighbours, or groups of ranks and of ranges of
 * ranks, "0-1;2,4-5;3". Else what was expected. */
const char *eni_rank_groups_check(const char *text);

/* The cut that it means. EN_EINVAL, and a sentence with text, rank and remedy: one that is in no group, in two, or
 * not in the world. */
en_status eni_rank_groups_read(const char *text, int32_t nranks, int32_t *first_out);

/* The shortest text of a cut, which is the same for equal ones: "0-1;2-3". Cut off where it does not fit. */
void eni_rank_groups_text(const int32_t *first, int32_t nranks, char *text_out, size_t bytes);

/* Fills in what a rank knows of its host and of its group, from both cuts; rank and nranks are there. */
void eni_rank_groups_place(const int32_t *hosts, const int32_t *groups, en_world *world);

#endif
