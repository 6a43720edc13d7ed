/* shard_save.c - a shard's state on disk.
 *
 *     shard's thread   copies the store between two events, goes on      notes it: `stable` moves
 *     writer's thread                     write, fsync, rename, fsync
 *
 * The shard stops only for the copy in memory; the disk is what takes long. One state is under way at a
 * time. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/try.h"
#include "runtime/net/pack.h"
#include "runtime/store/store_save.h"
#include "server/shard_impl.h"

enum { HEAD = 8 }; /* bytes in front of the flags */

/* The owner of the copy. */
enum { IDLE, COMMITTED, WRITTEN };

/* The progress of a client's FINISHED; DUE: to be answered. */
enum { NONE, WAITS, UNDER_WAY, DUE };

typedef struct client_saves {
    uint64_t calls;       /* since the last state was begun */
    uint8_t has_finished; /* in the store */
    bool is_secure;       /* the same in the newest durable state */
    uint8_t finished;     /* NONE, WAITS, .. */
} client_saves;

/* A shard's states: what they allow it to promise, when the next one is due, the copy that the writer's
 * thread writes, and the way back from one. */
struct eni_shard_saves {
    uint64_t *stable, *taken; /* (nranks, nbuckets) seqs in the newest durable state; in the one under way */
    client_saves *client;     /* (nranks) */
    uint64_t updates;         /* of the store when the last state was begun */
    uint64_t limit;           /* updates of a partition, or calls of a client on it, between two states */
    bool is_due, is_initialised;

    atomic_int phase;      /* IDLE, COMMITTED: the writer's thread owns what follows, WRITTEN */
    eni_state_stamp stamp; /* of the newest state that is on disk */
    eni_pack state;        /* its bytes */
    en_status status;      /* of the last write */
    eni_snapshot_figures figures;

    pthread_t thread;
    bool is_started;
    sem_t wake; /* a state is COMMITTED, or the thread is to end */
};

/* ---- the writer's thread ------------------------------------------------------------------------------- */

/* The number of a failed write is used again: its file is not that of the sound state. */
static void write_state(const eni_state *state, eni_shard_saves *saves)
{
    eni_state_stamp next = saves->stamp;
    const int64_t begin = eni_now_ns();
    next.generation++;
    saves->status = eni_state_write(state, &next, saves->state.data, saves->state.bytes);
    saves->figures.write_ns += eni_now_ns() - begin;
    saves->figures.bytes = saves->state.bytes;
    if (saves->status == EN_OK) {
        saves->stamp = next;
        saves->figures.states++;
    } else {
        saves->figures.failures++;
    }
}

static void *run_writer(void *user)
{
    eni_shard *shard = user;
    eni_shard_saves *saves = shard->saves;
    for (;;) {
        while (sem_wait(&saves->wake) != 0) {
        }
        if (atomic_load(&saves->phase) != COMMITTED) return NULL;
        write_state(shard->config.state, saves);
        atomic_store(&saves->phase, WRITTEN);
        eni_shard_call_attention(shard);
    }
}

static en_status add_bytes(void *user, const void *bytes, size_t length)
{
    eni_shard_saves *saves = user;
    eni_pack_raw(&saves->state, bytes, length);
    if (!saves->state.is_failed) return EN_OK;
    eni_warn("snapshot", "out of memory for a state of %zu bytes", saves->state.bytes + length);
    return EN_ENOMEM;
}

/* ---- promises ------------------------------------------------------------------------------------------ */

static uint64_t *seq_at(const eni_shard *shard, uint64_t *seqs, int32_t rank, uint32_t bucket)
{
    return &seqs[(uint64_t)rank * shard->config.setup->store.nbuckets + bucket];
}

static void note_seqs(const eni_shard *shard, uint64_t *seqs)
{
    for (int32_t r = 0; r < shard->config.nranks; r++)
        for (uint32_t b = 0; b < shard->config.setup->store.nbuckets; b++)
            *seq_at(shard, seqs, r, b) = eni_store_seq(shard->store, r, b);
}

uint64_t eni_shard_stable(const eni_shard *shard, int32_t rank, uint32_t bucket)
{
    return shard->saves != NULL ? *seq_at(shard, shard->saves->stable, rank, bucket) : 0;
}

bool eni_shard_is_secure(const eni_shard *shard, int32_t rank)
{
    return shard->saves != NULL && shard->saves->client[rank].is_secure;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static en_status fill(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    const uint32_t head[2] = {(uint32_t)shard->config.nranks, 0};
    _Static_assert(sizeof head == HEAD, "the head of a shard's state");
    saves->state.bytes = 0;
    saves->state.is_failed = false;
    EN_TRY(add_bytes(saves, head, sizeof head));
    for (int32_t r = 0; r < shard->config.nranks; r++)
        EN_TRY(add_bytes(saves, &saves->client[r].has_finished, 1));
    return eni_store_save(shard->store, add_bytes, saves);
}

/* A state has been written, or could not be. A failing disk keeps no client waiting. */
static void end(eni_shard *shard, en_status status)
{
    eni_shard_saves *saves = shard->saves;
    shard->figures.snapshots = saves->figures;
    if (status == EN_OK) {
        uint64_t *older = saves->stable;
        saves->stable = saves->taken;
        saves->taken = older;
    }
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        if (saves->client[r].finished != UNDER_WAY) continue;
        saves->client[r].finished = DUE;
        saves->client[r].is_secure = status == EN_OK;
    }
}

static uint64_t updates_of(const eni_shard *shard)
{
    const eni_store_stats *totals = eni_store_totals(shard->store);
    return totals->updates + totals->touches;
}

static void begin(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    const int64_t begin_ns = eni_now_ns();
    saves->is_due = false;
    saves->updates = updates_of(shard);
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        saves->client[r].calls = 0;
        if (saves->client[r].finished == WAITS) saves->client[r].finished = UNDER_WAY;
    }
    if (fill(shard) != EN_OK) { /* logged; the next one may succeed */
        end(shard, EN_ENOMEM);
        return;
    }
    note_seqs(shard, saves->taken);
    atomic_store(&saves->phase, COMMITTED);
    sem_post(&saves->wake);
    const int64_t end_ns = eni_now_ns();
    shard->figures.save_ns += end_ns - begin_ns;
    eni_trace_span(shard->config.trace, ENI_TRACE_SHARD0 + shard->config.index, "state", begin_ns, end_ns, -1,
                   -1, 0);
}

/* Counts over all partitions; those with calls make it due. */
static uint64_t limit_of(const eni_shard *shard)
{
    const uint32_t used = eni_store_nused(shard->store);
    return shard->saves->limit * (used > 0 ? used : 1);
}

void eni_shard_save_tend(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    if (atomic_load(&saves->phase) == WRITTEN) {
        atomic_store(&saves->phase, IDLE);
        end(shard, saves->status);
    }
    if (updates_of(shard) - saves->updates >= limit_of(shard)) saves->is_due = true;
    if (saves->is_due && atomic_load(&saves->phase) == IDLE) begin(shard);
}

int32_t eni_shard_save_finish_due(eni_shard *shard)
{
    for (int32_t r = 0; r < shard->config.nranks; r++) {
        if (shard->saves->client[r].finished != DUE) continue;
        shard->saves->client[r].finished = NONE;
        return r;
    }
    return -1;
}

void eni_shard_save_called(eni_shard *shard, int32_t rank)
{
    if (++shard->saves->client[rank].calls >= limit_of(shard)) shard->saves->is_due = true;
}

void eni_shard_save_begun(eni_shard *shard)
{
    if (shard->saves->is_initialised || !eni_store_is_initialised(shard->store)) return;
    shard->saves->is_initialised = shard->saves->is_due = true;
}

void eni_shard_save_ask(eni_shard *shard)
{
    if (shard->saves != NULL) shard->saves->is_due = true;
}

bool eni_shard_save_finished(eni_shard *shard, int32_t rank)
{
    client_saves *client = &shard->saves->client[rank];
    client->has_finished = 1;
    if (client->is_secure) return true;
    if (client->finished == NONE) client->finished = WAITS;
    shard->saves->is_due = true;
    return false;
}

/* ---- lifetime ------------------------------------------------------------------------------------------ */

static en_status take_state(eni_shard *shard, const eni_state_stamp *stamp, const uint8_t *bytes,
                            size_t length)
{
    const eni_shard_config *config = &shard->config;
    const size_t flags = (size_t)config->nranks;
    uint32_t nranks = 0;
    if (stamp->run != config->incarnation || stamp->nshards != (uint32_t)config->nshards)
        return eni_fail(EN_EMISMATCH, "state",
                        "%s holds the state of another run: remove it, or give another --state",
                        eni_state_path(config->state));
    if (length >= HEAD) memcpy(&nranks, bytes, sizeof nranks);
    if (length < HEAD + flags || nranks != (uint32_t)config->nranks)
        return eni_fail(EN_EFORMAT, "state",
                        "%s: the state of shard %d is damaged, or not of this run (workers: %d): remove it",
                        eni_state_path(config->state), config->index, config->nranks);
    for (size_t r = 0; r < flags; r++)
        shard->saves->client[r] =
            (client_saves){.has_finished = bytes[HEAD + r], .is_secure = bytes[HEAD + r]};
    EN_TRY(eni_store_load(shard->store, bytes + HEAD + flags, length - HEAD - flags, eni_now_ns()));
    note_seqs(shard, shard->saves->stable);
    shard->timer_ns = eni_store_timer(shard->store);
    shard->saves->updates = updates_of(shard);
    shard->saves->is_initialised = eni_store_is_initialised(shard->store);
    return EN_OK;
}

static en_status load(eni_shard *shard, bool *was_loaded_out)
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
    shard->saves->stamp = found;
    return st;
}

en_status eni_shard_save_open(eni_shard *shard, bool *was_loaded_out)
{
    const eni_shard_config *config = &shard->config;
    const size_t nranks = (size_t)config->nranks, nseqs = nranks * config->setup->store.nbuckets;
    *was_loaded_out = false;
    if (config->state == NULL) return EN_OK;
    eni_shard_saves *saves = eni_alloc(sizeof *saves);
    if (saves == NULL) return EN_ENOMEM;
    shard->saves = saves;
    sem_init(&saves->wake, 0, 0);
    saves->limit = config->state_every;
    saves->stamp = (eni_state_stamp){.kind = ENI_STATE_SHARD,
                                     .shard = (uint32_t)config->index,
                                     .nshards = (uint32_t)config->nshards,
                                     .run = config->incarnation};
    saves->stable = eni_alloc_array(nseqs, sizeof *saves->stable);
    saves->taken = eni_alloc_array(nseqs, sizeof *saves->taken);
    saves->client = eni_alloc_array(nranks, sizeof *saves->client);
    if (saves->stable == NULL || saves->taken == NULL || saves->client == NULL) return EN_ENOMEM;
    EN_TRY(load(shard, was_loaded_out));
    saves->is_started = pthread_create(&saves->thread, NULL, run_writer, shard) == 0;
    if (saves->is_started) return EN_OK;
    return eni_fail(EN_EIO, "snapshot", "cannot start the thread that writes the state of shard %d",
                    config->index);
}

void eni_shard_save_close(eni_shard *shard)
{
    eni_shard_saves *saves = shard->saves;
    if (saves == NULL) return;
    sem_post(&saves->wake); /* a COMMITTED state is written first */
    if (saves->is_started) pthread_join(saves->thread, NULL);
    sem_destroy(&saves->wake);
    eni_pack_fini(&saves->state);
    eni_free(saves->client);
    eni_free(saves->taken);
    eni_free(saves->stable);
    eni_free(saves);
    shard->saves = NULL;
}
