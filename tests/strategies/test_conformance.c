/* test_conformance.c - what every strategy has to keep, tried on the virtual host: the same run twice is the
 * same run; equal arithmetic gives equal bytes; bytes are those of the theory; staleness and clocks are
 * those of the paper. */
#include "tests/strategies/sim_rig.h"

/* Promise: In virtual time every strategy repeats its log and weights, equal arithmetic gives equal bytes,
 * and staleness, clocks and payload are those of theory. */

static const char *const everyone[] = {"solo",
                                       "ring",
                                       "ps-sync",
                                       "ps-async",
                                       "ssp:bound=2",
                                       RIG_PLUGINS "/localsgd.so:period=4",
                                       RIG_ZOO "zero1",
                                       RIG_ZOO "gossip",
                                       RIG_ZOO "visit",
                                       RIG_ZOO "hier",
                                       RIG_ZOO "late",
                                       "hybrid:ps=a",
                                       "hybrid:auto",
                                       "hierarchical",
                                       "hierarchical:bound=1",
                                       "ringmaster:threshold=2",
                                       "delay-adaptive",
                                       "softsync:splits=2",
                                       "dc-asgd:adaptive",
                                       "easgd:period=3",
                                       "local-sgd:period=4,start=9",
                                       "slowmo:period=5,buffer=average",
                                       "diloco:period=5,momentum=0.5",
                                       "d-psgd",
                                       "d-psgd:graph=exponential"};
enum { EVERYONE = sizeof everyone / sizeof *everyone };

static void same_run_twice_same_hash(void **state)
{
    (void)state;
    for (int i = 0; i < EVERYONE; i++) {
        char log[ENI_DIGEST_HEX], weights[ENI_DIGEST_HEX];
        rig r;
        rig_init(&r, everyone[i], strcmp(everyone[i], "solo") == 0 ? 1 : 4, 200);
        if (r.config.nranks > 1) r.config.local_size = 2;
        r.config.nshards = 2;
        r.law.kind = ENI_LAW_LOGNORMAL;
        r.law.spread = 0.5;
        const eni_sim_result *out = rig_run(&r);
        memcpy(log, out->log_sha256, sizeof log);
        memcpy(weights, out->weights_sha256, sizeof weights);
        out = rig_run(&r);
        assert_string_equal(log, out->log_sha256);
        assert_string_equal(weights, out->weights_sha256);
        if (r.config.nranks > 1) { /* times follow the seed, and the log follows them */
            r.config.seed++;
            assert_string_not_equal(log, rig_run(&r)->log_sha256);
        }
        rig_fini(&r);
    }
    printf("PROMISE virtual host: %d strategies, the same log hash and weights twice\n", EVERYONE);
}

/* ---- byte for byte ------------------------------------------------------------------------------------- */

/* `steps` steps of W ranks; the last has a ragged micro-batch and a rank without one. */
static void weights_of(const char *spec, int nranks, int nshards, uint64_t accumulate, double slow,
                       char *hex_out)
{
    rig r;
    const int world = accumulate > 1 ? (int)accumulate : nranks;
    rig_init(&r, spec, nranks, (uint64_t)world * 250 - 1);
    rig_ragged(&r, 3);
    r.config.nshards = nshards;
    r.config.accumulate = accumulate;
    if (slow > 1) rig_slow(&r, 0, slow);
    const eni_sim_result *out = rig_run(&r);
    assert_int_equal(out->has_equal_ranks, 1);
    assert_int_equal(out->dropped, 0);
    memcpy(hex_out, out->weights_sha256, ENI_DIGEST_HEX);
    rig_fini(&r);
}

static void ring_is_ps_sync_is_solo(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int nshards;
        double slow;
    } arms[] = {{"ring", 1, 1},     {"ring", 1, 4},          {"ps-sync", 1, 1},    {"ps-sync", 3, 4},
                {"ps-sync", 40, 1}, {RIG_ZOO "zero1", 1, 4}, {"hybrid:ps=c", 3, 4}};
    char solo[ENI_DIGEST_HEX], other[ENI_DIGEST_HEX];
    for (int world = 2; world <= 4; world++) {
        weights_of("solo", 1, 1, (uint64_t)world, 1, solo);
        for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
            weights_of(arms[i].spec, world, arms[i].nshards, 1, arms[i].slow, other);
            assert_string_equal(solo, other);
        }
        printf(
            "PROMISE same bytes (virtual): solo --accumulate=%d = ring = ps-sync (1, 3, 40 shards) = zero1, "
            "250 steps, nesterov, ragged, straggler: %.16s\n",
            world, solo);
    }
}

static void async_of_one_is_solo(void **state)
{
    (void)state;
    static const char *const arms[] = {"ps-async", "ps-sync", "ssp:bound=0", "ring"};
    char solo[ENI_DIGEST_HEX], other[ENI_DIGEST_HEX];
    weights_of("solo", 1, 1, 1, 1, solo);
    for (int i = 0; i < 4; i++) {
        weights_of(arms[i], 1, 3, 1, 1, other);
        assert_string_equal(solo, other);
    }
    printf("PROMISE same bytes (virtual): ps-async of one worker = solo: %.16s\n", solo);
}

/* The equalities above would hold of anything if nothing moved. */
static void training_trains(void **state)
{
    (void)state;
    float weights[200];
    for (int i = 0; i < EVERYONE; i++) {
        rig r;
        rig_init(&r, everyone[i], strcmp(everyone[i], "solo") == 0 ? 1 : 4, 1200);
        r.config.local_size = r.config.nranks > 1 ? 2 : 1;
        r.config.schedule.base = 0.005;
        r.config.weights_out = weights;
        rig_run(&r);
        const double before = eni_quadratic_loss(&r.problem, r.problem.init);
        assert_true(eni_quadratic_loss(&r.problem, weights) < 0.02 * before);
        rig_fini(&r);
    }
}

static void mean_of_weights_is_mean_of_gradients(void **state)
{
    (void)state;
    enum { WORLD = 3, STEPS = 100, COUNT = 200 };
    float weights[COUNT];
    double expected[COUNT] = {0};
    rig r;
    rig_init(&r, RIG_PLUGINS "/localsgd.so:period=1", WORLD, WORLD * STEPS);
    r.config.hyper = (eni_hyper){0};
    r.config.weights_out = weights;
    rig_run(&r);
    for (uint64_t step = 0; step < STEPS; step++)
        for (uint64_t i = 0; i < COUNT; i++) {
            double sum = 0;
            for (uint64_t rank = 0; rank < WORLD; rank++) {
                const eni_rng_key key = {7, ENI_RNG_SYNTHETIC, 0, step * WORLD + rank};
                const double u = 2 * eni_rng_unit(&key, i) - 1;
                sum += (0.5 + (double)(i % 11) / 10) * (expected[i] - 1 - 0.5 * u);
            }
            expected[i] -= (double)0.02f * sum / WORLD;
        }
    double gap = 0;
    for (int i = 0; i < COUNT; i++)
        gap = fmax(gap, fabs(weights[i] - expected[i]));
    assert_true(gap < 1e-5);
    printf("PROMISE localsgd: period 1 is the sequential mean within %.1e\n", gap);
    rig_fini(&r);
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

static void bytes_are_those_of_the_theory(void **state)
{
    (void)state;
    static const char *const arms[] = {"solo",
                                       "ring",
                                       "ps-sync",
                                       "ps-async",
                                       "ssp",
                                       RIG_PLUGINS "/localsgd.so:period=4",
                                       "ringmaster:threshold=1",
                                       "softsync:splits=1",
                                       "dc-asgd",
                                       "ringmaster:threshold=4",
                                       "delay-adaptive",
                                       "easgd:period=4",
                                       "local-sgd:period=4",
                                       "local-sgd:period=4,start=8",
                                       "slowmo:period=4",
                                       "diloco:period=4",
                                       "d-psgd",
                                       "d-psgd:graph=complete",
                                       "d-psgd:graph=exponential"};
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++)
        for (int world = 2; world <= 5; world++) {
            rig r;
            if (strstr(arms[i], "exponential") != NULL && (world & (world - 1)) != 0) continue;
            rig_init(&r, arms[i], i == 0 ? 1 : world, (uint64_t)world * 40);
            r.config.nshards = 3;
            const eni_sim_result *out = rig_run(&r);
            assert_int_equal(out->has_theory, 1);
            /* Dropped gradients were sent, too. */
            assert_true(out->dropped > 0 || strcmp(arms[i], "ringmaster:threshold=1") != 0);
            const double model = (double)r.problem.problem.count * sizeof(float), steps = (double)world * 40;
            const double sent = out->theory.sent * model * steps, recv = out->theory.recv * model * steps;
            assert_true(fabs((double)out->sent - sent) <= 0.001 * sent);
            assert_true(fabs((double)out->recv - recv) <= 0.001 * recv);
            if (world == 4)
                printf("PROMISE bytes (virtual): %s W=4 sent %.4f of the model a step, theory %.4f\n",
                       r.config.strategy->name, (double)out->sent / model / steps, out->theory.sent);
            rig_fini(&r);
        }
}

/* ---- staleness and clocks ------------------------------------------------------------------------------ */

static double mean_staleness(int world, int noise, double slow)
{
    rig r;
    rig_init(&r, "ps-async", world, (uint64_t)world * 400);
    r.config.schedule.base =
        1e-4; /* the staleness does not depend on it, but 8 stale workers would diverge */
    r.law.kind = noise;
    r.law.spread = 0.5;
    if (slow > 1) rig_slow(&r, world - 1, slow);
    const eni_sim_result *out = rig_run(&r);
    const double mean = eni_histogram_mean(&out->staleness);
    assert_true(out->has_theory && fabs(out->theory.staleness - (world - 1)) < 1e-9);
    assert_true(out->staleness.count > (uint64_t)world * 300);
    rig_fini(&r);
    return mean;
}

static void async_staleness_is_one_less_than_the_world(void **state)
{
    (void)state;
    for (int world = 2; world <= 8; world *= 2) {
        const double constant = mean_staleness(world, ENI_LAW_FIXED, 1);
        const double lognormal = mean_staleness(world, ENI_LAW_LOGNORMAL, 1);
        const double slow = mean_staleness(world, ENI_LAW_LOGNORMAL, 4);
        assert_true(fabs(constant / (world - 1) - 1) < 0.05);
        assert_true(fabs(lognormal / (world - 1) - 1) < 0.05);
        assert_true(fabs(slow / (world - 1) - 1) < 0.05);
        printf(
            "PROMISE staleness (virtual): ps-async W=%d mean %.2f constant, %.2f lognormal, %.2f one slow; "
            "expected %d\n",
            world, constant, lognormal, slow, world - 1);
    }
}

static void synchronous_is_never_stale(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, "ps-sync", 4, 400);
    rig_slow(&r, 2, 4);
    assert_int_equal(rig_run(&r)->staleness.max, 0);
    rig_fini(&r);
}

/* Counts clocks from the event log alone, to check what the store says of itself. */
typedef struct clocks {
    uint64_t pushed[8], ahead;
    int world, is_over;
} clocks;

static void watch_clocks(void *user, const eni_sim_event *event)
{
    clocks *c = user;
    if (event->type == ENI_SIM_FINISHED) c->is_over = 1;
    if (c->is_over || event->bucket != 0 || event->peer != 0) return;
    if (event->type == ENI_SIM_PUSH) c->pushed[event->rank] = event->clock;
    if (event->type != ENI_SIM_REPLY) return;
    uint64_t slowest = UINT64_MAX;
    for (int r = 0; r < c->world; r++)
        slowest = c->pushed[r] < slowest ? c->pushed[r] : slowest;
    if (event->clock - slowest > c->ahead) c->ahead = event->clock - slowest;
}

static void ssp_reaches_its_bound_and_never_passes_it(void **state)
{
    (void)state;
    for (int bound = 0; bound <= 5; bound++) {
        char spec[32];
        clocks seen = {.world = 4};
        rig r;
        snprintf(spec, sizeof spec, "ssp:bound=%d", bound);
        rig_init(&r, spec, 4, 800);
        rig_slow(&r, 1, 4);
        r.config.nshards = 2;
        r.config.trace = watch_clocks;
        r.config.trace_user = &seen;
        const eni_sim_result *out = rig_run(&r);
        assert_true(out->holds > 0);
        assert_int_equal(seen.ahead, bound);
        assert_int_equal(out->clocks_ahead, bound);
        assert_true(out->theory.max_clocks_behind == bound);
        if (bound == 2 || bound == 3)
            printf("PROMISE clocks (virtual): ssp bound %d, one of 4 workers 4x slower: %llu holds, at most "
                   "%llu "
                   "ahead\n",
                   bound, (unsigned long long)out->holds, (unsigned long long)seen.ahead);
        rig_fini(&r);
    }
}

/* Without a bound the same straggler is left far behind: the test above sees something. */
static void async_passes_any_bound(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, "ps-async", 4, 800);
    rig_slow(&r, 1, 4);
    const eni_sim_result *out = rig_run(&r);
    assert_int_equal(out->holds, 0);
    assert_true(out->clocks_ahead > 50);
    rig_fini(&r);
}

static void a_fast_worker_does_more(void **state)
{
    (void)state;
    rig r;
    rig_init(&r, "ps-async", 2, 400);
    rig_slow(&r, 1, 3);
    const eni_sim_result *out = rig_run(&r);
    const double share = (double)out->rank[0].steps / (double)out->rank[1].steps;
    assert_true(share > 2.8 && share < 3.2);
    assert_int_equal(out->rank[0].steps + out->rank[1].steps, 400);
    r.config.assign = ENI_SIM_FIXED;
    out = rig_run(&r);
    assert_int_equal(out->rank[0].steps, 200);
    assert_int_equal(out->rank[1].steps, 200);
    rig_fini(&r);
}

/* Claims instead of a fixed assignment leave a last round to one worker alone: whether the others finish
 * before or after its push has arrived, the store must not wait for them. */
static void a_round_does_not_wait_for_who_has_finished(void **state)
{
    (void)state;
    for (int64_t mean_ns = 0; mean_ns <= ENI_MILLI; mean_ns += ENI_MILLI) {
        rig r;
        rig_init(&r, "ps-sync", 3, 10);
        r.config.assign = ENI_SIM_CLAIM;
        r.config.bucket_cap_bytes = 0;
        r.law.mean_ns = mean_ns;
        const eni_sim_result *out = rig_run(&r);
        assert_int_equal(out->updates, 4);
        assert_int_equal(out->pushes, 10);
        rig_fini(&r);
    }
}

static void quiet(void *user, int level, const char *subsystem, const char *text)
{
    (void)user;
    if (level == ENI_LOG_ERROR) fprintf(stderr, "%s: %s\n", subsystem, text);
}

int main(void)
{
    eni_log_set_sink(quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_run_twice_same_hash),
        cmocka_unit_test(ring_is_ps_sync_is_solo),
        cmocka_unit_test(async_of_one_is_solo),
        cmocka_unit_test(training_trains),
        cmocka_unit_test(mean_of_weights_is_mean_of_gradients),
        cmocka_unit_test(bytes_are_those_of_the_theory),
        cmocka_unit_test(async_staleness_is_one_less_than_the_world),
        cmocka_unit_test(synchronous_is_never_stale),
        cmocka_unit_test(ssp_reaches_its_bound_and_never_passes_it),
        cmocka_unit_test(async_passes_any_bound),
        cmocka_unit_test(a_fast_worker_does_more),
        cmocka_unit_test(a_round_does_not_wait_for_who_has_finished),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
