/* lanes.h - where the lanes of a psd are, from what it tells everyone in WELCOME. */
#ifndef COMM_LANES_H
#define COMM_LANES_H

#include "entrain/status.h"
#include "runtime/net/control.h"

enum { ENI_LANES_MAX = 256 };

/* Texts are the world's. */
typedef struct eni_lanes {
    int shards;
    const char *endpoints[ENI_LANES_MAX]; /* (shards) tcp://... */
    const char *arena_socket;             /* abstract; NULL: psd takes payloads by message only */
} eni_lanes;

/* EN_EPROTO, logged: the leader is no psd, or one that forgot a lane. */
en_status eni_lanes_find(const eni_peer *psd, eni_lanes *lanes_out);

#endif
