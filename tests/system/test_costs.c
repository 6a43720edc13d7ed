/* test_costs.c - cost() on real transport: figures for both, the same on all ranks, and not a bit of the
 * training differs from one that never asked. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/system/run.h"

/* Promise: cost() gives all ranks the same figures and changes no bit of the training. */

#define JOB                                                                                                  \
    "--device=ref --model=mlp " MADE_UP " --steps=12 --batch-size=4 --momentum=0.9 --threads=1 --quiet"

/* What a rank has logged of bucket 0: "call X all-reduce Y". */
static void figures_of(const char *err, int rank, char out[128])
{
    char begin[64];
    snprintf(begin, sizeof begin, "rank %d bucket 0 call ", rank);
    const char *at = strstr(err, begin), *end = at == NULL ? NULL : strstr(at, " end");
    if (end == NULL || end - at >= 128) fail_msg("no figures of rank %d in:\n%s", rank, err);
    snprintf(out, 128, "%.*s", (int)(end - at - (long)strlen(begin)), at + strlen(begin));
}

static void check(const char *flags)
{
    char first[128], other[128];
    double call, allreduce;
    process p;
    process_start(&p, "entrain", NULL,
                  "run -n 3 --strategy=" EN_BUILD_DIR "/test/plugins/asks.so " JOB
                  " %s --overwrite --out=%s/asks",
                  flags, system_folder());
    assert_int_equal(process_wait(&p, 60), 0);
    figures_of(process_err(&p), 0, first);
    if (sscanf(first, "%lf all-reduce %lf", &call, &allreduce) != 2) fail_msg("\"%s\"", first);
    if (!(call > 0 && call < 10 && allreduce > 0 && allreduce < 10)) fail_msg("\"%s\"", first);
    for (int r = 1; r < 3; r++) {
        figures_of(process_err(&p), r, other);
        assert_string_equal(other, first);
    }
    promise("cost() of bucket 0, 3 workers, %s: call %s s, the same on all ranks", flags, first);
}

static void test_same_figures(void **state)
{
    (void)state;
    check("--shards=2");
    check("--transport=tcp");
    check("--net=rate:1gbit,delay:100us");
}

static void test_same_bytes(void **state)
{
    (void)state;
    const char *asked = train_hash(60, "-n 3 --strategy=" EN_BUILD_DIR "/test/plugins/asks.so " JOB);
    assert_string_equal(asked, train_hash(60, "-n 3 --strategy=ps-sync " JOB));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_figures),
                                       cmocka_unit_test(test_same_bytes)};
    return system_main(tests);
}
