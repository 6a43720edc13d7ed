/* localsgd.c - ranks train independently, and every `period` steps their weights are averaged (local SGD).
 *
 *     cc -shared -fPIC -I../include localsgd.c -o localsgd.so
 *     entrain run -n 2 --strategy=./localsgd.so:period=8
 *
 * A complete strategy in one file: one option, one exchange, and the paper's promises. */
#include "entrain/strategy.h"

/* Plain data, no pointers: the host allocates it, zeroed, and puts it in checkpoints. */
typedef struct localsgd {
    uint64_t period;
} localsgd;

static const en_option localsgd_options[] = {
    {.size = sizeof(en_option),
     .type = EN_OPT_INT,
     .key = "period",
     .help = "steps between two averagings",
     .value = 8,
     .min = 1,
     .max = 1e9},
    {0},
};

static en_status localsgd_open(en_host *host, void *state)
{
    localsgd *self = state;
    self->period = (uint64_t)host->num(host, "period");
    return EN_OK;
}

/* The bucket's gradient is complete: step locally, and start the averaging if it is due. */
static en_status localsgd_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    const localsgd *self = state;
    en_status status = host->step(host, bucket);
    req[0] = 0;
    if (status == EN_OK && (bucket->step + 1) % self->period == 0)
        req[0] = host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, bucket, bucket->param);
    return status;
}

/* There is no finish: its default waits for req[0], and a request that was not started is 0, done. */

/* Between two averagings no rank has the paper's model, which is the mean of all ranks. */
static int localsgd_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host;
    (void)state;
    (void)bucket;
    (void)vec_out;
    return EN_EVAL_MEAN;
}

static void localsgd_theory(en_host *host, void *state, en_theory *theory_out)
{
    const localsgd *self = state;
    theory_out->sent = host->coll_bytes(host, EN_ALLREDUCE, EN_WORLD) / (double)self->period;
    theory_out->recv = theory_out->sent;
    theory_out->max_clocks_behind = (double)(self->period - 1);
    theory_out->staleness = -1; /* gradients are never stale here; the models differ instead */
}

static const en_strategy localsgd_table = {
    .abi = EN_STRATEGY_ABI,
    .size = sizeof(en_strategy),
    .name = "localsgd",
    .help = "ranks train alone; every period steps their weights are averaged",
    .paper = "Stich'19, local SGD converges fast and communicates little, alg. 1",
    .state = sizeof(localsgd),
    .options = localsgd_options,
    .open = localsgd_open,
    .submit = localsgd_submit,
    .eval = localsgd_eval,
    .theory = localsgd_theory,
};

EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &localsgd_table : NULL;
}
