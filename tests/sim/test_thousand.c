/* test_thousand.c - a thousand workers in one process: 50 steps each of ssp, twice, with one log hash. */
#include <sys/resource.h>

#include "tests/strategies/sim_rig.h"

/* Promise: A thousand workers run in one process, twice with the same log hash. */

/* Under a sanitizer time and memory are several times those promised. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

/* Of this process: its share of a machine that others use, too, says nothing about it. */
static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void a_thousand_workers(void **state)
{
    (void)state;
    enum { WORLD = 1000, STEPS = 50 };
    char first[ENI_DIGEST_HEX] = "";
    double slowest = 0;
    struct rusage used;
    rig r;
    rig_init(&r, "ssp:bound=2", WORLD, WORLD * STEPS);
    rig_slow(&r, 0, 4);
    r.config.bucket_cap_bytes = 512; /* two buckets */
    r.config.schedule.base = 1e-5;   /* a thousand versions stale */
    r.law.kind = ENI_LAW_LOGNORMAL;
    r.law.spread = 0.3;
    for (int turn = 0; turn < 2; turn++) {
        const double begin = cpu_seconds();
        const eni_sim_result *out = rig_run(&r);
        slowest = fmax(slowest, cpu_seconds() - begin);
        assert_int_equal(out->clocks_ahead, 2);
        assert_int_equal(out->pushes % (WORLD * STEPS), 0);
        assert_true(out->holds > 0);
        if (turn == 0) memcpy(first, out->log_sha256, sizeof first);
        assert_string_equal(first, out->log_sha256);
    }
    getrusage(RUSAGE_SELF, &used);
    const double megabytes = (double)used.ru_maxrss / 1024;
    assert_true(IS_SANITIZED || (slowest < 10 && megabytes < 1024));
    printf("PROMISE virtual host: %d workers x %d steps of ssp in %.1f s of one core and %.0f MB, log hash "
           "%.16s twice\n",
           WORLD, STEPS, slowest, megabytes, first);
    rig_fini(&r);
}

/* Where each rank looked through a list of all, d-psgd took 20 s. */
static void no_time_is_quadratic_in_workers(void **state)
{
    enum { WORLD = IS_SANITIZED ? 1000 : 10000 };
    static const char *const specs[] = {"d-psgd", "grouped:period=2", "ps-sync"};
    static int32_t pairs[WORLD];
    (void)state;
    for (int32_t i = 0; i < WORLD; i++)
        pairs[i] = i - i % 2;
    for (int i = 0; i < 3; i++) {
        rig r;
        rig_init(&r, specs[i], WORLD, 2 * WORLD);
        r.config.groups = i == 1 ? pairs : NULL;
        r.config.bucket_cap_bytes = 0;
        r.config.schedule.base = 1e-5;
        r.law.kind = ENI_LAW_EXPONENTIAL;
        const double begin = cpu_seconds();
        rig_run(&r);
        const double seconds = cpu_seconds() - begin;
        printf("%s: %.1f s\n", specs[i], seconds);
        assert_true(IS_SANITIZED || seconds < 5);
        rig_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thousand_workers),
                                       cmocka_unit_test(no_time_is_quadratic_in_workers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
