/* leader_status.c - the state of the run for observers: who waits for whom, and a wait that cannot end; the
 * loss and hits of a step over all ranks, for rank 0; and the leader's file for `entrain ps` (runs.h),
 * written when it has changed. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

enum { NAMED_AT_MOST = 3, ATTRIBUTES_MAX = 34 };
static const int64_t look_every_ns = 100 * ENI_MILLI;

/* Appends to a sentence, which is truncated if it gets too long. */
#define say(sentence, ...) eni_text_add(sentence, ENI_REASON_MAX, __VA_ARGS__)

static bool is_gather(const eni_message *wait)
{
    return strcmp(wait->what, "gather") == 0;
}

/* "step 412 all-reduce #3 (fc2.weight, 4.0 MB)", "step 412 gather (trained)" */
static void say_place(char *s, const eni_message *wait)
{
    double bytes = (double)wait->bytes;
    if (wait->step >= 0) say(s, "step %" PRId64 " ", wait->step);
    say(s, "%s", wait->what);
    if (!is_gather(wait) && wait->op > 0) say(s, " #%u", wait->op);
    if (wait->name[0] == '\0') return;
    say(s, " (%.80s", wait->name);
    if (bytes >= 1e5)
        say(s, ", %.1f MB", bytes / 1e6);
    else if (bytes > 0)
        say(s, ", %.1f kB", bytes / 1e3);
    say(s, ")");
}

/* ---- explaining ---- */

/* Ranks may sit a sendrecv out: that others are ahead of one does not mean that they have made it. */
static bool is_sendrecv(const eni_message *wait)
{
    return strcmp(wait->what, "sendrecv") == 0;
}

/* Whether the member has yet to reach the operation that another waits in. */
static bool is_behind(const eni_leader_member *member, const eni_message *wait)
{
    if (member->stage >= MEMBER_GONE) return false;
    if (is_gather(wait)) return member->told < wait->op && eni_leader_member_blob(member, wait->op) == NULL;
    if (member->stage != MEMBER_HERE) return member->stage == MEMBER_MISSING;
    return member->step < wait->step || (member->step == wait->step && member->op < wait->op);
}

static void say_state(const eni_leader *leader, char *s, const eni_leader_member *member, int64_t now_ns,
                      int64_t asked_step)
{
    if (member->stage == MEMBER_MISSING || member->connection == NULL) {
        say(s, "not back yet");
        return;
    }
    const eni_peer *peer = &member->connection->peer;
    int64_t silent_ns = now_ns - member->connection->heard_ns;
    bool is_stopped = strcmp(peer->host_id, leader->config.host_id) == 0 &&
                      eni_process_look(peer->pid, peer->born) == ENI_PROCESS_STOPPED;
    if (is_stopped)
        say(s, "stopped (SIGSTOP or Ctrl-Z)");
    else if (silent_ns > leader->config.peer_timeout_ns / 2)
        say(s, "silent for %.1f s", (double)silent_ns / 1e9);
    else if (member->has_wait) {
        say(s, "alive, itself waiting in ");
        say_place(s, &member->wait);
        return;
    } else
        say(s, "alive, %s %s", member->waits ? "waiting in" : "in",
            member->phase[0] ? member->phase : "its startup");
    if (member->step >= 0 && member->step != asked_step && !is_stopped)
        say(s, " of step %" PRId64, member->step);
}

static void say_member(const eni_leader *leader, char *s, const eni_leader_member *member, int64_t now_ns,
                       int64_t asked_step)
{
    const eni_peer *peer = &leader->peers[member - leader->members];
    char who[32];
    eni_peer_name(eni_leader_member_number(leader, member), who);
    say(s, "%s (host %.60s, pid %" PRId64 "): ", who, peer->host == NULL ? "" : peer->host, peer->pid);
    say_state(leader, s, member, now_ns, asked_step);
}

/* No rank is behind: a server's answer is missing, or bytes are on their way. */
static void say_nobody(const eni_leader *leader, char *s, const eni_message *wait)
{
    for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
        if (leader->members[i].stage == MEMBER_MISSING) {
            say(s, " for psd %d, which is not back yet", 1 + i - leader->config.nranks);
            return;
        }
    if (leader->config.rank < 0)
        say(s, " for an answer of psd (host %.60s, pid %" PRId64 "): alive", leader->config.host,
            leader->world.leader.pid);
    else
        say(s, " though all ranks are there: is %sthe network slow?",
            strcmp(wait->what, "NCCL") == 0 ? "a GPU or " : "");
}

static void explain(const eni_leader *leader, const eni_message *wait, char *s)
{
    int32_t nranks = leader->ncame, behind = 0, there = 0;
    int64_t now_ns = eni_now_ns();
    for (int32_t r = 0; r < nranks; r++) {
        behind += is_behind(&leader->members[r], wait);
        there += !is_behind(&leader->members[r], wait) && leader->members[r].stage < MEMBER_LEFT;
    }
    say_place(s, wait);
    say(s, ": %d of %d ranks; waiting %.1f s", there, nranks, (double)wait->waited_ns / 1e9);
    if (behind == 0 && is_sendrecv(wait)) say(s, " for a partner that has not made it so far");
    if (behind == 0 && !is_sendrecv(wait)) say_nobody(leader, s, wait);
    for (int32_t r = 0, named = 0; r < nranks && named < NAMED_AT_MOST; r++) {
        if (!is_behind(&leader->members[r], wait)) continue;
        say(s, "%s", named++ == 0 ? " for " : "; ");
        say_member(leader, s, &leader->members[r], now_ns, wait->step);
    }
    if (behind > NAMED_AT_MOST) say(s, "; and %d more", behind - NAMED_AT_MOST);
}

/* Explains to a waiting member who is missing. */
static void explain_join(const eni_leader *leader, const eni_message *wait, char *s)
{
    char have[ENI_REASON_MAX];
    double left = (double)(leader->when.join_deadline_ns - eni_now_ns()) / 1e9;
    if (leader->stage == LEADER_RUNNING) {
        say(s, "a newcomer is admitted when all train and a seat is free: waiting for %.1f s",
            (double)wait->waited_ns / 1e9);
        return;
    }
    if (leader->stage == LEADER_JOINING)
        eni_leader_have(leader, have);
    else
        snprintf(have, sizeof have, "all ranks are there, the servers are opening their shards");
    say(s, "%.400s after %.1f s; giving up in %.0f s", have, (double)wait->waited_ns / 1e9,
        left > 0 ? left : 0);
}

void eni_leader_waiting(eni_leader *leader, eni_connection *connection, eni_leader_member *member,
                        const eni_message *m)
{
    char s[ENI_REASON_MAX] = "";
    if (leader->stage == LEADER_RUNNING && member != NULL && connection->stage == CONNECTION_ACTIVE) {
        member->wait = *m;
        member->has_wait = member->waits != ENI_WAITS_NOT;
        explain(leader, m, s);
    } else {
        explain_join(leader, m, s);
    }
    eni_message notice = {.type = ENI_CTL_NOTICE};
    memcpy(notice.reason, s, sizeof notice.reason);
    eni_connection_put(connection, &notice);
}

/* ---- a wait that cannot end ---- */

/* Whether every living rank has reported its wait, nothing has moved for long enough, and none is silent: if
 * they are not all in the same collective, none can proceed. Not while a server is away, an early end is being
 * chosen, a network is emulated, or bytes still flow (a rank counts them as moves). */
static bool all_stuck(const eni_leader *leader, int64_t now_ns, bool *is_split_out)
{
    const eni_leader_member *first = NULL;
    *is_split_out = false;
    if (now_ns - leader->when.moved_ns < leader->config.deadlock_ns) return false;
    for (int32_t i = 0; i < leader->nmembers; i++) {
        const eni_leader_member *member = &leader->members[i];
        if (i >= leader->config.nranks) {
            if (member->stage != MEMBER_HERE) return false;
            continue;
        }
        if (member->stage >= MEMBER_LEFT) continue;
        if (member->stage == MEMBER_BYE || member->stage == MEMBER_GONE) {
            *is_split_out = true;
            continue;
        }
        bool is_stuck = member->stage == MEMBER_HERE && member->waits == ENI_WAITS && member->has_wait &&
                        now_ns - member->connection->heard_ns < leader->config.peer_timeout_ns / 2;
        if (!is_stuck) return false;
        if (first == NULL) first = member;
        *is_split_out = *is_split_out || is_sendrecv(&member->wait) ||
                        first->wait.step != member->wait.step || first->wait.op != member->wait.op ||
                        strcmp(first->wait.what, member->wait.what) != 0;
    }
    return first != NULL;
}

void eni_leader_check_deadlock(eni_leader *leader, int64_t now_ns)
{
    bool is_split;
    char s[ENI_REASON_MAX] = "";
    if (leader->abort.at_ns != 0 || leader->stop.stage == STOP_PAUSING) return;
    if (!all_stuck(leader, now_ns, &is_split) || !is_split) return;
    say(s, "deadlock: all ranks wait in different operations, an exchange was skipped:");
    for (int32_t r = 0, named = 0; r < leader->ncame; r++) {
        const eni_leader_member *member = &leader->members[r];
        if (member->stage >= MEMBER_LEFT) continue;
        say(s, "%s rank %d ", named++ == 0 ? "" : ",", r);
        if (member->stage == MEMBER_HERE) {
            say(s, "in ");
            say_place(s, &member->wait);
        } else
            say(s, "has left");
    }
    eni_leader_finish(leader, EN_EMISMATCH, s);
}

/* ---- loss and hits over all ranks ---- */

/* The entry of a step's sum: its own, a free one, or that of the oldest step, which some rank has left
 * behind. NULL if this step is older than all. */
static eni_score *place_of(eni_leader *leader, uint64_t step)
{
    eni_score *oldest = NULL;
    for (size_t i = 0; i < sizeof leader->status.scores / sizeof *leader->status.scores; i++) {
        eni_score *s = &leader->status.scores[i];
        if (s->total > 0 && s->step == step) return s;
        if (oldest == NULL || s->total == 0 || (oldest->total > 0 && s->step < oldest->step)) oldest = s;
    }
    if (oldest->total > 0 && oldest->step > step) return NULL;
    *oldest = (eni_score){.step = step};
    return oldest;
}

/* Only shown, so an impossible part costs the sum of its step, but not the run. */
void eni_leader_score(eni_leader *leader, const eni_leader_member *member, const eni_message *m)
{
    const eni_score *part = &m->score;
    if (part->total == 0 || part->covered > part->total || part->hits > part->covered) {
        if (!leader->status.has_bad_score)
            eni_warn("leader",
                     "rank %d reported more samples of a step than the step has: loss and accuracy of such "
                     "steps are not shown",
                     eni_leader_member_number(leader, member));
        leader->status.has_bad_score = true;
        return;
    }
    eni_score *sum = place_of(leader, part->step);
    if (sum == NULL) return;
    sum->total = part->total;
    sum->covered += part->covered;
    sum->hits += part->hits;
    sum->loss += part->loss;
    if (sum->covered < sum->total) return;
    const eni_message whole = {.type = ENI_CTL_SCORED, .score = *sum};
    *sum = (eni_score){0};
    eni_leader_member_put(&leader->members[0], &whole);
}

/* ---- the file for `entrain ps` ---- */

static eni_run_stage run_stage(const eni_leader *leader)
{
    if (leader->stage == LEADER_ENDING) return ENI_RUN_ENDING;
    if (leader->stage != LEADER_RUNNING) return ENI_RUN_JOINING;
    return eni_leader_is_stopping(leader) ? ENI_RUN_STOPPING : ENI_RUN_RUNNING;
}

/* The attributes given to the leader, the model if only the ranks know it, and the leader's address. */
static size_t collect_attributes(const eni_leader *leader, eni_key_value *attributes, size_t room)
{
    size_t n = leader->config.nattributes < room - 2 ? leader->config.nattributes : room - 2;
    memcpy(attributes, leader->config.attributes, n * sizeof *attributes);
    const char *model = eni_key_value_find(leader->world.key_values, leader->world.nkey_values, "model");
    if (model != NULL && eni_key_value_find(attributes, n, "model") == NULL)
        attributes[n++] = (eni_key_value){"model", model};
    attributes[n++] = (eni_key_value){"leader", leader->status.address};
    return n;
}

/* `peer` is the world's: a connection's own copy goes with the connection. */
static eni_rank_state member_state(const eni_leader_member *member, const eni_peer *peer)
{
    if (member->stage >= MEMBER_GONE) return ENI_RANK_GONE;
    if (member->connection == NULL || peer == NULL || peer->host_id == NULL) return ENI_RANK_MISSING;
    if (member->connection->stage == CONNECTION_JOINED) return ENI_RANK_JOINED;
    return member->waits != ENI_WAITS_NOT ? ENI_RANK_WAITING : ENI_RANK_ACTIVE;
}

/* While the ranks join, only the connection knows its peer. */
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

/* The ranks that take part: where ranks come and go, not all that ever joined. */
static int32_t count_workers(const eni_leader *leader)
{
    const int32_t n = leader->config.nplaces == 0 ? leader->config.nranks : eni_leader_count_living(leader);
    return n > 0 ? n : 1;
}

static eni_run_status collect(const eni_leader *leader, eni_key_value attributes[ATTRIBUTES_MAX],
                              eni_run_rank *rank)
{
    size_t n = 0;
    for (int32_t i = 0; i < leader->nmembers; i++)
        if (i < leader->ncame || i >= leader->config.nranks) collect_member(leader, i, &rank[n++]);
    return (eni_run_status){.pid = getpid(),
                            .born = leader->status.born,
                            .stage = run_stage(leader),
                            .nranks = count_workers(leader),
                            .nservers = leader->config.nservers,
                            .started_ns = leader->when.started_ns,
                            .samples = atomic_load_explicit(&leader->samples, memory_order_relaxed),
                            .claimed = atomic_load_explicit(&leader->claimed, memory_order_relaxed),
                            .budget = leader->terms.budget,
                            .attributes = attributes,
                            .nattributes = collect_attributes(leader, attributes, ATTRIBUTES_MAX),
                            .rank = rank,
                            .nrank = n};
}

void eni_leader_status_open(eni_leader *leader)
{
    eni_key_value attributes[ATTRIBUTES_MAX];
    if (leader->config.status_folder == NULL) return;
    leader->status.rank = eni_alloc_array((size_t)leader->nmembers, sizeof *leader->status.rank);
    if (leader->status.rank == NULL) return;
    eni_address_format(&leader->address, leader->status.address);
    const eni_run_status run = collect(leader, attributes, leader->status.rank);
    leader->status.writer = eni_run_writer_open(leader->config.status_folder, &run);
}

void eni_leader_status_tick(eni_leader *leader, int64_t now_ns)
{
    eni_key_value attributes[ATTRIBUTES_MAX];
    if (leader->status.writer == NULL || now_ns < leader->status.next_ns) return;
    leader->status.next_ns = now_ns + look_every_ns;
    const eni_run_status run = collect(leader, attributes, leader->status.rank);
    eni_run_writer_put(leader->status.writer, &run);
}
