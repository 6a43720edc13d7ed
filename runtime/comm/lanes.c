/* lanes.c - see lanes.h. */
#include "runtime/comm/lanes.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/core/log.h"

en_status eni_lanes_find(const eni_peer *psd, eni_lanes *lanes_out)
{
    const char *shards = eni_pair_find(psd->privates, psd->nprivates, "shards");
    lanes_out->shards = shards == NULL ? 0 : atoi(shards);
    if (lanes_out->shards < 1 || lanes_out->shards > ENI_LANES_MAX) {
        eni_error("lanes", "the leader at %s is no psd: it named no lanes", psd->host);
        return EN_EPROTO;
    }
    for (int k = 0; k < lanes_out->shards; k++) {
        char key[24];
        snprintf(key, sizeof key, "lane.%d", k);
        lanes_out->endpoints[k] = eni_pair_find(psd->privates, psd->nprivates, key);
        if (lanes_out->endpoints[k] == NULL) {
            eni_error("lanes", "psd did not name its %s", key);
            return EN_EPROTO;
        }
    }
    lanes_out->arena_socket = eni_pair_find(psd->privates, psd->nprivates, "arena");
    return EN_OK;
}
