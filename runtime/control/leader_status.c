/* leader_status.c - the leader's file for `entrain ps` (runs.h): collects what is known of the run and of its
 * ranks, and has it written when it has changed. */
#include <string.h>
#include <stdio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/memory.h"
#include "runtime/control/leader_state.h"
#include "runtime/control/runs.h"

enum { ATTRIBUTES_MAX = 33 };
static const int64_t look_every_ns = 100 * ENI_MILLI;

struct eni_leader_status {
    eni_run_writer *writer;
    eni_run_rank *rank; /* (nmembers) */
    int64_t next_ns;
};

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

/* `peer` is the world's: what a connection knew of its peer goes with the connection. */
static eni_rank_state member_state(const eni_leader_member *member, const eni_peer *peer)
{
    if (member->stage == MEMBER_GONE || member->stage == MEMBER_LOST) return ENI_RANK_GONE;
    if (member->connection == NULL || peer == NULL || peer->host_id == NULL) return ENI_RANK_MISSING;
    if (member->connection->stage == CONNECTION_JOINED) return ENI_RANK_JOINED;
    return member->waits != ENI_WAITS_NOT ? ENI_RANK_WAITING : ENI_RANK_ACTIVE;
}

/* While the ranks gather, only its connection knows who has come. */
static const eni_peer *find_peer(const eni_leader *leader, int32_t at, int32_t number, bool *is_joined_out)
{
    *is_joined_out = false;
    if (leader->peers[at].host != NULL) return &leader->peers[at];
    for (size_t i = 0; i < leader->nconnections; i++) {
        const eni_connection *connection = &leader->connections[i];
        if (connection->stage != CONNECTION_JOINED || connection->peer.rank != number) continue;
        *is_joined_out = true;
        return &connection->peer;
    }
    return NULL;
}

static void collect_member(const eni_leader *leader, int32_t at, eni_run_rank *rank)
{
    const eni_leader_member *member = &leader->members[at];
    bool is_joined;
    *rank = (eni_run_rank){.rank = eni_leader_member_number(leader, member), .step = member->step};
    const eni_peer *peer = find_peer(leader, at, rank->rank, &is_joined);
    rank->state = is_joined ? ENI_RANK_JOINED : member_state(member, peer);
    memcpy(rank->phase, member->phase, sizeof rank->phase);
    if (peer == NULL) return;
    rank->pid = peer->pid;
    if (peer->host_id != NULL && strcmp(peer->host_id, leader->config.host_id) == 0) rank->born = peer->born;
    snprintf(rank->host, sizeof rank->host, "%s", peer->host);
}

static eni_run_status collect(const eni_leader *leader, eni_key_value attributes[ATTRIBUTES_MAX],
                              eni_run_rank *rank)
{
    for (int32_t i = 0; i < leader->nmembers; i++)
        collect_member(leader, i, &rank[i]);
    return (eni_run_status){.pid = getpid(),
                            .born = leader->born,
                            .stage = run_stage(leader),
                            .nranks = leader->config.nranks,
                            .nservers = leader->config.nservers,
                            .started_ns = leader->started_ns,
                            .samples = eni_leader_samples(leader),
                            .claimed = eni_leader_claimed(leader),
                            .budget = leader->terms.budget,
                            .attributes = attributes,
                            .nattributes = collect_attributes(leader, attributes, ATTRIBUTES_MAX),
                            .rank = rank,
                            .nrank = (size_t)leader->nmembers};
}

void eni_leader_status_open(eni_leader *leader)
{
    eni_key_value attributes[ATTRIBUTES_MAX];
    if (leader->config.status_folder == NULL) return;
    struct eni_leader_status *s = eni_alloc(sizeof *s);
    if (s == NULL || (s->rank = eni_alloc_array((size_t)leader->nmembers, sizeof *s->rank)) == NULL) {
        eni_free(s);
        return;
    }
    const eni_run_status run = collect(leader, attributes, s->rank);
    s->writer = eni_run_writer_open(leader->config.status_folder, &run);
    leader->status_file = s;
}

void eni_leader_status_tick(eni_leader *leader, int64_t now_ns)
{
    eni_key_value attributes[ATTRIBUTES_MAX];
    struct eni_leader_status *s = leader->status_file;
    if (s == NULL || s->writer == NULL || now_ns < s->next_ns) return;
    s->next_ns = now_ns + look_every_ns;
    const eni_run_status run = collect(leader, attributes, s->rank);
    eni_run_writer_put(s->writer, &run);
}

void eni_leader_status_close(struct eni_leader_status *s)
{
    if (s == NULL) return;
    eni_run_writer_close(s->writer);
    eni_free(s->rank);
    eni_free(s);
}
