/* member_join.c - from the connection to WELCOME: first on the opener's thread, again on the member's own
 * when psd went away and came back. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/member_state.h"
#include "runtime/net/process.h"

static const int64_t goodbye_ns = 200 * ENI_MILLI;
static const int64_t attempt_ns = 250 * ENI_MILLI; /* for one connection of a rejoin */
static const int64_t retry_ns = 50 * ENI_MILLI;
enum { AGAIN = 6 }; /* a notice is repeated after this many times its first delay */

static void set_text(char *out, size_t capacity, const char *text)
{
    snprintf(out, capacity, "%s", text == NULL ? "" : text);
}

/* The JOIN of a first join and of a rejoin; borrows. */
static eni_message join_message(const eni_member *member)
{
    const eni_member_config *config = &member->config;
    eni_message join = {.type = ENI_CTL_JOIN,
                        .token = config->token,
                        .server = config->server,
                        .rank = config->server > 0 ? -1 : config->rank,
                        .nranks = config->nranks,
                        .nservers = config->nservers,
                        .pid = getpid(),
                        .born = eni_process_born(getpid()),
                        .incarnation = member->world.incarnation,
                        .number = member->claim.number,
                        .index = member->claim.index,
                        .done = member->gather.done};
    set_text(join.host, sizeof join.host, config->host);
    set_text(join.host_id, sizeof join.host_id, config->host_id);
    join.key_values = (eni_key_value_list){.pair = config->key_values, .n = config->nkey_values};
    join.member_data = (eni_key_value_list){.pair = config->member_data, .n = config->nmember_data};
    return join;
}

/* Sends one message and blocks until the kernel has it. */
static en_status send_now(eni_member *member, const eni_message *message, int64_t deadline_ns, int abort_fd)
{
    EN_TRY(eni_message_put(&member->link, message));
    EN_TRY(
        eni_tcp_send(member->link.fd, member->link.out.data, member->link.out.bytes, deadline_ns, abort_fd));
    eni_pack_drop(&member->link.out, member->link.out.bytes);
    return EN_OK;
}

/* So that the others learn why we leave, and do not take it for a death. */
static void say_goodbye(eni_member *member, const char *reason)
{
    eni_message m = {.type = ENI_CTL_ABORT};
    set_text(m.reason, sizeof m.reason, reason);
    send_now(member, &m, eni_now_ns() + goodbye_ns, -1);
}

/* ---- generations of leaders ---- */

static void watch_leader(eni_member *member, const eni_peer *leader)
{
    if (member->lead.process_fd >= 0) close(member->lead.process_fd);
    member->lead.process_fd = -1;
    member->lead.ended_ns = 0;
    if (strcmp(leader->host_id, member->config.host_id) == 0 && leader->pid != getpid())
        member->lead.process_fd = eni_process_watch(leader->pid, leader->born);
}

en_status eni_member_set_leader(eni_member *member, const eni_message *m)
{
    eni_reign *reign = eni_alloc(sizeof *reign);
    if (reign == NULL) return EN_ENOMEM;
    en_status st = eni_peer_init(&reign->leader, m);
    if (st != EN_OK) {
        eni_free(reign);
        return st;
    }
    /* From LEADER, without member data. */
    if (member->lead.reign == NULL) eni_peer_fini(&member->world.leader);
    reign->epoch = m->epoch;
    reign->before = member->lead.reign; /* kept until close: other threads may still use it */
    member->lead.reign = reign;
    watch_leader(member, &reign->leader);
    if (reign->before == NULL) return EN_OK;
    atomic_fetch_add_explicit(&member->lead.generation, 1, memory_order_release);
    return EN_OK;
}

/* ---- messages of the leader ---- */

/* PEER of the next rank: they come in order. */
static en_status add_peer(eni_member *member, const eni_message *m)
{
    if (m->rank != member->npeers || member->npeers >= member->config.nranks)
        return eni_fail(EN_EPROTO, "member", "the leader sent rank %d where rank %d was expected", m->rank,
                        member->npeers);
    EN_TRY(eni_peer_init(&member->peers[member->npeers], m));
    member->npeers++;
    return EN_OK;
}

static void set_world(eni_world_info *world, const eni_message *m, int32_t rank)
{
    world->rank = rank;
    world->nranks = m->nranks;
    world->nservers = m->nservers;
    world->epoch = m->epoch;
    world->incarnation = m->incarnation;
    world->budget = m->budget;
}

static en_status take_welcome(eni_member *member, const eni_message *m)
{
    int32_t have = member->npeers, server = member->config.server;
    bool is_ours = server > 0 ? m->to == -1 - server : m->to >= 0 && m->to < have;
    if (have != member->config.nranks || m->nranks != have || !is_ours)
        return eni_fail(EN_EPROTO, "member", "the leader's welcome is for number %d of %d, after %d ranks",
                        m->to, m->nranks, have);
    set_world(&member->world, m, m->to);
    if (member->config.rank == ENI_RANK_NEW) {
        member->came_after_ns = m->waited_ns;
        member->gather.sent = member->gather.done = m->done;
    }
    if (server == 0) member->config.rank = m->to; /* a rejoin asks for the same one */
    EN_TRY(eni_member_set_leader(member, m));
    member->world.leader = member->lead.reign->leader;
    return EN_OK;
}

static en_status take_death(eni_member *member, const eni_death *death)
{
    char text[ENI_REASON_MAX];
    eni_death_text(death, text);
    eni_error("member", "the run ends before it began: %s", text);
    member->end.outcome.death = *death;
    member->end.outcome.has_death = true;
    return EN_EPEER;
}

/* SERVE: the first one carries rank 0's key-values. */
en_status eni_member_serve(eni_member *member, const eni_message *m, eni_message *ready_out)
{
    eni_member_config *config = &member->config;
    const eni_key_value *key_values, *member_data = NULL, *copy;
    size_t n = 0;
    if (m->nranks != config->nranks || member->npeers != m->nranks) return EN_EPROTO;
    if (member->world.key_values == config->key_values) {
        EN_TRY(eni_key_values_take(&m->key_values, &key_values));
        member->world.key_values = key_values;
        member->world.nkey_values = m->key_values.n;
        set_world(&member->world, m, -1 - config->server);
    }
    eni_world_info world = member->world;
    world.epoch = m->epoch;
    if (config->on_serve != NULL) EN_TRY(config->on_serve(config->user, &world, &member_data, &n));
    EN_TRY(eni_key_values_copy(member_data, n, &copy));
    eni_free(config->member_data);
    config->member_data = copy;
    config->nmember_data = n;
    *ready_out = (eni_message){.type = ENI_CTL_READY, .member_data = {.pair = copy, .n = n}};
    return EN_OK;
}

/* Handles one frame while joining; *is_in_out is set by WELCOME. */
static en_status join_frame(eni_member *member, eni_span frame, bool *is_in_out)
{
    const eni_member_config *config = &member->config;
    eni_message m, ready;
    const char *why = NULL;
    if (eni_message_get(frame.data, frame.bytes, &m, &why) != EN_OK)
        return eni_fail(EN_EPROTO, "member", "invalid message from the leader at %s port %u: %s",
                        config->leader.host, config->leader.port, why);
    switch (m.type) {
    case ENI_CTL_LEADER:
        if (member->world.leader.host != NULL) return EN_EPROTO;
        EN_TRY(eni_peer_init(&member->world.leader, &m));
        watch_leader(member, &member->world.leader);
        return EN_OK;
    case ENI_CTL_PEER: return add_peer(member, &m);
    case ENI_CTL_WELCOME: *is_in_out = true; return take_welcome(member, &m);
    case ENI_CTL_NOTICE: eni_info("member", "%s", m.reason); return EN_OK;
    case ENI_CTL_REFUSED:
    case ENI_CTL_ENDED:
        eni_error("member", "the leader refused: %s", m.reason);
        return m.status == EN_OK ? EN_EPROTO : (en_status)m.status;
    case ENI_CTL_DEAD: return take_death(member, &m.death);
    case ENI_CTL_SERVE:
        if (config->server == 0) break;
        EN_TRY(eni_member_serve(member, &m, &ready));
        return send_now(member, &ready, config->join_deadline_ns, config->abort_fd);
    default: break;
    }
    return eni_fail(EN_EPROTO, "member", "the leader sent message %u before WELCOME", m.type);
}

/* ---- waiting for WELCOME ---- */

/* The connection closed: if the leader is known, it is the first failed rank. */
static en_status leader_gone(eni_member *member)
{
    const eni_peer *leader = &member->world.leader;
    if (leader->host == NULL)
        return eni_fail(EN_EPEER, "member",
                        "%s port %u: the leader closed the connection before the run began: did it end?",
                        member->config.leader.host, member->config.leader.port);
    eni_death death = {.rank = leader->rank, .pid = leader->pid, .step = -1, .phase = "join"};
    set_text(death.host, sizeof death.host, leader->host);
    set_text(death.cause, sizeof death.cause, "its connection closed without a goodbye");
    return take_death(member, &death);
}

/* Waits until a frame arrives, or it is time to ask who is missing (*notice_ns). EN_EINTR: the user. */
static en_status wait_frame(eni_member *member, int64_t begin_ns, int64_t *notice_ns)
{
    const eni_member_config *config = &member->config;
    /* The leader gives up at the same moment, and knows who is missing: its message should come first. */
    int64_t now_ns = eni_now_ns(), deadline_ns = config->join_deadline_ns + ENI_SECOND;
    if (now_ns >= deadline_ns) {
        eni_error("member",
                  "%s port %u: the leader did not admit this process in time: are all ranks started?",
                  config->leader.host, config->leader.port);
        say_goodbye(member, "the others did not join before its --join-timeout");
        return EN_ETIMEOUT;
    }
    if (now_ns >= *notice_ns) {
        *notice_ns = now_ns + AGAIN * config->notice_ns;
        const eni_message who = {
            .type = ENI_CTL_WAITING, .step = -1, .what = "join", .waited_ns = now_ns - begin_ns};
        if (send_now(member, &who, eni_now_ns() + goodbye_ns, -1) != EN_OK) return leader_gone(member);
    }
    int64_t until_ns = *notice_ns < deadline_ns ? *notice_ns : deadline_ns;
    struct pollfd set[3] = {
        {member->link.fd, POLLIN, 0}, {config->abort_fd, POLLIN, 0}, {member->lead.process_fd, POLLIN, 0}};
    if (poll(set, 3, eni_ms_left(until_ns, 1000)) < 0 && errno != EINTR) return EN_EIO;
    if (set[1].revents != 0) {
        say_goodbye(member, "interrupted by the user");
        return EN_EINTR; /* whoever interrupted us knows */
    }
    if (set[0].revents == 0 && set[2].revents != 0) return leader_gone(member);
    return EN_OK;
}

static en_status await_welcome(eni_member *member)
{
    bool is_in = false, is_closed = false;
    int64_t begin_ns = eni_now_ns(), notice_ns = begin_ns + member->config.notice_ns;
    while (!is_in) {
        eni_span frame;
        en_status st = eni_link_next(&member->link, &frame);
        if (st == EN_OK) {
            EN_TRY(join_frame(member, frame, &is_in));
            continue;
        }
        if (st == EN_EPROTO)
            return eni_fail(st, "member", "the process at %s port %u does not speak Entrain's protocol",
                            member->config.leader.host, member->config.leader.port);
        if (is_closed) return leader_gone(member);
        EN_TRY(wait_frame(member, begin_ns, &notice_ns));
        is_closed = eni_link_read(&member->link) != EN_OK;
    }
    return EN_OK;
}

en_status eni_member_join(eni_member *member)
{
    const eni_member_config *config = &member->config;
    int fd;
    en_status st = eni_tcp_connect(&config->leader, config->join_deadline_ns, config->abort_fd, &fd);
    if (st == EN_EPEER) return EN_EINTR;
    EN_TRY(st);
    eni_link_init(&member->link, fd);
    eni_message join = join_message(member);
    st = send_now(member, &join, config->join_deadline_ns, config->abort_fd);
    if (st == EN_EPEER) {
        struct pollfd interrupt = {config->abort_fd, POLLIN, 0};
        return poll(&interrupt, 1, 0) > 0 ? EN_EINTR : leader_gone(member);
    }
    EN_TRY(st);
    return await_welcome(member);
}

/* ---- psd is away ---- */

bool eni_member_may_wait_for_leader(const eni_member *member)
{
    return member->config.server_timeout_ns > 0 && member->lead.reign->leader.rank < 0 &&
           eni_member_status(member) == EN_OK && !member->end.is_bye_answered && !member->end.is_over;
}

void eni_member_go_away(eni_member *member, const char *cause)
{
    int64_t now_ns = eni_now_ns();
    const eni_peer *leader = &member->lead.reign->leader;
    eni_link_fini(&member->link);
    if (member->lead.process_fd >= 0) close(member->lead.process_fd);
    member->lead.process_fd = -1;
    member->lead.ended_ns = 0;
    member->when.next_try_ns = now_ns + retry_ns;
    if (member->stage == MEMBER_HERE) {
        atomic_store_explicit(&member->lead.away_since, now_ns, memory_order_release);
        eni_warn("member", "psd (pid %" PRId64 " on host %s): %s; waiting up to %.3g s for it to come back",
                 leader->pid, leader->host, cause, (double)member->config.server_timeout_ns / 1e9);
    }
    member->stage = MEMBER_AWAY;
}

/* One attempt without the lock: callers of claim and gather can still time out. */
static void attempt(eni_member *member)
{
    int fd, error = 0;
    int64_t deadline_ns = eni_now_ns() + attempt_ns;
    pthread_mutex_unlock(&member->lock);
    en_status st = eni_tcp_attempt(&member->config.leader, deadline_ns, -1, &fd, &error);
    pthread_mutex_lock(&member->lock);
    member->when.next_try_ns = eni_now_ns() + retry_ns;
    if (st != EN_OK) return;
    eni_link_init(&member->link, fd);
    eni_message join = join_message(member);
    if (eni_message_put(&member->link, &join) != EN_OK) {
        eni_member_finish(member, EN_ENOMEM, "this process is out of memory", NULL);
        return;
    }
    member->stage = MEMBER_REJOINING;
}

void eni_member_tick_away(eni_member *member, int64_t now_ns)
{
    char cause[ENI_REASON_MAX];
    int64_t since_ns = eni_member_away_since(member);
    if (now_ns - since_ns > member->config.server_timeout_ns) {
        snprintf(cause, sizeof cause, "its connection closed, and it did not come back within %.3g s",
                 (double)member->config.server_timeout_ns / 1e9);
        eni_member_leader_lost(member, cause, false);
    } else if (member->stage == MEMBER_AWAY && now_ns >= member->when.next_try_ns) {
        attempt(member);
    }
}

/* ---- psd is back ---- */

static void send_gather_again(eni_member *member, uint64_t number)
{
    const eni_kept *kept = &member->gather.kept[number % 2];
    if (number == 0 || kept->number != number) return;
    eni_message m = {.type = ENI_CTL_GATHER, .number = number, .blob = {kept->data, kept->bytes}};
    memcpy(m.tag, kept->tag, sizeof m.tag);
    eni_member_put(member, &m);
}

/* Repeats our last gather, for ranks that miss it, open requests, and messages that were dropped
 * meanwhile. */
static void say_again(eni_member *member)
{
    send_gather_again(member, member->gather.done);
    if (member->gather.stage == ASK_SENT) {
        eni_blobs_fini(&member->gather.blobs); /* all of it is sent anew */
        member->gather.nblobs = 0;
        send_gather_again(member, member->gather.sent);
    }
    if (member->claim.stage == ASK_SENT)
        eni_member_put(member, &(eni_message){.type = ENI_CTL_CLAIM, .number = member->claim.number + 1});
    const char *stop_why = member->end.outcome.stop_why;
    if (stop_why[0] != '\0' && eni_member_stop_step(member) == ENI_STEP_NEVER) {
        eni_message m = {.type = ENI_CTL_STOP};
        memcpy(m.reason, stop_why, sizeof m.reason);
        eni_member_put(member, &m);
    }
    /* psd was killed while it chose. */
    if (stop_why[0] == '\0' && atomic_load(&member->stop.step) == ENI_STEP_PENDING)
        eni_member_put(member, &(eni_message){.type = ENI_CTL_SAVE});
    if (member->end.asks_to_leave && !atomic_load(&member->end.is_leaving))
        eni_member_put(member, &(eni_message){.type = ENI_CTL_LEAVE});
    if (member->end.has_said_bye) eni_member_put(member, &(eni_message){.type = ENI_CTL_BYE});
}

void eni_member_rejoined(eni_member *member, const eni_message *m)
{
    double away = (double)(eni_now_ns() - eni_member_away_since(member)) / 1e9;
    if (m->nranks != member->world.nranks || m->incarnation != member->world.incarnation ||
        m->to != member->world.rank || m->epoch <= member->lead.reign->epoch) {
        eni_member_finish(member, EN_EPROTO, "another run's leader now listens at psd's address", NULL);
        return;
    }
    if (eni_member_set_leader(member, m) != EN_OK) {
        eni_member_finish(member, EN_ENOMEM, "this process is out of memory", NULL);
        return;
    }
    eni_info("member", "psd is back after %.1f s: pid %" PRId64 " on host %s", away, m->pid, m->host);
    member->stage = MEMBER_HERE;
    member->when.next_beat_ns = 0;
    member->when.told_wait_ns = 0;
    atomic_store_explicit(&member->lead.away_since, 0, memory_order_release);
    say_again(member);
    pthread_cond_broadcast(&member->changed);
}
