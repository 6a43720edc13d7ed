/* client_impl.h - what the files of the client share; nobody else includes it.
 *
 *     client.c          its life, calls and waits
 *     client_connect.c  connections to psd, opened again when psd comes back
 *     client_io.c       messages: sent, kept, sent again, answered
 *
 * Each calls those below it. */
#ifndef CLIENT_CLIENT_IMPL_H
#define CLIENT_CLIENT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/client/client.h"
#include "runtime/client/shm_ring.h"

/* A CALL or INIT that psd may not have on disk, and its payload. Recycled within its partition. */
typedef struct eni_kept {
    struct eni_kept *next;
    uint64_t order;    /* 1, 2, .. in its partition; INIT has no seq */
    eni_header header; /* as it was sent, without what depends on the way */
    float *data;       /* (partition's count), its own; NULL: none was ever needed */
} eni_kept;

/* One part of a bucket on one shard. */
typedef struct eni_client_partition {
    uint64_t lo, count; /* elements, relative to the bucket */
    uint64_t seq;       /* of the last call */
    uint64_t awaited;   /* the seq that the answer must carry; 0 for what is no call */
    uint64_t version;   /* of the last reply: what the next gradient is computed on */
    uint64_t behind;    /* staleness of the last push that was answered */
    uint64_t past_version, past_steps, past_samples; /* of the last snapshot, or for the next INIT */
    int in_flight, is_push;

    /* with `keep` */
    eni_kept *first, *last, *idle; /* by age; ready for reuse */
    uint32_t nkept;
    uint64_t order;      /* of the last one */
    eni_kept *again;     /* sent again, its answer is awaited; what follows it is not sent yet */
    eni_header snapshot; /* in flight, or waits for the end of `again`; type 0: none */
    int is_asking;       /* how far it is stable */
    int is_older;        /* `version` is from an earlier life of psd, which may have known more */
} eni_client_partition;

typedef struct eni_bucket_call {
    int pending; /* partitions not answered yet */
    int in_slot;
    int is_snapshot;
    int is_aside; /* a look at the store's weights, on which no gradient will be computed */
} eni_bucket_call;

typedef struct eni_delayed_reply {
    eni_packet packet;
    int64_t ready_ns;
} eni_delayed_reply;

enum { ENI_FINISHED_UNHEARD, ENI_FINISHED, ENI_FINISHED_STABLE }; /* stable: psd has all of it on disk */

struct eni_client {
    eni_client_config config;
    int shards;
    uint32_t epoch;
    eni_dealer **dealers;       /* (shards) */
    eni_shm_ring *ring;           /* messages without a socket; NULL: psd takes none */
    uint64_t by_socket;         /* messages under way that a socket will answer */
    int is_quiet;               /* nothing was posted to us in the last slice: a socket may have something to say */
    bool *is_ready;             /* (shards) scratch of poll */
    eni_client_partition *parts; /* (buckets, shards) */
    eni_bucket_call *calls;     /* (buckets) */
    eni_delayed_reply *delayed; /* (buckets * shards) */
    uint32_t ndelayed;
    int is_shared;
    int weights_fd;     /* of psd's weights, until they are mapped; -1: none to map */
    int is_mapped;      /* they lie over our ENI_SLOT_PARAM */
    int has_returned;   /* another psd than the one that we began with */
    int greeted;        /* shards that have answered HELLO */
    uint8_t *finished;  /* (shards) how FINISHED was answered */
    int nfinished;      /* shards that have answered it */
    atomic_int lent;    /* payloads that ZeroMQ still reads */
    uint64_t past_wire; /* bytes of dealers that were closed */
    eni_client_counters counters;

    /* with `keep` */
    uint64_t generation;
    int is_finishing;
    uint32_t *nagain; /* (shards) partitions that send again */
    uint32_t nagain_all;
    int64_t return_begin_ns;
    int has_warned;
    en_status failure; /* of the thread, for the next call */
    pthread_t thread;
    pthread_mutex_t lock; /* held by whoever uses anything above */
    pthread_cond_t stop;
    int is_stopping, has_thread;
};

static inline eni_client_partition *eni_client_partition_at(const eni_client *client, uint32_t bucket,
                                                            int shard)
{
    return &client->parts[(uint64_t)bucket * (uint64_t)client->shards + (uint64_t)shard];
}

/* Where a partition lies in a vector of the arena. */
static inline float *eni_client_partition_address(const eni_client *client, int slot, uint32_t bucket,
                                                  const eni_client_partition *part)
{
    return eni_arena_at(client->config.arena, (uint32_t)slot,
                        client->config.buckets->bucket[bucket].lo + part->lo);
}

/* ---- client_io.c; what is about kept calls does nothing without `keep` */

/* The lock of the client, which two threads share with `keep`. */
void eni_client_enter(const eni_client *client);
void eni_client_exit(const eni_client *client);
/* Whether psd came back and eni_client_tend is due. */
int eni_client_is_outdated(const eni_client *client);
/* EN_ETIMEOUT, logged. */
en_status eni_client_too_few(int answers, int shards);

/* Every field that all messages of this client share. */
eni_header eni_client_header(const eni_client *client, uint32_t type);
/* Sends now, as of this epoch. EN_OK also when psd is away and it will be sent again. is_lent: ZeroMQ may
 * read the payload where it lies. */
en_status eni_client_send(eni_client *client, int shard, eni_header *header, float *payload, int is_lent);
/* Blocks until something may have changed, at most 20 ms; then looks whether the run goes on. */
en_status eni_client_slice(eni_client *client);
/* Takes what has arrived. */
en_status eni_client_take(eni_client *client);

/* Copies what is about to be sent. There is room (eni_client_make_room). */
en_status eni_client_keep(eni_client *client, eni_client_partition *part, const eni_header *header,
                          const float *payload);
/* Asks how far a partition is stable. */
en_status eni_client_ask_stable(eni_client *client, eni_client_partition *part, const eni_header *about);
/* Lets go of a partition's oldest call. */
void eni_client_drop_first(eni_client_partition *part);
/* psd is back: on every partition the first kept call is sent; each answer sends the next one. */
en_status eni_client_send_all_again(eni_client *client);
/* Tells a shard that no more calls come, once it has what is sent again. */
en_status eni_client_say_finished(eni_client *client, int shard);
void eni_client_free_kept(eni_client *client);

/* ---- client_connect.c */

/* Opens the dealers of these endpoints, hands the arena over and waits for all WELCOMEs. */
en_status eni_client_connect(eni_client *client, const eni_client_endpoints *psd, int64_t deadline_ns);
void eni_client_disconnect(eni_client *client);
/* psd's weights, if they are not mapped, will not be. */
void eni_client_forget_weights(eni_client *client);
/* Whether psd came back since; then everything of client.h's "a psd that comes back". */
en_status eni_client_tend(eni_client *client);
/* Waits until one more call can be kept. */
en_status eni_client_make_room(eni_client *client, eni_client_partition *part, const eni_header *about);
/* The thread that sees psd's return while the compute thread is elsewhere. */
en_status eni_client_watch_open(eni_client *client);
void eni_client_watch_close(eni_client *client);

#endif
