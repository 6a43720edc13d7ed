/* run_file.h - a run as psd needs it to lead it again: what was agreed, who takes part. One JSON object, kept
 * as part "run" of a state (state.h), whose generation is the epoch.
 *
 * {"strategy": "ps-sync", "workers": 2, "lanes": 3, "version": "..", "token": "..", "incarnation": "..",
 *  "epoch": 1, "pairs": [[key, value], ..], "peers": [{"rank": 0, "pid": .., "born": .., "host": ..,
 *  "host_id": .., "privates": [[key, value], ..]}, ..]} */
#ifndef SERVER_RUN_FILE_H
#define SERVER_RUN_FILE_H

#include "runtime/control/control.h"
#include "runtime/net/token.h"
#include "server/state.h"

typedef struct eni_served {
    const char *strategy, *version;
    int32_t nshards;
    eni_token token;
} eni_served;

/* As read; everything points into `memory`. */
typedef struct eni_run_file {
    eni_served attributes;
    uint32_t epoch;
    uint64_t incarnation;
    int32_t nranks;
    const eni_key_value *key_values;
    size_t nkey_values;
    const eni_peer *peers; /* (nranks) */
    void *memory;
} eni_run_file;

/* Durable when it returns EN_OK. EN_EIO, EN_ENOMEM, logged. */
en_status eni_run_file_write(const eni_state *state, const eni_served *attributes,
                             const eni_world_info *world);

/* EN_ENOENT (not logged): there is no run in this folder; EN_EFORMAT, EN_ENOMEM, logged. */
en_status eni_run_file_read(const eni_state *state, eni_run_file **file_out);
void eni_run_file_free(eni_run_file *file); /* NULL is fine */

#endif
