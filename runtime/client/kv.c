/* kv.c - pull, push, wait: the calls of entrain/client.h between open and close.
 *
 * A pull is a snapshot, past the strategy and its clocks: in ps-sync a pure pull by call would wait for the
 * next step. A push is a call with the gradient, answered when the strategy says so. */
#include <poll.h>
#include <stddef.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/try.h"
#include "runtime/client/kv.h"

enum { PUSH = 1 }; /* the message's kind; strategies/ps.c knows one */

en_status eni_kv_alive(void *user)
{
    const en_client *client = user;
    struct pollfd interrupt = {.fd = client->interrupt_fd, .events = POLLIN};
    if (client->interrupt_fd >= 0 && poll(&interrupt, 1, 0) > 0) return EN_EINTR;
    return client->member == NULL ? EN_OK : eni_member_status(client->member);
}

en_status en_client_status(const en_client *client)
{
    if (client->failed != EN_OK) return client->failed;
    return client->is_finished ? EN_OK : eni_kv_alive((void *)client);
}

/* What has failed half-way cannot be taken up again. */
static en_status keep(en_client *client, en_status status)
{
    if (client->failed == EN_OK) client->failed = status;
    return status;
}

/* ---- tensors ---- */

static int has(const en_client *client, int tensor)
{
    return tensor >= 0 && (uint32_t)tensor < client->ntensors;
}

static float *vector_at(const en_client *client, uint32_t slot, int tensor)
{
    return has(client, tensor) ? eni_arena_at(client->arena, slot, client->tensors[tensor].offset) : NULL;
}

float *en_client_param(en_client *client, int tensor)
{
    return vector_at(client, ENI_SLOT_PARAM, tensor);
}

float *en_client_grad(en_client *client, int tensor)
{
    return vector_at(client, ENI_SLOT_GRAD, tensor);
}

uint64_t en_client_elements(const en_client *client, int tensor)
{
    return has(client, tensor) ? client->tensors[tensor].count : 0;
}

/* [*first, *last) of what `tensor` names. */
static en_status range_of(const en_client *client, int tensor, uint32_t *first, uint32_t *last)
{
    if (tensor != EN_CLIENT_ALL && !has(client, tensor)) {
        eni_error("kv", "there is no tensor %d: %u were declared", tensor, client->ntensors);
        return EN_EINVAL;
    }
    *first = tensor == EN_CLIENT_ALL ? 0 : (uint32_t)tensor;
    *last = tensor == EN_CLIENT_ALL ? client->ntensors : *first + 1;
    return EN_OK;
}

/* ---- calls ---- */

static en_status check_idle(const en_client *client, uint32_t first, uint32_t last)
{
    if (client->is_finished) {
        eni_error("kv", "a call after en_client_finish");
        return EN_EINVAL;
    }
    for (uint32_t i = first; i < last; i++)
        if (client->tensors[i].call != ENI_KV_NONE) {
            eni_error("kv", "tensor %s has a call in progress: en_client_wait for it first",
                      client->tensors[i].name);
            return EN_EINVAL;
        }
    return EN_OK;
}

static en_status start_one(en_client *client, eni_kv_tensor *tensor, eni_kv_call call, uint64_t nsamples)
{
    int is_pull = call == ENI_KV_PULL;
    int out_slot = is_pull ? ENI_SLOT_NONE : ENI_SLOT_GRAD;
    int in_slot = call == ENI_KV_PUSH ? ENI_SLOT_NONE : ENI_SLOT_PARAM;
    tensor->call = call;
    for (uint32_t b = tensor->first_bucket; b < tensor->first_bucket + tensor->nbuckets; b++)
        EN_TRY(eni_client_call(client->store, is_pull ? ENI_MSG_SNAPSHOT : ENI_MSG_CALL, b,
                               is_pull ? 0 : PUSH, is_pull ? EN_WEIGHTS : EN_GRAD, out_slot, in_slot,
                               nsamples, client->pushes));
    return EN_OK;
}

static en_status start(en_client *client, int tensor, eni_kv_call call, uint64_t nsamples)
{
    uint32_t first, last;
    en_status alive = en_client_status(client);
    if (alive != EN_OK) return keep(client, alive);
    EN_TRY(range_of(client, tensor, &first, &last));
    EN_TRY(check_idle(client, first, last));
    for (uint32_t i = first; i < last; i++) {
        en_status st = start_one(client, &client->tensors[i], call, nsamples);
        if (st != EN_OK) return keep(client, st);
    }
    return EN_OK;
}

en_status en_client_pull(en_client *client, int tensor)
{
    return start(client, tensor, ENI_KV_PULL, 0);
}

en_status en_client_push(en_client *client, int tensor, uint64_t nsamples)
{
    return start(client, tensor, ENI_KV_PUSH, nsamples);
}

en_status en_client_push_pull(en_client *client, int tensor, uint64_t nsamples)
{
    return start(client, tensor, ENI_KV_PUSH_PULL, nsamples);
}

/* ---- answers ---- */

static void count_push(en_client *client, const eni_kv_tensor *tensor)
{
    double staleness = 0;
    for (uint32_t b = 0; b < tensor->nbuckets; b++)
        staleness += eni_client_staleness(client->store, tensor->first_bucket + b) / tensor->nbuckets;
    client->pushes++;
    client->staleness_sum += staleness;
    if (staleness > client->staleness_max) client->staleness_max = staleness;
}

static uint64_t answered_version(const en_client *client, const eni_kv_tensor *tensor)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t b = 0; b < tensor->nbuckets; b++) {
        uint64_t version = eni_client_version(client->store, tensor->first_bucket + b);
        if (version < least) least = version;
    }
    return least;
}

static en_status wait_one(en_client *client, eni_kv_tensor *tensor)
{
    if (tensor->call == ENI_KV_NONE) return EN_OK;
    for (uint32_t b = 0; b < tensor->nbuckets; b++)
        EN_TRY(eni_client_wait(client->store, tensor->first_bucket + b));
    if (tensor->call == ENI_KV_PULL)
        client->pulls++;
    else
        count_push(client, tensor);
    if (tensor->call != ENI_KV_PUSH) tensor->version = answered_version(client, tensor);
    tensor->call = ENI_KV_NONE;
    return EN_OK;
}

en_status en_client_wait(en_client *client, int tensor)
{
    uint32_t first, last;
    EN_TRY(client->failed);
    EN_TRY(range_of(client, tensor, &first, &last));
    for (uint32_t i = first; i < last; i++) {
        en_status st = wait_one(client, &client->tensors[i]);
        if (st != EN_OK) return keep(client, st);
    }
    return EN_OK;
}

en_status en_client_finish(en_client *client)
{
    if (client->is_finished) return client->failed;
    EN_TRY(en_client_wait(client, EN_CLIENT_ALL));
    en_status st = eni_client_finished(client->store);
    if (st == EN_OK) st = eni_member_bye(client->member, eni_now_ns() + 10 * ENI_SECOND);
    if (st != EN_OK) return keep(client, st);
    client->is_finished = 1;
    return EN_OK;
}

/* ---- figures ---- */

uint64_t en_client_version(const en_client *client, int tensor)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < client->ntensors; i++)
        if ((tensor == EN_CLIENT_ALL || tensor == (int)i) && client->tensors[i].version < least)
            least = client->tensors[i].version;
    return least == UINT64_MAX ? 0 : least;
}

en_status en_client_count(const en_client *client, en_client_counters *counters)
{
    eni_client_counters moved;
    uint32_t size = counters->size;
    if (size < sizeof *counters) {
        eni_error("kv", "counters of %u bytes: set size to sizeof(en_client_counters), %zu", size,
                  sizeof *counters);
        return EN_EINVAL;
    }
    eni_client_count(client->store, &moved);
    *counters = (en_client_counters){
        .size = size,
        .is_shared = (uint32_t)eni_client_is_shared(client->store),
        .pushes = client->pushes,
        .pulls = client->pulls,
        .staleness_mean = client->pushes > 0 ? client->staleness_sum / (double)client->pushes : 0,
        .staleness_max = client->staleness_max,
        .payload_sent = moved.payload_sent,
        .payload_received = moved.payload_received,
        .wire_bytes = moved.wire_bytes,
        .shm_bytes = moved.shm_bytes,
        .wait_ns = moved.wait_ns};
    return EN_OK;
}
