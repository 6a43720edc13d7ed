#include "server/keeper.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

/* Who owns the buffer. */
enum { IDLE, COMMITTED, WRITTEN };

struct eni_keeper {
    const eni_state *state;
    eni_state_stamp stamp; /* of the newest state that is on disk */
    void (*on_done)(void *user);
    void *user;
    uint8_t *bytes;
    size_t length, room;
    atomic_int phase;
    en_status status; /* of the last write */
    eni_keeper_figures figures;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int is_stopping; /* under lock */
};

/* A number whose file did not become durable is used again: its place is not the one of the sound state. */
static void write_state(eni_keeper *keeper)
{
    eni_state_stamp next = keeper->stamp;
    const int64_t begin = eni_now_ns();
    next.generation++;
    keeper->status = eni_state_write(keeper->state, &next, keeper->bytes, keeper->length);
    keeper->figures.write_ns += eni_now_ns() - begin;
    keeper->figures.bytes = keeper->length;
    if (keeper->status == EN_OK) {
        keeper->stamp = next;
        keeper->figures.states++;
    } else {
        keeper->figures.failures++;
    }
}

static void *run_keeper(void *user)
{
    eni_keeper *keeper = user;
    pthread_mutex_lock(&keeper->lock);
    for (;;) {
        while (atomic_load(&keeper->phase) != COMMITTED && !keeper->is_stopping)
            pthread_cond_wait(&keeper->wake, &keeper->lock);
        if (atomic_load(&keeper->phase) != COMMITTED) break;
        pthread_mutex_unlock(&keeper->lock);
        write_state(keeper);
        atomic_store(&keeper->phase, WRITTEN);
        keeper->on_done(keeper->user);
        pthread_mutex_lock(&keeper->lock);
    }
    pthread_mutex_unlock(&keeper->lock);
    return NULL;
}

en_status eni_keeper_start(const eni_state *state, const eni_state_stamp *stamp, void (*on_done)(void *user),
                           void *user, eni_keeper **keeper_out)
{
    eni_keeper *keeper = eni_alloc(sizeof *keeper);
    if (!keeper) return EN_ENOMEM;
    keeper->state = state;
    keeper->stamp = *stamp;
    keeper->on_done = on_done;
    keeper->user = user;
    pthread_mutex_init(&keeper->lock, NULL);
    pthread_cond_init(&keeper->wake, NULL);
    if (pthread_create(&keeper->thread, NULL, run_keeper, keeper) == 0) {
        *keeper_out = keeper;
        return EN_OK;
    }
    eni_error("keeper", "cannot start the thread that writes the state of shard %u", stamp->shard);
    pthread_cond_destroy(&keeper->wake);
    pthread_mutex_destroy(&keeper->lock);
    eni_free(keeper);
    return EN_EIO;
}

int eni_keeper_is_busy(const eni_keeper *keeper)
{
    return atomic_load(&keeper->phase) != IDLE;
}

void eni_keeper_begin(eni_keeper *keeper)
{
    keeper->length = 0;
}

en_status eni_keeper_add(void *user, const void *bytes, size_t length)
{
    eni_keeper *keeper = user;
    if (length > keeper->room - keeper->length) {
        const size_t room = 2 * keeper->room + length + (1 << 16);
        uint8_t *grown = realloc(keeper->bytes, room);
        if (!grown) {
            eni_warn("keeper", "out of memory for a state of %zu bytes", room);
            return EN_ENOMEM;
        }
        keeper->bytes = grown;
        keeper->room = room;
    }
    memcpy(keeper->bytes + keeper->length, bytes, length);
    keeper->length += length;
    return EN_OK;
}

void eni_keeper_commit(eni_keeper *keeper)
{
    pthread_mutex_lock(&keeper->lock);
    atomic_store(&keeper->phase, COMMITTED);
    pthread_cond_signal(&keeper->wake);
    pthread_mutex_unlock(&keeper->lock);
}

int eni_keeper_done(eni_keeper *keeper, en_status *status_out)
{
    if (atomic_load(&keeper->phase) != WRITTEN) return 0;
    *status_out = keeper->status;
    atomic_store(&keeper->phase, IDLE);
    return 1;
}

void eni_keeper_count(const eni_keeper *keeper, eni_keeper_figures *figures_out)
{
    if (eni_keeper_is_busy(keeper)) return; /* the thread is adding to them: the caller keeps the last ones */
    *figures_out = keeper->figures;
}

void eni_keeper_stop(eni_keeper *keeper)
{
    if (!keeper) return;
    pthread_mutex_lock(&keeper->lock);
    keeper->is_stopping = 1;
    pthread_cond_signal(&keeper->wake);
    pthread_mutex_unlock(&keeper->lock);
    pthread_join(keeper->thread, NULL);
    pthread_cond_destroy(&keeper->wake);
    pthread_mutex_destroy(&keeper->lock);
    free(keeper->bytes);
    eni_free(keeper);
}
