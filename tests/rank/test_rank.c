/* test_rank.c - the age of this process, or of the run that a launcher began. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/prctl.h>

#include "core/clock.h"
#include "worker/worker.h"

static void age_counts_from_the_start(void **state)
{
    (void)state;
    const int64_t before = eni_startup_ns(0);
    assert_true(before > 0 && before < 600 * ENI_SECOND); /* not since the machine started */
    assert_int_equal(prctl(PR_SET_NAME, "a) 1 2 (3"), 0);
    assert_true(eni_startup_ns(0) >= before);
}

/* `entrain compare` is older than each of its runs, so its age would be wrong. */
static void a_launched_process_counts_from_the_begin_of_the_run(void **state)
{
    (void)state;
    const int64_t begin = eni_now_ns() - 5 * ENI_SECOND, age = eni_startup_ns(begin);
    assert_true(age >= 5 * ENI_SECOND && age <= eni_now_ns() - begin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(age_counts_from_the_start),
                                       cmocka_unit_test(a_launched_process_counts_from_the_begin_of_the_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
