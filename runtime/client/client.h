/* client.h - the worker's side of the parameter server: one dealer per shard, fused push-pull per bucket.
 *
 * A call on a bucket is K partition messages to K shards and completes when K replies are here. Payloads go
 * through the arena when psd shares the host (only headers cross a socket then), through ZeroMQ otherwise. At
 * most one call per bucket is in progress. Compute thread only.
 *
 * A psd that comes back. With `keep` the client copies every call (and INIT) and holds the copy until psd has
 * it on disk (`stable` in replies). When the generation changes it connects to the new shards, and on every
 * partition sends what it kept, in order, each after the answer to the one before; psd recognises by seq which
 * are new to it. The last call is sent again even when it is stable: until it is answered, the store has not
 * repeated the rounds that its answer came from, and no later call may overtake them. A thread of the client
 * does this also while the compute thread is elsewhere: others may wait for calls that we keep. Without `keep`
 * none of this exists. */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "entrain/status.h"
#include "runtime/client/client_step.h"
#include "runtime/collective/arena.h"
#include "runtime/control/control.h"
#include "runtime/net/shaper.h"
#include "runtime/net/socket.h"
#include "runtime/net/token.h"
#include "runtime/spec/buckets.h"

enum { ENI_SLOT_NONE = -1 }; /* no vector */

typedef struct eni_client eni_client;

enum { ENI_SHARDS_MAX = 256 };

/* psd's addresses. Texts are the world's. */
typedef struct eni_endpoints {
    uint32_t epoch;
    int shards, servers;                        /* servers 0: payloads by message */
    uint64_t state_every;                       /* 0: psd cannot come back */
    const char *tcp[ENI_SHARDS_MAX];            /* (shards) tcp://... */
    const char *arena_sockets[ENI_SERVERS_MAX]; /* (servers) abstract sockets where they take arenas */
} eni_endpoints;

/* Pointers are borrowed and outlive the client. */
typedef struct eni_client_config {
    eni_net *net;
    const eni_endpoints *psd; /* borrowed during open */
    eni_arena *arena;
    const eni_buckets *buckets;
    const eni_token *token;
    int32_t rank;
    uint64_t incarnation;
    eni_shaper *shaper;             /* NULL: no emulated network */
    en_status (*alive)(void *user); /* EN_OK, or why no wait can succeed any more */
    void *user;
    int wake_fd; /* readable when alive() is no longer EN_OK; -1: none */
    int64_t join_deadline_ns;

    uint32_t keep; /* calls per partition to keep at most for a psd that comes back, at least 2; 0: none */
    /* How often psd came back: cheap, any thread; and its present addresses: any thread of the client. */
    uint64_t (*generation)(void *user);
    en_status (*locate)(void *user, const eni_endpoints **psd_out);
} eni_client_config;

/* Connects to every shard, sends HELLO, and waits for all WELCOMEs. A rank that joins a run in progress may
 * only make snapshots until eni_client_join. */
en_status eni_client_open(const eni_client_config *config, eni_client **client_out);
void eni_client_close(eni_client *client);

/* For a rank that joins a run in progress, has its weights by snapshot and no call in progress: from now on
 * it counts. Its clock is the greatest of the partitions' least clocks of that snapshot: a lower one could
 * hold the others under a bound until its first push, and a clock per partition could make two newcomers wait
 * for each other without end (store.h, ENI_JOIN_AT_CLOCK). */
en_status eni_client_join(eni_client *client, int64_t deadline_ns);

/* Maps the store's own weights over the param slot, where psd offers them (a strategy with EN_ROUNDS, one
 * psd, on this host): answers into it then move nothing, and it cannot be written. The slot must hold psd's
 * weights already, so take a snapshot of every bucket first. A psd that comes back answers with copies again.
 * *is_mapped_out false: with copies as before. Compute thread, no call in progress. */
en_status eni_client_map_weights(eni_client *client, bool *is_mapped_out);

/* Starts a call: `out_slot`'s contents of the bucket are sent (ENI_SLOT_NONE: a pure pull) and must not
 * change until the call is done; the reply goes to in_slot. The caller fills in of `header`: the type, which
 * is ENI_MSG_CALL, INIT or SNAPSHOT; kind, what, step; and of a push nsamples, its weight in a mean, and
 * covered, the samples computed since the last push of the bucket. A snapshot into a slot other than
 * ENI_SLOT_PARAM is only a look: the next push is not marked as computed on it. */
en_status eni_client_call(eni_client *client, uint32_t bucket, int out_slot, int in_slot,
                          const eni_header *header);

/* The history of one partition's vectors, from the last answer to a SNAPSHOT, or for the next INIT (kind 0:
 * weights that have a past). `lo` is its first element in the flat vector. count 0: empty. */
typedef struct eni_partition_past {
    uint64_t lo, count;
    uint64_t version, steps, samples;
} eni_partition_past;
int eni_client_shards(const eni_client *client); /* shards, over all servers */
void eni_client_past(const eni_client *client, uint32_t bucket, int shard, eni_partition_past *past_out);
void eni_client_set_past(eni_client *client, uint32_t bucket, int shard, const eni_partition_past *past);

/* Makes every shard copy its partitions under this number before it handles later messages; waits for nothing
 * and moves no tensor. A psd that is away, or comes back, has no such copy: see ENI_KEPT_NOWHERE
 * (net/wire.h). */
en_status eni_client_keep(eni_client *client, uint32_t number);

/* Waits until the bucket's call is done and its reply lies in in_slot. EN_OK at once if none is in progress;
 * else EN_OK, alive()'s status, or EN_EPROTO when a shard refused (logged). */
en_status eni_client_wait(eni_client *client, uint32_t bucket);

/* Announces to every shard that no more calls come, and waits for the answers: with `keep`, until every call
 * of this client is on psd's disk, so that psd needs nothing of it any more. */
en_status eni_client_finished(eni_client *client);

typedef struct eni_client_counters {
    uint64_t payload_sent, payload_received; /* bytes of weights and gradients, by any transport */
    uint64_t wire_bytes;                     /* both ways, headers and framing included */
    uint64_t shm_bytes;                      /* payload that went through shared memory */
    int64_t wait_ns;                         /* blocked in poll */
    uint64_t returns;                        /* how often psd came back */
    int64_t return_ns;                       /* the longest from finding psd back to the last answer */
} eni_client_counters;
void eni_client_count(const eni_client *client, eni_client_counters *counters_out);
int64_t eni_client_waited(const eni_client *client); /* wait_ns alone */

/* Version and staleness in the store's last answers on a bucket. */
eni_client_answer eni_client_answered(const eni_client *client, uint32_t bucket);

/* Whether payloads go through shared memory. */
bool eni_client_is_shared(const eni_client *client);

/* ---- the shards' addresses ---- */

/* psd describes its shards in WELCOME:
 *
 *     servers       number of psds
 *     shards        number of shards over all psds
 *     shard.K       tcp://.. of shard K
 *     arena.S       abstract socket where server S takes arenas
 *     host-id.S     clients of this host may pass one
 *     state-every   updates between two states saved; absent: this psd cannot come back
 *
 * For a client on the host `host_id` (NULL: it wants no shared memory). Memory is shared with all servers or
 * with none. EN_EPROTO, logged: the leader is not a psd, or omits a shard. */
en_status eni_endpoints_find(const eni_peer *psd, uint32_t epoch, const char *host_id,
                             eni_endpoints *endpoints_out);

#endif
