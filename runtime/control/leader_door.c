/* leader_door.c - what `entrain ps` and `entrain stop` talk to: an abstract socket, so that no file is left.
 * A caller asks once; a slow one is dropped. See runs.h for the other side and docs/wire.md for the bytes. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/leader_state.h"
#include "runtime/control/runs_wire.h"
#include "runtime/net/process.h"

enum { ATTRIBUTES_MAX = 33 };

static const int64_t timeout_ns = 2 * ENI_SECOND;

typedef struct caller {
    int fd; /* -1: none */
    int64_t until_ns;
    bool has_asked;
    int32_t next; /* -1: the run itself is next to be told; then its members; nmembers: the end */
} caller;

struct eni_door {
    int listen_fd;
    caller callers[ENI_DOOR_CALLERS];
};

void eni_door_open(eni_leader *leader)
{
    if (leader->config.attributes == NULL) return;
    struct eni_door *door = eni_alloc(sizeof *door);
    if (door == NULL) return;
    door->listen_fd = eni_runs_listen(getpid());
    for (int i = 0; i < ENI_DOOR_CALLERS; i++)
        door->callers[i].fd = -1;
    leader->door = door;
    if (door->listen_fd < 0) eni_warn("leader", "`entrain ps` will not see this run: %s", strerror(errno));
}

static void hang_up(caller *c)
{
    if (c->fd >= 0) close(c->fd);
    *c = (caller){.fd = -1};
}

void eni_door_close(struct eni_door *door)
{
    if (door == NULL) return;
    for (int i = 0; i < ENI_DOOR_CALLERS; i++)
        hang_up(&door->callers[i]);
    if (door->listen_fd >= 0) close(door->listen_fd);
    eni_free(door);
}

void eni_door_poll(const struct eni_door *door, struct pollfd set[1 + ENI_DOOR_CALLERS])
{
    set[0] = (struct pollfd){door == NULL ? -1 : door->listen_fd, POLLIN, 0};
    for (int i = 0; i < ENI_DOOR_CALLERS; i++) {
        const caller *c = door == NULL ? NULL : &door->callers[i];
        short events = c != NULL && c->has_asked ? POLLOUT : POLLIN;
        set[1 + i] = (struct pollfd){c == NULL ? -1 : c->fd, events, 0};
    }
}

/* ---- what is told ---- */

static eni_run_stage run_stage(const eni_leader *leader)
{
    if (leader->stage == LEADER_ENDING) return ENI_RUN_ENDING;
    if (leader->stage != LEADER_RUNNING) return ENI_RUN_JOINING;
    return leader->stop == STOP_NONE ? ENI_RUN_RUNNING : ENI_RUN_STOPPING;
}

/* What the leader was given, and the model if only the ranks know it. */
static size_t collect_attributes(const eni_leader *leader, eni_key_value *attributes, size_t room)
{
    size_t n = leader->config.nattributes < room - 1 ? leader->config.nattributes : room - 1;
    memcpy(attributes, leader->config.attributes, n * sizeof *attributes);
    const char *model = eni_key_value_find(leader->world.key_values, leader->world.nkey_values, "model");
    if (model != NULL && eni_key_value_find(attributes, n, "model") == NULL)
        attributes[n++] = (eni_key_value){"model", model};
    return n;
}

static void tell_run(const eni_leader *leader, eni_pack *out, int64_t now_ns)
{
    eni_key_value attributes[ATTRIBUTES_MAX];
    const size_t nattributes = collect_attributes(leader, attributes, ATTRIBUTES_MAX);
    eni_run run = {.pid = getpid(),
                   .stage = run_stage(leader),
                   .nranks = leader->config.nranks,
                   .nservers = leader->config.nservers,
                   .elapsed_ns = now_ns - leader->started_ns,
                   .samples = eni_leader_samples(leader),
                   .claimed = eni_leader_claimed(leader),
                   .budget = leader->terms.budget,
                   .attributes = attributes,
                   .nattributes = nattributes,
                   .nrank = (size_t)leader->nmembers};
    eni_runs_put_run(out, &run);
}

/* `peer` is the world's: what a connection knew of its peer goes with the connection. */
static eni_rank_state member_state(const eni_leader *leader, const eni_leader_member *member,
                                   const eni_peer *peer)
{
    if (member->stage == MEMBER_GONE || member->stage == MEMBER_LOST) return ENI_RANK_GONE;
    if (member->connection == NULL || peer == NULL || peer->host_id == NULL) return ENI_RANK_MISSING;
    if (strcmp(peer->host_id, leader->config.host_id) == 0 &&
        eni_process_look(peer->pid, peer->born) == ENI_PROCESS_STOPPED)
        return ENI_RANK_STOPPED;
    if (member->connection->stage == CONNECTION_JOINED) return ENI_RANK_JOINED;
    return member->waits != ENI_WAITS_NOT ? ENI_RANK_WAITING : ENI_RANK_ACTIVE;
}

/* While the ranks gather, who has come is known by his connection only. */
static const eni_peer *find_peer(const eni_leader *leader, int32_t place, int32_t number, bool *is_joined_out)
{
    *is_joined_out = false;
    if (leader->peers[place].host != NULL) return &leader->peers[place];
    for (size_t i = 0; i < leader->nconnections; i++) {
        const eni_connection *connection = &leader->connections[i];
        if (connection->stage != CONNECTION_JOINED || connection->peer.rank != number) continue;
        *is_joined_out = true;
        return &connection->peer;
    }
    return NULL;
}

static void tell_member(const eni_leader *leader, eni_pack *out, int32_t place)
{
    const eni_leader_member *member = &leader->members[place];
    bool is_joined;
    eni_run_rank rank = {.rank = eni_leader_member_number(leader, member), .step = member->step};
    const eni_peer *peer = find_peer(leader, place, rank.rank, &is_joined);
    rank.pid = peer == NULL ? 0 : peer->pid;
    rank.state = is_joined ? ENI_RANK_JOINED : member_state(leader, member, peer);
    snprintf(rank.host, sizeof rank.host, "%s", peer == NULL ? "" : peer->host);
    memcpy(rank.phase, member->phase, sizeof rank.phase);
    eni_runs_put_rank(out, &rank);
}

/* As much as the socket takes; false: all is told, or the caller has gone. */
static bool tell(const eni_leader *leader, caller *c, int64_t now_ns)
{
    while (c->next < leader->nmembers) {
        uint8_t memory[ENI_RUNS_MESSAGE_MAX];
        eni_pack out = eni_pack_over(memory, sizeof memory);
        if (c->next < 0)
            tell_run(leader, &out, now_ns);
        else
            tell_member(leader, &out, c->next);
        if (out.is_failed) return false; /* attributes of some thousand bytes: not worth more */
        if (send(c->fd, out.data, out.bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            return errno == EAGAIN || errno == ENOBUFS;
        c->next++;
    }
    return false;
}

/* ---- what is asked ---- */

static void listen_to(eni_leader *leader, caller *c)
{
    uint8_t memory[ENI_RUNS_MESSAGE_MAX];
    char why[ENI_REASON_MAX];
    ssize_t n = recv(c->fd, memory, sizeof memory, MSG_DONTWAIT);
    uint32_t question = n <= 0 ? 0 : eni_runs_get_question(memory, (size_t)n, why);
    if (question == ENI_RUNS_STATUS) {
        c->has_asked = true;
        c->next = -1;
        return;
    }
    if (question == ENI_RUNS_STOP) {
        if (leader->stage != LEADER_ENDING) eni_leader_begin_stop(leader, why);
        const uint8_t heard[] = {0x91, ENI_RUNS_STOP};
        send(c->fd, heard, sizeof heard, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (n < 0 && errno == EAGAIN) return;
    hang_up(c);
}

/* When all places are taken, whoever has been silent longest makes room: one who means it asks at once. */
static void take_caller(struct eni_door *door, int64_t now_ns)
{
    int fd = accept4(door->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    caller *place = NULL;
    for (int i = 0; i < ENI_DOOR_CALLERS; i++) {
        caller *c = &door->callers[i];
        if (c->fd >= 0 && c->has_asked) continue;
        if (place == NULL || c->fd < 0 || (place->fd >= 0 && c->until_ns < place->until_ns)) place = c;
    }
    if (place == NULL || !eni_runs_is_own_user(fd)) {
        close(fd);
        return;
    }
    hang_up(place);
    *place = (caller){.fd = fd, .until_ns = now_ns + timeout_ns};
}

void eni_door_serve(eni_leader *leader, const struct pollfd set[1 + ENI_DOOR_CALLERS], int64_t now_ns)
{
    struct eni_door *door = leader->door;
    if (door == NULL || door->listen_fd < 0) return;
    for (int i = 0; i < ENI_DOOR_CALLERS; i++) {
        caller *c = &door->callers[i];
        if (c->fd < 0) continue;
        if (set[1 + i].revents != 0 && !c->has_asked) listen_to(leader, c);
        if (c->fd >= 0 && c->has_asked && !tell(leader, c, now_ns)) hang_up(c);
        if (c->fd >= 0 && now_ns > c->until_ns) hang_up(c);
    }
    if (set[0].revents != 0) take_caller(door, now_ns);
}
