/* plan.c - which samples a run applies, and the sample at each position; see plan.h. */
#include "data/plan.h"

#include "core/log.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/try.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static en_status check_options(const eni_plan_options *o)
{
    if (o->train_samples == 0 || o->train_samples > UINT32_MAX)
        return eni_fail(EN_EINVAL, "plan", "%llu training samples; expected 1 to 4294967295",
                        (unsigned long long)o->train_samples);
    if (o->world == 0 || o->batch == 0)
        return eni_fail(EN_EINVAL, "plan",
                        "%llu workers with batches of %llu samples: both must be at least 1",
                        (unsigned long long)o->world, (unsigned long long)o->batch);
    if (o->epochs == 0 && o->steps == 0 && o->max_samples == 0)
        return eni_fail(EN_EINVAL, "plan", "the run has no limit: give --epochs, --steps or --max-samples");
    return EN_OK;
}

/* Plans the edges of the epochs from N, W and B. */
static en_status plan_epoch(const eni_plan_options *o, eni_plan *p)
{
    *p = (eni_plan){.train_samples = o->train_samples, .world = o->world, .batch = o->batch};
    if (__builtin_mul_overflow(o->world, o->batch, &p->global_batch))
        return eni_fail(EN_EINVAL, "plan",
                        "%llu workers with batches of %llu samples: the product exceeds 64 bits",
                        (unsigned long long)o->world, (unsigned long long)o->batch);
    if (o->drop_last) p->dropped_per_epoch = o->train_samples % p->global_batch;
    p->epoch_samples = o->train_samples - p->dropped_per_epoch;
    p->epoch_steps = ceil_div(p->epoch_samples, p->global_batch);
    if (p->epoch_steps > 0) return EN_OK;
    return eni_fail(EN_EINVAL, "plan",
                    "%llu training samples do not fill one global batch of %llu (%llu worker%s x %llu), and "
                    "--drop-last skips partial ones: take smaller batches or omit --drop-last",
                    (unsigned long long)o->train_samples, (unsigned long long)p->global_batch,
                    (unsigned long long)o->world, o->world == 1 ? "" : "s", (unsigned long long)o->batch);
}

/* Samples of the first `steps` steps; UINT64_MAX on overflow. */
static uint64_t samples_of_steps(const eni_plan *p, uint64_t steps)
{
    uint64_t whole;
    if (__builtin_mul_overflow(steps / p->epoch_steps, p->epoch_samples, &whole)) return UINT64_MAX;
    uint64_t rest = min_u64(steps % p->epoch_steps * p->global_batch, p->epoch_samples);
    return whole > UINT64_MAX - rest ? UINT64_MAX : whole + rest;
}

/* Steps for `samples` samples; the last may be ragged. */
static uint64_t steps_of_samples(const eni_plan *p, uint64_t samples)
{
    return samples / p->epoch_samples * p->epoch_steps +
           ceil_div(samples % p->epoch_samples, p->global_batch);
}

en_status eni_plan_make(const eni_plan_options *options, eni_plan *plan_out)
{
    eni_plan p;
    EN_TRY(check_options(options));
    EN_TRY(plan_epoch(options, &p));

    uint64_t by_epochs = UINT64_MAX;
    if (options->epochs > 0 && __builtin_mul_overflow(options->epochs, p.epoch_samples, &by_epochs))
        by_epochs = UINT64_MAX;
    uint64_t by_steps = options->steps > 0 ? samples_of_steps(&p, options->steps) : UINT64_MAX;
    uint64_t by_samples = options->max_samples > 0 ? options->max_samples : UINT64_MAX;
    p.samples = min_u64(by_epochs, min_u64(by_steps, by_samples));
    if (p.samples > (UINT64_C(1) << 62))
        return eni_fail(EN_EINVAL, "plan", "the budget exceeds 2^62 samples: lower --epochs or --steps");
    if (options->drop_last) {
        p.dropped_at_end = p.samples % p.epoch_samples % p.global_batch;
        p.samples -= p.dropped_at_end;
        if (p.samples == 0)
            return eni_fail(EN_EINVAL, "plan",
                            "--max-samples %llu is less than one global batch of %llu, and --drop-last skips "
                            "partial ones: raise it or omit --drop-last",
                            (unsigned long long)options->max_samples, (unsigned long long)p.global_batch);
    }
    p.steps = steps_of_samples(&p, p.samples);
    if (__builtin_mul_overflow(p.steps, p.world, &p.micro_batches))
        return eni_fail(EN_EINVAL, "plan", "%llu steps of %llu workers exceed 64 bits: lower the budget",
                        (unsigned long long)p.steps, (unsigned long long)p.world);
    *plan_out = p;
    return EN_OK;
}

uint64_t eni_plan_samples_before(const eni_plan *plan, uint64_t step)
{
    return min_u64(samples_of_steps(plan, step), plan->samples);
}

uint64_t eni_plan_step_samples(const eni_plan *plan, uint64_t step)
{
    return eni_plan_samples_before(plan, step + 1) - eni_plan_samples_before(plan, step);
}

en_status eni_plan_micro(const eni_plan *plan, uint64_t m, eni_micro *micro_out)
{
    if (m >= plan->micro_batches) return EN_ESTOP;
    uint64_t step = m / plan->world, rank = m % plan->world;
    uint64_t n = eni_plan_step_samples(plan, step);
    *micro_out = (eni_micro){
        .index = m,
        .step = step,
        .epoch = step / plan->epoch_steps,
        .rank = rank,
        .position = step % plan->epoch_steps * plan->global_batch + rank,
        .stride = plan->world,
        .count = rank < n ? ceil_div(n - rank, plan->world) : 0,
    };
    return EN_OK;
}

/* Epochs begin at multiples of epoch_steps, so the rest is a multiple of W*B. */
en_status eni_plan_step_at(const eni_plan *plan, uint64_t samples, uint64_t *step_out)
{
    if (samples > plan->samples) return EN_ENOENT;
    *step_out = steps_of_samples(plan, samples);
    return eni_plan_samples_before(plan, *step_out) == samples ? EN_OK : EN_ENOENT;
}

uint64_t eni_plan_micro_at(const eni_plan *plan, uint64_t samples)
{
    if (samples >= plan->samples) return plan->micro_batches;
    uint64_t step = steps_of_samples(plan, samples);
    while (step > 0 && eni_plan_samples_before(plan, step) > samples)
        step--;
    uint64_t left = samples - eni_plan_samples_before(plan, step), m = step * plan->world;
    for (eni_micro micro; eni_plan_micro(plan, m, &micro) == EN_OK && micro.count <= left; m++) {
        left -= micro.count;
        if (left == 0 && micro.count > 0) return m + 1;
    }
    return m;
}

/* ---- the sampler ---- */

struct eni_sampler {
    uint64_t count;
    uint64_t seed;
    eni_order kind;
    uint64_t epoch;  /* the epoch in `order`; NO_EPOCH: none yet */
    uint32_t *order; /* (count): the sample at each position */
};

#define NO_EPOCH UINT64_MAX

eni_sampler *eni_sampler_new(uint64_t count, uint64_t seed, eni_order order)
{
    eni_sampler *sampler = eni_alloc(sizeof *sampler);
    if (sampler == NULL) return NULL;
    *sampler = (eni_sampler){.count = count, .seed = seed, .kind = order, .epoch = NO_EPOCH};
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
    if (sampler->kind != ENI_ORDER_EACH_EPOCH) epoch = 0;
    if (sampler->epoch == epoch) return;
    for (uint64_t i = 0; i < sampler->count; i++)
        order[i] = (uint32_t)i;
    sampler->epoch = epoch;
    if (sampler->kind == ENI_ORDER_FILE) return;
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

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are hashed in memory order");

en_status eni_sampler_order_sha256(const eni_plan *plan, uint64_t seed, eni_order order,
                                   char hex_out[ENI_DIGEST_HEX])
{
    eni_sampler *sampler = eni_sampler_new(plan->train_samples, seed, order);
    eni_digest digest;
    if (sampler == NULL) return EN_ENOMEM;
    eni_digest_begin(&digest);
    uint64_t left = min_u64(plan->samples, ENI_ORDER_POSITIONS_MAX);
    for (uint64_t epoch = 0, n; left > 0; epoch++, left -= n) {
        n = min_u64(left, plan->epoch_samples);
        build(sampler, epoch);
        eni_digest_add(&digest, sampler->order, n * sizeof *sampler->order);
    }
    if (plan->samples > ENI_ORDER_POSITIONS_MAX)
        eni_digest_add(&digest, &plan->samples, sizeof plan->samples);
    eni_digest_end(&digest, hex_out);
    eni_sampler_free(sampler);
    return EN_OK;
}
