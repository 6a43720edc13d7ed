/* test_asynchronous.c - the asynchronous servers that look at delays (strategies/asynchronous.c), each against the few lines
 * of its paper: a sequential loop in double that knows the order of arrival and the version that each gradient was computed
 * on, and derives the rest: what is dropped, shrunk, gathered or corrected. */
#include "tests/strategies/sim_rig.h"

/* Promise: Each asynchronous strategy is its paper's sequential loop, with the delays of its event log, and ps-async in log and
 * bytes where its rule does nothing. */

enum { COUNT = 200, PUSHES = 400, WORLD = 4 };

typedef struct reference reference;
struct reference {
    const char *spec;
    /* What becomes of a gradient (COUNT) of this delay, computed on `base`: true if the model steps with it now. */
    bool (*rule)(reference *ref, uint64_t delay, const double *base, double *gradient);
    double option;                     /* its number */
    bool is_off;                       /* of softsync: rate=none */
    double weights[PUSHES + 1][COUNT]; /* by version */
    double momentum[COUNT], sum[COUNT];
    uint64_t version, gathered, dropped, oldest, delays, micro_batch[2 * WORLD];
};

static void gradient_of(uint64_t micro_batch, const double *on, double *gradient_out)
{
    const eni_rng_key key = {7, ENI_RNG_SYNTHETIC, 0, micro_batch};
    for (uint64_t i = 0; i < COUNT; i++) {
        const double u = 2 * eni_rng_unit(&key, i) - 1;
        gradient_out[i] = (0.5 + (double)(i % 11) / 10) * (on[i] - 1 - 0.5 * u);
    }
}

/* torch.optim.SGD with Nesterov momentum and weight decay, in double. */
static void step(reference *ref, const double *gradient)
{
    const double mu = 0.9f, decay = 1e-3f, lr = (float)0.004;
    const double *from = ref->weights[ref->version];
    double *to = ref->weights[++ref->version];
    for (uint64_t i = 0; i < COUNT; i++) {
        const double d = gradient[i] + decay * from[i];
        ref->momentum[i] = mu * ref->momentum[i] + d;
        to[i] = from[i] - lr * (d + mu * ref->momentum[i]);
    }
}

static void follow(void *user, const eni_sim_event *event)
{
    reference *ref = user;
    double gradient[COUNT];
    if (event->type == ENI_SIM_STEP) ref->micro_batch[event->rank] = event->version;
    if (event->type != ENI_SIM_PUSH) return;
    assert_int_equal(event->version, ref->version); /* the server has stepped exactly where the paper does */
    const uint64_t delay = event->version - event->base;
    const double *base = ref->weights[event->base];
    gradient_of(ref->micro_batch[event->rank], base, gradient);
    ref->delays += delay;
    if (!ref->rule(ref, delay, base, gradient)) return;
    if (delay > ref->oldest) ref->oldest = delay;
    step(ref, gradient);
}

/* ---- the rules ------------------------------------------------------------------------------------------ */

/* Maranjyan'25, alg. 4: the gradient counts if its delay is below R. */
static bool ringmaster(reference *ref, uint64_t delay, const double *base, double *gradient)
{
    (void)base, (void)gradient;
    if ((double)delay < ref->option) return true;
    ref->dropped++;
    return false;
}

/* Mishchenko'22: the rate is rate W / max(W, delay), here to a power. */
static bool adaptive(reference *ref, uint64_t delay, const double *base, double *gradient)
{
    (void)base;
    const double factor = pow(WORLD / fmax(WORLD, (double)delay), ref->option);
    for (uint64_t i = 0; i < COUNT; i++)
        gradient[i] *= factor;
    return true;
}

/* Zhang'16: the mean of `option` gradients, each over its delay. */
static bool softsync(reference *ref, uint64_t delay, const double *base, double *gradient)
{
    (void)base;
    for (uint64_t i = 0; i < COUNT; i++)
        ref->sum[i] += gradient[i] / (delay > 1 && !ref->is_off ? (double)delay : 1);
    if ((double)++ref->gathered < ref->option) return false;
    for (uint64_t i = 0; i < COUNT; i++) {
        gradient[i] = ref->sum[i] / ref->option;
        ref->sum[i] = 0;
    }
    ref->gathered = 0;
    return true;
}

/* Zheng'17, eq. 10: the weights that the worker was sent last are those of `base`. */
static bool dc(reference *ref, uint64_t delay, const double *base, double *gradient)
{
    (void)delay;
    for (uint64_t i = 0; i < COUNT; i++)
        gradient[i] += ref->option * gradient[i] * gradient[i] * (ref->weights[ref->version][i] - base[i]);
    return true;
}

/* The same, algorithm 2: lambda is lambda0 / sqrt(mean square + 1e-7). */
static bool dc_adaptive(reference *ref, uint64_t delay, const double *base, double *gradient)
{
    (void)delay;
    for (uint64_t i = 0; i < COUNT; i++) {
        const double square = gradient[i] * gradient[i];
        ref->sum[i] = 0.95 * ref->sum[i] + 0.05 * square;
        gradient[i] +=
            ref->option / sqrt(ref->sum[i] + 1e-7) * square * (ref->weights[ref->version][i] - base[i]);
    }
    return true;
}

/* ---- the comparison ------------------------------------------------------------------------------------- */

/* One bucket and one shard, so that a version of the partition is one of the model; uneven speeds. */
static void is_the_sequential_loop(reference *ref, int world)
{
    float weights[COUNT];
    rig r;
    rig_init(&r, ref->spec, world, PUSHES);
    r.config.bucket_cap_bytes = 0;
    r.config.schedule.base = 0.004;
    r.law.kind = ENI_LAW_LOGNORMAL;
    r.law.spread = 0.4;
    rig_slow(&r, world - 1, 6);
    r.config.weights_out = weights;
    r.config.trace = follow;
    r.config.trace_user = ref;
    const eni_sim_result *out = rig_run(&r);
    assert_int_equal(out->updates, ref->version);
    assert_int_equal(out->dropped, 8 * ref->dropped); /* samples of a micro-batch */
    double gap = 0;
    for (int i = 0; i < COUNT; i++)
        gap = fmax(gap, fabs(weights[i] - ref->weights[ref->version][i]));
    if (!(gap < 2e-5)) fail_msg("%s: %.1e off its paper", ref->spec, gap);
    printf("PROMISE %s (virtual): %d gradients of %d workers are the paper's loop within %.1e\n", ref->spec,
           PUSHES, world, gap);
    rig_fini(&r);
}

static void ringmaster_is_algorithm_4(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        double threshold;
    } of[] = {{"ringmaster", 2 * WORLD},
              {"ringmaster:threshold=1", 1},
              {"ringmaster:threshold=3", 3},
              {"ringmaster:threshold=W", WORLD}};
    static reference ref;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ref = (reference){.spec = of[i].spec, .rule = ringmaster, .option = of[i].threshold};
        is_the_sequential_loop(&ref, WORLD);
        assert_true(ref.dropped > 0);
        assert_true((double)ref.oldest < of[i].threshold);
        if (of[i].threshold <= WORLD) assert_int_equal(ref.oldest, of[i].threshold - 1);
    }
}

static void delay_adaptive_shrinks_the_rate(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        double power;
    } of[] = {{"delay-adaptive", 1}, {"delay-adaptive:power=0", 0}, {"delay-adaptive:power=3", 3}};
    static reference ref;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ref = (reference){.spec = of[i].spec, .rule = adaptive, .option = of[i].power};
        is_the_sequential_loop(&ref, WORLD);
        assert_int_equal(ref.version, PUSHES);
        assert_true(ref.oldest > WORLD); /* some were shrunk */
    }
}

static void softsync_takes_means_of_stale_gradients(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int world;
        double gradients;
        bool is_off;
    } of[] = {{"softsync", 4, 1, false},          {"softsync:splits=2", 4, 2, false},
              {"softsync:splits=1", 4, 4, false}, {"softsync:splits=2", 5, 2, false},
              {"softsync:splits=3", 8, 2, false}, {"softsync:splits=2,rate=none", 8, 4, true}};
    static reference ref;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ref = (reference){
            .spec = of[i].spec, .rule = softsync, .option = of[i].gradients, .is_off = of[i].is_off};
        is_the_sequential_loop(&ref, of[i].world);
        assert_int_equal(ref.version, PUSHES / (int)of[i].gradients);
    }
}

static void dc_asgd_is_equation_10(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        bool is_adaptive;
        double lambda;
    } of[] = {{"dc-asgd", false, 0.04},
              {"dc-asgd:lambda=2", false, 2},
              {"dc-asgd:adaptive", true, 2},
              {"dc-asgd:adaptive=on,lambda0=0.5", true, 0.5}};
    static reference ref;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ref = (reference){
            .spec = of[i].spec, .rule = of[i].is_adaptive ? dc_adaptive : dc, .option = of[i].lambda};
        is_the_sequential_loop(&ref, WORLD);
    }
}

/* (W - 1) / c at any speeds. A worker joins or leaves while others work, so the ends of a run count a little less. */
static void staleness_is_that_of_softsync(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int world;
        double mean;
    } of[] = {
        {"softsync:splits=1", 30, 29.0 / 30}, {"softsync:splits=15", 30, 29.0 / 2}, {"softsync", 30, 29},
        {"softsync:splits=2", 8, 7.0 / 4},    {"softsync:splits=3", 8, 7.0 / 2},    {"softsync", 8, 7}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        rig r;
        rig_init(&r, of[i].spec, of[i].world, 30000);
        r.config.bucket_cap_bytes = 0;
        r.config.schedule.base = 1e-4;
        r.law.kind = ENI_LAW_EXPONENTIAL;
        const eni_sim_result *out = rig_run(&r);
        const double mean = eni_histogram_mean(&out->staleness);
        if (!(fabs(mean / of[i].mean - 1) < 0.01) || fabs(out->theory.staleness - of[i].mean) > 1e-9)
            fail_msg("%s, %d workers: staleness %.3f, theory %.3f", of[i].spec, of[i].world, mean,
                     of[i].mean);
        printf("PROMISE %s (virtual): %d workers, mean staleness %.3f, (W - 1) / c = %.3f\n", of[i].spec,
               of[i].world, mean, of[i].mean);
        rig_fini(&r);
    }
}

/* ---- ps-async ------------------------------------------------------------------------------------------- */

/* Three buckets on two shards, lognormal times, a slow worker, a ragged end: rules that do nothing leave no trace. */
static void hashes_of(const char *spec, int world, char hashes_out[2][ENI_DIGEST_HEX])
{
    rig r;
    rig_init(&r, spec, world, PUSHES);
    r.config.nshards = 2;
    r.problem.last_batch = PUSHES - 1;
    r.problem.last_samples = 3;
    r.law.kind = ENI_LAW_LOGNORMAL;
    r.law.spread = 0.5;
    rig_slow(&r, 0, 3);
    const eni_sim_result *out = rig_run(&r);
    memcpy(hashes_out[0], out->weights_sha256, ENI_DIGEST_HEX);
    memcpy(hashes_out[1], out->log_sha256, ENI_DIGEST_HEX);
    rig_fini(&r);
}

static void rules_that_do_nothing_are_ps_async(void **state)
{
    (void)state;
    static const char *const off[] = {"ringmaster:threshold=inf", "delay-adaptive:power=0",
                                      "softsync:rate=none", "dc-asgd:lambda=0", "dc-asgd:adaptive,lambda0=0"};
    static const char *const on[] = {"ringmaster:threshold=4",      "delay-adaptive", "softsync",
                                     "softsync:rate=none,splits=1", "dc-asgd",        "dc-asgd:adaptive"};
    static const char *const one[] = {"ringmaster:threshold=1", "delay-adaptive", "softsync", "dc-asgd",
                                      "dc-asgd:adaptive"};
    for (int world = 1; world <= 6; world++) {
        char async[2][ENI_DIGEST_HEX], other[2][ENI_DIGEST_HEX];
        hashes_of("ps-async", world, async);
        for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
            hashes_of(off[i], world, other);
            assert_string_equal(other[0], async[0]);
            assert_string_equal(other[1], async[1]);
        }
        for (size_t i = 0; world > 2 && i < sizeof on / sizeof *on; i++) {
            hashes_of(on[i], world, other);
            assert_string_not_equal(other[0], async[0]);
        }
    }
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        char solo[2][ENI_DIGEST_HEX], other[2][ENI_DIGEST_HEX];
        hashes_of("solo", 1, solo);
        hashes_of(one[i], 1, other);
        assert_string_equal(other[0], solo[0]);
    }
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        printf("PROMISE same log and bytes (virtual): %s = ps-async, 1 to 6 workers\n", off[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ringmaster_is_algorithm_4),
                                       cmocka_unit_test(delay_adaptive_shrinks_the_rate),
                                       cmocka_unit_test(softsync_takes_means_of_stale_gradients),
                                       cmocka_unit_test(staleness_is_that_of_softsync),
                                       cmocka_unit_test(dc_asgd_is_equation_10),
                                       cmocka_unit_test(rules_that_do_nothing_are_ps_async)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
