/* mesh.c - listens, announces, connects to all lower ranks; or passes its arena on and maps the others'. */
#include "runtime/collective/mesh.h"

#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/net/pending.h"

/* First bytes of the connecting side on a data connection. One host type per run: native byte order. */
typedef struct mesh_hello {
    uint32_t magic;
    int32_t rank;
    uint32_t epoch;
    uint8_t token[ENI_TOKEN_BYTES];
} mesh_hello;

#define HELLO_MAGIC 0x454e4d31u /* "ENM1" */

/* A rank sends its hello right after connecting; a peer that is silent for longer is unauthenticated. */
static const int64_t hello_ns = 2 * ENI_SECOND;

en_status eni_mesh_open(const char *host, const char *leader_host, bool is_insecure, eni_mesh *mesh_out)
{
    eni_mesh mesh = {.tcp_fd = -1, .unix_fd = -1};
    eni_address address = {.port = 0}, bound;
    strncpy(address.host, host, sizeof address.host - 1);
    strncpy(mesh.leader_host, leader_host, sizeof mesh.leader_host - 1);
    en_status st = eni_tcp_listen(&address, is_insecure, &mesh.tcp_fd, &bound);
    if (st == EN_OK) st = eni_fdpass_listen(mesh.name, &mesh.unix_fd);
    if (st != EN_OK) {
        eni_mesh_close(&mesh);
        return st;
    }
    eni_address_format(&bound, mesh.address);
    *mesh_out = mesh;
    return EN_OK;
}

void eni_mesh_close(eni_mesh *mesh)
{
    if (mesh->tcp_fd >= 0) close(mesh->tcp_fd);
    if (mesh->unix_fd >= 0) close(mesh->unix_fd);
    mesh->tcp_fd = mesh->unix_fd = -1;
}

static const char *private_of(const eni_world_info *world, int rank, const char *key)
{
    const eni_peer *peer = &world->peers[rank];
    const char *value = eni_key_value_find(peer->member_data, peer->nmember_data, key);
    if (value == NULL)
        eni_error("mesh", "rank %d joined without \"%s\": check that it runs the same version", rank, key);
    return value;
}

/* ---- TCP ---- */

static en_status connect_lower(const eni_mesh *mesh, const eni_world_info *world, int rank,
                               const eni_token *token, int64_t deadline_ns, int abort_fd, int *fd_out)
{
    const char *text = private_of(world, rank, "data");
    if (text == NULL) return EN_EPROTO;
    eni_address address;
    mesh_hello hello = {.magic = HELLO_MAGIC, .rank = world->rank, .epoch = world->epoch};
    memcpy(hello.token, token->bytes, sizeof hello.token);
    int fd;
    EN_TRY(eni_address_parse(text, &address));
    if (strcmp(address.host, "0.0.0.0") == 0) memcpy(address.host, mesh->leader_host, sizeof address.host);
    EN_TRY(eni_tcp_connect(&address, deadline_ns, abort_fd, &fd));
    en_status st = eni_tcp_send(fd, &hello, sizeof hello, deadline_ns, abort_fd);
    if (st != EN_OK) {
        close(fd);
        return st;
    }
    *fd_out = fd;
    return EN_OK;
}

/* Accepts one higher rank, of *missing. An unauthenticated peer is closed with a warning and not counted. */
static en_status accept_higher(eni_pending *pending, const eni_world_info *world, const eni_token *token,
                               int64_t deadline_ns, int abort_fd, int *sockets, int *missing)
{
    mesh_hello hello;
    eni_token shown;
    int fd;
    EN_TRY(eni_pending_next(pending, deadline_ns, abort_fd, &fd, &hello));
    memcpy(shown.bytes, hello.token, sizeof shown.bytes);
    const bool is_ours = hello.magic == HELLO_MAGIC && eni_token_equal(&shown, token) &&
                         hello.epoch == world->epoch && hello.rank > world->rank &&
                         hello.rank < world->nranks && sockets[hello.rank] < 0;
    if (!is_ours) {
        eni_log_every(&pending->limit, ENI_LOG_WARN, "mesh",
                      "closed a data connection that does not belong to this run");
        close(fd);
        return EN_OK;
    }
    sockets[hello.rank] = fd;
    --*missing;
    return EN_OK;
}

en_status eni_mesh_sockets(const eni_mesh *mesh, const eni_world_info *world, const eni_token *token,
                           int64_t deadline_ns, int abort_fd, int *sockets_out)
{
    eni_pending pending = {mesh->tcp_fd, sizeof(mesh_hello), false, hello_ns, .n = 0};
    en_status st = EN_OK;
    for (int r = 0; r < world->nranks; r++)
        sockets_out[r] = -1;
    for (int r = 0; r < world->rank; r++)
        EN_TRY_GOTO(connect_lower(mesh, world, r, token, deadline_ns, abort_fd, &sockets_out[r]),
                    close_sockets);
    for (int missing = world->nranks - 1 - world->rank; missing > 0;)
        EN_TRY_GOTO(accept_higher(&pending, world, token, deadline_ns, abort_fd, sockets_out, &missing),
                    close_sockets);
    eni_pending_close(&pending);
    return EN_OK;
close_sockets:
    eni_pending_close(&pending);
    for (int r = 0; r < world->nranks && st == EN_ETIMEOUT; r++)
        if (r != world->rank && sockets_out[r] < 0)
            eni_error(
                "mesh",
                "rank %d got no data connection to rank %d in time: check for a firewall between their hosts",
                r, world->rank);
    for (int r = 0; r < world->nranks; r++) {
        if (sockets_out[r] >= 0) close(sockets_out[r]);
        sockets_out[r] = -1;
    }
    return st;
}

/* ---- arenas ---- */

/* Both sides send their memfd and their rank, and map the other's; the peer must be one of [first, last]. */
static en_status exchange(int fd, const eni_world_info *world, int first, int last, eni_arena *own,
                          int64_t deadline_ns, int abort_fd, eni_arena **arenas)
{
    int32_t rank = world->rank, peer;
    int mine = eni_arena_fd(own), fds[ENI_FDPASS_MAX];
    size_t nfds, bytes;
    EN_TRY(eni_fdpass_send(fd, &mine, 1, &rank, sizeof rank, deadline_ns, abort_fd));
    EN_TRY(eni_fdpass_recv(fd, fds, &nfds, &peer, sizeof peer, &bytes, deadline_ns, abort_fd));
    en_status st = EN_EPROTO;
    if (nfds == 1 && bytes == sizeof peer && peer >= first && peer <= last && arenas[peer] == NULL)
        st = eni_arena_map(fds[0], eni_arena_count(own), &arenas[peer]);
    else
        eni_error("mesh",
                  "a process of this host passed something other than the expected rank's shared memory");
    for (size_t i = 0; i < nfds; i++)
        close(fds[i]);
    return st;
}

/* With rank r if it is lower, else with the next higher one that connects. */
static en_status exchange_with(int r, const eni_mesh *mesh, const eni_world_info *world,
                               const eni_token *token, eni_arena *own, int64_t deadline_ns, int abort_fd,
                               eni_arena **arenas)
{
    int fd;
    if (r < world->rank) {
        const char *name = private_of(world, r, "arena");
        if (name == NULL) return EN_EPROTO;
        EN_TRY(eni_fdpass_connect(name, token, deadline_ns, abort_fd, &fd));
    } else {
        EN_TRY(eni_fdpass_accept(mesh->unix_fd, token, deadline_ns, abort_fd, &fd));
    }
    const int first = r < world->rank ? r : world->rank + 1, last = r < world->rank ? r : world->nranks - 1;
    const en_status st = exchange(fd, world, first, last, own, deadline_ns, abort_fd, arenas);
    close(fd);
    return st;
}

en_status eni_mesh_arenas(const eni_mesh *mesh, const eni_world_info *world, const eni_token *token,
                          eni_arena *own, int64_t deadline_ns, int abort_fd, eni_arena **arenas_out)
{
    en_status st = EN_OK;
    for (int r = 0; r < world->nranks; r++)
        arenas_out[r] = NULL;
    arenas_out[world->rank] = own;
    for (int r = 0; r < world->nranks; r++)
        if (r != world->rank)
            EN_TRY_GOTO(exchange_with(r, mesh, world, token, own, deadline_ns, abort_fd, arenas_out), unmap);
    return EN_OK;
unmap:
    for (int r = 0; r < world->nranks && st == EN_ETIMEOUT; r++)
        if (arenas_out[r] == NULL)
            eni_error("mesh", "rank %d of this host has not passed its shared memory to rank %d in time", r,
                      world->rank);
    for (int r = 0; r < world->nranks; r++) {
        if (r != world->rank) eni_arena_close(arenas_out[r]);
        arenas_out[r] = NULL;
    }
    return st;
}
