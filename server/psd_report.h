/* psd_report.h - what the servers add to the last gather ("result"): one JSON object.
 *
 * {"role": "psd", "updates": .., "staleness": {..}, "per_worker": [{..}, ..], "lanes": [{..}, ..], ..}
 *
 * Stores count per partition. Updates and samples are given per model, that is divided by the number of
 * partitions; holds and histograms are given as counted, a push counting once per partition. With several
 * servers psd 1 and up send psd 0 the same object as counted ("is_part": true), and psd 0 adds them up. */
#ifndef SERVER_PSD_REPORT_H
#define SERVER_PSD_REPORT_H

#include "server/shard.h"

typedef struct eni_report_config {
    eni_shard *const *shards;
    int32_t nshards, nranks;
    int32_t server;         /* 0: the whole report; else a part for psd 0 */
    const eni_blob *others; /* (nothers) parts */
    size_t nothers;
} eni_report_config;

/* Asks every shard and writes the object as text, freed with free(). NULL when a shard did not answer, a part
 * is none, or memory is short (logged). Any thread but a shard's. */
char *eni_report_make(const eni_report_config *config);

#endif
