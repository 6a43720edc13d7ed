/* test_slowdown.c - stragglers: read, refused, and slow in the steps that they promise. */
#include "run/slowdown.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static eni_slowdown read_one(const char *text, int32_t nranks)
{
    eni_slowdown slow;
    const char *why = eni_slowdown_read(text, &slow);
    if (why != NULL) fail_msg("%s: %s", text, why);
    if (slow.hi == ENI_SLOW_ALL) slow.hi = nranks - 1;
    return slow;
}

static double factor(const eni_slowdown *slow, uint32_t rank, uint64_t step)
{
    static uint64_t until[8];
    return eni_slowdown_factor(slow, &(eni_rng_key){3, ENI_RNG_SIM, rank, step}, &until[rank]);
}

static void constant(void **state)
{
    (void)state;
    const eni_slowdown one = read_one("1:4", 8), some = read_one("2-5:1.5", 8);
    for (uint32_t r = 0; r < 8; r++) {
        assert_true(factor(&one, r, 7) == (r == 1 ? 4 : 1));
        assert_true(factor(&some, r, 7) == (r >= 2 && r <= 5 ? 1.5 : 1));
    }
}

/* Slow are the steps within 20 of one in which it began: a share of 1 - (1 - p)^20 of them, in pieces of 20 and more. */
static void transient(void **state)
{
    (void)state;
    enum { STEPS = 200000, LENGTH = 20 };
    const eni_slowdown slow = read_one("transient:4:0.05:20", 2);
    uint64_t n = 0, piece = 0, apart = 0;
    for (uint64_t k = 0; k < STEPS; k++) {
        const bool is_slow = factor(&slow, 1, k) == 4;
        bool began = false; /* within LENGTH steps */
        for (uint64_t ago = 0; ago < LENGTH && ago <= k; ago++)
            began |= eni_rng_unit(&(eni_rng_key){3, ENI_RNG_SIM, 1, k - ago}, 2) < 0.05;
        assert_true(is_slow == began);
        if (!is_slow && piece > 0) assert_true(piece >= LENGTH);
        piece = is_slow ? piece + 1 : 0;
        n += is_slow;
        apart += is_slow != (factor(&slow, 0, k) == 4);
    }
    assert_true(fabs((double)n / STEPS - (1 - pow(0.95, LENGTH))) < 0.01);
    assert_true(apart > STEPS / 4); /* each rank for itself */
}

static void rotating(void **state)
{
    (void)state;
    const eni_slowdown all = read_one("rotating:4:10", 4), some = read_one("2-3=rotating:4:10", 4);
    for (uint64_t k = 0; k < 200; k++)
        for (uint32_t r = 0; r < 4; r++) {
            assert_true(factor(&all, r, k) == (k / 10 % 4 == r ? 4 : 1));
            assert_true(factor(&some, r, k) == (2 + k / 10 % 2 == r ? 4 : 1));
        }
}

static void other_texts_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "1",
                                        "1:",
                                        ":4",
                                        "1:0.5",
                                        "1:1001",
                                        "1:nan",
                                        "1:inf",
                                        "-1:4",
                                        "3-1:4",
                                        "a:4",
                                        "1:4:5",
                                        "1=4",
                                        "1=1:4",
                                        "transient:4",
                                        "transient:4:0.1",
                                        "transient:4:1.1:5",
                                        "transient:4:-0.1:5",
                                        "transient:4:0.1:0",
                                        "transient:4:0.1:1001",
                                        "transient:4:0.1:2.5",
                                        "transient:4:0.1:5:6",
                                        "transient",
                                        "rotating:4",
                                        "rotating:4:0",
                                        "rotating:0:10",
                                        "turning:4:10",
                                        "0-=rotating:4:10",
                                        "99999999999=rotating:4:10",
                                        "12345678901234567890123456789012345=rotating:4:10"};
    eni_slowdown slow;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (eni_slowdown_read(texts[i], &slow) == NULL) fail_msg("\"%s\" is taken", texts[i]);
}

static void words(void **state)
{
    (void)state;
    char text[128];
    eni_slowdown slow = read_one("rotating:4:10", 4);
    eni_slowdown_text(&slow, text, sizeof text);
    assert_string_equal(text, "4 times as slow in turn, each for 10 steps");
    slow = read_one("transient:2.5:0.01:20", 4);
    eni_slowdown_text(&slow, text, sizeof text);
    assert_string_equal(text, "2.5 times as slow for 20 steps, begun with probability 0.01 in each");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(constant), cmocka_unit_test(transient),
                                       cmocka_unit_test(rotating), cmocka_unit_test(other_texts_are_refused),
                                       cmocka_unit_test(words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
