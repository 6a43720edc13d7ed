/* shard_save.c - what a shard keeps on disk.
 *
 *     shard's thread   copies the store between two events, goes on      takes note: `stable` moves
 *     writer's thread                     write, fsync, rename, fsync
 *
 * The shard stops only for the copy into memory; what takes long is the disk. One state is under way at a
 * time. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/store/store_save.h"
#include "server/shard_impl.h"

/* ---- the snapshot writer ------------------------------------------------------------------------------- */

/* Who owns the buffer. */
enum { IDLE, COMMITTED, WRITTEN };

typedef struct snapshot_writer {
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
} snapshot_writer;

/* A number whose file did not become durable is used again: its place is not the one of the sound state. */
static void write_state(snapshot_writer *writer)
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
    snapshot_writer *writer = user;
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

static en_status writer_start(const eni_state *state, const eni_state_stamp *stamp,
                              void (*on_done)(void *user), void *user, snapshot_writer **writer_out)
{
    snapshot_writer *writer = eni_alloc(sizeof *writer);
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

static int writer_is_busy(const snapshot_writer *writer)
{
    return atomic_load(&writer->phase) != IDLE;
}

static void writer_begin(snapshot_writer *writer)
{
    writer->length = 0;
}

static en_status writer_add(void *user, const void *bytes, size_t length)
{
    snapshot_writer *writer = user;
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

static void writer_commit(snapshot_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    atomic_store(&writer->phase, COMMITTED);
    pthread_cond_signal(&writer->wake);
    pthread_mutex_unlock(&writer->lock);
}

static int writer_done(snapshot_writer *writer, en_status *status_out)
{
    if (atomic_load(&writer->phase) != WRITTEN) return 0;
    *status_out = writer->status;
    atomic_store(&writer->phase, IDLE);
    return 1;
}

static void writer_count(const snapshot_writer *writer, eni_snapshot_figures *figures_out)
{
    if (writer_is_busy(writer)) return; /* the thread is adding to them: the caller keeps the last ones */
    *figures_out = writer->figures;
}

static void writer_stop(snapshot_writer *writer)
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

/* ---- when a state is due ------------------------------------------------------------------------------- */

/* What a shard keeps on disk: what it may promise because of it, when the next state is due,
 * the copy that a snapshot writer writes, and the way back from such a state. */

enum { HEAD = 8 }; /* bytes in front of the flags */

/* How far a client's finished notice is; DUE: to be answered. */
enum { NONE, WAITS, UNDER_WAY, DUE };

struct eni_shard_saves {
    snapshot_writer *writer;
    uint64_t *stable, *taken; /* (nranks, nbuckets) seqs in the newest durable state; in the one under way */
    uint8_t *has_finished;    /* (nranks) as of the store */
    uint8_t *is_secure;       /* (nranks) as of the newest durable state */
    uint8_t *finished;        /* (nranks) NONE, WAITS, UNDER_WAY */
    uint64_t *calls;          /* (nranks) since the last state was begun */
    uint64_t updates;         /* of the store when the last state was begun */
    uint64_t limit;           /* updates of a partition, or calls of a client on it, between two states */
    int is_due, is_initialised;
};

/* ---- what is promised ---------------------------------------------------------------------------------- */

static uint64_t *seq_at(const eni_shard *shard, uint64_t *seqs, int32_t rank, uint32_t bucket)
{
    return &seqs[(uint64_t)rank * shard->config.setup->nbuckets + bucket];
}

static void note_seqs(const eni_shard *shard, uint64_t *seqs)
{
    for (int32_t r = 0; r < shard->config.nranks; r++)
        for (uint32_t b = 0; b < shard->config.setup->nbuckets; b++)
            *seq_at(shard, seqs, r, b) = eni_store_seq(shard->store, r, b);
}

uint64_t eni_shard_stable(const eni_shard *shard, int32_t rank, uint32_t bucket)
{
    const eni_shard_saves *saves = shard->saves;
    if (rank < 0 || rank >= shard->config.nranks || bucket >= shard->config.setup->nbuckets) return 0;
    return *seq_at(shard, saves->stable, rank, bucket);
}

int eni_shard_is_secure(const eni_shard *shard, int32_t rank)
{
    return shard->saves->is_secure[rank];
}

int eni_shard_has_finished(const eni_shard *shard, int32_t rank)
{
    return shard->saves && shard->saves->has_finished[rank];
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static en_status fill(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    const uint32_t head[2] = {(uint32_t)shard->config.nranks, 0};
    _Static_assert(sizeof head == HEAD, "the head of a shard's state");
    writer_begin(saves->writer);
    EN_TRY(writer_add(saves->writer, head, sizeof head));
    EN_TRY(writer_add(saves->writer, saves->has_finished, (size_t)shard->config.nranks));
    return eni_store_save(shard->store, writer_add, saves->writer);
}

/* A state has been written, or could not be. Nobody is kept waiting for a disk that fails. */
static void end(eni_shard *shard, en_status status)
{
    eni_shard_saves *saves = shard->saves;
    writer_count(saves->writer, &shard->figures.snapshots);
    if (status == EN_OK) {
        uint64_t *older = saves->stable;
        saves->stable = saves->taken;
        saves->taken = older;
    }
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        if (saves->finished[r] != UNDER_WAY) continue;
        saves->finished[r] = DUE;
        saves->is_secure[r] = status == EN_OK;
    }
}

static void begin(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    const int64_t begin_ns = eni_now_ns();
    saves->is_due = 0;
    saves->updates = eni_store_totals(shard->store)->updates + eni_store_totals(shard->store)->touches;
    memset(saves->calls, 0, (size_t)shard->config.nranks * sizeof *saves->calls);
    for (int32_t r = 0; r < shard->config.nranks; r++)
        if (saves->finished[r] == WAITS) saves->finished[r] = UNDER_WAY;
    if (fill(shard) != EN_OK) { /* said; the next one may have more luck */
        end(shard, EN_ENOMEM);
        return;
    }
    note_seqs(shard, saves->taken);
    writer_commit(saves->writer);
    const int64_t end_ns = eni_now_ns();
    shard->figures.save_ns += end_ns - begin_ns;
    eni_trace_span(shard->config.trace, ENI_TRACE_SHARD0 + shard->config.index, "state", begin_ns, end_ns, -1,
                   -1, 0);
}

/* What is counted over all partitions is due by those that are called. */
static uint64_t limit_of(const eni_shard *shard)
{
    const uint32_t used = eni_store_nused(shard->store);
    return shard->saves->limit * (used > 0 ? used : 1);
}

void eni_shard_save_tend(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    en_status status;
    if (writer_done(saves->writer, &status)) end(shard, status);
    const eni_store_stats *totals = eni_store_totals(shard->store);
    if (totals->updates + totals->touches - saves->updates >= limit_of(shard)) saves->is_due = 1;
    if (saves->is_due && !writer_is_busy(saves->writer)) begin(shard);
}

int32_t eni_shard_save_finish_due(eni_shard *shard)
{
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        if (shard->saves->finished[r] != DUE) continue;
        shard->saves->finished[r] = NONE;
        return r;
    }
    return -1;
}

void eni_shard_save_called(eni_shard *shard, int32_t rank)
{
    if (++shard->saves->calls[rank] >= limit_of(shard)) shard->saves->is_due = 1;
}

void eni_shard_save_begun(eni_shard *shard)
{
    if (shard->saves->is_initialised || !eni_store_is_initialised(shard->store)) return;
    shard->saves->is_initialised = shard->saves->is_due = 1;
}

void eni_shard_save_ask(eni_shard *shard)
{
    if (shard->saves) shard->saves->is_due = 1;
}

int eni_shard_save_finished(eni_shard *shard, int32_t rank)
{
    eni_shard_saves *saves = shard->saves;
    saves->has_finished[rank] = 1;
    if (saves->is_secure[rank]) return 1;
    if (saves->finished[rank] == NONE) saves->finished[rank] = WAITS;
    saves->is_due = 1;
    return 0;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static void wake(void *user)
{
    eni_shard_call_attention(user);
}

static en_status take_state(eni_shard *shard, const eni_state_stamp *stamp, const uint8_t *bytes,
                            size_t length)
{
    const eni_shard_config *config = &shard->config;
    const size_t flags = (size_t)config->nranks;
    uint32_t nranks = 0;
    if (stamp->run != config->incarnation || stamp->nshards != (uint32_t)config->nshards)
        return eni_fail(EN_EMISMATCH, "state",
                        "%s holds the state of another run: take it away, or give another --state",
                        eni_state_path(config->state));
    if (length >= HEAD) memcpy(&nranks, bytes, sizeof nranks);
    if (length < HEAD + flags || nranks != (uint32_t)config->nranks)
        return eni_fail(EN_EFORMAT, "state", "the state of shard %d is not one of %d workers", config->index,
                        config->nranks);
    memcpy(shard->saves->has_finished, bytes + HEAD, flags);
    memcpy(shard->saves->is_secure, bytes + HEAD, flags);
    EN_TRY(eni_store_load(shard->store, bytes + HEAD + flags, length - HEAD - flags, eni_now_ns()));
    note_seqs(shard, shard->saves->stable);
    shard->timer_ns = eni_store_timer(shard->store);
    shard->saves->updates = eni_store_totals(shard->store)->updates + eni_store_totals(shard->store)->touches;
    shard->saves->is_initialised = eni_store_is_initialised(shard->store);
    return EN_OK;
}

static en_status load(eni_shard *shard, eni_state_stamp *stamp, int *was_loaded_out)
{
    uint8_t *bytes;
    size_t length;
    const uint32_t index = (uint32_t)shard->config.index;
    eni_state_stamp found;
    en_status st = eni_state_read(shard->config.state, ENI_STATE_SHARD, index, &found, &bytes, &length);
    *was_loaded_out = st == EN_OK;
    if (st == EN_ENOENT) return EN_OK; /* killed before its first state: the workers have kept everything */
    EN_TRY(st);
    st = take_state(shard, &found, bytes, length);
    eni_free(bytes);
    *stamp = found;
    return st;
}

en_status eni_shard_save_open(eni_shard *shard, int *was_loaded_out)
{
    const eni_shard_config *config = &shard->config;
    const size_t nranks = (size_t)config->nranks, nseqs = nranks * config->setup->nbuckets;
    *was_loaded_out = 0;
    if (!config->state) return EN_OK;
    eni_shard_saves *saves = eni_alloc(sizeof *saves);
    if (!saves) return EN_ENOMEM;
    shard->saves = saves;
    saves->limit = config->state_every;
    saves->stable = eni_alloc_array(nseqs, sizeof *saves->stable);
    saves->taken = eni_alloc_array(nseqs, sizeof *saves->taken);
    saves->calls = eni_alloc_array(nranks, sizeof *saves->calls);
    saves->has_finished = eni_alloc(nranks);
    saves->is_secure = eni_alloc(nranks);
    saves->finished = eni_alloc(nranks);
    if (!saves->stable || !saves->taken || !saves->calls || !saves->has_finished || !saves->is_secure ||
        !saves->finished)
        return EN_ENOMEM;
    eni_state_stamp stamp = {.kind = ENI_STATE_SHARD,
                             .shard = (uint32_t)config->index,
                             .nshards = (uint32_t)config->nshards,
                             .run = config->incarnation};
    EN_TRY(load(shard, &stamp, was_loaded_out));
    return writer_start(config->state, &stamp, wake, shard, &saves->writer);
}

void eni_shard_save_close(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    if (!saves) return;
    writer_stop(saves->writer);
    eni_free(saves->finished);
    eni_free(saves->is_secure);
    eni_free(saves->has_finished);
    eni_free(saves->calls);
    eni_free(saves->taken);
    eni_free(saves->stable);
    eni_free(saves);
    shard->saves = NULL;
}
