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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thousand_workers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
