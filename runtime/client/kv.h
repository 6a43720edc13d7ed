/* kv.h - the client of entrain/client.h: what it holds, in the order in which it is opened.
 *
 *     kv_schema.c   tensors -> flat vector and buckets
 *     kv_open.c     options, token, JOIN, shards, the same start; close
 *     kv.c          pull, push, wait
 *
 * Every tensor is one bucket or, above ENI_KV_PIECE elements, several: so a call on a tensor is a call on its
 * buckets, and calls on two tensors never wait for each other. */
#ifndef CLIENT_KV_H
#define CLIENT_KV_H

#include "entrain/client.h"
#include "runtime/client/client.h"
#include "runtime/control/member.h"
#include "runtime/net/host_info.h"
#include "runtime/spec/run_spec.h"

enum { ENI_KV_PIECE = 1 << 20 }; /* elements: 4 MiB */

typedef enum eni_kv_call { ENI_KV_NONE, ENI_KV_PULL, ENI_KV_PUSH, ENI_KV_PUSH_PULL } eni_kv_call;

typedef struct eni_kv_tensor {
    char *name;
    uint64_t offset, count; /* elements of the flat vector */
    uint32_t first_bucket, nbuckets;
    eni_kv_call call; /* in progress */
    uint64_t version; /* of what is in param: the least over its partitions */
} eni_kv_tensor;

struct en_client {
    int interrupt_fd; /* -1: none */

    /* kv_schema.c */
    uint32_t ntensors;
    eni_kv_tensor *tensors; /* (ntensors) */
    uint64_t elements;      /* of the flat vector, padding included */
    eni_buckets buckets;

    /* kv_open.c */
    eni_token token;
    char host[ENI_HOST_MAX], host_id[ENI_HOST_ID_MAX];
    eni_member *member;
    eni_net *net;
    eni_arena *arena;
    eni_client *store;

    /* kv.c */
    _Atomic int is_finished;
    _Atomic en_status failed; /* of the first call that could not be mended; EN_OK: none */
    uint64_t pushes, pulls;
    double staleness_sum, staleness_max;
};

/* Lays the tensors out and cuts them into buckets. EN_EINVAL, logged: what entrain/client.h forbids. What was
 * allocated belongs to the client, also on failure. */
en_status eni_kv_schema_make(en_client *client, const en_client_options *options);
void eni_kv_schema_fini(en_client *client);

/* A key per tensor: "tensor NAME" and its shape. */
en_status eni_kv_schema_agree(const en_client_options *options, eni_run_spec *spec);

/* Entry i of the table, whose entries are as long as the caller's header says. */
const en_client_tensor *eni_kv_declared(const en_client_options *options, uint32_t i);

/* EN_OK, EN_EINTR, or what the control connection says; an eni_client_config.alive. */
en_status eni_kv_alive(void *client);

#endif
