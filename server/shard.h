/* shard.h - one shard of the server: a thread, a ROUTER socket, and the store of its partitions.
 *
 *     wait (message, timer, wake) -> check -> store event -> eni_store_step -> replies
 *
 * Shards share only the mapped arenas (read), the emulated NIC and counters, with no lock on weights and no
 * queue between threads. An idle shard blocks in poll.
 *
 * A message is believed only if it came over the connection that sent HELLO with the job token for that rank,
 * incarnation and epoch. Everything else is answered with REFUSED and counted, never fatal. */
#ifndef SERVER_SHARD_H
#define SERVER_SHARD_H

#include "core/trace.h"
#include "run/arrivals.h"
#include "runtime/control/leader.h"
#include "runtime/net/shaper.h"
#include "runtime/net/socket.h"
#include "runtime/net/token.h"
#include "runtime/store/store.h"
#include "server/arenas.h"
#include "server/setup.h"
#include "server/state.h"

typedef struct eni_shard eni_shard;

/* Borrowed objects outlive the shard. */
typedef struct eni_shard_config {
    eni_net *net;
    eni_address listen; /* port 0 */
    bool is_insecure;
    const eni_setup *setup;
    int32_t index, nshards; /* of all psds .. */
    int32_t nown;           /* .. and of this one */
    int32_t nranks;
    /* Ranks that are there from the beginning (0: all); the others, if any, join by HELLO. */
    int32_t nfirst;
    const uint8_t *is_client; /* (nranks) 0: this rank never calls (leader-only strategies) */
    uint32_t epoch;
    uint64_t incarnation; /* of all ranks: given by the leader at JOIN */
    eni_token token;
    const eni_arenas *arenas;
    const eni_weights *weights; /* the memory of the partitions' weights; NULL: the store's own */
    eni_shaper *shaper;         /* NULL: the real wire */
    eni_trace *trace;           /* NULL: no spans */
    const eni_state *state;     /* the folder of the shard's states; NULL: it cannot come back */
    const char *out;      /* the folder for copies of the weights that do not fit into memory; NULL: /tmp */
    uint64_t state_every; /* updates of a partition between two states */
    /* Notes its events there, and closes it, also after a failed start. Zeroed: nowhere. */
    eni_arrivals_file arrivals;
    /* Called once, from the shard's thread, when the shard cannot go on. */
    void (*on_failure)(void *user, const char *reason);
    void *user;
} eni_shard_config;

/* Refused messages by reason. The rest of `refused` violates the store's rules or the order of calls. */
typedef struct eni_shard_refusals {
    uint64_t token;   /* HELLO without this run's token */
    uint64_t member;  /* HELLO with the token, but another rank, epoch, incarnation or shard */
    uint64_t unknown; /* anything over a connection that has not sent HELLO for that rank */
    /* Its length or type is not the partition's, or its memory was not handed over. */
    uint64_t payload;
    uint64_t damaged; /* its checksum is wrong */
} eni_shard_refusals;

/* States on disk. */
typedef struct eni_snapshot_figures {
    uint64_t states, failures, bytes; /* written; failed; size of the last one */
    int64_t write_ns;                 /* spent writing, on the snapshot writer's thread */
} eni_snapshot_figures;

/* A shard's counts, beside the store's own figures. */
typedef struct eni_shard_figures {
    eni_socket_count wire;
    uint64_t shm_bytes; /* payload read from or written to the workers' memory, or read by them in ours */
    uint64_t refused;   /* messages that were answered with REFUSED */
    eni_shard_refusals refusals; /* by reason; also wire.dropped, .damaged and .evicted */
    int64_t update_ns, wait_ns;  /* inside eni_store_step; blocked */
    int64_t save_ns;             /* copying the store for a state */
    uint64_t kept_bytes;         /* weights sent that were kept for rank 0's curve */
    eni_snapshot_figures snapshots;
} eni_shard_figures;

/* Binds and starts the thread, from a state of this run on disk if there is one. *bound_out has the real
 * port. EN_EMISMATCH, EN_EFORMAT, EN_EVERSION (logged): the state cannot be used. */
en_status eni_shard_start(const eni_shard_config *config, eni_shard **shard_out, eni_address *bound_out);

/* Runs `visit` on the shard's thread between two events, where the store may be read, and waits for it.
 * EN_ETIMEOUT after 5 s: the shard is stuck or has ended. Not from the shard's thread. */
typedef void (*eni_shard_visit)(void *user, const eni_store *store, const eni_shard_figures *figures);
en_status eni_shard_look(eni_shard *shard, eni_shard_visit visit, void *user);

/* This rank will push no more: the store gets the event between two others. Any thread but the shard's;
 * returns at once. */
void eni_shard_leave(eni_shard *shard, int32_t rank);

/* psd 0 was lost and another one leads: clients send HELLO again, under this epoch. Waits as above. */
en_status eni_shard_set_epoch(eni_shard *shard, uint32_t epoch);

/* Joins the thread and frees. NULL is fine. */
void eni_shard_stop(eni_shard *shard);

#endif
