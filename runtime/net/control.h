/* control.h - what leader.h and member.h share: who is in the run, and how they say so.
 *
 * A run has one leader (psd, or a thread inside rank 0) and W members, one in every worker. Each member holds
 * one plain TCP connection to the leader. On it they meet, agree on one configuration, claim micro-batches,
 * exchange small blobs, and hear of each other's death. The bytes are in docs/wire.md. */
#ifndef NET_CONTROL_H
#define NET_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "entrain/status.h"

#define ENI_CONTROL_MAGIC   0x454e4331u /* "ENC1" */
#define ENI_CONTROL_VERSION 1u
#define ENI_BLOB_MAX        (UINT32_C(1) << 20) /* bytes one rank may put into a gather, or into its JOIN */
#define ENI_RANKS_MAX       4096
#define ENI_REASON_MAX      512u
#define ENI_TAG_MAX         64u /* with the terminating 0 */
#define ENI_PHASE_MAX       32u /* with the terminating 0 */

/* One named text; both are borrowed from whoever hands it out. A key is at most 255 bytes. */
typedef struct eni_pair {
    const char *key, *value;
} eni_pair;

/* The value of `key`, or NULL. */
const char *eni_pair_find(const eni_pair *pairs, size_t npairs, const char *key);

/* One process of the run. */
typedef struct eni_peer {
    int32_t rank; /* -1: psd */
    int64_t pid;
    const char *host;         /* for people */
    const char *host_id;      /* equal exactly for processes that may share memory: place.h */
    const eni_pair *privates; /* what it wanted to tell the others: data addresses, socket names */
    size_t nprivates;
} eni_peer;

/* The run as one process sees it after WELCOME. Immutable; owned by the member or leader. */
typedef struct eni_world_info {
    int32_t rank; /* own; -1 at the leader */
    int32_t nranks;
    uint32_t epoch;        /* of the membership; goes into every frame */
    uint64_t incarnation;  /* own (at the leader: every rank's): another life is another client */
    uint64_t budget;       /* micro-batches that claims will hand out */
    const eni_peer *peers; /* nranks, peers[r].rank == r */
    eni_peer leader;
    const eni_pair *pairs; /* rank 0's, which every rank's equal */
    size_t npairs;
} eni_world_info;

/* Who was lost first, as the leader told everyone. */
typedef struct eni_death {
    int32_t rank; /* -1: psd */
    int64_t pid;
    int64_t step; /* the last one it spoke of */
    char host[256];
    char phase[ENI_PHASE_MAX];
    char cause[ENI_REASON_MAX];
} eni_death;

/* The blobs of one gather: those of rank 0 .. count-2, and last the leader's (empty unless it has on_gather).
 */
typedef struct eni_blob {
    const uint8_t *data;
    size_t bytes;
} eni_blob;

typedef struct eni_blobs {
    size_t count; /* nranks + 1 */
    eni_blob *blob;
} eni_blobs;

/* Frees what a gather returned and zeroes it; zeroed memory is fine. */
void eni_blobs_fini(eni_blobs *blobs);

#endif
