/* shard_impl.h - what the files of a shard share; nobody else includes it. Each calls those below it only.
 *
 *     shard.c       the thread, its life, and messages by the rings of shared memory
 *     serve.c       messages, what the store makes of them, and answers
 *     shard_save.c  what is kept on disk */
#ifndef SERVER_SHARD_IMPL_H
#define SERVER_SHARD_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/eventfd.h>

#include "core/copies.h"
#include "core/log.h"
#include "server/shard.h"

/* Headers are charged to an emulated NIC as so many bytes; the workers' client does the same. */
enum { ENI_HEADER_CHARGE = 128 };

typedef struct eni_shard_saves eni_shard_saves; /* shard_save.c */

/* A message whose payload the store holds. Recycled. */
typedef struct eni_box {
    eni_packet packet;
    struct eni_box *next;
    eni_shard *shard;
} eni_box;

/* A message that an emulated wire has not delivered yet. */
typedef struct eni_delayed {
    eni_packet packet;
    int64_t ready_ns;
} eni_delayed;

/* eni_packet.source of a message that came, or an answer that goes, by a client's ring. */
enum { ENI_SHARD_RING = -2 };

/* Where a client is reached; bytes 0: it has not said HELLO. */
typedef struct eni_route {
    uint8_t route[ENI_ROUTE_MAX];
    uint32_t bytes;
} eni_route;

/* What an emulated wire has not delivered yet. */
typedef struct eni_delays {
    eni_delayed *list; /* (room) by ready_ns, the last one first */
    uint32_t n, room;
} eni_delays;

/* What other threads want of the shard's. */
typedef struct eni_shard_asked {
    bool is_stopping;
    bool *is_leaving;      /* (nranks) lost, and the store has not heard of it */
    eni_shard_visit visit; /* NULL: none is asked for */
    void *visit_user;
    uint32_t next_epoch; /* 0: none */
} eni_shard_asked;

/* Weights kept for rank 0's curve. A copy: of each bucket an eni_kept_past and its part. */
typedef struct eni_shard_kept {
    eni_copies *copies; /* NULL: none was asked for */
    void *room;         /* for one that is read from the file; NULL: none was */
    const void *found;  /* the one that was asked for last; NULL: it is not here */
    uint32_t number;    /* of it */
} eni_shard_kept;

struct eni_shard {
    eni_shard_config config;
    eni_router *router;
    eni_store *store;
    eni_store_actions actions;
    eni_route *route;              /* (nranks) */
    const eni_handed_over *handed; /* (nranks) */
    eni_box *idle;
    eni_delays delays;
    eni_shard_kept kept;
    eni_shard_saves *saves; /* NULL: without --state */
    int64_t timer_ns;       /* the store's; INT64_MAX: none */
    eni_shard_figures figures;
    eni_log_limit refused_limit;
    en_status status; /* of the last store step */

    pthread_t thread;
    int doorbell_fd;                 /* of the arenas; -1: none */
    int event_fd, timer_fd, wake_fd; /* wake_fd: an epoll of the other two and of the doorbell */
    int64_t posted_ns;               /* when a client posted last; 0: nobody since it slept */
    uint32_t nlooks;
    atomic_int attention; /* the thread should look at what follows */
    pthread_mutex_t lock;
    pthread_cond_t done;
    eni_shard_asked asked; /* under lock */
};

/* Its thread looks at what other threads have left for it. Any thread. */
static inline void eni_shard_call_attention(eni_shard *shard)
{
    atomic_store(&shard->attention, 1);
    eventfd_write(shard->event_fd, 1);
}

/* A client's ring; NULL: it has none. */
static inline eni_shm_ring *eni_shard_ring(const eni_shard *shard, int32_t rank)
{
    return atomic_load_explicit(&shard->handed[rank].ring, memory_order_acquire);
}

/* Whether a message is for this shard, and says that it is from a rank of this run. */
static inline bool eni_shard_is_meant(const eni_shard *shard, const eni_header *h)
{
    return h->rank >= 0 && h->rank < shard->config.nranks && h->epoch == shard->config.epoch &&
           h->incarnation == shard->config.incarnation && (int32_t)h->shard == shard->config.index;
}

/* ---- shard_save.c; shard's thread */

/* A shard writes its state between two events: after every --state-every updates of its partitions (or calls
 * of one client, should they update nothing), right after its partitions have got their initial weights, when
 * a client asks for it (it has no more room for what it keeps), and when a client finishes. `stable` moves
 * when the state is durable, never before.
 *
 * Bytes of a state: u32 ranks, u32 0, then one byte a rank (1: it has finished), then the store's
 * (store/store_save.h). Without --state there are no `saves`, no call is stable and nobody is secure, and of the
 * others only open, close and ask may be called. */
/* Loads the newest sound state if there is one (*was_loaded_out), and starts the thread that writes.
 * EN_EFORMAT, EN_EMISMATCH, EN_EVERSION (logged): there is one, and it is of no use. */
en_status eni_shard_save_open(eni_shard *shard, bool *was_loaded_out);
void eni_shard_save_close(eni_shard *shard);

void eni_shard_save_tend(eni_shard *shard); /* eni_shard_tend */
/* A client whose FINISHED may be answered now, each once; -1: none. */
int32_t eni_shard_save_finish_due(eni_shard *shard);

/* A call was given to the store; initial weights were. */
void eni_shard_save_called(eni_shard *shard, int32_t rank);
void eni_shard_save_begun(eni_shard *shard);

/* A client would like what it has sent to be stable soon. */
void eni_shard_save_ask(eni_shard *shard);

/* All calls of this client to this partition up to this seq survive. */
uint64_t eni_shard_stable(const eni_shard *shard, int32_t rank, uint32_t bucket);

/* A client said FINISHED. true: it may be answered at once; else finish_due says when that is on disk, or
 * cannot be. */
bool eni_shard_save_finished(eni_shard *shard, int32_t rank);
/* Whether that is on disk: nothing that this client has sent will be asked for again. */
bool eni_shard_is_secure(const eni_shard *shard, int32_t rank);

/* ---- serve.c; shard's thread */

/* Answers a message with the sentence, and counts it. */
void eni_shard_refuse(eni_shard *shard, const eni_packet *to, en_status status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What the answer to a call in the state of a psd that is gone must know: nobody waits at that ring, and
 * where its answer was wanted is somebody else's now. */
uint64_t eni_shard_old_ticket(uint64_t ticket);
/* After every event: takes note of a state that has become durable, begins the next one when it is due. */
void eni_shard_tend(eni_shard *shard);

/* A message from a client that is believed. Owns the packet from here on. */
void eni_shard_handle(eni_shard *shard, eni_packet *packet);

/* Takes in a message: checks who sent it, delays or handles it. Owns the packet from here on. */
void eni_shard_take(eni_shard *shard, eni_packet *packet);
/* Handles delayed messages whose time has come. */
void eni_shard_take_delayed(eni_shard *shard, int64_t now_ns);
/* Gives the store a TIMER event. */
void eni_shard_tick(eni_shard *shard, int64_t now_ns);
/* The ranks that are clients have joined. */
void eni_shard_join_all(eni_shard *shard);
/* A rank was lost and the run goes on. */
void eni_shard_lose(eni_shard *shard, int32_t rank);

#endif
