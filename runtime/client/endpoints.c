/* endpoints.c - see endpoints.h. */
#include "runtime/client/endpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"

static const char *find(const eni_peer *psd, const char *what, int number)
{
    char key[32];
    snprintf(key, sizeof key, "%s.%d", what, number);
    return eni_key_value_find(psd->member_data, psd->nmember_data, key);
}

static int count(const eni_peer *psd, const char *key, int most)
{
    const char *text = eni_key_value_find(psd->member_data, psd->nmember_data, key);
    const int n = text == NULL ? 0 : atoi(text);
    return n >= 1 && n <= most ? n : 0;
}

en_status eni_endpoints_find(const eni_peer *psd, eni_endpoints *endpoints_out)
{
    const char *every = eni_key_value_find(psd->member_data, psd->nmember_data, "state-every");
    *endpoints_out = (eni_endpoints){.shards = count(psd, "shards", ENI_SHARDS_MAX),
                                     .servers = count(psd, "servers", ENI_SERVERS_MAX),
                                     .state_every = every == NULL ? 0 : strtoull(every, NULL, 10)};
    if (endpoints_out->shards == 0 || endpoints_out->servers == 0) {
        eni_error("endpoints", "the leader at %s is no psd: it named no shards", psd->host);
        return EN_EPROTO;
    }
    for (int k = 0; k < endpoints_out->shards; k++) {
        endpoints_out->tcp[k] = find(psd, "lane", k);
        if (endpoints_out->tcp[k] != NULL) continue;
        eni_error("endpoints", "psd did not name its shard.%d", k);
        return EN_EPROTO;
    }
    for (int s = 0; s < endpoints_out->servers; s++) {
        endpoints_out->arena_sockets[s] = find(psd, "arena", s);
        endpoints_out->host_ids[s] = find(psd, "host-id", s);
    }
    return EN_OK;
}

eni_client_endpoints eni_endpoints_place(const eni_endpoints *endpoints, const char *host_id, uint32_t epoch)
{
    int may_share = host_id != NULL;
    for (int s = 0; s < endpoints->servers && may_share; s++)
        may_share = endpoints->arena_sockets[s] != NULL && endpoints->host_ids[s] != NULL &&
                    strcmp(endpoints->host_ids[s], host_id) == 0;
    return (eni_client_endpoints){.endpoints = endpoints->tcp,
                                  .shards = endpoints->shards,
                                  .arena_sockets = endpoints->arena_sockets,
                                  .servers = may_share ? endpoints->servers : 0,
                                  .epoch = epoch};
}
