/* local.c - ema, a ring whose model is a running mean of its weights (Polyak and Juditsky 1992); and strategies
 * that step alone and exchange now and then, so a push covers many micro-batches: easgd (Zhang'15, elastic averaging SGD, alg. 1) and downpour (Dean'12, sec. 4.1, with n_push > 1). The
 * store of the latter drops every drop-th push of a client. */
#include "entrain/strategy.h"

enum { EXCHANGE = 1, PUSH = 2, BUCKETS_MAX = 64 };

static const en_option options[] = {{.size = sizeof(en_option),
                                     .type = EN_OPT_INT,
                                     .key = "period",
                                     .help = "steps between two exchanges",
                                     .value = 4,
                                     .min = 1,
                                     .max = 1000},
                                    {.size = sizeof(en_option),
                                     .type = EN_OPT_INT,
                                     .key = "drop",
                                     .help = "every so manyth push is dropped; 0: none",
                                     .max = 1000},
                                    {0}};

static int is_due(en_host *host, const en_bucket *bucket)
{
    return (bucket->step + 1) % (uint64_t)host->num(host, "period") == 0;
}

/* ---- easgd: weights there, weights that were drawn half way to the centre back ---------------------------
 */

static en_status easgd_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    const en_status status = host->step(host, bucket);
    (void)state;
    if (status == EN_OK && is_due(host, bucket))
        req[0] = host->call(host, EN_SERVERS, EXCHANGE, EN_WEIGHTS, bucket, bucket->param, bucket->param, 0);
    return status;
}

static en_status easgd_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)state;
    for (uint64_t i = 0; i < part->count; i++) {
        const float force = 0.25f * (msg->data[i] - part->w[i]);
        part->w[i] += force;
        msg->data[i] -= force;
    }
    store->touch(store, part);
    return EN_OK;
}

static int easgd_pull(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    (void)store, (void)state, (void)part;
    return msg->kind == EXCHANGE ? EN_REPLY_DATA : EN_REPLY_WEIGHTS;
}

/* ---- downpour: gradients are added up, and pushed together ------------------------------------------------
 */

typedef struct downpour {
    en_vec sum[BUCKETS_MAX];
} downpour;

static en_status downpour_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo,
                               uint64_t *hi)
{
    (void)hi, (void)lo;
    downpour *self = state;
    if (bucket->id >= BUCKETS_MAX) return EN_EUNSUPPORTED;
    self->sum[bucket->id] = host->vec(host, "sum", bucket);
    return self->sum[bucket->id] != 0 ? EN_OK : EN_ENOMEM;
}

static en_status downpour_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    const downpour *self = state;
    const en_vec sum = self->sum[bucket->id];
    en_status status = host->lin(host, sum, 1, bucket->grad, 1);
    if (status == EN_OK) status = host->step(host, bucket);
    if (status == EN_OK && is_due(host, bucket))
        req[0] = host->call(host, EN_SERVERS, PUSH, EN_GRAD, bucket, sum, bucket->param, 0);
    return status;
}

static en_status downpour_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    const downpour *self = state;
    const en_status status = host->wait(host, req[0]);
    if (status != EN_OK || !is_due(host, bucket)) return status;
    return host->lin(host, self->sum[bucket->id], 0, bucket->grad, 0);
}

static en_status downpour_push(en_store *store, void *state, const en_partition *part, const en_msg *msg)
{
    const uint64_t drop = (uint64_t)store->num(store, "drop");
    (void)state;
    if (drop > 0 && msg->clock % drop == 0) return EN_OK;
    const en_status status = store->absorb(store, part, msg, 1);
    return status == EN_OK ? store->step(store, part) : status;
}

/* ---- ema: the weights are a ring's ------------------------------------------------------------------- */

typedef struct ema {
    en_vec mean[BUCKETS_MAX];
} ema;

static en_status ema_plan(en_host *host, void *state, const en_bucket *bucket, uint64_t *lo, uint64_t *hi)
{
    (void)hi, (void)lo;
    ema *self = state;
    if (bucket->id >= BUCKETS_MAX) return EN_EUNSUPPORTED;
    self->mean[bucket->id] = host->vec(host, "mean", bucket);
    return self->mean[bucket->id] != 0 ? EN_OK : EN_ENOMEM;
}

static en_status ema_submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    req[0] = host->mean_step(host, bucket);
    return EN_OK;
}

static en_status ema_finish(en_host *host, void *state, const en_bucket *bucket, const en_req *req)
{
    const ema *self = state;
    const en_status status = host->wait(host, req[0]);
    if (status != EN_OK) return status;
    return host->lin(host, self->mean[bucket->id], 0.5, bucket->param, 0.5);
}

static int ema_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    const ema *self = state;
    (void)host;
    *vec_out = self->mean[bucket->id];
    return EN_EVAL_VEC;
}

/* ---- tables
 * ------------------------------------------------------------------------------------------------ */

static const en_strategy ema_table = {.abi = EN_STRATEGY_ABI,
                                      .size = sizeof(en_strategy),
                                      .name = "ema",
                                      .help = "for the tests",
                                      .flags = EN_SYNCHRONOUS,
                                      .state = sizeof(ema),
                                      .plan = ema_plan,
                                      .submit = ema_submit,
                                      .finish = ema_finish,
                                      .eval = ema_eval};
static int mean_eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host, (void)state, (void)bucket, (void)vec_out;
    return EN_EVAL_MEAN;
}

static const en_strategy easgd_mean_table = {.abi = EN_STRATEGY_ABI,
                                             .size = sizeof(en_strategy),
                                             .name = "easgd-mean",
                                             .help = "for the tests",
                                             .flags = EN_STORE_ON_SERVERS,
                                             .next = &ema_table,
                                             .options = options,
                                             .submit = easgd_submit,
                                             .eval = mean_eval,
                                             .on_push = easgd_push,
                                             .on_pull = easgd_pull};
static const en_strategy downpour_table = {.abi = EN_STRATEGY_ABI,
                                           .size = sizeof(en_strategy),
                                           .name = "downpour",
                                           .help = "for the tests",
                                           .flags = EN_STORE_ON_SERVERS | EN_PUSH_READ_ONLY,
                                           .state = sizeof(downpour),
                                           .next = &easgd_mean_table,
                                           .options = options,
                                           .plan = downpour_plan,
                                           .submit = downpour_submit,
                                           .finish = downpour_finish,
                                           .on_push = downpour_push};
static const en_strategy easgd_table = {.abi = EN_STRATEGY_ABI,
                                        .size = sizeof(en_strategy),
                                        .name = "easgd",
                                        .help = "for the tests",
                                        .flags = EN_STORE_ON_SERVERS,
                                        .options = options,
                                        .next = &downpour_table,
                                        .submit = easgd_submit,
                                        .on_push = easgd_push,
                                        .on_pull = easgd_pull};

EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &easgd_table : NULL;
}
