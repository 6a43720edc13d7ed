/* test_microbenchmark.c - processes that measure: they all end, a failing one fails all, and one that hangs
 * is killed.
 */
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/microbenchmark.h"
#include "core/clock.h"
#include "core/log.h"
#include "runtime/collective/coll.h"

static void hush(void *user, int level, const char *subsystem, const char *text)
{
    (void)user, (void)level, (void)subsystem, (void)text;
}

static int meets(const eni_process *self)
{
    int times = 0, *seen = self->shared;
    for (int i = 0; i < 3; i++) {
        seen[self->rank] = i + 1;
        if (eni_processes_meet(self, &times)) return 1;
        for (int r = 0; r < self->n; r++)
            if (seen[r] < i + 1) return 1;
        if (eni_processes_meet(self, &times)) return 1;
    }
    return 0;
}

static en_status run(int n, void **shared_out, int (*main)(const eni_process *self), int64_t left_ns)
{
    const eni_processes asked = {.who = "test",
                                 .n = n,
                                 .shared_bytes = 64,
                                 .main = main,
                                 .deadline_ns = eni_now_ns() + left_ns,
                                 .signal_fd = -1};
    return eni_processes_run(&asked, shared_out);
}

static void test_processes(void **state)
{
    void *shared;
    (void)state;
    assert_int_equal(run(3, &shared, meets, 20 * ENI_SECOND), EN_OK);
    for (int r = 0; r < 3; r++)
        assert_int_equal(((int *)shared)[r], 3);
    eni_processes_release(shared, 64);
    eni_processes_release(NULL, 64);
}

static int one_fails(const eni_process *self)
{
    int times = 0;
    if (self->rank == 1) return 1;
    eni_processes_meet(self, &times); /* would wait for ever */
    return 0;
}

static int one_hangs(const eni_process *self)
{
    while (self->rank == 1)
        poll(NULL, 0, 1000);
    return 0;
}

static void test_failures(void **state)
{
    void *shared = NULL;
    (void)state;
    eni_log_set_sink(hush, NULL);
    assert_int_equal(run(3, &shared, one_fails, 20 * ENI_SECOND), EN_EPEER);
    assert_int_equal(run(2, &shared, one_hangs, ENI_SECOND / 5), EN_ETIMEOUT);
    eni_log_set_sink(NULL, NULL);
    assert_null(shared);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left */
}

static void test_measures(void **state)
{
    static const uint64_t bytes[] = {4096, 65536};
    static const int ways[][2] = {{ENI_COLL_DIRECT, ENI_OVER_SHM}, {ENI_COLL_RING, ENI_OVER_TCP}};
    (void)state;
    for (int w = 0; w < 2; w++) {
        eni_cost_curve curve;
        assert_int_equal(eni_measure_allreduce(-1, 3, ways[w][0], ways[w][1], bytes, 2, ENI_MILLI, &curve),
                         EN_OK);
        assert_int_equal(curve.n, 2);
        assert_true(curve.point[0].seconds > 0 && curve.point[1].seconds > 0);
    }
    double move, sum;
    assert_int_equal(eni_measure_copy(-1, 2, 1 << 16, &move, &sum), EN_OK);
    assert_true(move > 0 && sum > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes), cmocka_unit_test(test_failures),
                                       cmocka_unit_test(test_measures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
