/* sampler.c - see sampler.h. */
#include "data/sampler.h"

#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"

struct eni_sampler {
    uint64_t count;
    uint64_t seed;
    bool shuffle;
    uint64_t epoch;  /* that `order` holds; NO_EPOCH: none yet */
    uint32_t *order; /* (count): the sample at each position */
};

#define NO_EPOCH UINT64_MAX

eni_sampler *eni_sampler_new(uint64_t count, uint64_t seed, bool shuffle)
{
    eni_sampler *sampler = eni_alloc(sizeof *sampler);
    if (sampler == NULL) return NULL;
    *sampler = (eni_sampler){.count = count, .seed = seed, .shuffle = shuffle, .epoch = NO_EPOCH};
    sampler->order = eni_alloc_array(count, sizeof *sampler->order);
    if (sampler->order == NULL) {
        eni_free(sampler);
        return NULL;
    }
    return sampler;
}

void eni_sampler_free(eni_sampler *sampler)
{
    if (sampler == NULL) return;
    eni_free(sampler->order);
    eni_free(sampler);
}

static void build(eni_sampler *sampler, uint64_t epoch)
{
    uint32_t *order = sampler->order;
    if (sampler->epoch == epoch) return;
    if (sampler->shuffle || sampler->epoch == NO_EPOCH)
        for (uint64_t i = 0; i < sampler->count; i++)
            order[i] = (uint32_t)i;
    sampler->epoch = epoch;
    if (!sampler->shuffle) return;
    const eni_rng_key key = {.seed = sampler->seed, .purpose = ENI_RNG_ORDER, .step = epoch};
    for (uint64_t i = sampler->count - 1; i > 0; i--) {
        uint64_t j = eni_rng_below(&key, i, i + 1);
        uint32_t sample = order[i];
        order[i] = order[j];
        order[j] = sample;
    }
}

void eni_sampler_indices(eni_sampler *sampler, const eni_micro *micro, uint32_t *indices_out)
{
    if (micro->count == 0) return;
    build(sampler, micro->epoch);
    for (uint64_t i = 0; i < micro->count; i++)
        indices_out[i] = sampler->order[micro->position + i * micro->stride];
}

/* Adds positions [0, n) of the current epoch. */
static void hash_positions(eni_digest *digest, const uint32_t *order, uint64_t n)
{
    uint8_t bytes[4096];
    uint64_t filled = 0;
    for (uint64_t i = 0; i < n; i++) {
        for (int b = 0; b < 4; b++)
            bytes[filled++] = (uint8_t)(order[i] >> 8 * b);
        if (filled == sizeof bytes || i + 1 == n) {
            eni_digest_add(digest, bytes, filled);
            filled = 0;
        }
    }
}

static void hash_number(eni_digest *digest, uint64_t number)
{
    uint8_t bytes[8];
    for (int b = 0; b < 8; b++)
        bytes[b] = (uint8_t)(number >> 8 * b);
    eni_digest_add(digest, bytes, sizeof bytes);
}

en_status eni_sampler_order_sha256(const eni_plan *plan, uint64_t seed, bool shuffle,
                                   char hex_out[ENI_DIGEST_HEX])
{
    eni_sampler *sampler = eni_sampler_new(plan->train_samples, seed, shuffle);
    eni_digest *digest = eni_digest_new();
    if (sampler == NULL || digest == NULL) {
        eni_sampler_free(sampler);
        eni_digest_free(digest);
        return EN_ENOMEM;
    }
    bool is_cut = plan->samples > ENI_ORDER_POSITIONS_MAX;
    uint64_t left = is_cut ? ENI_ORDER_POSITIONS_MAX : plan->samples;
    for (uint64_t epoch = 0; left > 0; epoch++) {
        uint64_t n = left < plan->epoch_samples ? left : plan->epoch_samples;
        build(sampler, epoch);
        hash_positions(digest, sampler->order, n);
        left -= n;
    }
    if (is_cut) hash_number(digest, plan->samples);
    eni_digest_take(digest, hex_out);
    eni_sampler_free(sampler);
    return EN_OK;
}
