/* store_rig.h - a store under test: events in one line, answers by client. */
#ifndef TESTS_COMM_STORE_RIG_H
#define TESTS_COMM_STORE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "runtime/store/store.h"

typedef struct rig {
    eni_store *store;
    eni_store_actions actions;
    int64_t now_ns;
    uint64_t ticket; /* of the last event; tickets count 1, 2, .. */
    int released;    /* payloads that came back */
} rig;

/* The strategy called `name` in a file with several, e.g. ps.c. */
static inline const en_strategy *rig_strategy(const char *name)
{
    for (const en_strategy *s = en_strategy_entry(EN_STRATEGY_ABI); s; s = s->next)
        if (strcmp(s->name, name) == 0) return s;
    fail_msg("no strategy %s", name);
    return NULL;
}

static inline eni_store_config rig_config(const en_strategy *strategy, int world, const uint64_t *counts,
                                          uint32_t nbuckets)
{
    return (eni_store_config){
        .strategy = strategy,
        .optimizer = eni_optimizer_find("sgd"),
        .hyper = {.momentum = 0.9f, .weight_decay = 1e-3f, .nesterov = 1},
        .schedule = {.kind = ENI_LR_STEP, .base = 0.1, .gamma = 0.5, .step_samples = 100, .warmup = 30},
        .nbuckets = nbuckets,
        .bucket_counts = counts,
        .shard = 0,
        .nshards = 1,
        .world = world,
        .seed = 7,
    };
}

/* Not an action. */
static const eni_store_action rig_nothing = {0};

static inline void rig_step(rig *r, eni_store_event event)
{
    event.now_ns = ++r->now_ns;
    event.ticket = ++r->ticket;
    assert_int_equal(eni_store_step(r->store, &event, &r->actions), EN_OK);
}

/* The one action for a client, or rig_nothing. */
static inline const eni_store_action *rig_for(const rig *r, int32_t client)
{
    for (uint32_t i = 0; i < r->actions.n; i++)
        if (r->actions.item[i].client == client) return &r->actions.item[i];
    return &rig_nothing;
}

/* A look at a partition's weights, with what is behind them. */
static inline const eni_store_action *rig_look(rig *r, uint32_t bucket)
{
    rig_step(r, (eni_store_event){.type = ENI_STORE_SNAPSHOT, .bucket = bucket});
    return rig_for(r, 0);
}

static inline void rig_member(rig *r, int32_t client, int member, uint64_t incarnation)
{
    rig_step(r, (eni_store_event){.type = ENI_STORE_MEMBER,
                                  .client = client,
                                  .member = (uint32_t)member,
                                  .incarnation = incarnation});
}

/* A store with `world` clients of incarnation 1 and weights of a seeded pattern. */
static inline float rig_weight(uint32_t bucket, uint64_t element)
{
    const eni_rng_key key = {.seed = 1, .purpose = ENI_RNG_TEST, .rank = bucket};
    return (float)eni_rng_unit(&key, element) - 0.5f;
}

static inline float rig_gradient(int32_t rank, uint64_t step, uint32_t bucket, uint64_t element)
{
    const eni_rng_key key = {
        .seed = 2 + bucket, .purpose = ENI_RNG_TEST, .rank = (uint32_t)rank, .step = step};
    return (float)(eni_rng_unit(&key, element) - 0.5) * 3.0f;
}

static inline void rig_init_bucket(rig *r, const eni_store_config *config, uint32_t bucket)
{
    const uint64_t lo = eni_slice_lo(config->bucket_counts[bucket], config->shard, config->nshards);
    const uint64_t count = eni_store_count(r->store, bucket);
    if (count == 0) return;
    float *w = calloc(count, sizeof *w);
    for (uint64_t i = 0; i < count; i++)
        w[i] = rig_weight(bucket, lo + i);
    rig_step(r, (eni_store_event){.type = ENI_STORE_INIT,
                                  .bucket = bucket,
                                  .payload = {.data = w, .count = count, .release = free, .owner = w}});
    assert_int_equal(rig_for(r, 0)->type, ENI_STORE_REPLY);
}

static inline rig rig_new(const eni_store_config *config)
{
    rig r = {0};
    assert_int_equal(eni_store_new(config, &r.store), EN_OK);
    for (int32_t c = 0; c < config->world; c++)
        rig_member(&r, c, EN_MEMBER_JOINED, 1);
    for (uint32_t b = 0; b < config->nbuckets; b++)
        rig_init_bucket(&r, config, b);
    assert_true(eni_store_is_initialised(r.store));
    return r;
}

static inline void rig_free(rig *r)
{
    eni_store_free(r->store);
    eni_store_actions_fini(&r->actions);
}

/* A call with everything given; a NULL data is a pull. */
static inline void rig_call(rig *r, int32_t client, uint32_t bucket, uint64_t seq, uint64_t base,
                            uint64_t nsamples, float *data, uint64_t count)
{
    rig_step(r, (eni_store_event){.type = ENI_STORE_CALL,
                                  .client = client,
                                  .incarnation = 1,
                                  .bucket = bucket,
                                  .seq = seq,
                                  .kind = 1,
                                  .what = EN_GRAD,
                                  .base_version = base,
                                  .nsamples = nsamples,
                                  .covered = nsamples,
                                  .payload = {.data = data, .count = data ? count : 0}});
}

/* The same with memory that the store owns from then on. */
static inline void rig_push_owned(rig *r, int32_t client, uint32_t bucket, uint64_t seq, uint64_t base,
                                  uint64_t nsamples, const float *data, uint64_t count)
{
    float *copy = malloc(count * sizeof *copy);
    memcpy(copy, data, count * sizeof *copy);
    rig_step(r, (eni_store_event){.type = ENI_STORE_CALL,
                                  .client = client,
                                  .incarnation = 1,
                                  .bucket = bucket,
                                  .seq = seq,
                                  .kind = 1,
                                  .what = EN_GRAD,
                                  .base_version = base,
                                  .nsamples = nsamples,
                                  .covered = nsamples,
                                  .payload = {.data = copy, .count = count, .release = free, .owner = copy}});
}

#endif
