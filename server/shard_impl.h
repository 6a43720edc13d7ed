/* shard_impl.h - private to the files of a shard. Each calls only those below it.
 *
 *     shard.c       the thread, its lifetime, and messages through the rings in shared memory
 *     serve.c       messages, their events in the store, and answers
 *     shard_save.c  state on disk */
#ifndef SERVER_SHARD_IMPL_H
#define SERVER_SHARD_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/eventfd.h>

#include "core/copies.h"
#include "core/log.h"
#include "server/shard.h"

/* An emulated NIC charges this many bytes for a header; the workers' client does the same. */
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
    bool is_whole; /* then; else its first byte arrives */
} eni_delayed;

/* eni_packet.source of a message received, or an answer sent, by a client's ring. */
enum { ENI_SHARD_RING = -2 };

/* A client's address; bytes 0: it has not sent HELLO. */
typedef struct eni_route {
    uint8_t route[ENI_ROUTE_MAX];
    uint32_t bytes;
} eni_route;

/* Messages that an emulated wire has not delivered yet. */
typedef struct eni_delays {
    eni_delayed *list; /* (room) by ready_ns, the last one first */
    uint32_t n, room;
} eni_delays;

/* Requests of other threads. */
typedef struct eni_shard_asked {
    bool is_stopping;
    bool *is_leaving;      /* (nranks) lost, and not yet reported to the store */
    eni_shard_visit visit; /* NULL if none is requested */
    void *visit_user;
    uint32_t next_epoch; /* 0: none */
} eni_shard_asked;

/* Weights kept for rank 0's curve. A copy has, for each bucket, an eni_kept_past and its weights. */
typedef struct eni_shard_kept {
    eni_copies *copies; /* NULL until one was requested */
    void *room;         /* for a copy read back from the file; NULL until one is */
    const void *found;  /* the one requested last; NULL if it is not here */
    uint32_t number;    /* its number */
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
    int64_t posted_ns;               /* when a client last posted; 0: not since the thread last slept */
    uint32_t nlooks;
    atomic_int attention; /* the thread should read the members below */
    pthread_mutex_t lock;
    pthread_cond_t done;
    eni_shard_asked asked; /* under lock */
};

/* Makes its thread serve the requests of other threads. Any thread. */
static inline void eni_shard_call_attention(eni_shard *shard)
{
    atomic_store(&shard->attention, 1);
    eventfd_write(shard->event_fd, 1);
}

/* A client's ring; NULL if it has none. */
static inline eni_shm_ring *eni_shard_ring(const eni_shard *shard, int32_t rank)
{
    return atomic_load_explicit(&shard->handed[rank].ring, memory_order_acquire);
}

/* Whether a message is addressed to this shard by a rank of this run. */
static inline bool eni_shard_is_meant(const eni_shard *shard, const eni_header *h)
{
    return h->rank >= 0 && h->rank < shard->config.nranks && h->epoch == shard->config.epoch &&
           h->incarnation == shard->config.incarnation && (int32_t)h->shard == shard->config.index;
}

/* ---- shard_save.c; shard's thread */

/* A shard writes its state between two events: after every --state-every updates of its partitions (or calls
 * of one client, in case they update nothing), right after its partitions have got their initial weights,
 * when a client requests it (because it has no more room for retained calls), and when a client finishes.
 * `stable` moves when the state is durable, never before.
 *
 * Bytes of a state: u32 ranks, u32 0, then one byte per rank (1: it has finished), then the store's
 * (store/store_save.h). Without --state there are no `saves`, no call is stable and no client is secure, and
 * of the others only open, close and ask may be called. */
/* Loads the newest sound state if there is one (*was_loaded_out), and starts the thread that writes.
 * EN_EFORMAT, EN_EMISMATCH, EN_EVERSION (logged): the state cannot be used. */
en_status eni_shard_save_open(eni_shard *shard, bool *was_loaded_out);
void eni_shard_save_close(eni_shard *shard);

void eni_shard_save_tend(eni_shard *shard); /* eni_shard_tend */
/* A client whose FINISHED may be answered now, each once; -1: none. */
int32_t eni_shard_save_finish_due(eni_shard *shard);

/* A call, or initial weights, were given to the store. */
void eni_shard_save_called(eni_shard *shard, int32_t rank);
void eni_shard_save_begun(eni_shard *shard);

/* A client asks for its calls to become stable soon. */
void eni_shard_save_ask(eni_shard *shard);

/* All calls of this client to this partition up to this seq survive. */
uint64_t eni_shard_stable(const eni_shard *shard, int32_t rank, uint32_t bucket);

/* A client sent FINISHED. True: answer it now; else finish_due returns it once that is on disk, or cannot be. */
bool eni_shard_save_finished(eni_shard *shard, int32_t rank);
/* Whether that is on disk: none of this client's calls will be requested again. */
bool eni_shard_is_secure(const eni_shard *shard, int32_t rank);

/* ---- serve.c; shard's thread */

/* Answers a message with the sentence, and counts it. */
void eni_shard_refuse(eni_shard *shard, const eni_packet *to, en_status status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The ticket of a call that a dead psd's state has: that psd's ring has no reader, and the slot now belongs to
 * another call. */
uint64_t eni_shard_old_ticket(uint64_t ticket);
/* After every event: handles a state that has become durable, begins the next one when it is due. */
void eni_shard_tend(eni_shard *shard);

/* Handles a message from a believed client. Owns the packet from here on. */
void eni_shard_handle(eni_shard *shard, eni_packet *packet);

/* Takes in a message: checks its sender, delays or handles it. Owns the packet from here on. */
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
