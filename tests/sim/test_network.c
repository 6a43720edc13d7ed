/* test_network.c - latency + size/rate, one after the other on a shared link. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/sim/virtual_time.h"

static const eni_net_link link = {1000, 1e9}; /* 1 ns a byte */
static const eni_sim_network gigabyte = {.links = &link, .nlinks = 1};

static int64_t deliver(eni_network *n, int64_t now, int32_t from, int32_t to, uint64_t bytes)
{
    return eni_network_arrive(n, eni_network_depart(n, now, from, to, bytes), from, to, bytes);
}

static void alone(void **state)
{
    (void)state;
    eni_network n = {0};
    assert_int_equal(eni_network_init(&n, &gigabyte, 3), EN_OK);
    assert_int_equal(deliver(&n, 100, 0, 1, 500), 100 + 1000 + 500);
    assert_int_equal(deliver(&n, 100, 2, 2, 500), 100); /* to itself */
    eni_network_fini(&n);
}

static void two_to_one_queue_at_the_receiver(void **state)
{
    (void)state;
    eni_network n = {0};
    assert_int_equal(eni_network_init(&n, &gigabyte, 3), EN_OK);
    assert_int_equal(deliver(&n, 0, 0, 2, 500), 1500);
    assert_int_equal(deliver(&n, 0, 1, 2, 500), 2000);
    assert_int_equal(deliver(&n, 0, 2, 0, 500), 1500); /* the other direction is free */
    eni_network_fini(&n);
}

static void one_to_two_queue_at_the_sender(void **state)
{
    (void)state;
    eni_network n = {0};
    assert_int_equal(eni_network_init(&n, &gigabyte, 3), EN_OK);
    assert_int_equal(deliver(&n, 0, 0, 1, 500), 1500);
    assert_int_equal(deliver(&n, 0, 0, 2, 500), 2000);
    eni_network_fini(&n);
}

/* Ranks 0, 1 and 2, 3 on two machines, whose links take 10 ns a byte; server 4 takes 2. */
static void machines_share_a_link(void **state)
{
    (void)state;
    static const eni_net_link links[] = {{100, 1e9}, {100, 1e9},  {100, 1e9}, {100, 1e9},
                                         {500, 5e8}, {1000, 1e8}, {1000, 1e8}};
    static const int32_t shared[] = {5, 5, 6, 6, 4};
    const eni_sim_network model = {.links = links, .nlinks = 7, .shared = shared};
    eni_network n = {0};
    assert_int_equal(eni_network_init(&n, &model, 5), EN_OK);
    assert_int_equal(deliver(&n, 0, 0, 1, 500), 100 + 500);          /* within a machine */
    assert_int_equal(deliver(&n, 0, 0, 2, 500), 1000 + 5000);        /* the larger delay */
    assert_int_equal(deliver(&n, 0, 1, 4, 500), 1000 + 2 * 5000);    /* behind its neighbour's message */
    assert_int_equal(deliver(&n, 0, 2, 3, 500), 100 + 500);          /* own links are free */
    assert_int_equal(deliver(&n, 100000, 2, 4, 500), 101000 + 5000); /* sent slowly, received quickly, .. */
    assert_int_equal(deliver(&n, 100000, 0, 4, 500),
                     101000 + 5000); /* .. which leaves the server time for others */
    assert_true(eni_network_hop(&n, 0, 1, 100) == 200 && eni_network_hop(&n, 1, 2, 100) == 2000 &&
                eni_network_hop(&n, 3, 4, 100) == 2000 && eni_network_hop(&n, 4, 4, 100) == 700);
    eni_network_fini(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone), cmocka_unit_test(two_to_one_queue_at_the_receiver),
        cmocka_unit_test(one_to_two_queue_at_the_sender), cmocka_unit_test(machines_share_a_link)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
