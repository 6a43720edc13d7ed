/* lanes.c - see lanes.h. */
#include "runtime/client/lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"

static const char *find(const eni_peer *psd, const char *what, int number)
{
    char key[32];
    snprintf(key, sizeof key, "%s.%d", what, number);
    return eni_pair_find(psd->privates, psd->nprivates, key);
}

static int count(const eni_peer *psd, const char *key, int most)
{
    const char *text = eni_pair_find(psd->privates, psd->nprivates, key);
    const int n = text == NULL ? 0 : atoi(text);
    return n >= 1 && n <= most ? n : 0;
}

en_status eni_lanes_find(const eni_peer *psd, eni_lanes *lanes_out)
{
    const char *every = eni_pair_find(psd->privates, psd->nprivates, "state-every");
    *lanes_out = (eni_lanes){.shards = count(psd, "shards", ENI_LANES_MAX),
                             .servers = count(psd, "servers", ENI_SERVERS_MAX),
                             .state_every = every == NULL ? 0 : strtoull(every, NULL, 10)};
    if (lanes_out->shards == 0 || lanes_out->servers == 0) {
        eni_error("lanes", "the leader at %s is no psd: it named no lanes", psd->host);
        return EN_EPROTO;
    }
    for (int k = 0; k < lanes_out->shards; k++) {
        lanes_out->endpoints[k] = find(psd, "lane", k);
        if (lanes_out->endpoints[k] != NULL) continue;
        eni_error("lanes", "psd did not name its lane.%d", k);
        return EN_EPROTO;
    }
    for (int s = 0; s < lanes_out->servers; s++) {
        lanes_out->arena_sockets[s] = find(psd, "arena", s);
        lanes_out->host_ids[s] = find(psd, "host-id", s);
    }
    return EN_OK;
}

eni_client_place eni_lanes_place(const eni_lanes *lanes, const char *host_id, uint32_t epoch)
{
    int may_share = host_id != NULL;
    for (int s = 0; s < lanes->servers && may_share; s++)
        may_share = lanes->arena_sockets[s] != NULL && lanes->host_ids[s] != NULL &&
                    strcmp(lanes->host_ids[s], host_id) == 0;
    return (eni_client_place){.endpoints = lanes->endpoints,
                              .shards = lanes->shards,
                              .arena_sockets = lanes->arena_sockets,
                              .servers = may_share ? lanes->servers : 0,
                              .epoch = epoch};
}
