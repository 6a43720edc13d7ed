/* host_info.h - where this process runs: names for people, an identity that says which processes may share memory,
 * cores, addresses. */
#ifndef NET_HOST_INFO_H
#define NET_HOST_INFO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "runtime/net/tcp.h"

#define ENI_HOST_ID_MAX 128u

/* The host's name for messages; "localhost" when the system has none. */
void eni_host_info_name(char host_out[ENI_HOST_MAX]);

/* Equal exactly for processes that may share memory by passing descriptors: boot id, network namespace
 * (abstract sockets end there) and uid. `override` (NULL or "": none) replaces it: --host-id, to try
 * hierarchy on one machine. EN_EINVAL when the override is longer than ENI_HOST_ID_MAX - 1. */
en_status eni_host_info_id(const char *override, char id_out[ENI_HOST_ID_MAX]);

/* Why two processes of one machine cannot share memory, by their identities: "in another network namespace",
 * "of another user". NULL if they can, or are on two machines, or have a --host-id. */
const char *eni_host_info_apart(const char *id_a, const char *id_b);

/* This machine as seen from another. */
typedef struct eni_own_address {
    char host[ENI_HOST_MAX]; /* numeric: the address that others are to connect to */
    char interface[32];      /* "eth0"; "" when none has this address */
    bool is_loopback;
    bool is_remote_here; /* the other is this machine too, by any of its addresses */
} eni_own_address;

/* Our address on the route to `remote`. No packet is sent. EN_ENOENT: no such name; EN_EINVAL: no route;
 * both logged. */
en_status eni_host_info_address(const eni_address *remote, eni_own_address *own_out);

/* This machine's IPv4 addresses that others may reach: of interfaces that are up, without loopback and
 * link-local ones. Ports are 0. Returns how many, at most `max`; 0 on failure, logged. */
int eni_host_info_addresses(eni_address *addresses_out, int max);

/* Whether an IPv4 or IPv6 address is a loopback address: 127.0.0.0/8, ::1, ::ffff:127.0.0.0/104. */
bool eni_host_info_is_loopback(const struct sockaddr *name);

/* Logs that the look-up of a host has failed, `why`, and what to do. Returns EN_ENOENT. */
en_status eni_host_info_no_host(const char *host, const char *why);

/* Names the process that listens on a TCP port of this machine, for a message: "pid 812 (psd --listen=..)",
 * or as much of it as this user may see. */
void eni_host_info_port_owner(uint16_t port, char text_out[200]);

/* Cores that this process may use: its affinity mask, limited by the cpu quota of its cgroups rounded up. At
 * least 1. */
int eni_host_info_cores(void);

/* The cpu quota alone, of either version of cgroups; INT32_MAX without one. `root` has proc/ and sys/: "", or
 * a test's folder. */
int eni_host_info_quota(const char *root);

/* Bytes of memory of this machine. */
uint64_t eni_host_info_memory(void);

/* Facts about this machine and this program for a result, one call each: the date (UTC), version and commit
 * ("unknown" outside a git checkout), cpu, instruction_set (the CPU's best; the description of oneDNN's device
 * says which one oneDNN uses), kernel, compiler, and in the group "libraries" their versions. `group` is NULL
 * elsewhere. */
typedef void (*eni_host_info_tell)(void *user, const char *group, const char *name, const char *value);
void eni_host_info_facts(const char *version, eni_host_info_tell tell, void *user);

#endif
