/* report_merge.h - the indices of several studies as one, for a page that shows them side by side. */
#ifndef REPORT_REPORT_MERGE_H
#define REPORT_REPORT_MERGE_H

#include <jansson.h>

enum { ENI_MERGED_MAX = 8 };

/* Marks the settings, arms and runs of an index (compare.json) with the number of its study: "study" of settings and runs,
 * "studies", a mask, of arms. A file's own marks are replaced. */
void eni_merge_mark(json_t *index, int study);

/* Adds a marked index to `all`: its settings, renamed where they have the name of another ("even, simulated"); its arms, those
 * of one name, strategy, options and rate being the same; its seeds, runs and plan, without a primary comparison of its own. Its "argv" and "conditions" become an entry of "more".
 * Parts that a malformed index lacks are left out: the reader of `all` finds them missing. */
void eni_merge_add(json_t *all, json_t *index);

#endif
