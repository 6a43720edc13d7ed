/* leader_join.c - who may come in: at the start, and back after a psd was restarted. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mutation.h"
#include "runtime/control/leader_state.h"
#include "runtime/net/process.h"

static const int64_t notice_again_ns = 30 * ENI_SECOND;

void eni_leader_refuse(eni_seat *seat, en_status status, const char *reason)
{
    eni_message refused = {.type = ENI_CTL_REFUSED, .status = (uint32_t)status};
    snprintf(refused.reason, sizeof refused.reason, "%s", reason);
    eni_log_every(seat->refusals, ENI_LOG_WARN, "leader", "refused a member: %s", reason);
    eni_seat_put(seat, &refused);
    eni_seat_leave(seat);
}

static void refuse(eni_seat *seat, en_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void refuse(eni_seat *seat, en_status status, const char *format, ...)
{
    char reason[ENI_REASON_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    eni_leader_refuse(seat, status, reason);
}

static int32_t servers_expected(const eni_leader *leader)
{
    return leader->nmates - leader->config.nranks;
}

/* Who waits under that number: a rank, or server -1 - number. */
static const eni_seat *find_joined(const eni_leader *leader, int32_t number)
{
    for (size_t i = 0; i < leader->nseats; i++)
        if (leader->seats[i].stage == SEAT_JOINED && leader->seats[i].peer.rank == number)
            return &leader->seats[i];
    return NULL;
}

static int32_t count_joined(const eni_leader *leader, bool is_server)
{
    int32_t n = 0;
    for (size_t i = 0; i < leader->nseats; i++)
        n += leader->seats[i].stage == SEAT_JOINED && (leader->seats[i].server > 0) == is_server;
    return n;
}

/* ---- one JOIN ---- */

/* What holds for every JOIN, in the order in which it may be told to a stranger: the token first. */
static bool check_numbers(eni_leader *leader, eni_seat *seat, const eni_message *join)
{
    int32_t nranks = leader->config.nranks;
    if (!eni_token_equal(&join->token, &leader->config.token) && !eni_mutant("no-token-at-join"))
        refuse(seat, EN_EDENIED,
               "the job token is not this run's: it was started by someone else, or is an old one");
    else if (join->nranks != nranks)
        refuse(seat, EN_EINVAL, "a %s was told --world-size=%d, the leader %d",
               join->server > 0 ? "server" : "worker", join->nranks, nranks);
    else if (join->server == 0 && join->rank >= nranks)
        refuse(seat, EN_EINVAL, "rank %d does not exist in a world of %d: ranks are 0 to %d", join->rank,
               nranks, nranks - 1);
    else if (join->server > 0 && join->nservers != servers_expected(leader) + 1)
        refuse(seat, EN_EINVAL, "psd %d was told --servers=%d, the leader %d", join->server, join->nservers,
               servers_expected(leader) + 1);
    else if (join->server > servers_expected(leader))
        refuse(seat, EN_EINVAL, "psd %d does not exist among %d servers", join->server,
               servers_expected(leader) + 1);
    else
        return true;
    return false;
}

/* A process that comes while the run goes on: it must be one that is missing, and the one that it was. */
static bool check_return(eni_leader *leader, eni_seat *seat, const eni_message *join)
{
    int32_t nranks = leader->config.nranks;
    char who[32], reason[ENI_REASON_MAX];
    if (join->server == 0 && (join->incarnation == 0 || join->rank < 0)) {
        refuse(seat, EN_EINVAL, "the run has all its %d ranks and has begun", nranks);
        return false;
    }
    const eni_mate *mate = &leader->mates[join->server > 0 ? nranks + join->server - 1 : join->rank];
    eni_peer_name(eni_mate_number(leader, mate), who);
    if (mate->stage == MATE_GONE && join->incarnation == leader->world.incarnation) {
        eni_seat_put(seat,
                     &(eni_message){.type = ENI_CTL_BYE}); /* its goodbye was written down, not answered */
        eni_seat_leave(seat);
        return false;
    }
    if (join->incarnation != 0 && join->incarnation != leader->world.incarnation)
        refuse(seat, EN_EINVAL, "%s comes back from another run or another life of it", who);
    else if (mate->stage != MATE_MISSING || mate->seat != NULL)
        refuse(seat, EN_EINVAL, "%s cannot join again: it is here, has left, or was lost", who);
    else if (join->server == 0 && join->number > mate->claims)
        refuse(seat, EN_EMISMATCH,
               "%s was given micro-batches that the restarted psd does not know of: its journal is older",
               who);
    else if (join->server == 0 &&
             !eni_leader_compare(leader->world.pairs, leader->world.npairs, seat, "psd", reason))
        eni_leader_refuse(seat, EN_EMISMATCH, reason);
    else
        return true;
    return false;
}

static bool check_place(eni_leader *leader, eni_seat *seat, const eni_message *join)
{
    int32_t nranks = leader->config.nranks;
    if (leader->config.revived != NULL || leader->stage == LEADER_RUNNING)
        return check_return(leader, seat, join);
    const eni_seat *other = NULL;
    if (join->server > 0)
        other = find_joined(leader, -1 - join->server);
    else if (join->rank >= 0)
        other = find_joined(leader, join->rank);
    if (leader->stage != LEADER_JOINING)
        refuse(seat, EN_EINVAL, "the run has all its %d ranks and has begun", nranks);
    else if (other != NULL && join->server > 0)
        refuse(seat, EN_EINVAL, "psd %d is already here: pid %" PRId64 " on host %s", join->server,
               other->peer.pid, other->peer.host);
    else if (other != NULL)
        refuse(seat, EN_EINVAL, "rank %d is already here: pid %" PRId64 " on host %s", join->rank,
               other->peer.pid, other->peer.host);
    else if (join->server == 0 && count_joined(leader, false) == nranks)
        refuse(seat, EN_EINVAL, "all %d ranks are already here", nranks);
    else
        return true;
    return false;
}

/* So that it can name us when we end before WELCOME. */
static void introduce(const eni_leader *leader, eni_seat *seat)
{
    eni_message m = {
        .type = ENI_CTL_LEADER, .rank = leader->config.rank, .pid = getpid(), .born = leader->born};
    snprintf(m.host, sizeof m.host, "%s", leader->config.host);
    snprintf(m.host_id, sizeof m.host_id, "%s", leader->config.host_id);
    eni_seat_put(seat, &m);
}

/* What it said of itself, copied; the checks may need it, and free it with the seat. */
static en_status take_join(eni_seat *seat, const eni_message *join)
{
    if (eni_peer_init(&seat->peer, join) != EN_OK) return EN_ENOMEM;
    if (eni_pairs_take(&join->pairs, &seat->pairs) != EN_OK) return EN_ENOMEM;
    seat->npairs = join->pairs.n;
    seat->server = join->server;
    seat->incarnation = join->incarnation;
    seat->claims = join->number;
    seat->claim_index = join->index;
    seat->done = join->done;
    seat->peer.rank = join->rank >= 0 ? join->rank : ENI_RANK_NONE;
    if (join->server > 0) seat->peer.rank = -1 - join->server;
    return EN_OK;
}

void eni_leader_join(eni_leader *leader, eni_seat *seat, const eni_message *join)
{
    if (!check_numbers(leader, seat, join)) return;
    if (take_join(seat, join) != EN_OK) {
        refuse(seat, EN_ENOMEM, "the leader is out of memory");
        return;
    }
    if (!check_place(leader, seat, join)) return;
    seat->stage = SEAT_JOINED;
    if (strcmp(join->host_id, leader->config.host_id) == 0 && join->pid != getpid())
        seat->process_fd = eni_process_watch(join->pid, join->born);
    introduce(leader, seat);
    eni_debug("leader", "rank %d joined: pid %" PRId64 " on host %s", seat->peer.rank, join->pid, join->host);
    if (leader->config.revived != NULL || leader->stage == LEADER_RUNNING) eni_leader_seat_mate(leader, seat);
}

/* ---- while not all are there ---- */

void eni_leader_have(const eni_leader *leader, char text_out[ENI_REASON_MAX])
{
    int32_t nranks = leader->config.nranks, named = 0, anonymous = 0;
    int32_t servers = servers_expected(leader);
    for (size_t i = 0; i < leader->nseats; i++)
        anonymous += leader->seats[i].stage == SEAT_JOINED && leader->seats[i].peer.rank == ENI_RANK_NONE;
    size_t at = (size_t)snprintf(text_out, ENI_REASON_MAX, "have %d of %d ranks", count_joined(leader, false),
                                 nranks);
    for (int32_t r = 0; r < nranks && anonymous == 0 && at < ENI_REASON_MAX - 128; r++)
        if (find_joined(leader, r) == NULL)
            at += (size_t)snprintf(text_out + at, ENI_REASON_MAX - at, "%s%d",
                                   named++ == 0 ? ", missing rank " : ", ", r);
    for (int32_t k = 1; k <= servers && at < ENI_REASON_MAX - 64; k++)
        if (find_joined(leader, -1 - k) == NULL)
            at += (size_t)snprintf(text_out + at, ENI_REASON_MAX - at, ", missing psd %d", k);
}

static void give_up(eni_leader *leader)
{
    char have[ENI_REASON_MAX], reason[ENI_REASON_MAX];
    if (leader->stage == LEADER_JOINING)
        eni_leader_have(leader, have);
    else
        snprintf(have, sizeof have, "not all servers opened their lanes");
    snprintf(reason, sizeof reason, "%.400s after %.3g s", have,
             (double)(leader->join_deadline_ns - leader->started_ns) / 1e9);
    eni_leader_finish(leader, EN_ETIMEOUT, reason);
}

/* psd says itself whom it waits for; a leader inside rank 0 has a member that does. */
static void say_who_is_missing(eni_leader *leader, int64_t now_ns)
{
    char have[ENI_REASON_MAX];
    if (leader->config.rank >= 0 || now_ns < leader->next_notice_ns) return;
    leader->next_notice_ns = now_ns + notice_again_ns;
    eni_leader_have(leader, have);
    eni_info("leader", "%s after %.1f s; giving up in %.0f s", have,
             (double)(now_ns - leader->started_ns) / 1e9, (double)(leader->join_deadline_ns - now_ns) / 1e9);
}

void eni_leader_tick_join(eni_leader *leader, int64_t now_ns)
{
    bool is_complete = leader->stage == LEADER_JOINING &&
                       count_joined(leader, false) == leader->config.nranks &&
                       count_joined(leader, true) == servers_expected(leader);
    if (is_complete)
        eni_leader_begin(leader);
    else if (now_ns >= leader->join_deadline_ns)
        give_up(leader);
    else if (leader->stage == LEADER_JOINING)
        say_who_is_missing(leader, now_ns);
}
