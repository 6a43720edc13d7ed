/* transport.h - what carries a host's exchanges: the one table that sockets with shared memory (host.c)
 * and virtual time (runtime/sim/sim_rank.c) fill. Everything else of a host is the same code on both.
 *
 * An operation is started and then waited for, once; `test` is for who has something else to do meanwhile.
 * One thread (in virtual time: one fiber) calls a table. */
#ifndef HOST_TRANSPORT_H
#define HOST_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/collective/coll.h"

enum { ENI_OPERATION_COLL = 1, ENI_OPERATION_CALL = 2 };

typedef struct eni_operation {
    int kind;         /* ENI_OPERATION_* */
    uint64_t ticket;  /* the transport's own */
    int group;        /* COLL: EN_WORLD or EN_LOCAL */
    eni_coll_op coll; /* COLL */

    /* CALL */
    int32_t dest; /* EN_SERVERS, or the store inside a rank */
    uint32_t bucket, call_kind, what;
    int out, in;                /* slots of the arena, or ENI_SLOT_NONE */
    uint64_t nsamples, covered; /* as eni_client_push */
    uint64_t step;

    /* Answers, after wait. */
    int64_t waited_ns; /* blocked for others */
    uint64_t samples;  /* of a reduction: behind the contributions of all ranks; UINT64_MAX: not known */
    uint64_t version;  /* of the bucket at the store, as last received; also after start */
    double staleness;  /* of the push, the mean over the partitions; 0 where the store counts it itself */
} eni_operation;

typedef struct eni_transport {
    void *user;
    bool has_world;       /* collectives of all ranks */
    bool has_local;       /* of this host's, where hosts meet at the servers only */
    bool is_client;       /* this rank may call the servers */
    bool has_rank_stores; /* and those inside ranks */
    en_status (*start)(void *user, eni_operation *operation);
    bool (*test)(void *user, const eni_operation *operation); /* true: wait would not block. Makes progress */
    en_status (*wait)(void *user, eni_operation *operation);
    int64_t (*now_ns)(void *user); /* NULL: the clock of this machine */
    /* Seconds of an operation (0: call, else EN_ALLREDUCE ..) on `bytes` bytes, as en_host.cost has it. */
    double (*cost)(void *user, int op, uint64_t bytes);
} eni_transport;

#endif
