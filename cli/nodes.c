/* nodes.c - see nodes.h. */
#include "cli/nodes.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "runtime/net/host_info.h"

int eni_nodes_are_several(const eni_config *config)
{
    return config->nnodes > 1;
}

int eni_nodes_world_size(const eni_config *config)
{
    return (int)(config->nnodes * config->workers);
}

int eni_nodes_rank(const eni_config *config, int local)
{
    return (int)(config->node_rank * config->workers) + local;
}

/* A name that is the loopback on its own host (127.0.1.1 in /etc/hosts) is nowhere else. */
static en_status check_master(const eni_config *config, const eni_address *master)
{
    eni_own_address own;
    EN_TRY(eni_host_info_address(master, &own));
    if (own.is_loopback)
        eni_warn("launch",
                 "--master-addr=%s is the loopback of this host: only what runs on this host can take part",
                 master->host);
    if (config->node_rank == 0 && !own.is_remote_here) {
        eni_error("launch",
                  "--master-addr=%s is not this host, but --node-rank=0 is to lead: give its own address",
                  master->host);
        return EN_EINVAL;
    }
    if (own.is_remote_here || config->token_file != NULL) return EN_OK; /* it may still come: workers wait */
    eni_error(
        "launch",
        "--node-rank=%lld needs the token of the run, which is on another host: make one file, copy it to "
        "all hosts, and give it by --token-file=FILE or ENTRAIN_TOKEN_FILE (docs/launch.md)",
        (long long)config->node_rank);
    return EN_EINVAL;
}

en_status eni_nodes_address(const eni_config *config, char address_out[ENI_ADDRESS_TEXT])
{
    char text[ENI_ADDRESS_TEXT];
    eni_address master;
    if (config->master_addr == NULL) {
        eni_error("launch", "--nnodes=%lld needs --master-addr=HOST: host 0, as the others reach it",
                  (long long)config->nnodes);
        return EN_EINVAL;
    }
    const char *format = strchr(config->master_addr, ':') != NULL ? "tcp://[%s]:%d" : "tcp://%s:%d";
    snprintf(text, sizeof text, format, config->master_addr, (int)config->master_port);
    EN_TRY(eni_address_parse(text, &master));
    EN_TRY(check_master(config, &master));
    eni_address_format(&master, address_out);
    return EN_OK;
}
