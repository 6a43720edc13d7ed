/* test_cost_model.c - the formulas at their known limits: one rank, a free network, one that is everything,
 * and where ring and servers change places. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/host/cost_model.h"

static void near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected) + 1e-15))
        fail_msg("%.12g, not %.12g", value, expected);
}

/* ---- one exchange ---- */

static void test_collectives(void **state)
{
    (void)state;
    const eni_cost_numbers link = {1e-5, 1e-9, 5e-10}, free_link = {0};
    assert_true(eni_cost_ring(1, 1e6, &link) == 0); /* alone: nothing to exchange */
    assert_true(eni_cost_naive(1, 1e6, &link) == 0);
    assert_true(eni_cost_direct(1, 2, 1e6, 1e-6, 1e-10) == 0);
    assert_true(eni_cost_ring(8, 1e6, &free_link) == 0);
    near(eni_cost_ring(2, 1e6, &link), 2e-5 + 1e-3 + 2.5e-4);
    near(eni_cost_ring(4, 1e6, &link), 6e-5 + 1.5e-3 + 3.75e-4);
    near(eni_cost_naive(4, 1e6, &link), 1e-5 + 3 * (1e-3 + 5e-4));
    /* no latency: a ring's time tends to 2 S beta and does not depend on p (Patarasuk and Yuan 2009) */
    const eni_cost_numbers wire = {0, 1e-9, 0};
    near(eni_cost_ring(1024, 1e6, &wire) / 2e-3, 1023.0 / 1024);
    /* two ranks on two cores: 2p S loads and stores by two cores */
    near(eni_cost_direct(2, 2, 1e6, 1e-6, 1e-10), 2e-6 + 2e-4);
    near(eni_cost_direct(4, 2, 1e6, 1e-6, 1e-10), 4e-6 + 4e-4); /* the same cores move twice as much */
    near(eni_cost_fused(2, 2, 1e6, 1e-6, 1e-10), 2e-6 + 3e-4);
    /* servers: one is everybody's bottleneck, as many as workers are none (BytePS) */
    near(eni_cost_push(8, 1, 1e6, &wire), 8e-3);
    near(eni_cost_push(8, 4, 1e6, &wire), 2e-3);
    near(eni_cost_push(8, 8, 1e6, &wire), 1e-3);
    near(eni_cost_push(8, 99, 1e6, &wire), 1e-3);
}

/* ---- the flow shop ---- */

static void test_pipeline(void **state)
{
    (void)state;
    const double ready[] = {1, 2, 6}, push[] = {2, 2, 1}, pull[] = {1, 4, 1}, zero[] = {0, 0, 0};
    const double *const one[] = {push}, *const two[] = {push, pull};
    const double no_lag[] = {0, 0}, lag[] = {0.5, 0.25};
    assert_true(eni_cost_pipeline(0, ready, 1, one, no_lag) == 0);
    near(eni_cost_pipeline(3, ready, 1, one, no_lag), 7);  /* 1-3, 3-5, 6-7 */
    near(eni_cost_pipeline(3, ready, 2, two, no_lag), 10); /* pulls 3-4, 5-9, 9-10 */
    near(eni_cost_pipeline(3, zero, 1, one, no_lag), 5);   /* all at once: the sum */
    near(eni_cost_pipeline(3, ready, 2, two, lag), 10.75); /* pulls 3.5-4.5, 5.5-9.5, 9.5-10.5, + 0.25 */
}

/* ---- a step ---- */

static eni_cost_machine machine_of(int cores)
{
    eni_cost_machine m = {.cores = cores,
                          .compute_alone = 0.010,
                          .compute_together = 0.011,
                          .compute_crowded = 0.024,
                          .update = 0.001,
                          .flag = 1e-6,
                          .move = 1e-10,
                          .tcp = {1e-5, 2e-10, 0},
                          .store_shm = {1e-4, 1e-10, 0},
                          .store_tcp = {1e-4, 2e-10, 0},
                          .nbuckets = 2,
                          .bytes = {1e6, 1e6},
                          .ready = {0.5, 1}};
    return m;
}

static void test_alone(void **state)
{
    (void)state;
    const eni_cost_machine m = machine_of(2);
    const eni_cost_layout place = {.ranks = 1, .ranks_on_host = 1};
    const eni_cost_step step = eni_cost_step_ring(&m, &place);
    near(step.seconds, 0.011); /* compute and update, nothing else */
    assert_true(step.exposed == 0 && step.exchange == 0 && !step.is_cpu_bound);
}

/* More ranks than cores take turns, and each measured point is met. */
static void test_crowd(void **state)
{
    (void)state;
    eni_cost_machine m = machine_of(2);
    m.move = m.flag = 0;
    const double expected[] = {0.010, 0.011, 0.0175, 0.024, 0.030, 0.036, 0.042, 0.048};
    for (int p = 2; p <= 8; p++) {
        const eni_cost_layout place = {.ranks = p, .ranks_on_host = p};
        near(eni_cost_step_ring(&m, &place).seconds, expected[p - 1]);
    }
}

static void test_network(void **state)
{
    (void)state;
    eni_cost_machine m = machine_of(2);
    eni_cost_layout place = {
        .ranks = 16, .ranks_on_host = 1, .servers = 16, .is_networked = true, .has_own_host = true};
    /* a free network leaves compute and the optimizer */
    m.tcp = m.store_tcp = (eni_cost_numbers){0};
    near(eni_cost_step_ring(&m, &place).seconds, 0.011);
    near(eni_cost_step_ps(&m, &place).seconds, 0.010);
    /* one that is everything: 2 S / rate for both, with a server per worker; plus what pulls after the last
     * push */
    place.rate = 1e6;
    place.ranks = place.servers = 1000;
    near(eni_cost_step_ring(&m, &place).seconds, 0.005 + 2 * 2e6 * 0.999 / 1e6 + 0.001);
    near(eni_cost_step_ps(&m, &place).seconds, 0.005 + 3e6 / 1e6); /* push, push and pull, pull */
    /* and its delay, once each way for the server, 2(p-1) times a bucket for the ring */
    const double ring = eni_cost_step_ring(&m, &place).seconds, ps = eni_cost_step_ps(&m, &place).seconds;
    place.delay = 1e-3;
    near(eni_cost_step_ring(&m, &place).seconds, ring + 2 * 2 * 999 * 1e-3);
    near(eni_cost_step_ps(&m, &place).seconds, ps + 2e-3);
}

/* Where cores are the limit. */
static void test_cores(void **state)
{
    (void)state;
    eni_cost_machine m = machine_of(2);
    m.store_shm = (eni_cost_numbers){0, 1e-9, 0};
    const eni_cost_layout two = {.ranks = 2, .ranks_on_host = 2, .servers = 1};
    const eni_cost_step crowded = eni_cost_step_ps(&m, &two);
    assert_true(crowded.is_cpu_bound); /* the server takes its time from a worker: nothing of it is hidden */
    near(crowded.seconds, 0.011 + 2 * 2e6 * 1e-9);
    m.cores = 4;
    const eni_cost_step roomy = eni_cost_step_ps(&m, &two);
    assert_false(roomy.is_cpu_bound);
    assert_true(roomy.seconds < crowded.seconds);
}

static void test_crossover(void **state)
{
    (void)state;
    eni_cost_machine m = machine_of(2);
    eni_cost_layout place = {.ranks = 16,
                             .ranks_on_host = 1,
                             .servers = 4,
                             .is_networked = true,
                             .has_own_host = true,
                             .rate = 1e8};
    const int at = eni_cost_crossover(&m, &place, 256);
    assert_in_range(at, 3, 255);
    for (int p = at - 1; p <= at; p++) {
        place.ranks = p;
        const double ring = eni_cost_step_ring(&m, &place).seconds, ps = eni_cost_step_ps(&m, &place).seconds;
        assert_true(p < at ? ring > ps : ring <= ps);
    }
    place.delay = 1; /* no ring is as fast over such a wire */
    assert_int_equal(eni_cost_crossover(&m, &place, 256), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collectives), cmocka_unit_test(test_pipeline),
                                       cmocka_unit_test(test_alone),       cmocka_unit_test(test_crowd),
                                       cmocka_unit_test(test_network),     cmocka_unit_test(test_cores),
                                       cmocka_unit_test(test_crossover)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
