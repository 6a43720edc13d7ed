/* member_rejoin.c - psd went away and comes back; and what a server does when the leader asks. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/member_state.h"

static const int64_t attempt_ns = 250 * ENI_MILLI; /* for one connection */
static const int64_t retry_ns = 50 * ENI_MILLI;

/* ---- generations ---- */

en_status eni_member_crown(eni_member *member, const eni_message *m)
{
    eni_reign *reign = eni_alloc(sizeof *reign);
    if (reign == NULL) return EN_ENOMEM;
    en_status st = eni_peer_init(&reign->leader, m);
    if (st != EN_OK) {
        eni_free(reign);
        return st;
    }
    if (member->reign == NULL) eni_peer_fini(&member->world.leader); /* LEADER's word, without privates */
    reign->epoch = m->epoch;
    reign->before = member->reign; /* kept until close: others may still look at it */
    member->reign = reign;
    eni_member_watch_leader(member, &reign->leader);
    if (reign->before == NULL) return EN_OK;
    atomic_fetch_add_explicit(&member->generation, 1, memory_order_release);
    eventfd_write(member->generation_fd, 1);
    return EN_OK;
}

/* ---- away ---- */

bool eni_member_may_wait_for_leader(const eni_member *member)
{
    return member->config.server_timeout_ns > 0 && member->reign->leader.rank < 0 &&
           eni_member_status(member) == EN_OK && !member->is_bye_answered && !member->is_over;
}

static void disconnect(eni_member *member)
{
    eni_link_fini(&member->link);
    if (member->process_fd >= 0) close(member->process_fd);
    member->process_fd = -1;
    member->ended_ns = 0;
}

void eni_member_go_away(eni_member *member, const char *cause)
{
    int64_t now_ns = eni_now_ns();
    const eni_peer *leader = &member->reign->leader;
    disconnect(member);
    member->next_try_ns = now_ns + retry_ns;
    if (member->stage == MEMBER_HERE) {
        atomic_store_explicit(&member->away_since, now_ns, memory_order_release);
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
    member->next_try_ns = eni_now_ns() + retry_ns;
    if (st != EN_OK) return;
    eni_link_init(&member->link, fd);
    eni_message join = eni_member_join_message(member);
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
    } else if (member->stage == MEMBER_AWAY && now_ns >= member->next_try_ns) {
        attempt(member);
    }
}

/* ---- back ---- */

static void send_gather_again(eni_member *member, uint64_t number)
{
    const eni_kept *kept = &member->kept[number % 2];
    if (number == 0 || kept->number != number) return;
    eni_message m = {.type = ENI_CTL_GATHER, .number = number, .blob = {kept->data, kept->bytes}};
    memcpy(m.tag, kept->tag, sizeof m.tag);
    eni_member_put(member, &m);
}

/* The gather that we have done, for those who have not; what is open; and what was said meanwhile. */
static void say_again(eni_member *member)
{
    send_gather_again(member, member->done);
    if (member->gather == ASK_SENT) {
        eni_blobs_fini(&member->blobs); /* all of it comes anew */
        member->nblobs = 0;
        send_gather_again(member, member->sent);
    }
    if (member->claim == ASK_SENT)
        eni_member_put(member, &(eni_message){.type = ENI_CTL_CLAIM, .number = member->claims + 1});
    if (member->has_stop && eni_member_stop_step(member) == ENI_STEP_NEVER) {
        eni_message m = {.type = ENI_CTL_STOP};
        memcpy(m.reason, member->stop_why, sizeof m.reason);
        eni_member_put(member, &m);
    }
    if (member->has_said_bye) eni_member_put(member, &(eni_message){.type = ENI_CTL_BYE});
}

void eni_member_rejoined(eni_member *member, const eni_message *m)
{
    double away = (double)(eni_now_ns() - eni_member_away_since(member)) / 1e9;
    if (m->nranks != member->world.nranks || m->incarnation != member->world.incarnation ||
        m->to != member->world.rank || m->epoch <= member->reign->epoch) {
        eni_member_finish(member, EN_EPROTO, "what answers where psd was leads another run", NULL);
        return;
    }
    if (eni_member_crown(member, m) != EN_OK) {
        eni_member_finish(member, EN_ENOMEM, "this process is out of memory", NULL);
        return;
    }
    eni_info("member", "psd is back after %.1f s: pid %" PRId64 " on host %s", away, m->pid, m->host);
    member->stage = MEMBER_HERE;
    member->next_beat_ns = 0;
    member->told_wait_ns = 0;
    atomic_store_explicit(&member->away_since, 0, memory_order_release);
    say_again(member);
    pthread_cond_broadcast(&member->changed);
}

/* ---- servers ---- */

/* SERVE: the first one brings rank 0's pairs. */
en_status eni_member_serve(eni_member *member, const eni_message *m)
{
    eni_member_config *config = &member->config;
    const eni_pair *pairs, *privates = NULL, *copy;
    size_t n = 0;
    if (m->nranks != config->nranks || member->npeers != m->nranks) return EN_EPROTO;
    if (member->world.pairs == config->pairs) {
        EN_TRY(eni_pairs_take(&m->pairs, &pairs));
        member->world.pairs = pairs;
        member->world.npairs = m->pairs.n;
        member->world.rank = -1 - config->server;
        member->world.nranks = m->nranks;
        member->world.nservers = m->nservers;
        member->world.incarnation = m->incarnation;
        member->world.epoch = m->epoch;
        member->world.budget = m->budget;
    }
    eni_world_info world = member->world;
    world.epoch = m->epoch;
    if (config->on_serve != NULL) EN_TRY(config->on_serve(config->user, &world, &privates, &n));
    EN_TRY(eni_pairs_copy(privates, n, &copy));
    eni_free((void *)(uintptr_t)config->privates);
    config->privates = copy;
    config->nprivates = n;
    return EN_OK;
}
