/* fake_shard.h - a shard of psd that answers late, twice, wrong or never: a thread with a real router.
 *
 * What it does with a call is the call's kind. */
#ifndef TESTS_FAKE_SHARD_H
#define TESTS_FAKE_SHARD_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/collective/arena.h"
#include "runtime/net/socket.h"
#include "runtime/net/token.h"
#include "runtime/spec/buckets.h"

enum { SHARDS = 2, BUCKETS = 3, LATE_MS = 40 };

enum {           /* kinds of calls */
       ECHO = 1, /* answered at once with twice the payload */
       HOLD,     /* answered after the next other call */
       REFUSE,
       SHORT,   /* a partition of one element less */
       LIE,     /* "it lies in your arena", which the shard does not have */
       NOWHERE, /* for a bucket that there is not */
       LATE,    /* usable LATE_MS after it arrives */
       TWICE,   /* answered, and again in front of the next answer for this bucket */
       COPY,    /* answered with a copy, whatever the client maps */
       MUTE
};

typedef struct shard {
    int index;
    eni_router *router;
    pthread_t thread;
    atomic_int is_stopping, is_unwelcoming, nfinished, calls, inits;
    atomic_int_fast64_t deliver_ns;      /* of the last call */
    atomic_uint_fast64_t base[BUCKETS];  /* base_version of the last call */
    atomic_uint_fast64_t nsamples, step; /* of the last call */
    atomic_uint_fast64_t met_ahead;      /* staleness to report */
    uint64_t version[BUCKETS];           /* of the last answer */
    eni_packet held, repeat;             /* type 0: none */
    const eni_arena *arena;              /* the client's, or NULL */
    float *weights;                      /* the flat vector that the client may map, or NULL */
    const eni_buckets *buckets;
    char token[ENI_TOKEN_HEX];
} shard;

/* The thread's function; `user` is a shard with index, router, buckets and token set. */
void *shard_main(void *user);

#endif
