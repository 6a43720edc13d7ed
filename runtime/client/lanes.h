/* lanes.h - where the lanes of a run's servers are, from what psd tells everyone in WELCOME.
 *
 *     servers       how many psds there are          state-every  updates between two states on disk; absent:
 *     shards        lanes over all of them                        this psd cannot come back
 *     lane.K        tcp://.. of lane K               arena.S      abstract socket where server S takes arenas
 *                                                    host-id.S    who may hand one over */
#ifndef CLIENT_LANES_H
#define CLIENT_LANES_H

#include "entrain/status.h"
#include "runtime/client/client.h"
#include "runtime/control/control.h"

enum { ENI_LANES_MAX = 256 };

/* Texts are the world's. */
typedef struct eni_lanes {
    int shards, servers;
    uint64_t state_every;                       /* 0: psd cannot come back */
    const char *endpoints[ENI_LANES_MAX];       /* (shards) tcp://... */
    const char *arena_sockets[ENI_SERVERS_MAX]; /* (servers) NULL: payloads by message only */
    const char *host_ids[ENI_SERVERS_MAX];      /* (servers) */
} eni_lanes;

/* EN_EPROTO, logged: the leader is no psd, or one that forgot a lane. */
en_status eni_lanes_find(const eni_peer *psd, eni_lanes *lanes_out);

/* The same for a client on the host `host_id` (NULL: it wants no shared memory). Memory is shared with all
 * servers or with none. Points into `lanes`. */
eni_client_place eni_lanes_place(const eni_lanes *lanes, const char *host_id, uint32_t epoch);

#endif
