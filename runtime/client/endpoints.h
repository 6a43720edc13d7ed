/* endpoints.h - where the shards of a run's servers are, from what psd tells everyone in WELCOME.
 *
 *     servers       how many psds there are
 *     shards        how many over all of them
 *     lane.K        tcp://.. of shard K
 *     arena.S       abstract socket where server S takes arenas
 *     host-id.S     who may hand one over
 *     state-every   updates between two states on disk; absent: this psd cannot come back */
#ifndef CLIENT_ENDPOINTS_H
#define CLIENT_ENDPOINTS_H

#include "entrain/status.h"
#include "runtime/client/client.h"
#include "runtime/control/control.h"

enum { ENI_SHARDS_MAX = 256 };

/* Texts are the world's. */
typedef struct eni_endpoints {
    int shards, servers;
    uint64_t state_every;                       /* 0: psd cannot come back */
    const char *tcp[ENI_SHARDS_MAX];            /* (shards) tcp://... */
    const char *arena_sockets[ENI_SERVERS_MAX]; /* (servers) NULL: payloads by message only */
    const char *host_ids[ENI_SERVERS_MAX];      /* (servers) */
} eni_endpoints;

/* EN_EPROTO, logged: the leader is no psd, or one that forgot a shard. */
en_status eni_endpoints_find(const eni_peer *psd, eni_endpoints *endpoints_out);

/* The same for a client on the host `host_id` (NULL: it wants no shared memory). Memory is shared with all
 * servers or with none. Points into `endpoints`. */
eni_client_endpoints eni_endpoints_place(const eni_endpoints *endpoints, const char *host_id, uint32_t epoch);

#endif
