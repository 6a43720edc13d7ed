/* mesh.h - how ranks reach each other's vectors: TCP connections between all of them, or each other's arenas.
 *
 * Every rank listens before it joins and announces its addresses in its JOIN ("data", "arena"). After WELCOME
 * rank r connects to all lower ranks and is connected to by all higher ones; so every rank waits only for
 * lower ranks first and nothing can wait in a circle. Each connection shows the job token before it is used. */
#ifndef COLLECTIVE_MESH_H
#define COLLECTIVE_MESH_H

#include "entrain/status.h"
#include "runtime/collective/arena.h"
#include "runtime/control/control.h"
#include "runtime/net/fdpass.h"
#include "runtime/net/tcp.h"
#include "runtime/net/token.h"

typedef struct eni_mesh {
    int tcp_fd, unix_fd;            /* listening; -1: not open */
    char address[ENI_ADDRESS_TEXT]; /* the "data" of the member data: for the others to connect to */
    char name[ENI_FDPASS_NAME];     /* the "arena" of the member data: abstract socket for descriptors */
    char leader_host[ENI_HOST_MAX]; /* where we reached the leader, and so its rank */
} eni_mesh;

/* Listens on `host` (this rank's address on the route to the leader), port chosen by the kernel, and on an
 * abstract socket. EN_EDENIED for a host beyond loopback unless is_insecure. A leader that listens on all
 * interfaces announces 0.0.0.0; each of the others connects to `leader_host`, where it reached the leader. */
en_status eni_mesh_open(const char *host, const char *leader_host, bool is_insecure, eni_mesh *mesh_out);

/* Safe twice. Connections made stay. */
void eni_mesh_close(eni_mesh *mesh);

/* Connects to every other rank. sockets_out[r] (nranks) is the connection with rank r, -1 for oneself; all
 * the caller's to close. All ranks call it. On failure none is left open. */
en_status eni_mesh_sockets(const eni_mesh *mesh, const eni_world_info *world, const eni_token *token,
                           int64_t deadline_ns, int abort_fd, int *sockets_out);

/* Maps every other rank's arena; all must be on this host. arenas_out[r] (nranks) is the caller's to close,
 * except [own rank], which is `own` itself. All ranks call it. On failure none is left mapped. */
en_status eni_mesh_arenas(const eni_mesh *mesh, const eni_world_info *world, const eni_token *token,
                          eni_arena *own, int64_t deadline_ns, int abort_fd, eni_arena **arenas_out);

#endif
