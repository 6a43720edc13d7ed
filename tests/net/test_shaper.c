/* test_shaper.c - the arithmetic of the emulated network, on made-up time stamps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "runtime/net/shaper.h"

enum { MB = 1000000 };
static const int64_t t0 = 1000 * ENI_SECOND;

static void a_lone_message_pays_once(void **state)
{
    (void)state;
    eni_shaper *a = eni_shaper_new(100 * MB, 5 * ENI_MILLI), *b = eni_shaper_new(100 * MB, 5 * ENI_MILLI);
    int64_t deliver = eni_shaper_send(a, t0, MB); /* 10 ms on the line, 5 ms of delay */
    assert_int_equal(deliver, t0 + 15 * ENI_MILLI);
    assert_int_equal(eni_shaper_recv(b, deliver, MB), deliver);
    eni_shaper_free(a);
    eni_shaper_free(b);
}

static void a_burst_queues_at_the_sender(void **state)
{
    (void)state;
    eni_shaper *a = eni_shaper_new(100 * MB, 0);
    for (int i = 1; i <= 5; i++)
        assert_int_equal(eni_shaper_send(a, t0, MB), t0 + i * 10 * ENI_MILLI);
    /* After a pause no credit is left over: the bucket has no depth. */
    assert_int_equal(eni_shaper_send(a, t0 + ENI_SECOND, MB), t0 + ENI_SECOND + 10 * ENI_MILLI);
    eni_shaper_free(a);
}

static void in_cast_queues_at_the_receiver(void **state)
{
    (void)state;
    enum { SENDERS = 4 };
    eni_shaper *receiver = eni_shaper_new(100 * MB, 0);
    for (int i = 0; i < SENDERS; i++) { /* all four start at once, each over its own NIC */
        eni_shaper *sender = eni_shaper_new(100 * MB, 0);
        int64_t deliver = eni_shaper_send(sender, t0, MB);
        assert_int_equal(deliver, t0 + 10 * ENI_MILLI);
        assert_int_equal(eni_shaper_recv(receiver, deliver, MB), t0 + (i + 1) * 10 * ENI_MILLI);
        eni_shaper_free(sender);
    }
    eni_shaper_free(receiver);
}

static void none_means_at_once(void **state)
{
    (void)state;
    assert_int_equal(eni_shaper_send(NULL, t0, MB), 0);
    assert_int_equal(eni_shaper_recv(NULL, t0, MB), t0);
    eni_shaper *delay_only = eni_shaper_new(0, ENI_MILLI);
    assert_int_equal(eni_shaper_send(delay_only, t0, MB), t0 + ENI_MILLI);
    assert_int_equal(eni_shaper_send(delay_only, t0, MB), t0 + ENI_MILLI);
    assert_int_equal(eni_shaper_recv(delay_only, 0, MB), 0);
    eni_shaper_free(delay_only);
}

static void what_is_emulated_is_said(void **state)
{
    (void)state;
    char text[96];
    eni_net_describe(125 * MB, 50000, text, sizeof text);
    assert_non_null(strstr(text, "125 MB/s (1000 Mbit/s)"));
    assert_non_null(strstr(text, "50 us"));
    eni_net_describe(0, 50000, text, sizeof text);
    assert_int_equal(strncmp(text, "50 us", 5), 0);
    eni_net_describe(MB, 0, text, sizeof text);
    assert_non_null(strstr(text, "1 MB/s (8 Mbit/s)"));
    assert_null(strstr(text, " us"));
    eni_net_describe(0, 0, text, sizeof text);
    assert_null(strpbrk(text, "0123456789"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_message_pays_once), cmocka_unit_test(a_burst_queues_at_the_sender),
        cmocka_unit_test(in_cast_queues_at_the_receiver), cmocka_unit_test(none_means_at_once),
        cmocka_unit_test(what_is_emulated_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
