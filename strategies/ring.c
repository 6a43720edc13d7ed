/* ring.c - all-reduce: the ranks average their gradients among themselves, and every rank takes the same
 * step.
 *
 *     rank 0   g0 --.               .--> mean --> step
 *     rank 1   g1 --+-- all-reduce -+--> mean --> step       the weights stay equal without being sent
 *     rank 2   g2 --'               '--> mean --> step
 *
 * How the sum travels (a ring, shared memory, NCCL) is the host's choice: --allreduce. Ranks that share
 * memory have one copy of the weights (EN_SHARED_PARAMS), and each steps a slice of it as it averages it. */
#include "entrain/strategy.h"

/* Starts while backward still computes the gradients of earlier layers. */
static en_status ring_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->mean_step(host, bucket);
    return EN_OK;
}

static void ring_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)state;
    theory_out->sent = theory_out->recv = host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD);
    theory_out->max_clocks_behind = theory_out->staleness = 0;
}

static const en_strategy ring = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "ring",
    .help = "all-reduce: ranks average gradients among themselves, no server",
    .paper = "Patarasuk & Yuan'09, bandwidth optimal all-reduce; Sergeev'18 (Horovod), sec. 3",
    .flags = EN_SYNCHRONOUS | EN_REPLICATED | EN_STATIC | EN_SHARED_PARAMS,
    .submit = ring_submit,
    .theory = ring_theory,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &ring : NULL;
}
