/* test_easgd.c - easgd against the two algorithms of its paper: a loop in double that knows the order of the exchanges, the
 * sum that an exchange keeps, and the bound inside which x^2/2 is stable. */
#include <inttypes.h>

#include "tests/strategies/sim_rig.h"

/* Promise: easgd is its paper's algorithms 1 and 2; its exchanges keep the sum of workers and center, and it is stable inside
 * the paper's bound. */

enum { COUNT = 200, RANKS_MAX = 8 };

/* ---- algorithms 1 and 2 --------------------------------------------------------------------------------- */

typedef struct reference {
    double alpha, momentum;
    uint64_t period;
    double z[COUNT], x[RANKS_MAX][COUNT], v[RANKS_MAX][COUNT], g[RANKS_MAX][COUNT], elastic[RANKS_MAX][COUNT];
    uint64_t step[RANKS_MAX], exchanges;
    bool is_open[RANKS_MAX]; /* a step has begun and its update is not yet made */
} reference;

static void close_step(reference *ref, int32_t r)
{
    for (uint64_t i = 0; ref->is_open[r] && i < COUNT; i++) {
        ref->v[r][i] = ref->momentum * ref->v[r][i] - (double)0.02f * ref->g[r][i];
        ref->x[r][i] += ref->v[r][i] - ref->elastic[r][i];
        ref->elastic[r][i] = 0;
    }
}

/* The gradient is that of x + momentum v, with a weight decay of 1e-3. */
static void begin_step(reference *ref, int32_t r, uint64_t step, uint64_t micro_batch)
{
    const eni_rng_key key = {7, ENI_RNG_SYNTHETIC, 0, micro_batch};
    close_step(ref, r);
    ref->is_open[r] = true;
    ref->step[r] = step;
    for (uint64_t i = 0; i < COUNT; i++) {
        const double at = ref->x[r][i] + ref->momentum * ref->v[r][i], u = 2 * eni_rng_unit(&key, i) - 1;
        ref->g[r][i] = (0.5 + (double)(i % 11) / 10) * (at - 1 - 0.5 * u) + (double)1e-3f * at;
    }
}

static void follow(void *user, const eni_sim_event *event)
{
    reference *ref = user;
    const int32_t r = event->rank;
    if (event->type == ENI_SIM_STEP) begin_step(ref, r, event->clock, event->version);
    if (event->type != ENI_SIM_PUSH) return;
    assert_int_equal(ref->step[r] % ref->period, 0); /* tau divides t: at step 0 as well */
    ref->exchanges++;
    for (uint64_t i = 0; i < COUNT; i++) {
        ref->elastic[r][i] = ref->alpha * (ref->x[r][i] - ref->z[i]);
        ref->z[i] += ref->elastic[r][i];
    }
}

static void is_algorithm_1_and_2(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int world;
        double alpha, momentum;
        uint64_t period;
    } of[] = {{"easgd", 4, 0.9 / 4, 0, 10},
              {"easgd:alpha=0.3,period=1", 3, 0.3, 0, 1},
              {"easgd:alpha=0.5/W,period=3", 5, 0.1, 0, 3},
              {"easgd:period=4,momentum=0.9", 4, 0.9 / 4, 0.9, 4},
              {"easgd:alpha=0.1,period=1,momentum=0.5", 8, 0.1, 0.5, 1}};
    static reference ref;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        float weights[COUNT];
        double gap = 0;
        rig r;
        ref = (reference){.alpha = of[i].alpha, .momentum = of[i].momentum, .period = of[i].period};
        rig_init(&r, of[i].spec, of[i].world, 400);
        r.config.bucket_cap_bytes = 0;
        r.config.hyper.momentum = 0;
        r.config.hyper.nesterov = 0;
        r.law.kind = ENI_LAW_LOGNORMAL;
        r.law.spread = 0.4;
        rig_slow(&r, 1, 3);
        r.config.weights_out = weights;
        r.config.trace = follow;
        r.config.trace_user = &ref;
        const eni_sim_result *out = rig_run(&r);
        assert_true(ref.exchanges > 300 / of[i].period && out->updates == ref.exchanges);
        for (int e = 0; e < COUNT; e++)
            gap = fmax(gap, fabs((double)weights[e] - ref.z[e]));
        if (!(gap < 2e-6)) fail_msg("%s: %.1e off its paper", of[i].spec, gap);
        printf("PROMISE %s (virtual): %" PRIu64 " exchanges of %d workers are algorithm %d within %.1e\n",
               of[i].spec, ref.exchanges, of[i].world, of[i].momentum > 0 ? 2 : 1, gap);
        rig_fini(&r);
    }
}

/* ---- what an exchange keeps ------------------------------------------------------------------------------ */

static uint64_t kicks[RANKS_MAX];

/* One kick to each worker in its first step, then a rate of 0 in all but name. */
static en_status kick(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)user, (void)micro_batch, (void)param;
    for (uint64_t i = 0; i < COUNT; i++)
        grad[i] = kicks[rank] == 0 ? (float)(1 + rank * rank) : 0;
    kicks[rank]++;
    return EN_OK;
}

/* x(i) + .. + z is what it was when workers and center have met: each is its (W + 1)th part. */
static void exchanges_keep_the_sum(void **state)
{
    (void)state;
    for (int world = 1; world <= RANKS_MAX; world++) {
        float weights[COUNT];
        double sum = 0;
        rig r;
        memset(kicks, 0, sizeof kicks);
        rig_init(&r, "easgd:alpha=0.2,period=1", world, (uint64_t)world * 400);
        r.config.hyper = (eni_hyper){0};
        r.config.nshards = 3;
        r.problem.problem.grad = kick;
        r.law.kind = ENI_LAW_LOGNORMAL;
        r.law.spread = 0.5;
        r.config.weights_out = weights;
        rig_run(&r);
        for (int rank = 0; rank < world; rank++)
            sum -= (double)0.02f * (1 + rank * rank);
        for (int i = 0; i < COUNT; i++)
            if (!(fabs((double)weights[i] * (world + 1) - sum) < 1e-6 * (1 + fabs(sum))))
                fail_msg("%d workers: sum %.9f became %.9f", world, sum, (double)weights[i] * (world + 1));
        rig_fini(&r);
    }
    printf("PROMISE easgd (virtual): at rate 0 the sum of workers and center stands still, 1 to %d workers\n",
           RANKS_MAX);
}

/* ---- stability ------------------------------------------------------------------------------------------- */

static en_status itself(void *user, int rank, uint64_t micro_batch, const float *param, float *grad)
{
    (void)user, (void)rank, (void)micro_batch;
    memcpy(grad, param, COUNT * sizeof *grad);
    return EN_OK;
}

/* The largest weight of the center on x^2/2 from 1, after 300 exchanges of each worker. */
static double center_of(int world, double rate, double alpha)
{
    char spec[64];
    float ones[COUNT], weights[COUNT];
    double most = 0;
    rig r;
    snprintf(spec, sizeof spec, "easgd:alpha=%.6f,period=1", alpha);
    rig_init(&r, spec, world, (uint64_t)world * 300);
    for (int i = 0; i < COUNT; i++)
        ones[i] = 1;
    r.problem.problem.grad = itself;
    r.problem.problem.init = ones;
    r.config.hyper = (eni_hyper){0};
    r.config.schedule.base = rate;
    r.config.weights_out = weights;
    rig_run(&r);
    for (int i = 0; i < COUNT; i++)
        most = fmax(most, fabs((double)weights[i]));
    rig_fini(&r);
    return most;
}

static void is_stable_inside_the_bound(void **state)
{
    (void)state;
    static const double rates[] = {0.5, 1, 1.5};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        const double bound = (4 - 2 * rates[i]) / (4 - rates[i]);
        for (int world = 1; world <= RANKS_MAX; world++)
            assert_true(center_of(world, rates[i], 0.98 * bound) < 0.05);
        assert_true(center_of(1, rates[i], 1.02 * bound) > 5);
    }
    printf(
        "PROMISE easgd (virtual): x^2/2 converges inside (4 - 2 rate) / (4 - rate) for 1 to %d workers, and "
        "diverges outside for 1\n",
        RANKS_MAX);
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

static void bytes_are_those_of_the_theory(void **state)
{
    (void)state;
    for (int period = 1; period <= 10; period += 3) {
        char spec[32];
        rig r;
        snprintf(spec, sizeof spec, "easgd:period=%d", period);
        rig_init(&r, spec, 4, 4 * 280);
        const eni_sim_result *out = rig_run(&r);
        const double sent = (double)out->sent / (COUNT * sizeof(float) * 280.0 * 4);
        assert_true(fabs(sent * period - 1) < 1e-3 && fabs(out->theory.sent * period - 1) < 1e-9);
        rig_fini(&r);
    }
}

int main(void)
{
    eni_log_set_level(0); /* it is warned of much of this */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_algorithm_1_and_2), cmocka_unit_test(exchanges_keep_the_sum),
        cmocka_unit_test(is_stable_inside_the_bound), cmocka_unit_test(bytes_are_those_of_the_theory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
