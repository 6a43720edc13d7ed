/* place.h - where this process runs: names for people, an identity for "may we share memory", cores,
 * addresses. */
#ifndef NET_PLACE_H
#define NET_PLACE_H

#include <stdint.h>

#include "runtime/net/tcp.h"

#define ENI_HOST_ID_MAX 128u

/* The host's name for messages; "localhost" when the system has none. */
void eni_place_host(char host_out[ENI_HOST_MAX]);

/* Equal exactly for processes that may share memory by passing descriptors: boot id, network namespace
 * (abstract sockets end there) and uid. `override` (NULL or "": none) replaces it: --host-id, to try
 * hierarchy on one machine. EN_EINVAL when the override is longer than ENI_HOST_ID_MAX - 1. */
en_status eni_place_host_id(const char *override, char id_out[ENI_HOST_ID_MAX]);

/* This machine's address, as a number, on the route to `remote`: what to tell others to connect to. No packet
 * is sent. */
en_status eni_place_address(const eni_address *remote, char host_out[ENI_HOST_MAX]);

/* Cores that this process may use: its affinity mask, cut to the cgroup's cpu quota rounded up. At least 1.
 */
int eni_place_cores(void);

#endif
