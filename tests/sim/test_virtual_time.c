/* test_virtual_time.c - events come out by time, and by order of posting within one time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/rng.h"
#include "runtime/sim/virtual_time.h"

static void nothing(void *user, void *subject)
{
    (void)user;
    (void)subject;
}

static void by_time_then_by_order(void **state)
{
    (void)state;
    enum { EVENTS = 5000 };
    const eni_rng_key key = {1, ENI_RNG_TEST, 0, 0};
    eni_event_queue queue = {0};
    eni_event_queue_entry entry, last = {0};
    for (uint64_t i = 0; i < EVENTS; i++) {
        const int64_t at = (int64_t)eni_rng_below(&key, i, 100);
        assert_int_equal(eni_event_queue_post(&queue, at, nothing, NULL, NULL), EN_OK);
    }
    for (int i = 0; i < EVENTS; i++) {
        assert_int_equal(eni_event_queue_take(&queue, &entry), 1);
        assert_true(entry.at_ns > last.at_ns || (entry.at_ns == last.at_ns && entry.seq > last.seq));
        assert_int_equal(queue.now_ns, entry.at_ns);
        last = entry;
    }
    assert_int_equal(eni_event_queue_take(&queue, &entry), 0);
    eni_event_queue_fini(&queue);
}

static void the_past_is_now(void **state)
{
    (void)state;
    eni_event_queue queue = {0};
    eni_event_queue_entry entry;
    eni_event_queue_post(&queue, 50, nothing, NULL, NULL);
    assert_int_equal(eni_event_queue_take(&queue, &entry), 1);
    eni_event_queue_post(&queue, 10, nothing, NULL, NULL);
    assert_int_equal(eni_event_queue_take(&queue, &entry), 1);
    assert_int_equal(entry.at_ns, 50);
    eni_event_queue_fini(&queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_time_then_by_order),
                                       cmocka_unit_test(the_past_is_now)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
