/* leader_end.c - the end of the run, for one or for all: goodbyes, an early end in good order, and deaths:
 * who died first, and whether the run goes on. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

/* A rank that lost a neighbour's socket may abort a moment before the neighbour's control connection closes:
 * an ABORT waits this long for a death that explains it. */
static const int64_t abort_grace_ns = 200 * ENI_MILLI;

/* A silent or stopped member will not close its side; it only takes time to send. */
static const int64_t silent_linger_ns = 100 * ENI_MILLI;

/* Sends to those of the first n members that are here: the ranks, or all. */
static void put_first(eni_leader *leader, int32_t n, const eni_message *m)
{
    for (int32_t i = 0; i < n; i++)
        if (leader->members[i].stage == MEMBER_HERE) eni_leader_member_put(&leader->members[i], m);
}

/* ---- goodbyes ---- */

/* All members have the blobs that it took part in, so it is not needed any more. */
static bool may_go(const eni_leader *leader, const eni_leader_member *leaving)
{
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_leader_member *member = &leader->members[r];
        bool is_behind =
            member->stage == MEMBER_MISSING || (member->stage == MEMBER_HERE && member->done < leaving->told);
        if (is_behind) return false;
    }
    return true;
}

/* Confirms a goodbye. A rank that was asked to leave does not end the run. */
static void let_go(eni_leader *leader, eni_leader_member *member)
{
    eni_connection *connection = member->connection;
    const int32_t rank = eni_leader_member_number(leader, member);
    const bool is_leaving = member->is_leaving;
    if (eni_leader_write(leader, ENI_ENTRY_BYE, rank, 0, 0) != EN_OK) return;
    member->stage = is_leaving ? MEMBER_LEFT : MEMBER_GONE;
    member->connection = NULL;
    eni_connection_put(connection, &(eni_message){.type = ENI_CTL_BYE});
    eni_connection_leave(connection);
    const eni_message went = {.type = ENI_CTL_WENT, .rank = rank};
    if (is_leaving) put_first(leader, leader->config.nranks, &went);
}

void eni_leader_check_end(eni_leader *leader)
{
    int32_t living = 0;
    /* An abort takes precedence over goodbyes. */
    if (leader->stage != LEADER_RUNNING || leader->abort.at_ns != 0) return;
    for (int32_t r = 0; r < leader->config.nranks && leader->stage == LEADER_RUNNING; r++) {
        eni_leader_member *member = &leader->members[r];
        if (member->stage == MEMBER_BYE && member->connection != NULL && may_go(leader, member))
            let_go(leader, member);
        living += eni_leader_member_lives(member);
    }
    if (living > 0 || leader->stage != LEADER_RUNNING) return;
    eni_leader_end(leader, EN_OK, "", &(eni_message){.type = ENI_CTL_BYE}); /* for the servers */
}

/* ---- the early end ---- */

static eni_message stop_message(eni_leader *leader, uint32_t type)
{
    eni_message m = {.type = type, .index = leader->stop.step};
    pthread_mutex_lock(&leader->lock);
    memcpy(m.reason, leader->end.outcome.stop_why, sizeof m.reason);
    m.has_time = leader->end.outcome.has_time;
    pthread_mutex_unlock(&leader->lock);
    return m;
}

static void pause_all(eni_leader *leader)
{
    leader->stop.stage = STOP_PAUSING;
    for (int32_t r = 0; r < leader->config.nranks; r++)
        leader->members[r].has_paused = false;
    eni_message pause = stop_message(leader, ENI_CTL_PAUSE);
    put_first(leader, leader->nmembers, &pause);
    eni_leader_check_paused(leader);
}

/* First all ranks report the step that they may still take without asking, so that none is past the one that
 * is then chosen. Claims end at once. */
void eni_leader_begin_stop(eni_leader *leader, const char *why, bool has_time)
{
    pthread_mutex_lock(&leader->lock);
    if (leader->end.outcome.stop_why[0] == '\0')
        snprintf(leader->end.outcome.stop_why, sizeof leader->end.outcome.stop_why, "%s", why);
    leader->end.outcome.has_time = has_time;
    pthread_mutex_unlock(&leader->lock);
    if (leader->stage != LEADER_RUNNING) {
        eni_leader_finish(leader, EN_EINTR, why);
        return;
    }
    if (leader->stop.stage != STOP_NONE) return; /* after a checkpoint that is being chosen */
    if (!eni_leader_has_own_member(leader)) eni_info("leader", "the run ends early: %s", why);
    pause_all(leader);
}

void eni_leader_begin_save(eni_leader *leader)
{
    const int64_t now_ns = eni_now_ns();
    if (leader->stage != LEADER_RUNNING || leader->stop.stage != STOP_NONE || now_ns < leader->stop.saved_ns)
        return;
    leader->stop.is_save = true;
    pause_all(leader);
}

/* The step of a checkpoint that a psd, killed meanwhile, announced to some ranks, and that another rank has
 * yet to reach; ENI_STEP_NEVER: none. *is_half_out: not all know of it. */
static uint64_t told_save(const eni_leader *leader, bool *is_half_out)
{
    int64_t least = INT64_MAX;
    uint64_t step = ENI_STEP_NEVER;
    for (int32_t r = 0; r < leader->config.nranks; r++)
        if (leader->members[r].stage == MEMBER_HERE && leader->members[r].paused_step < least)
            least = leader->members[r].paused_step;
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_leader_member *member = &leader->members[r];
        if (member->stage == MEMBER_HERE && member->save_step != ENI_STEP_NEVER &&
            (int64_t)member->save_step > least)
            step = member->save_step;
    }
    *is_half_out = false;
    for (int32_t r = 0; r < leader->config.nranks && step != ENI_STEP_NEVER; r++)
        *is_half_out =
            *is_half_out || (leader->members[r].stage == MEMBER_HERE && leader->members[r].save_step != step);
    return step;
}

/* All save before one step; a stop that was requested meanwhile follows. */
static void choose_save(eni_leader *leader, uint64_t step)
{
    eni_message saving = {.type = ENI_CTL_SAVING, .index = step};
    put_first(leader, leader->config.nranks, &saving);
    leader->stop.saved_ns = eni_now_ns() + ENI_SECOND; /* a signal to all arrives within it */
    leader->stop.stage = STOP_NONE;
    leader->stop.is_save = false;
    const eni_message stop = stop_message(leader, ENI_CTL_STOPPING);
    if (stop.reason[0] != '\0') eni_leader_begin_stop(leader, stop.reason, stop.has_time);
}

void eni_leader_check_paused(eni_leader *leader)
{
    int64_t last = -1;
    bool is_half_told;
    if (leader->stop.stage != STOP_PAUSING || leader->stage != LEADER_RUNNING) return;
    for (int32_t r = 0; r < leader->config.nranks; r++) {
        const eni_leader_member *member = &leader->members[r];
        if (member->stage == MEMBER_MISSING || (member->stage == MEMBER_HERE && !member->has_paused)) return;
        if (member->stage == MEMBER_HERE && member->paused_step > last) last = member->paused_step;
    }
    const uint64_t told = told_save(leader, &is_half_told);
    if (leader->stop.is_save || is_half_told) {
        choose_save(leader, told != ENI_STEP_NEVER ? told : (uint64_t)(last + 1));
        return;
    }
    if (eni_leader_write(leader, ENI_ENTRY_STOP, 0, 0, (uint64_t)(last + 1)) != EN_OK) return;
    leader->stop.stage = STOP_CHOSEN;
    leader->stop.step = (uint64_t)(last + 1);
    eni_message stopping = stop_message(leader, ENI_CTL_STOPPING);
    put_first(leader, leader->nmembers, &stopping);
}

void eni_leader_tell_stop(eni_leader *leader, eni_leader_member *member)
{
    if (leader->stop.stage == STOP_NONE) return;
    eni_message m =
        stop_message(leader, leader->stop.stage == STOP_CHOSEN ? ENI_CTL_STOPPING : ENI_CTL_PAUSE);
    eni_leader_member_put(member, &m);
}

/* ---- a lost member ---- */

static eni_death describe(const eni_leader *leader, const eni_peer *peer, const eni_leader_member *member,
                          const char *cause)
{
    eni_death death = {.rank = peer->rank, .pid = peer->pid, .step = member == NULL ? -1 : member->step};
    snprintf(death.host, sizeof death.host, "%s", peer->host);
    snprintf(death.cause, sizeof death.cause, "%s", cause);
    if (leader->stage == LEADER_JOINING || leader->stage == LEADER_SERVING)
        snprintf(death.phase, sizeof death.phase, "join");
    else if (member != NULL)
        memcpy(death.phase, member->phase, sizeof death.phase);
    return death;
}

/* Ends the run because of this death. */
static void end_with(eni_leader *leader, const eni_death *death)
{
    char reason[ENI_REASON_MAX];
    const eni_message dead = {.type = ENI_CTL_DEAD, .death = *death};
    eni_death_text(death, reason);
    if (!eni_leader_has_own_member(leader)) eni_error("leader", "%s", reason);
    pthread_mutex_lock(&leader->lock);
    leader->end.outcome.death = *death;
    leader->end.outcome.has_death = true;
    pthread_mutex_unlock(&leader->lock);
    eni_leader_end(leader, EN_EPEER, reason, &dead);
}

static bool others_live(const eni_leader *leader, const eni_leader_member *lost)
{
    for (int32_t r = 0; r < leader->config.nranks; r++)
        if (&leader->members[r] != lost && eni_leader_member_lives(&leader->members[r])) return true;
    return false;
}

/* --on-worker-loss=continue: the leader's process is informed first, so that no shard waits for the rank. */
static void go_on_without(eni_leader *leader, eni_leader_member *member, const eni_death *death)
{
    char reason[ENI_REASON_MAX];
    const eni_message left = {.type = ENI_CTL_LEFT, .death = *death};
    member->stage = MEMBER_LOST;
    member->connection = NULL;
    leader->when.moved_ns = eni_now_ns();
    if (eni_leader_write(leader, ENI_ENTRY_LEFT, death->rank, 0, 0) != EN_OK) return;
    eni_death_text(death, reason);
    if (!eni_leader_has_own_member(leader)) eni_warn("leader", "%s; the run goes on without it", reason);
    if (leader->config.on_left != NULL) leader->config.on_left(leader->config.user, death->rank);
    for (int32_t i = 0; i < leader->nmembers; i++)
        eni_leader_member_put(&leader->members[i], &left);
    eni_leader_try_gather(leader);
    eni_leader_check_paused(leader);
    eni_leader_check_end(leader);
}

/* Repeats to rank 0 what a dead leader may not have sent; rank 0 skips what it knows. */
void eni_leader_tell_presence(eni_leader *leader)
{
    for (int32_t r = 1; r < leader->ncame; r++) {
        const eni_leader_member *member = &leader->members[r];
        const eni_message went = {.type = ENI_CTL_WENT, .rank = r};
        eni_message came = {.type = ENI_CTL_CAME}, left = {.type = ENI_CTL_LEFT};
        eni_message_set_peer(&came, &leader->peers[r]);
        left.death = describe(leader, &leader->peers[r], member, "psd died before it could send the cause");
        if (r >= eni_leader_first_ranks(leader)) eni_leader_member_put(leader->members, &came);
        if (member->stage == MEMBER_LEFT) eni_leader_member_put(leader->members, &went);
        if (member->stage == MEMBER_LOST) eni_leader_member_put(leader->members, &left);
    }
}

/* Before its first step the others may wait for data that only this rank can send. A newcomer owes none. A
 * revived leader does not know the steps, and assumes that they have begun. */
static bool is_at_the_start(const eni_leader *leader, const eni_leader_member *member)
{
    return member->step < 0 && member - leader->members < eni_leader_first_ranks(leader) &&
           leader->config.revived == NULL;
}

static bool can_do_without(const eni_leader *leader, const eni_leader_member *member)
{
    return leader->terms.goes_on && leader->stage == LEADER_RUNNING && member != NULL &&
           member > leader->members && member - leader->members < leader->config.nranks &&
           !is_at_the_start(leader, member) && others_live(leader, member);
}

static void lose(eni_leader *leader, eni_leader_member *member, const eni_death *death)
{
    if (can_do_without(leader, member))
        go_on_without(leader, member, death);
    else
        end_with(leader, death);
}

/* It may be alive, or resume one day: then it learns that the others go on without it. */
static void part(eni_connection *connection, eni_leader_member *member, const eni_death *death)
{
    const eni_message dead = {.type = ENI_CTL_DEAD, .death = *death};
    if (member != NULL) member->connection = NULL;
    if (connection->stream == EN_OK) {
        eni_connection_put(connection, &dead);
        eni_connection_leave(connection);
    } else {
        eni_connection_free(connection);
    }
}

/* A waiting newcomer is simply dropped. */
static bool is_let_go(eni_connection *connection)
{
    if (connection->stage != CONNECTION_JOINED || !connection->is_newcomer) return false;
    eni_connection_free(connection);
    return true;
}

void eni_leader_lost(eni_leader *leader, eni_connection *connection, const char *cause)
{
    if (leader->stage == LEADER_ENDING || is_let_go(connection)) return;
    eni_leader_member *member = eni_leader_member_of(leader, connection);
    eni_death death = describe(leader, &connection->peer, member, cause);
    part(connection, member, &death);
    lose(leader, member, &death);
}

/* A server may be started again; a rank may not come back while this leader lives. */
void eni_leader_connection_broke(eni_leader *leader, eni_connection *connection, const char *cause)
{
    eni_leader_member *member = eni_leader_member_of(leader, connection);
    bool may_come_back = connection->server > 0 && member != NULL && leader->stage == LEADER_RUNNING &&
                         leader->config.server_timeout_ns > 0;
    if (!may_come_back) {
        eni_leader_lost(leader, connection, cause);
        return;
    }
    eni_warn("leader", "psd %d (pid %" PRId64 " on host %s): %s; waiting up to %.3g s for it to come back",
             connection->server, connection->peer.pid, connection->peer.host, cause,
             (double)leader->config.server_timeout_ns / 1e9);
    member->stage = MEMBER_MISSING;
    member->connection = NULL;
    member->is_ready = false;
    member->missing_ns = eni_now_ns();
    leader->asked_gather = 0; /* it is asked again */
    eni_connection_free(connection);
}

/* ---- a member that aborts ---- */

void eni_leader_gave_up(eni_leader *leader, eni_connection *connection, const char *reason)
{
    char who[32];
    if (is_let_go(connection)) return;
    eni_leader_member *member = eni_leader_member_of(leader, connection);
    eni_peer_name(connection->peer.rank, who);
    if (can_do_without(leader, member)) {
        char cause[ENI_REASON_MAX];
        snprintf(cause, sizeof cause, "it gave up: %.480s", reason);
        eni_death death = describe(leader, &connection->peer, member, cause);
        eni_connection_leave(connection);
        go_on_without(leader, member, &death);
        return;
    }
    if (leader->abort.at_ns == 0) {
        leader->abort.at_ns = eni_now_ns() + abort_grace_ns;
        snprintf(leader->abort.reason, sizeof leader->abort.reason,
                 "%s (pid %" PRId64 " on host %.100s) gave up: %.300s", who, connection->peer.pid,
                 connection->peer.host, reason);
    }
    if (member != NULL) { /* whatever it does from now on does not count as a death */
        member->stage = MEMBER_GONE;
        member->connection = NULL;
    }
    bool is_joining = leader->stage != LEADER_RUNNING; /* no rank has a neighbour yet */
    eni_connection_leave(connection);
    if (is_joining) eni_leader_finish(leader, EN_EPEER, leader->abort.reason);
}

/* ---- a member that is silent, or missing ---- */

static void lose_silent(eni_leader *leader, eni_leader_member *member, int64_t silent_ns)
{
    const eni_peer *peer = &member->connection->peer;
    char cause[80];
    bool is_stopped = strcmp(peer->host_id, leader->config.host_id) == 0 &&
                      eni_process_look(peer->pid, peer->born) == ENI_PROCESS_STOPPED;
    snprintf(cause, sizeof cause, "%s %.1f s", is_stopped ? "stopped (SIGSTOP or Ctrl-Z) for" : "silent for",
             (double)silent_ns / 1e9);
    eni_death death = describe(leader, peer, member, cause);
    death.is_stopped = is_stopped;
    eni_connection *connection = member->connection;
    part(connection, member, &death);
    if (connection->stage == CONNECTION_LEAVING) connection->leave_ns = eni_now_ns() + silent_linger_ns;
    lose(leader, member, &death);
}

static void never_back(eni_leader *leader, eni_leader_member *member, const char *cause)
{
    eni_peer peer = leader->peers[member - leader->members];
    peer.rank = eni_leader_member_number(leader, member);
    if (peer.host == NULL) peer.host = "";
    eni_death death = describe(leader, &peer, member, cause);
    lose(leader, member, &death);
}

/* A rank of this host that died together with the previous leader, or after it, which nothing else would
 * report. A server may come back as another process. */
static bool has_ended(const eni_leader *leader, int32_t i)
{
    const eni_peer *peer = &leader->peers[i];
    return i < leader->config.nranks && peer->host_id != NULL &&
           strcmp(peer->host_id, leader->config.host_id) == 0 &&
           eni_process_look(peer->pid, peer->born) == ENI_PROCESS_ENDED;
}

static void check_missing(eni_leader *leader, int32_t i, int64_t now_ns)
{
    eni_leader_member *member = &leader->members[i];
    char cause[120] = "its process ended while psd was gone";
    const int64_t missing_ns = now_ns - member->missing_ns;
    if (missing_ns >= eni_leader_back_ns(leader)) /* or it is back without READY */
        snprintf(cause, sizeof cause, "it did not come back within %.3g s", (double)missing_ns / 1e9);
    else if (member->connection != NULL || !has_ended(leader, i))
        return;
    never_back(leader, member, cause);
}

void eni_leader_check_silence(eni_leader *leader, int64_t now_ns)
{
    const int64_t timeout_ns = leader->config.peer_timeout_ns;
    for (int32_t i = 0; i < leader->nmembers && leader->stage == LEADER_RUNNING; i++) {
        eni_leader_member *member = &leader->members[i];
        const eni_connection *connection = member->connection;
        if (connection != NULL && connection->stage == CONNECTION_ACTIVE &&
            now_ns - connection->heard_ns >= timeout_ns)
            lose_silent(leader, member, now_ns - connection->heard_ns);
        else if (member->stage == MEMBER_MISSING)
            check_missing(leader, i, now_ns);
    }
}
