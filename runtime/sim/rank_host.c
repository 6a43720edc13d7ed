/* rank_host.c - en_host on a fiber: what strategy.h promises to the worker half, in virtual time. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/log.h"
#include "core/rng.h"
#include "runtime/sim/world.h"

static eni_rank *rank_of(en_host *host)
{
    return (eni_rank *)(void *)host;
}

/* ---- options, numbers, words --------------------------------------------------------------------------- */

static double host_num(en_host *host, const char *key)
{
    return eni_options_num(rank_of(host)->sim->options, key);
}

static const char *host_text(en_host *host, const char *key)
{
    return eni_options_text(rank_of(host)->sim->options, key);
}

static uint64_t host_rand(en_host *host)
{
    eni_rank *rank = rank_of(host);
    const eni_rng_key key = {rank->sim->config->seed, ENI_RNG_STRATEGY, (uint32_t)rank->world.rank,
                             rank->step};
    return eni_rng_u64(&key, rank->rand_calls++);
}

static int64_t host_now_ns(en_host *host)
{
    return rank_of(host)->sim->queue.now_ns;
}

__attribute__((format(printf, 3, 4))) static void host_log(en_host *host, int level, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    eni_log(level, rank_of(host)->sim->config->strategy->name, "rank %d: %s", rank_of(host)->world.rank,
            text);
}

/* ---- vectors ------------------------------------------------------------------------------------------- */

static en_vec host_vec(en_host *host, const char *name, const en_bucket *like)
{
    eni_rank *rank = rank_of(host);
    if (rank->may_make_vectors) return eni_rank_add_vector(rank, NULL, like->count);
    eni_error("rank", "strategy %s asks for vector %s in a step; vectors are made in open and plan",
              rank->sim->config->strategy->name, name);
    return 0;
}

static en_vec host_slot(en_host *host, const en_bucket *bucket, int i)
{
    eni_rank *rank = rank_of(host);
    float *data = eni_rank_slot(rank, i);
    if (!data) return 0;
    data += rank->sim->buckets->bucket[bucket->id].lo;
    for (uint32_t v = 0; v < rank->nvectors; v++)
        if (rank->vectors[v].data == data) return v + 1;
    return eni_rank_add_vector(rank, data, bucket->count);
}

static en_status host_lin(en_host *host, en_vec y, double a, en_vec x, double b)
{
    eni_rank *rank = rank_of(host);
    const eni_vector *to = eni_rank_vector(rank, y, 0);
    const eni_vector *from = to ? eni_rank_vector(rank, x, to->count) : NULL;
    if (!from) return EN_EBUG;
    eni_lin(to->data, (float)a, from->data, (float)b, to->count);
    eni_rank_note_write(rank, to->data);
    return EN_OK;
}

/* ---- the optimizer ------------------------------------------------------------------------------------- */

static en_status host_step(en_host *host, en_bucket *bucket)
{
    eni_rank *rank = rank_of(host);
    return eni_rank_step(rank, bucket, rank->grad_samples[bucket->id]);
}

static double host_lr(en_host *host)
{
    return eni_rank_lr(rank_of(host), 0);
}

/* ---- what things cost ---------------------------------------------------------------------------------- */

static double host_coll_bytes(en_host *host, int op, int group)
{
    const en_world *world = &rank_of(host)->world;
    const double n = group == EN_LOCAL ? world->nlocal : world->nranks;
    return (op == EN_ALLREDUCE ? 2 : op == EN_REDUCE ? 1 + 1 / n : 1) * (n - 1) / n;
}

static double count_clients(const eni_sim *sim)
{
    return sim->config->strategy->flags & EN_LEADERS_ARE_CLIENTS ? sim->nhosts : sim->nranks;
}

static double host_cost(en_host *host, int op, const en_bucket *bucket)
{
    const eni_rank *rank = rank_of(host);
    const uint64_t n = (uint64_t)rank->world.nranks;
    const double bytes = (double)bucket->count * sizeof(float);
    const eni_network *network = &rank->sim->network;
    if (op == 0) { /* all clients' vectors pass the shards' links, there and back */
        const double clients = count_clients(rank->sim), shards = rank->sim->nshards > 0 ? rank->sim->nshards : 1;
        return (double)eni_network_hops(network, 2, bytes * (clients > shards ? clients / shards : 1)) * 1e-9;
    }
    return (double)eni_network_hops(network, (op == EN_ALLREDUCE ? 2 : 1) * (n - 1), bytes / (double)n) *
           1e-9;
}

static const void *host_extension(en_host *host, const char *id)
{
    (void)host;
    (void)id;
    return NULL;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

static en_status host_wait(en_host *host, en_req request)
{
    eni_rank *rank = rank_of(host);
    if (eni_rank_request(rank, request)) {
        rank->waiting = request;
        eni_fiber_leave(rank->fiber);
    }
    eni_request *r = eni_rank_slot_of(rank, request);
    if (!r) return EN_OK; /* 0, or done and told before */
    const en_status status = r->status;
    r->status = EN_OK;
    return status;
}

void eni_rank_host_init(eni_rank *rank)
{
    rank->host = (en_host){.abi = EN_STRATEGY_ABI,
                           .size = sizeof(en_host),
                           .world = &rank->world,
                           .num = host_num,
                           .text = host_text,
                           .rand = host_rand,
                           .now_ns = host_now_ns,
                           .log = host_log,
                           .vec = host_vec,
                           .slot = host_slot,
                           .lin = host_lin,
                           .step = host_step,
                           .lr = host_lr,
                           .cost = host_cost,
                           .coll_bytes = host_coll_bytes,
                           .mean_step = eni_exchange_mean_step,
                           .coll = eni_exchange_coll,
                           .sendrecv = eni_exchange_sendrecv,
                           .call = eni_delivery_call,
                           .wait = host_wait,
                           .extension = host_extension};
}
