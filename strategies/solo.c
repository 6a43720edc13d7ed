/* solo.c - one process, no exchange: each step is taken where the gradient was computed.
 *
 * It is the baseline of all others. `--accumulate=W` runs the micro-batches of W workers one after the
 * other and passes this strategy their mean, so solo ends with the same bytes as ring and ps-sync. */
#include "entrain/strategy.h"

static en_status solo_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)req, (void)state;
    return host->step(host, bucket);
}

static void solo_theory(en_host *host, void *state, en_theory *theory_out)
{
    (void)host, (void)state;
    theory_out->sent = theory_out->recv = 0;
    theory_out->max_clocks_behind = theory_out->staleness = 0;
}

static const en_strategy solo = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "solo",
    .help = "one worker trains alone",
    .paper = "Robbins & Monro'51, a stochastic approximation method",
    .flags = EN_SYNCHRONOUS | EN_REPLICATED | EN_STATIC | EN_ALONE,
    .submit = solo_submit,
    .theory = solo_theory,
};

const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &solo : NULL;
}
