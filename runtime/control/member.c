/* member.c - a member's life, and the calls that only look or note; see member.h. */
#include "runtime/control/member.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/control/member_state.h"

/* ---- life ---- */

static void prepare_condition(eni_member *member)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&member->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&member->lock, NULL);
}

/* A rejoin needs all of it again. */
static en_status copy_config(eni_member *member, const eni_member_config *config)
{
    eni_member_config *own = &member->config;
    *own = *config;
    own->host = own->host_id = NULL;
    own->pairs = own->privates = NULL;
    if (own->peer_timeout_ns == 0) own->peer_timeout_ns = 5 * ENI_SECOND;
    if (own->notice_ns == 0) own->notice_ns = 5 * ENI_SECOND;
    own->host = eni_strdup(config->host == NULL ? "" : config->host);
    own->host_id = eni_strdup(config->host_id == NULL ? "" : config->host_id);
    if (own->host == NULL || own->host_id == NULL) return EN_ENOMEM;
    EN_TRY(eni_pairs_copy(config->pairs, config->npairs, &own->pairs));
    return eni_pairs_copy(config->privates, config->nprivates, &own->privates);
}

static en_status check_config(const eni_member_config *config)
{
    if (config->nranks < 1 || config->nranks > ENI_RANKS_MAX) {
        eni_error("member", "a world of %d ranks: 1 to %d are possible", config->nranks, ENI_RANKS_MAX);
        return EN_EINVAL;
    }
    if (config->server < 0 || config->server >= ENI_SERVERS_MAX) {
        eni_error("member", "server %d: 0 to %d are possible", config->server, ENI_SERVERS_MAX - 1);
        return EN_EINVAL;
    }
    return EN_OK;
}

static en_status prepare(eni_member *member, const eni_member_config *config)
{
    prepare_condition(member);
    member->link.fd = member->wake_fd = member->event_fd = member->generation_fd = member->process_fd = -1;
    atomic_init(&member->step, -1);
    atomic_init(&member->entered, -1);
    atomic_init(&member->phase, "");
    atomic_init(&member->wait_what, "");
    atomic_init(&member->wait_name, "");
    atomic_init(&member->stop_step, ENI_STEP_NEVER);
    EN_TRY(check_config(config));
    EN_TRY(copy_config(member, config));
    member->peers = eni_alloc_array((size_t)config->nranks, sizeof *member->peers);
    if (member->peers == NULL) return EN_ENOMEM;
    member->world.peers = member->peers;
    member->world.pairs = member->config.pairs;
    member->world.npairs = config->npairs;
    member->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    member->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    member->generation_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (member->wake_fd >= 0 && member->event_fd >= 0 && member->generation_fd >= 0) return EN_OK;
    eni_error("member", "eventfd failed: %s", strerror(errno));
    return EN_EIO;
}

en_status eni_member_open(const eni_member_config *config, eni_member **member_out)
{
    eni_member *member = eni_alloc(sizeof *member);
    if (member == NULL) return EN_ENOMEM;
    en_status st;
    EN_TRY_GOTO(prepare(member, config), close_member);
    EN_TRY_GOTO(eni_member_join(member), close_member);
    member->heard_ns = eni_now_ns();
    if (pthread_create(&member->thread, NULL, eni_member_run, member) != 0) {
        eni_error("member", "cannot start a thread");
        EN_TRY_GOTO(EN_EIO, close_member);
    }
    member->has_thread = true;
    *member_out = member;
    return EN_OK;
close_member:
    eni_member_close(member);
    return st;
}

static void free_leaders(eni_member *member)
{
    if (member->reign == NULL) eni_peer_fini(&member->world.leader); /* else it is the first one's */
    for (eni_reign *reign = member->reign; reign != NULL;) {
        eni_reign *before = reign->before;
        eni_peer_fini(&reign->leader);
        eni_free(reign);
        reign = before;
    }
}

static void free_config(eni_member *member)
{
    eni_member_config *own = &member->config;
    if (member->world.pairs != own->pairs) eni_free((void *)(uintptr_t)member->world.pairs);
    eni_free((void *)(uintptr_t)own->pairs);
    eni_free((void *)(uintptr_t)own->privates);
    eni_free((void *)(uintptr_t)own->host);
    eni_free((void *)(uintptr_t)own->host_id);
}

static void close_all(eni_member *member)
{
    const int fds[] = {member->wake_fd, member->event_fd, member->generation_fd, member->process_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
}

void eni_member_close(eni_member *member)
{
    if (member == NULL) return;
    if (member->has_thread) {
        pthread_mutex_lock(&member->lock);
        member->is_stopping = true;
        pthread_mutex_unlock(&member->lock);
        eventfd_write(member->wake_fd, 1);
        pthread_join(member->thread, NULL);
    }
    eni_link_fini(&member->link);
    for (int32_t r = 0; r < member->npeers; r++)
        eni_peer_fini(&member->peers[r]);
    free_leaders(member);
    free_config(member);
    eni_free(member->peers);
    eni_blobs_fini(&member->blobs);
    for (int i = 0; i < 2; i++)
        eni_free(member->kept[i].data);
    while (member->lost != NULL) {
        eni_lost *next = member->lost->next;
        eni_free(member->lost);
        member->lost = next;
    }
    close_all(member);
    pthread_cond_destroy(&member->changed);
    pthread_mutex_destroy(&member->lock);
    eni_free(member);
}

const eni_world_info *eni_member_world(const eni_member *member)
{
    return &member->world;
}

/* ---- where the compute thread is ---- */

static void count_move(eni_member *member)
{
    atomic_fetch_add_explicit(&member->moves, 1, memory_order_relaxed);
}

void eni_member_note(eni_member *member, int64_t step, const char *phase)
{
    if (atomic_load_explicit(&member->step, memory_order_relaxed) != step)
        atomic_store_explicit(&member->op, 0, memory_order_relaxed);
    atomic_store_explicit(&member->step, step, memory_order_relaxed);
    atomic_store_explicit(&member->phase, phase, memory_order_relaxed);
    count_move(member);
}

void eni_member_where(const eni_member *member, int64_t *step_out, const char **phase_out)
{
    *step_out = atomic_load_explicit(&member->step, memory_order_relaxed);
    *phase_out = atomic_load_explicit(&member->phase, memory_order_relaxed);
}

void eni_member_note_samples(eni_member *member, uint64_t samples)
{
    atomic_store_explicit(&member->samples, samples, memory_order_relaxed);
}

/* The begin is stored last and cleared first: a reader that finds the same one before and after has read what
 * belongs to it. */
void eni_member_wait_begin(eni_member *member, const char *what, const char *name, uint64_t bytes,
                           uint32_t number)
{
    atomic_store_explicit(&member->wait_what, what, memory_order_relaxed);
    atomic_store_explicit(&member->wait_name, name == NULL ? "" : name, memory_order_relaxed);
    atomic_store_explicit(&member->wait_bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&member->op, number, memory_order_relaxed);
    count_move(member);
    atomic_store(&member->wait_begin_ns, eni_now_ns());
}

void eni_member_wait_device(eni_member *member, const char *what, const char *name, uint64_t bytes,
                            uint32_t number)
{
    atomic_store_explicit(&member->waits_for_device, 1, memory_order_relaxed);
    eni_member_wait_begin(member, what, name, bytes, number);
}

void eni_member_wait_end(eni_member *member)
{
    atomic_store(&member->wait_begin_ns, 0);
    atomic_store_explicit(&member->waits_for_device, 0, memory_order_relaxed);
    count_move(member);
}

/* ---- how the run is ---- */

en_status eni_member_status(const eni_member *member)
{
    return atomic_load_explicit(&member->status, memory_order_acquire);
}

int eni_member_fd(const eni_member *member)
{
    return member->event_fd;
}

en_status eni_member_verdict(eni_member *member, int64_t deadline_ns)
{
    EN_TRY(eni_tcp_wait(member->event_fd, POLLIN, deadline_ns, -1));
    en_status st = eni_member_status(member);
    return st == EN_OK ? EN_EINTR : st;
}

en_status eni_member_await_end(eni_member *member, int64_t deadline_ns)
{
    EN_TRY(eni_tcp_wait(member->event_fd, POLLIN, deadline_ns, -1));
    EN_TRY(eni_member_status(member));
    pthread_mutex_lock(&member->lock);
    bool is_over = member->is_over;
    pthread_mutex_unlock(&member->lock);
    return is_over ? EN_OK : EN_EINTR;
}

void eni_member_reason(eni_member *member, char reason_out[ENI_REASON_MAX])
{
    pthread_mutex_lock(&member->lock);
    memcpy(reason_out, member->reason, ENI_REASON_MAX);
    pthread_mutex_unlock(&member->lock);
}

en_status eni_member_death(eni_member *member, eni_death *death_out)
{
    pthread_mutex_lock(&member->lock);
    bool has_death = member->has_death;
    if (has_death) *death_out = member->death;
    pthread_mutex_unlock(&member->lock);
    return has_death ? EN_OK : EN_ENOENT;
}

bool eni_member_has_left(eni_member *member, int32_t rank, eni_death *death_out)
{
    pthread_mutex_lock(&member->lock);
    const eni_lost *lost = member->lost;
    while (lost != NULL && lost->death.rank != rank)
        lost = lost->next;
    if (lost != NULL && death_out != NULL) *death_out = lost->death;
    pthread_mutex_unlock(&member->lock);
    return lost != NULL;
}

uint64_t eni_member_stop_step(const eni_member *member)
{
    uint64_t step = atomic_load(&member->stop_step);
    return step == ENI_STEP_PENDING ? ENI_STEP_NEVER : step;
}

bool eni_member_is_stopping(eni_member *member, char why_out[ENI_REASON_MAX])
{
    pthread_mutex_lock(&member->lock);
    bool has_stop = member->has_stop;
    memcpy(why_out, member->stop_why, ENI_REASON_MAX);
    pthread_mutex_unlock(&member->lock);
    return has_stop;
}

/* ---- who leads ---- */

uint64_t eni_member_generation(const eni_member *member)
{
    return atomic_load_explicit(&member->generation, memory_order_acquire);
}

const eni_peer *eni_member_leader(eni_member *member, uint32_t *epoch_out)
{
    eventfd_t ignored;
    pthread_mutex_lock(&member->lock);
    const eni_reign *reign = member->reign;
    eventfd_read(member->generation_fd, &ignored);
    pthread_mutex_unlock(&member->lock);
    if (epoch_out != NULL) *epoch_out = reign->epoch;
    return &reign->leader;
}

int eni_member_generation_fd(const eni_member *member)
{
    return member->generation_fd;
}

int64_t eni_member_away_since(const eni_member *member)
{
    return atomic_load_explicit(&member->away_since, memory_order_acquire);
}
