/* costs_plugin.c - ps-sync that asks what its buckets would cost, for test_costs.c. */
#include "entrain/strategy.h"

static en_status plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)state, (void)lo, (void)hi;
    const double call = host->cost(host, 0, bucket), allreduce = host->cost(host, EN_ALLREDUCE, bucket);
    host->log(host, 2, "rank %d bucket %u call %.9g all-reduce %.9g end", (int)host->world->rank, bucket->id,
              call, allreduce);
    return EN_OK;
}

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->call(host, EN_SERVERS, 1, EN_GRAD, bucket, bucket->grad, bucket->param, 0);
    return EN_OK;
}

static en_status on_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    const en_status st = store->absorb(store, part, msg, 1);
    return st != EN_OK || part->pending < part->nclients ? st : store->step(store, part);
}

static int on_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store, (void)state;
    return part->version > msg->base_version ? EN_REPLY_WEIGHTS : EN_HOLD;
}

static const en_strategy asks = {.abi = EN_STRATEGY_ABI,
                                 .size = sizeof(en_strategy),
                                 .name = "asks",
                                 .help = "ps-sync that asks what its buckets would cost",
                                 .paper = "none: a test",
                                 .flags = EN_STORE_ON_SERVERS | EN_SYNCHRONOUS | EN_PUSH_READ_ONLY,
                                 .plan = plan,
                                 .submit = submit,
                                 .on_push = on_push,
                                 .on_pull = on_pull};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &asks : NULL;
}
