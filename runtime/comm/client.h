/* client.h - the worker's side of the parameter server: one dealer per lane, fused push-pull per bucket.
 *
 * A call on a bucket is K cell messages to K lanes and completes when K replies are here. Payloads go through
 * the arena when psd shares the host (only headers cross a socket then), through ZeroMQ otherwise. At most
 * one call per bucket is in progress. Compute thread only. */
#ifndef COMM_CLIENT_H
#define COMM_CLIENT_H

#include <stdint.h>

#include "entrain/status.h"
#include "runtime/comm/arena.h"
#include "runtime/comm/buckets.h"
#include "runtime/net/lane.h"
#include "runtime/net/shaper.h"
#include "runtime/net/token.h"

enum { ENI_SLOT_NONE = -1 }; /* no vector */

typedef struct eni_client eni_client;

/* Borrowed things outlive the client. */
typedef struct eni_client_config {
    eni_net *net;
    const char *const *endpoints; /* (shards) tcp://... of the lanes */
    int shards;
    const char *arena_socket; /* abstract socket where psd takes arenas; NULL or "": payloads by message */
    eni_arena *arena;
    const eni_buckets *buckets;
    const eni_token *token;
    int32_t rank;
    uint32_t epoch;
    uint64_t incarnation;
    eni_shaper *shaper;             /* NULL: the wire as it is */
    en_status (*alive)(void *user); /* EN_OK, or why no wait can succeed any more */
    void *user;
    int wake_fd; /* readable when alive() is no longer EN_OK; -1: none */
    int64_t join_deadline_ns;
} eni_client_config;

/* Connects to every lane, says HELLO, and waits for all WELCOMEs. */
en_status eni_client_open(const eni_client_config *config, eni_client **client_out);
void eni_client_close(eni_client *client);

/* Starts a call: `out_slot`'s contents of the bucket are sent (ENI_SLOT_NONE: a pure pull) and must not
 * change until the call is done; the reply goes to in_slot. `type` is ENI_MSG_CALL, INIT or SNAPSHOT. A
 * snapshot into another slot than ENI_SLOT_PARAM is a look aside: the next push is not said to be computed on
 * it. */
en_status eni_client_call(eni_client *client, uint32_t type, uint32_t bucket, uint32_t kind, uint32_t what,
                          int out_slot, int in_slot, uint64_t nsamples, uint64_t step);

/* Waits until the bucket's call is done and its reply lies in in_slot. EN_OK at once if none is in progress;
 * else EN_OK, alive()'s status, or EN_EPROTO when a lane refused (logged). */
en_status eni_client_wait(eni_client *client, uint32_t bucket);

/* Takes what has arrived without blocking, so that finish finds it done. */
en_status eni_client_progress(eni_client *client);

/* Tells every lane that no more calls come, and waits for the answers. */
en_status eni_client_finished(eni_client *client);

typedef struct eni_client_counters {
    uint64_t payload_sent, payload_received; /* bytes of weights and gradients, however they travelled */
    uint64_t wire_bytes;                     /* both ways, headers and framing included */
    uint64_t shm_bytes;                      /* payload that went through shared memory */
    int64_t wait_ns;                         /* blocked in poll */
} eni_client_counters;
void eni_client_count(const eni_client *client, eni_client_counters *counters_out);

/* The version that a bucket's last reply carried: the least over its cells. */
uint64_t eni_client_version(const eni_client *client, uint32_t bucket);

/* Versions between the weights that the bucket's last push was computed on and those it met, as the store
 * said in its answer: the mean over the cells. 0 before the first push. */
double eni_client_staleness(const eni_client *client, uint32_t bucket);

/* 1 if payloads go through shared memory. */
int eni_client_is_shared(const eni_client *client);

#endif
