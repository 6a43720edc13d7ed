/* state.h - the folder from which another psd can replace one that was killed.
 *
 *     run.0, run.1          members and agreed configuration (eni_run_file); the generation is the epoch
 *     shard-K.0, shard-K.1  the store of shard K (store/store_save.h)
 *     claims                the micro-batches given to each rank (eni_journal)
 *
 * Two generations of each part are kept: number g lies in the file that ends in g mod 2. A file is written
 * under another name, synchronised, renamed over generation g - 2, and the folder is synchronised: until all
 * of that has succeeded, g - 1 is untouched. So a process that is killed anywhere leaves a sound generation,
 * and a state whose write returned EN_OK survives a loss of power too, on a disk that keeps its promises.
 *
 *     [64-byte header: magic, version, kind, shard, shards, run, generation, length] [bytes] [SHA-256]
 *
 * The hash is hexadecimal, over header and bytes. A file may be torn, rotten or somebody else's: it is
 * checked like input from a socket. An error of write or fsync concerns that one file, which is dropped:
 * pages that failed are marked clean (Rebello'20, "Can applications recover from fsync failures?"), so the
 * next attempt begins with a new file.
 *
 * The folder is locked (flock) while it is open: two psds cannot serve one run. */
#ifndef SERVER_STATE_H
#define SERVER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"
#include "runtime/control/control.h"
#include "runtime/control/leader.h"
#include "runtime/net/token.h"

typedef struct eni_state eni_state;

typedef enum eni_state_kind { ENI_STATE_RUN = 1, ENI_STATE_SHARD = 2 } eni_state_kind;

/* The identity of a file. */
typedef struct eni_state_stamp {
    eni_state_kind kind;
    uint32_t shard, nshards; /* of psd; 0 of 0 for the run */
    uint64_t run;            /* distinguishes runs: the incarnation that the leader drew */
    uint64_t generation;     /* 1, 2, .. */
} eni_state_stamp;

/* Opens and locks; a missing folder is made with mode 0700. EN_EDENIED (logged): it is another user's, others
 * may write to it, or another psd holds it; EN_ENOENT, EN_EIO. Main thread. */
en_status eni_state_open(const char *folder, eni_state **state_out);

/* Unlocks and frees; the files stay. NULL is fine. */
void eni_state_close(eni_state *state);

/* Removes the files of a run, and nothing else: the run is over. */
void eni_state_clear(eni_state *state);

const char *eni_state_path(const eni_state *state);

/* Writes (bytes, length) as generation stamp->generation of its part. Blocks until it is durable. EN_EIO (a
 * warning with the cause): it is not, and the older generations are untouched. Any thread; one at a time per
 * part. */
en_status eni_state_write(const eni_state *state, const eni_state_stamp *stamp, const void *bytes,
                          size_t length);

/* Reads the newest sound generation of a part into a block that the caller frees with eni_free. EN_ENOENT
 * (not logged): never written; EN_EFORMAT (logged): no file is sound. Warns of a damaged one beside a sound
 * one. */
en_status eni_state_read(const eni_state *state, eni_state_kind kind, uint32_t shard,
                         eni_state_stamp *stamp_out, uint8_t **bytes_out, size_t *length_out);

/* ---- the run ------------------------------------------------------------------------------------------- */

/* A run as psd needs it to lead it again: its configuration and its members. One JSON object, kept as part
 * "run" of a state, whose generation is the epoch.
 *
 * {"strategy": "ps-sync", "workers": 2, "shards": 3, "version": "..", "token": "..", "incarnation": "..",
 * "epoch": 1, "key_values": [[key, value], ..], "peers": [{"rank": 0, "pid": .., "born": .., "host": ..,
 * "host_id": .., "member_data": [[key, value], ..]}, ..]} */

typedef struct eni_served {
    const char *strategy, *version;
    int32_t nshards;
    eni_token token;
} eni_served;

/* As read; everything points into `memory`. */
typedef struct eni_run_file {
    eni_served attributes;
    int32_t nranks;
    eni_revived revived; /* completed by eni_journal_fold */
    void *memory;
} eni_run_file;

/* Durable when it returns EN_OK. EN_EIO, EN_ENOMEM, logged. */
en_status eni_run_file_write(const eni_state *state, const eni_served *attributes,
                             const eni_world_info *world);

/* EN_ENOENT (not logged): the folder has no run; EN_EFORMAT, EN_ENOMEM, logged. */
en_status eni_run_file_read(const eni_state *state, eni_run_file **file_out);
void eni_run_file_free(eni_run_file *file); /* NULL is fine */

/* ---- the claim log ------------------------------------------------------------------------------------- */

/* The leader's answers, which it must not retract, in a mapped file: so they survive psd's death (not the
 * machine's), at the price of two stores to memory per entry.
 *
 * A rank numbers its claims 1, 2, .. and may repeat only the last one. Its claims alternate between two
 * slots; the number is stored after the answer, so whichever instruction psd dies at, the slot with the
 * higher number is whole. */

typedef struct eni_journal eni_journal;

/* A new file (is_new: replaces an old one) or that of this run. EN_ENOENT, EN_EFORMAT (another run, another
 * number of ranks, truncated), EN_EIO; logged. */
en_status eni_journal_open(const eni_state *state, uint64_t run, int32_t nranks, bool is_new,
                           eni_journal **journal_out);

/* Call before the answer is sent. Leader's thread. */
void eni_journal_write(eni_journal *journal, const eni_entry *entry);

/* Folds all entries into a leader's starting state. */
void eni_journal_fold(const eni_journal *journal, eni_revived *revived);

void eni_journal_close(eni_journal *journal); /* NULL is fine */

#endif
