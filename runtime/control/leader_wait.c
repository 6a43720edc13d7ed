/* leader_wait.c - who waits for whom, in words; and a wait that cannot end. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

enum { NAMED_AT_MOST = 3 };

/* A sentence that grows; what does not fit is cut off. */
typedef struct explanation {
    char text[ENI_REASON_MAX];
    size_t at;
} explanation;

static void say(explanation *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(explanation *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s->text + s->at, sizeof s->text - s->at, format, args);
    va_end(args);
    s->at += n < 0 ? 0 : (size_t)n;
    if (s->at >= sizeof s->text) s->at = sizeof s->text - 1;
}

static bool is_gather(const eni_message *wait)
{
    return strcmp(wait->what, "gather") == 0;
}

/* "step 412 all-reduce #3 (fc2.weight, 4.0 MB)", "step 412 gather (trained)" */
static void say_place(explanation *s, const eni_message *wait)
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

/* Whether the member has still to come to where somebody waits. */
static bool is_behind(const eni_leader_member *member, const eni_message *wait)
{
    if (member->stage == MEMBER_GONE || member->stage == MEMBER_LOST) return false;
    if (is_gather(wait)) return member->told < wait->op && eni_leader_member_slot(member, wait->op) == NULL;
    if (member->stage != MEMBER_HERE) return member->stage == MEMBER_MISSING;
    return member->step < wait->step || (member->step == wait->step && member->op < wait->op);
}

static void say_state(const eni_leader *leader, explanation *s, const eni_leader_member *member,
                      int64_t now_ns, int64_t asked_step)
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
            member->phase[0] ? member->phase : "its start");
    if (member->step >= 0 && member->step != asked_step && !is_stopped)
        say(s, " of step %" PRId64, member->step);
}

static void say_member(const eni_leader *leader, explanation *s, const eni_leader_member *member,
                       int64_t now_ns, int64_t asked_step)
{
    const eni_peer *peer = &leader->peers[member - leader->members];
    char who[32];
    eni_peer_name(eni_leader_member_number(leader, member), who);
    say(s, "%s (host %.60s, pid %" PRId64 "): ", who, peer->host == NULL ? "" : peer->host, peer->pid);
    say_state(leader, s, member, now_ns, asked_step);
}

/* Nobody is behind: then it is a server's answer that is due, or bytes are on their way. */
static void say_nobody(const eni_leader *leader, explanation *s, const eni_message *wait)
{
    for (int32_t i = leader->config.nranks; i < leader->nmembers; i++)
        if (leader->members[i].stage == MEMBER_MISSING) {
            say(s, " for psd %d, which is not back yet", 1 + i - leader->config.nranks);
            return;
        }
    if (leader->config.rank < 0)
        say(s, " for the answer of psd (host %.60s, pid %" PRId64 "): alive", leader->config.host,
            leader->world.leader.pid);
    else
        say(s, " though all ranks are there: is %sthe network slow?",
            strcmp(wait->what, "NCCL") == 0 ? "a GPU or " : "");
}

static void explain(const eni_leader *leader, const eni_message *wait, explanation *s)
{
    int32_t nranks = leader->config.nranks, behind = 0, there = 0;
    int64_t now_ns = eni_now_ns();
    for (int32_t r = 0; r < nranks; r++) {
        behind += is_behind(&leader->members[r], wait);
        there += !is_behind(&leader->members[r], wait) && leader->members[r].stage != MEMBER_LOST;
    }
    say_place(s, wait);
    say(s, ": %d of %d ranks; waiting %.1f s", there, nranks, (double)wait->waited_ns / 1e9);
    if (behind == 0) say_nobody(leader, s, wait);
    for (int32_t r = 0, named = 0; r < nranks && named < NAMED_AT_MOST; r++) {
        if (!is_behind(&leader->members[r], wait)) continue;
        say(s, "%s", named++ == 0 ? " for " : "; ");
        say_member(leader, s, &leader->members[r], now_ns, wait->step);
    }
    if (behind > NAMED_AT_MOST) say(s, "; and %d more", behind - NAMED_AT_MOST);
}

/* One that waits for the others to join hears who is missing. */
static void explain_join(const eni_leader *leader, const eni_message *wait, explanation *s)
{
    char have[ENI_REASON_MAX];
    double left = (double)(leader->join_deadline_ns - eni_now_ns()) / 1e9;
    if (leader->stage == LEADER_JOINING)
        eni_leader_have(leader, have);
    else
        snprintf(have, sizeof have, "all ranks are there, the servers open their shards");
    say(s, "%.400s after %.1f s; giving up in %.0f s", have, (double)wait->waited_ns / 1e9,
        left > 0 ? left : 0);
}

void eni_leader_waiting(eni_leader *leader, eni_connection *connection, eni_leader_member *member,
                        const eni_message *m)
{
    explanation s = {.at = 0};
    if (leader->stage == LEADER_RUNNING && member != NULL && connection->stage == CONNECTION_ACTIVE) {
        member->wait = *m;
        member->has_wait = member->waits != ENI_WAITS_NOT;
        explain(leader, m, &s);
    } else {
        explain_join(leader, m, &s);
    }
    eni_message notice = {.type = ENI_CTL_NOTICE};
    memcpy(notice.reason, s.text, sizeof notice.reason);
    eni_connection_put(connection, &notice);
}

/* ---- a wait that cannot end ---- */

static bool same_place(const eni_message *a, const eni_message *b)
{
    return a->step == b->step && a->op == b->op && strcmp(a->what, b->what) == 0;
}

/* Every living rank has said in which wait it is, nothing has moved since long enough, and none is silent:
 * then nobody can move any more if they are not all at one place. Not so while a server is away, an early end
 * is being chosen, a network is emulated, or bytes still flow (a rank counts them as moves). */
static bool all_stuck(const eni_leader *leader, int64_t now_ns, bool *is_split_out)
{
    const eni_leader_member *first = NULL;
    *is_split_out = false;
    if (now_ns - leader->moved_ns < leader->config.deadlock_ns) return false;
    for (int32_t i = 0; i < leader->nmembers; i++) {
        const eni_leader_member *member = &leader->members[i];
        if (i >= leader->config.nranks) {
            if (member->stage != MEMBER_HERE) return false;
            continue;
        }
        if (member->stage == MEMBER_LOST) continue;
        if (member->stage == MEMBER_BYE || member->stage == MEMBER_GONE) {
            *is_split_out = true;
            continue;
        }
        bool is_stuck = member->stage == MEMBER_HERE && member->waits == ENI_WAITS && member->has_wait &&
                        now_ns - member->connection->heard_ns < leader->config.peer_timeout_ns / 2;
        if (!is_stuck) return false;
        if (first == NULL) first = member;
        *is_split_out = *is_split_out || !same_place(&first->wait, &member->wait);
    }
    return first != NULL;
}

void eni_leader_check_deadlock(eni_leader *leader, int64_t now_ns)
{
    bool is_split;
    explanation s = {.at = 0};
    if (leader->abort_ns != 0 || leader->stop == STOP_PAUSING) return;
    if (!all_stuck(leader, now_ns, &is_split) || !is_split) return;
    say(&s, "all wait and nobody can go on, an exchange was skipped:");
    for (int32_t r = 0, named = 0; r < leader->config.nranks; r++) {
        const eni_leader_member *member = &leader->members[r];
        if (member->stage == MEMBER_LOST) continue;
        say(&s, "%s rank %d ", named++ == 0 ? "" : ",", r);
        if (member->stage == MEMBER_HERE) {
            say(&s, "in ");
            say_place(&s, &member->wait);
        } else
            say(&s, "has left");
    }
    eni_leader_finish(leader, EN_EMISMATCH, s.text);
}
