/* const_breach.c - a plugin that writes what it may only read does not compile: BREACH says what; 0: nothing.
 */
#include "entrain/strategy.h"

/* Promise: A plugin that writes through the contract's const does not compile, by gcc and clang. */

#ifndef BREACH
#define BREACH 0
#endif

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)host, (void)state, (void)bucket;
    req[0] = 0;
#if BREACH == 1
    bucket->nsamples = 1;
#elif BREACH == 2
    bucket->params[0].count = 0;
#elif BREACH == 3
    host->world->nranks = 1;
#endif
    return EN_OK;
}

static en_status finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    (void)state, (void)bucket;
#if BREACH == 4
    req[0] = 0;
#endif
    return host->wait(host, req[0]);
}

static en_status on_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    part->w[0] += msg->data[0]; /* what these two point at may be written */
    store->touch(store, part);
#if BREACH == 5
    part->version++;
#elif BREACH == 6
    msg->nsamples = 1;
#endif
    return EN_OK;
}

static const en_strategy table = {.abi = EN_STRATEGY_ABI,
                                  .size = sizeof(en_strategy),
                                  .name = "const-breach",
                                  .submit = submit,
                                  .finish = finish,
                                  .on_push = on_push};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &table : NULL;
}
