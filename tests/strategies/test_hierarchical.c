/* test_hierarchical.c - two levels on the virtual host: the mean of hosts is the mean of their ranks,
 * whatever the samples behind each; bytes are those of the theory; a bound between hosts is kept, and nobody
 * waits longer than it; a thousand ranks. */
#include "tests/strategies/sim_rig.h"

/* Promise: hierarchical has ring's mean whatever the samples of each rank, its theory's payload, and a
 * bound between hosts that is kept. */

enum { COUNT = 200, WIDE = 36000 };

/* A ragged last step: one rank has three samples, the others of its round as many or none. */
static void train(const char *spec, int nranks, int local, uint64_t last_samples, float *weights)
{
    rig r;
    rig_init(&r, spec, nranks, (uint64_t)nranks * 100 - 1);
    rig_ragged(&r, last_samples);
    r.config.local_size = local;
    r.config.nshards = 2;
    r.config.weights_out = weights;
    rig_slow(&r, nranks - 1, 2);
    const eni_sim_result *out = rig_run(&r);
    assert_int_equal(out->has_equal_ranks, 1);
    assert_int_equal(out->dropped, 0);
    assert_int_equal(out->staleness.max, 0);
    rig_fini(&r);
}

static double gap_of(const float *a, const float *b)
{
    double gap = 0;
    for (int i = 0; i < COUNT; i++)
        gap = fmax(gap, fabs(a[i] - b[i]) / (1 + fabs(b[i])));
    return gap;
}

static void mean_of_hosts_is_mean_of_ranks(void **state)
{
    (void)state;
    static const struct {
        int nranks, local;
    } of[] = {{2, 1}, {2, 2}, {4, 2}, {6, 3}, {6, 2}, {8, 4}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        float ring[COUNT], two[COUNT];
        train("ring", of[i].nranks, of[i].local, 3, ring);
        train("hierarchical", of[i].nranks, of[i].local, 3, two);
        const double gap = gap_of(two, ring);
        assert_true(gap < (of[i].nranks > of[i].local ? 1e-5 : 1e-300)); /* one host: the same bytes */
        printf("PROMISE hierarchical (virtual), %d hosts x %d ranks, 100 steps, nesterov, ragged: ring "
               "within %.1e\n",
               of[i].nranks / of[i].local, of[i].local, gap);
    }
}

/* One rank on each host is ps-sync. */
static void of_single_ranks_is_ps_sync(void **state)
{
    (void)state;
    float ps[COUNT], two[COUNT];
    train("ps-sync", 4, 1, 3, ps);
    train("hierarchical", 4, 1, 3, two);
    assert_memory_equal(ps, two, sizeof ps);
}

/* Were a leader's push counted with its own samples, hosts of unequal load would count alike: here host 1's
 * two ranks have 8 and 1 samples, host 0's 8 and 8. */
static void hosts_count_by_their_samples(void **state)
{
    (void)state;
    float ring[COUNT], two[COUNT], even[COUNT];
    train("ring", 4, 2, 1, ring);
    train("hierarchical", 4, 2, 1, two);
    train("ring", 4, 2, 8, even);
    assert_true(gap_of(two, ring) < 1e-5);
    assert_true(gap_of(even, ring) > 1e-4); /* and the samples do matter */
}

static void bytes_are_those_of_the_theory(void **state)
{
    (void)state;
    for (int local = 1; local <= 4; local++) {
        rig r;
        const int hosts = 3, world = hosts * local;
        rig_init(&r, "hierarchical", world, (uint64_t)world * 40);
        r.config.local_size = local;
        r.config.nshards = 2;
        eni_quadratic_fini(&r.problem);
        assert_int_equal(eni_quadratic_init(&r.problem, WIDE, 7), EN_OK); /* slices are cut on 16 elements */
        r.config.bucket_cap_bytes = WIDE;
        const eni_sim_result *out = rig_run(&r);
        const double model = WIDE * sizeof(float), steps = world * 40, l = local;
        const double formula = (l - 1) / l * (1 + 1 / l) + (l - 1) / l + 1 / l;
        assert_true(fabs(out->theory.sent - formula) < 1e-9 && fabs(out->theory.recv - formula) < 1e-9);
        assert_true(fabs((double)out->sent - formula * model * steps) < 0.002 * model * steps);
        assert_true(fabs((double)out->recv - formula * model * steps) < 0.002 * model * steps);
        assert_int_equal(out->pushes, (uint64_t)hosts * out->updates);
        printf("PROMISE bytes (virtual): hierarchical 3 hosts x %d: sent %.4f of the model a step and rank, "
               "theory "
               "%.4f; %.4f of it between hosts\n",
               local, (double)out->sent / model / steps, out->theory.sent, 1 / l);
        rig_fini(&r);
    }
}

static void a_bound_between_hosts_is_reached_and_kept(void **state)
{
    (void)state;
    for (int bound = 0; bound <= 3; bound++) {
        char spec[40];
        rig r;
        snprintf(spec, sizeof spec, "hierarchical:bound=%d", bound);
        rig_init(&r, spec, 6, 600);
        r.config.local_size = 2;
        rig_slow(&r, 1, 4); /* its whole host is slow */
        const eni_sim_result *out = rig_run(&r);
        assert_true(out->holds > 0);
        assert_int_equal(out->clocks_ahead, bound);
        assert_true(out->theory.max_clocks_behind == bound);
        assert_int_equal(out->updates, out->pushes);
        printf("PROMISE clocks (virtual): hierarchical:bound=%d, one host of 3 is 4x slower: %llu holds, at "
               "most %llu "
               "ahead\n",
               bound, (unsigned long long)out->holds, (unsigned long long)out->clocks_ahead);
        rig_fini(&r);
    }
}

/* Pushes leave while later buckets are still computed: a step does not pay a round trip for each bucket. */
static void buckets_are_in_flight_together(void **state)
{
    (void)state;
    double seconds[2];
    for (int many = 0; many < 2; many++) {
        rig r;
        rig_init(&r, "hierarchical", 4, 40);
        r.config.local_size = 2;
        r.config.bucket_cap_bytes = many ? 64 : 1 << 20; /* 13 buckets, or 1 */
        r.link = (eni_net_link){.delay_ns = ENI_MILLI};
        r.law.mean_ns = 1000;
        seconds[many] = (double)rig_run(&r)->virtual_ns * 1e-9;
        rig_fini(&r);
    }
    /* the collectives inside a host take their turns; 13 round trips one after the other would be 26 ms more
     */
    printf("PROMISE hierarchical (virtual): 10 steps of 1 bucket %.1f ms, of 13 buckets %.1f ms\n",
           1e3 * seconds[0], 1e3 * seconds[1]);
    assert_true(seconds[1] - seconds[0] < 10 * 13 * 3.1e-3);
}

static void a_thousand_ranks(void **state)
{
    (void)state;
    char weights[2][ENI_DIGEST_HEX];
    for (int i = 0; i < 2; i++) {
        rig r;
        rig_init(&r, "hierarchical", 1000, 5000);
        r.config.local_size = 8;
        r.config.nshards = 4;
        const eni_sim_result *out = rig_run(&r);
        assert_int_equal(out->has_equal_ranks, 1);
        assert_int_equal(out->pushes, 125 * out->updates);
        memcpy(weights[i], out->weights_sha256, sizeof weights[i]);
        rig_fini(&r);
    }
    assert_string_equal(weights[0], weights[1]);
    printf("PROMISE hierarchical (virtual): 125 hosts x 8 ranks end alike, twice the same: %.16s\n",
           weights[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_of_hosts_is_mean_of_ranks),
        cmocka_unit_test(of_single_ranks_is_ps_sync),
        cmocka_unit_test(hosts_count_by_their_samples),
        cmocka_unit_test(bytes_are_those_of_the_theory),
        cmocka_unit_test(a_bound_between_hosts_is_reached_and_kept),
        cmocka_unit_test(buckets_are_in_flight_together),
        cmocka_unit_test(a_thousand_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
