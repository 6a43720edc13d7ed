/* nodes.h - `entrain run` on several hosts: the same command on each, with its own --node-rank.
 *
 * Ranks are numbered host by host. The run meets at --master-addr on host 0, where psd is too if the strategy
 * keeps its store on servers. There is no launcher over the hosts: each ends its own processes when the run
 * breaks, and the control plane tells all of them that it did. The token goes by --token-file. */
#ifndef CLI_NODES_H
#define CLI_NODES_H

#include "config/config.h"
#include "entrain/status.h"
#include "runtime/net/tcp.h"

/* More than one host, so that nothing can be inherited: no listening socket, no token. */
int eni_nodes_are_several(const eni_config *config);

int eni_nodes_world_size(const eni_config *config);

/* The number among all of the rank `local` of this host. */
int eni_nodes_rank(const eni_config *config, int local);

/* Where all meet, "tcp://HOST:PORT". EN_EINVAL, logged: no address, or a token that cannot come here. */
en_status eni_nodes_address(const eni_config *config, char address_out[ENI_ADDRESS_TEXT]);

#endif
