/* arenas.h - the memory of the workers on this host, as psd maps it.
 *
 * A worker that shares psd's host hands over its arena (collective/arena.h) before its HELLO. psd then reads
 * gradients where backward wrote them and writes weights into the worker's inbox: no payload crosses a
 * socket. One thread waits at an abstract socket with a random name; nothing is left behind. In return the
 * worker gets psd's own weights, if they may be shared (below), and the eventfds of its shards, if it handed
 * over a ring (client/shm_ring.h) too: then messages need no socket either.
 *
 * A mapped arena is the other process's memory: its contents may change at any time, and are checked like
 * anything from a socket. Its size cannot change: it is sealed. */
#ifndef SERVER_ARENAS_H
#define SERVER_ARENAS_H

#include <stdint.h>

#include "entrain/status.h"
#include "runtime/client/shm_ring.h"
#include "runtime/collective/arena.h"
#include "runtime/net/fdpass.h"

/* ---- psd's weights ------------------------------------------------------------------------------------- */

/* psd's weights in memory that the workers of its host can map.
 *
 * Where a strategy steps in rounds (EN_ROUNDS) no process reads a bucket's weights while they change. So the
 * store's partitions lie in one memfd, laid out as the flat vector, and each worker maps it in place of its
 * own weights: a pull copies nothing. Sealed: no other process can write it (F_SEAL_FUTURE_WRITE), or change
 * its size. */

typedef struct eni_weights {
    float *vector; /* for psd's shards to write */
    uint64_t bytes;
    int fd; /* to hand to workers */
} eni_weights;

/* `elements` zeroes. EN_EUNSUPPORTED (logged as information): this kernel cannot seal it; EN_ENOMEM. */
en_status eni_weights_open(uint64_t elements, eni_weights **weights_out);

/* The workers' mappings stay valid. NULL is fine. */
void eni_weights_close(eni_weights *weights);

/* ---- the workers' memory ------------------------------------------------------------------------------- */

typedef struct eni_arenas eni_arenas;

/* One rank's memory; NULL until it is handed over. A worker that reconnects has another ring, and its old
 * arena. */
typedef struct eni_handed_over {
    _Atomic(eni_arena *) arena;
    _Atomic(eni_shm_ring *) ring;
} eni_handed_over;

typedef struct eni_arenas_config {
    int32_t nranks;
    uint32_t epoch;
    uint64_t elements; /* the length that every arena must state */
    eni_token token;
    const eni_weights *weights;               /* borrowed; NULL if not shared with the workers */
    int32_t first_shard, own_shards, nshards; /* this psd's first shard and their number; of all */
} eni_arenas_config;

/* Starts the thread. */
en_status eni_arenas_start(const eni_arenas_config *config, eni_arenas **arenas_out);

/* The socket's name, for the workers. Lives as long as the object. */
const char *eni_arenas_name(const eni_arenas *arenas);

/* From now on arenas are accepted under this epoch; earlier ones stay. */
void eni_arenas_set_epoch(eni_arenas *arenas, uint32_t epoch);

/* (nranks) the memory that each rank has handed over; written by the arenas' thread, read by shards at any
 * time. It stays mapped until stop. */
const eni_handed_over *eni_arenas_handed_over(const eni_arenas *arenas);

/* The eventfd by which workers wake shard `shard`; -1: this psd accepts no rings. Borrowed. */
int eni_arenas_doorbell_fd(const eni_arenas *arenas, int32_t shard);

/* Joins the thread and unmaps everything: no shard may run any more. NULL is fine. */
void eni_arenas_stop(eni_arenas *arenas);

#endif
