/* short.c - local SGD as a header would have built it whose en_strategy ends before on_member, and whose
 * en_option ends before text. Behind both lies what must not be read. */
#include <stddef.h>

#include "entrain/strategy.h"

typedef struct short_option {
    uint32_t size;
    uint32_t type;
    const char *key, *help;
    double value, min, max;
} short_option;

static const short_option options[] = {
    {.size = sizeof(short_option),
     .type = EN_OPT_INT,
     .key = "period",
     .help = "steps between two averagings",
     .value = 8,
     .min = 1,
     .max = 1e9},
    {.size = sizeof(short_option), .type = EN_OPT_REAL, .key = "other", .help = "nothing", .max = 1},
    {0}};

static en_status submit(en_host *host, void *state, const en_bucket *bucket, en_req *req)
{
    (void)state;
    const en_status st = host->step(host, bucket);
    if (st == EN_OK && (bucket->step + 1) % (uint64_t)host->num(host, "period") == 0)
        req[0] = host->coll(host, EN_ALLREDUCE, EN_WORLD, EN_WEIGHTS, bucket, bucket->param);
    return st;
}

static int eval(en_host *host, void *state, const en_bucket *bucket, en_vec *vec_out)
{
    (void)host, (void)state, (void)bucket, (void)vec_out;
    return EN_EVAL_MEAN;
}

static void not_there(en_store *store, void *state, const en_partition *part, int32_t who, int event)
{
    (void)store, (void)state, (void)part, (void)who, (void)event;
}

static const en_strategy whole = {.abi = EN_STRATEGY_ABI,
                                  .size = sizeof(en_strategy),
                                  .name = "whole",
                                  .submit = submit,
                                  .options = (const en_option *)(const void *)options,
                                  .on_member = not_there};
static const en_strategy table = {.abi = EN_STRATEGY_ABI,
                                  .size = offsetof(en_strategy, on_member),
                                  .name = "short",
                                  .options = (const en_option *)(const void *)options,
                                  .next = &whole,
                                  .submit = submit,
                                  .eval = eval,
                                  .on_member = not_there};

EN_EXPORT const en_strategy *en_strategy_entry(uint32_t host_abi)
{
    return host_abi == EN_STRATEGY_ABI ? &table : NULL;
}
