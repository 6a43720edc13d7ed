#include "server/snapshot_writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

/* Who owns the buffer. */
enum { IDLE, COMMITTED, WRITTEN };

struct eni_snapshot_writer {
    const eni_state *state;
    eni_state_stamp stamp; /* of the newest state that is on disk */
    void (*on_done)(void *user);
    void *user;
    uint8_t *bytes;
    size_t length, room;
    atomic_int phase;
    en_status status; /* of the last write */
    eni_snapshot_figures figures;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int is_stopping; /* under lock */
};

/* A number whose file did not become durable is used again: its place is not the one of the sound state. */
static void write_state(eni_snapshot_writer *writer)
{
    eni_state_stamp next = writer->stamp;
    const int64_t begin = eni_now_ns();
    next.generation++;
    writer->status = eni_state_write(writer->state, &next, writer->bytes, writer->length);
    writer->figures.write_ns += eni_now_ns() - begin;
    writer->figures.bytes = writer->length;
    if (writer->status == EN_OK) {
        writer->stamp = next;
        writer->figures.states++;
    } else {
        writer->figures.failures++;
    }
}

static void *run_writer(void *user)
{
    eni_snapshot_writer *writer = user;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        while (atomic_load(&writer->phase) != COMMITTED && !writer->is_stopping)
            pthread_cond_wait(&writer->wake, &writer->lock);
        if (atomic_load(&writer->phase) != COMMITTED) break;
        pthread_mutex_unlock(&writer->lock);
        write_state(writer);
        atomic_store(&writer->phase, WRITTEN);
        writer->on_done(writer->user);
        pthread_mutex_lock(&writer->lock);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

en_status eni_snapshot_writer_start(const eni_state *state, const eni_state_stamp *stamp,
                                    void (*on_done)(void *user), void *user, eni_snapshot_writer **writer_out)
{
    eni_snapshot_writer *writer = eni_alloc(sizeof *writer);
    if (!writer) return EN_ENOMEM;
    writer->state = state;
    writer->stamp = *stamp;
    writer->on_done = on_done;
    writer->user = user;
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->wake, NULL);
    if (pthread_create(&writer->thread, NULL, run_writer, writer) == 0) {
        *writer_out = writer;
        return EN_OK;
    }
    eni_error("snapshot", "cannot start the thread that writes the state of shard %u", stamp->shard);
    pthread_cond_destroy(&writer->wake);
    pthread_mutex_destroy(&writer->lock);
    eni_free(writer);
    return EN_EIO;
}

int eni_snapshot_writer_is_busy(const eni_snapshot_writer *writer)
{
    return atomic_load(&writer->phase) != IDLE;
}

void eni_snapshot_writer_begin(eni_snapshot_writer *writer)
{
    writer->length = 0;
}

en_status eni_snapshot_writer_add(void *user, const void *bytes, size_t length)
{
    eni_snapshot_writer *writer = user;
    if (length > writer->room - writer->length) {
        const size_t room = 2 * writer->room + length + (1 << 16);
        uint8_t *grown = realloc(writer->bytes, room);
        if (!grown) {
            eni_warn("snapshot", "out of memory for a state of %zu bytes", room);
            return EN_ENOMEM;
        }
        writer->bytes = grown;
        writer->room = room;
    }
    memcpy(writer->bytes + writer->length, bytes, length);
    writer->length += length;
    return EN_OK;
}

void eni_snapshot_writer_commit(eni_snapshot_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    atomic_store(&writer->phase, COMMITTED);
    pthread_cond_signal(&writer->wake);
    pthread_mutex_unlock(&writer->lock);
}

int eni_snapshot_writer_done(eni_snapshot_writer *writer, en_status *status_out)
{
    if (atomic_load(&writer->phase) != WRITTEN) return 0;
    *status_out = writer->status;
    atomic_store(&writer->phase, IDLE);
    return 1;
}

void eni_snapshot_writer_count(const eni_snapshot_writer *writer, eni_snapshot_figures *figures_out)
{
    if (eni_snapshot_writer_is_busy(writer))
        return; /* the thread is adding to them: the caller keeps the last ones */
    *figures_out = writer->figures;
}

void eni_snapshot_writer_stop(eni_snapshot_writer *writer)
{
    if (!writer) return;
    pthread_mutex_lock(&writer->lock);
    writer->is_stopping = 1;
    pthread_cond_signal(&writer->wake);
    pthread_mutex_unlock(&writer->lock);
    pthread_join(writer->thread, NULL);
    pthread_cond_destroy(&writer->wake);
    pthread_mutex_destroy(&writer->lock);
    free(writer->bytes);
    eni_free(writer);
}
