/* report.h - what psd adds to the last gather ("result"): one JSON object.
 *
 * {"role": "psd", "updates": .., "staleness": {..}, "per_worker": [{..}, ..], "lanes": [{..}, ..], ..}
 *
 * Stores count per cell. Updates and samples are given per model, that is divided by the number of cells;
 * holds and histograms are given as counted, a push counting once per cell. */
#ifndef SERVER_REPORT_H
#define SERVER_REPORT_H

#include "server/lane.h"

/* Asks every lane and writes the object as text, freed with free(). NULL when a lane did not answer or memory
 * is short (logged). Any thread but a lane's. */
char *eni_report_make(eni_lane *const *lanes, int32_t nlanes, int32_t nranks);

#endif
