/* test_run.c - every bench runs with a tiny size, prints objects with the promised keys, and finds no wrong
 * sum; a wrong flag is refused. Speed is not tested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

/* Runs a bench and passes every line of its output to `visit`. Returns the number of lines. */
static int run_bench(const char *line, void (*visit)(const json_t *object), int *code_out)
{
    char command[1024], text[4096];
    int lines = 0;
    snprintf(command, sizeof command, EN_BUILD_DIR "/bench/bench_%s", line);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    for (; fgets(text, sizeof text, out); lines++) {
        json_error_t error;
        json_t *object = json_loads(text, 0, &error);
        if (!json_is_object(object)) fail_msg("%s printed \"%s\": %s", line, text, error.text);
        visit(object);
        json_decref(object);
    }
    const int status = pclose(out);
    assert_true(WIFEXITED(status));
    *code_out = WEXITSTATUS(status);
    return lines;
}

static void expect_texts(const json_t *object, const char *const *keys)
{
    for (; *keys; keys++)
        if (!json_is_string(json_object_get(object, *keys))) fail_msg("no text \"%s\"", *keys);
}

static void expect_positive(const json_t *object, const char *const *keys)
{
    for (; *keys; keys++)
        if (json_number_value(json_object_get(object, *keys)) <= 0) fail_msg("no number \"%s\"", *keys);
}

static void expect_no_wrong(const json_t *object)
{
    const json_t *wrong = json_object_get(object, "wrong");
    assert_true(json_is_integer(wrong));
    assert_int_equal(json_integer_value(wrong), 0);
}

static void expect_bench(const json_t *object, const char *name)
{
    assert_string_equal(json_string_value(json_object_get(object, "bench")), name);
}

static void visit_allreduce(const json_t *object)
{
    expect_bench(object, "allreduce");
    expect_texts(object, (const char *const[]){"algorithm", NULL});
    expect_positive(object, (const char *const[]){"ranks", "bytes", "median_us", "p99_us", "algbw_gb_s",
                                                  "busbw_gb_s", NULL});
    expect_no_wrong(object);
}

static void visit_tcp_limit(const json_t *object)
{
    expect_bench(object, "tcp_limit");
    expect_texts(object, (const char *const[]){"algorithm", NULL});
    expect_positive(object, (const char *const[]){"hosts", "ranks", "bytes", "limit_us", "cached_us",
                                                  "median_us", "algbw_gb_s", "of_limit", NULL});
    expect_no_wrong(object);
}

static void visit_pushpull(const json_t *object)
{
    expect_bench(object, "pushpull");
    expect_texts(object, (const char *const[]){"transport", "strategy", NULL});
    expect_positive(
        object, (const char *const[]){"shards", "workers", "bytes", "median_us", "p99_us", "round_us", NULL});
    assert_true(json_is_number(json_object_get(object, "gb_s")));
    expect_no_wrong(object);
    const double bytes = json_number_value(json_object_get(object, "bytes")),
                 workers = json_number_value(json_object_get(object, "workers")),
                 us = json_number_value(json_object_get(object, "median_us")),
                 gb_s = json_number_value(json_object_get(object, "gb_s"));
    const double expected = 2 * bytes * workers / us / 1e3; /* both ways, all workers */
    assert_true(gb_s > expected * 0.99 - 0.001 && gb_s < expected * 1.01 + 0.001);
}

static void visit_train(const json_t *object)
{
    expect_bench(object, "train");
    expect_texts(object, (const char *const[]){"model", "strategy", NULL});
    expect_positive(object, (const char *const[]){"workers", "threads", "batch", "at_once", "samples_s",
                                                  "peak_mb", "startup_s", NULL});
}

static void visit_limits(const json_t *object)
{
    expect_bench(object, "limits");
    expect_texts(object, (const char *const[]){"what", NULL});
    expect_positive(object,
                    (const char *const[]){"bytes", "processes", "rounds", "median_us", "p99_us", NULL});
    const int is_sgemm = strcmp(json_string_value(json_object_get(object, "what")), "sgemm") == 0;
    expect_positive(object, (const char *const[]){is_sgemm ? "gflop_s" : "gb_s", NULL});
}

static void visit_scale(const json_t *object)
{
    expect_bench(object, "scale");
    expect_texts(object, (const char *const[]){"what", "transport", NULL});
    expect_positive(object, (const char *const[]){"ranks", "bytes", "median_us", "model_us", NULL});
    assert_true(json_is_boolean(json_object_get(object, "is_source")));
}

static void visit_virtual(const json_t *object)
{
    expect_bench(object, "virtual");
    expect_texts(object, (const char *const[]){"strategy", NULL});
    expect_positive(object, (const char *const[]){"ranks", "elements", "gradients", "events", "seconds",
                                                  "overhead", "beside_gradients", "mb", "rank_kb", NULL});
}

static void visit_nothing(const json_t *object)
{
    (void)object;
    fail_msg("a refused command line printed an object");
}

static void allreduce_runs(void **state)
{
    (void)state;
    int code;
    assert_int_equal(run_bench("allreduce --json -b 64 -e 4K -f 64 -n 2 -w 1", visit_allreduce, &code), 2);
    assert_int_equal(code, 0);
    assert_int_equal(run_bench("allreduce --json -b 4K -e 4K -n 2 --algorithm=ring", visit_allreduce, &code),
                     1);
    assert_int_equal(code, 0);
    static const char *const ways[] = {"--contract=private -e 4M",
                                       "--contract=private --algorithm=ring -e 4M",
                                       "--then-step=after -e 64K", "--then-step=fused -e 64K --ranks=3"};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        char words[128];
        snprintf(words, sizeof words, "allreduce --json -b 4 -f 262144 -n 2 -w 1 %s", ways[w]);
        assert_true(run_bench(words, visit_allreduce, &code) >= 1);
        assert_int_equal(code, 0);
    }
}

static void tcp_limit_runs(void **state)
{
    (void)state;
    int code;
    assert_int_equal(
        run_bench("tcp_limit --json -b 4K -e 256K -f 64 -n 2 -w 1 --ranks=3", visit_tcp_limit, &code), 2);
    assert_int_equal(code, 0);
    assert_int_equal(run_bench("tcp_limit --json --hosts=none 2>/dev/null", visit_nothing, &code), 0);
    assert_int_equal(code, 1);
}

/* Sizes, workers and shards as lists; a vector shorter than the gradient's period, and one of several buckets
 * whose length is a multiple of none of these sizes. */
static void pushpull_runs(void **state)
{
    (void)state;
    int code;
    assert_int_equal(
        run_bench("pushpull --json --bytes=64,40004 --bucket=16K --workers=1,3 --shards=1,3 -n 3 "
                  "-w 1 --transport=shm,tcp",
                  visit_pushpull, &code),
        16);
    assert_int_equal(code, 0);
    assert_int_equal(run_bench("pushpull --json -b 4K -e 64K -f 16 --workers=2 --strategy=ps-async,ssp -n 20 "
                               "--transport=shm",
                               visit_pushpull, &code),
                     4);
    assert_int_equal(code, 0);
}

static void train_runs(void **state)
{
    (void)state;
    int code;
    assert_int_equal(
        run_bench("train --json --model=toy --strategy=solo,ring,ps-sync --workers=1,2 --batch=8 "
                  "-n 40",
                  visit_train, &code),
        5); /* solo has no row with two workers */
    assert_int_equal(code, 0);
    assert_int_equal(run_bench("train --json --model=toy --strategy=solo --workers=1 -n 40 --at-once=2",
                               visit_train, &code),
                     1);
    assert_int_equal(code, 0);
}

static void virtual_runs(void **state)
{
    (void)state;
    int code;
    assert_int_equal(
        run_bench("virtual --json --strategy=ps-async -n 50 --elements=48 --steps=20", visit_virtual, &code),
        1);
    assert_int_equal(code, 0);
    assert_int_equal(
        run_bench("virtual --json --model=toy --strategy=ring -n 4 --steps=5", visit_virtual, &code), 1);
    assert_int_equal(code, 0);
    assert_int_equal(run_bench("virtual --json -n 0 2>/dev/null", visit_nothing, &code), 0);
    assert_int_equal(code, 2);
}

/* Two all-reduces, and per transport two rows by workers and one by shards. */
static void scale_runs(void **state)
{
    (void)state;
    int code;
    assert_int_equal(run_bench("scale --json --bytes=4K --ranks=1,2 --shards=2", visit_scale, &code), 8);
    assert_int_equal(code, 0);
    assert_int_equal(run_bench("scale --ranks=0 2>/dev/null", visit_nothing, &code), 0);
    assert_int_equal(code, 2);
}

/* Sums through all three loops; messages of one frame and of several. */
static void limits_run(void **state)
{
    (void)state;
    int code;
    assert_int_equal(run_bench("limits --json --what=copy,sum --bytes=64,40004 --processes=2,3,4 -n 3",
                               visit_limits, &code),
                     12);
    assert_int_equal(code, 0);
    assert_int_equal(
        run_bench("limits --json --what=roundtrip,meeting,one-way,echo --bytes=4K --processes=1,2 -n 5",
                  visit_limits, &code),
        8);
    assert_int_equal(code, 0);
    assert_int_equal(
        run_bench("limits --json --what=echo --bytes=2.5M --processes=2 -n 2", visit_limits, &code), 1);
    assert_int_equal(code, 0);
}

static void a_wrong_flag_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"pushpull --json --workers=17 2>/dev/null",
                                      "pushpull --json --bytes=4Q 2>/dev/null",
                                      "pushpull --json --transport=udp 2>/dev/null",
                                      "pushpull --json -b 8K -e 4K 2>/dev/null",
                                      "pushpull --json extra 2>/dev/null",
                                      "train --json --batch=0 2>/dev/null",
                                      "train --json -n 0 2>/dev/null",
                                      "train --json --strategy=, 2>/dev/null",
                                      "train --json --at-once=17 2>/dev/null",
                                      "limits --json --what=luck 2>/dev/null",
                                      "limits --json --processes=17 2>/dev/null",
                                      "allreduce --json --algorithm=fast 2>/dev/null"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int code;
        assert_int_equal(run_bench(bad[i], visit_nothing, &code), 0);
        assert_int_equal(code, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allreduce_runs), cmocka_unit_test(tcp_limit_runs),
        cmocka_unit_test(pushpull_runs),  cmocka_unit_test(train_runs),
        cmocka_unit_test(virtual_runs),   cmocka_unit_test(scale_runs),
        cmocka_unit_test(limits_run),     cmocka_unit_test(a_wrong_flag_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
