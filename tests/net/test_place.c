/* test_place.c - host, identity, route and cores of this process. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/net/place.h"

static void identity_is_stable_and_can_be_overridden(void **state)
{
    (void)state;
    char host[ENI_HOST_MAX], a[ENI_HOST_ID_MAX], b[ENI_HOST_ID_MAX], longest[200];
    eni_place_host(host);
    assert_true(host[0] != '\0');
    assert_int_equal(eni_place_host_id(NULL, a), EN_OK);
    assert_int_equal(eni_place_host_id("", b), EN_OK);
    assert_string_equal(a, b);
    assert_true(strlen(a) > 8);
    assert_int_equal(eni_place_host_id("node-b", b), EN_OK);
    assert_string_equal(b, "node-b");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(eni_place_host_id(longest, b), EN_EINVAL);
}

static void the_route_to_loopback_is_loopback(void **state)
{
    (void)state;
    eni_own_address own;
    assert_int_equal(eni_place_address(&(eni_address){"127.0.0.1", 5555}, &own), EN_OK);
    assert_string_equal(own.host, "127.0.0.1");
    assert_string_equal(own.interface, "lo");
}

static void the_holder_of_a_port_is_named(void **state)
{
    (void)state;
    char text[200], expected[32];
    int fd;
    eni_address bound;
    assert_int_equal(eni_tcp_listen(&(eni_address){"127.0.0.1", 0}, false, &fd, &bound), EN_OK);
    eni_place_port_holder(bound.port, text);
    snprintf(expected, sizeof expected, "pid %d (test_", (int)getpid());
    if (strncmp(text, expected, strlen(expected)) != 0) fail_msg("\"%s\" is not \"%s..\"", text, expected);
    close(fd);
    eni_place_port_holder(bound.port, text);
    assert_non_null(strstr(text, "does not listen"));
}

static void cores_follow_the_affinity_mask(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(eni_place_cores(), 1, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++)
        if (CPU_ISSET(c, &all)) CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(eni_place_cores(), 1);
    sched_setaffinity(0, sizeof all, &all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(identity_is_stable_and_can_be_overridden),
                                       cmocka_unit_test(the_route_to_loopback_is_loopback),
                                       cmocka_unit_test(the_holder_of_a_port_is_named),
                                       cmocka_unit_test(cores_follow_the_affinity_mask)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
