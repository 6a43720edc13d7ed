/* test_async.c - ps-async against the few lines that it is: a sequential loop in double that computes each
 * gradient on the weights that the event log says it was computed on. */
#include "tests/strategies/sim_rig.h"

/* Promise: ps-async is a sequential loop with the delays that its event log records. */

enum { COUNT = 200, VERSIONS = 401, WORLD = 4 };

typedef struct reference {
    double weights[VERSIONS][COUNT]; /* by version */
    double momentum[COUNT];
    uint64_t version, micro_batch[WORLD], staleness;
} reference;

/* torch.optim.SGD with Nesterov momentum and weight decay, in double. */
static void apply(reference *ref, uint64_t micro_batch, uint64_t base)
{
    const double mu = 0.9f, decay = 1e-3f, lr = (float)0.004;
    const eni_rng_key key = {7, ENI_RNG_SYNTHETIC, 0, micro_batch};
    const double *on = ref->weights[base], *from = ref->weights[ref->version];
    double *to = ref->weights[++ref->version];
    for (uint64_t i = 0; i < COUNT; i++) {
        const double u = 2 * eni_rng_unit(&key, i) - 1;
        const double g = (0.5 + (double)(i % 11) / 10) * (on[i] - 1 - 0.5 * u);
        const double d = g + decay * from[i];
        ref->momentum[i] = mu * ref->momentum[i] + d;
        to[i] = from[i] - lr * (d + mu * ref->momentum[i]);
    }
}

static void follow(void *user, const eni_sim_event *event)
{
    reference *ref = user;
    if (event->type == ENI_SIM_STEP) ref->micro_batch[event->rank] = event->version;
    if (event->type != ENI_SIM_PUSH) return;
    assert_int_equal(event->version, ref->version);
    ref->staleness += event->version - event->base;
    apply(ref, ref->micro_batch[event->rank], event->base);
}

static void is_a_sequential_loop_with_delay(void **state)
{
    (void)state;
    float weights[COUNT];
    static reference ref;
    rig r;
    memset(&ref, 0, sizeof ref);
    rig_init(&r, "ps-async", WORLD, VERSIONS - 1);
    r.config.bucket_cap_bytes = 0; /* one bucket, one partition: a version of it is a version of the model */
    r.config.schedule.base = 0.004;
    r.law.kind = ENI_LAW_LOGNORMAL;
    r.law.spread = 0.4;
    rig_slow(&r, 2, 3);
    r.config.weights_out = weights;
    r.config.trace = follow;
    r.config.trace_user = &ref;
    const eni_sim_result *out = rig_run(&r);
    assert_int_equal(ref.version, VERSIONS - 1);
    assert_int_equal(out->updates, VERSIONS - 1);
    assert_true(ref.staleness > 2 * VERSIONS);
    double gap = 0;
    for (int i = 0; i < COUNT; i++)
        gap = fmax(gap, fabs(weights[i] - ref.weights[VERSIONS - 1][i]));
    assert_true(gap < 2e-5);
    printf(
        "PROMISE ps-async (virtual): %d updates of %d workers are a sequential loop with those delays within "
        "%.1e\n",
        VERSIONS - 1, WORLD, gap);
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_a_sequential_loop_with_delay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
