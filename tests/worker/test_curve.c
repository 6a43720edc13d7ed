/* test_curve.c - which points a curve has, when they are evaluated, and what eval.jsonl says. */
#include "worker/curve.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/core/log.h"

enum { COUNT = 16 };

/* The "test set": the loss of a model is its first element, the accuracy its second. */
struct judge {
    int calls, fail_at; /* fail_at: this call fails; 0: none */
};

static en_status judge(void *user, const float *flat, double *loss_out, double *accuracy_out)
{
    struct judge *j = user;
    if (++j->calls == j->fail_at) return EN_ENOMEM;
    *loss_out = (double)flat[0];
    *accuracy_out = (double)flat[1];
    return EN_OK;
}

static eni_curve *open_curve(struct judge *j, const char *dir, uint64_t every, uint64_t copies)
{
    eni_curve_config config = {.dir = dir,
                               .count = COUNT,
                               .every = every,
                               .budget = copies * (COUNT * sizeof(float) + 1),
                               .evaluate = judge,
                               .user = j};
    eni_curve *curve = NULL;
    assert_int_equal(eni_curve_open(&config, &curve), EN_OK);
    return curve;
}

/* Adds a model whose loss is `loss`; returns whether something was evaluated on the spot. */
static int add(eni_curve *curve, uint64_t samples, float loss)
{
    float flat[COUNT] = {loss, 0.25f};
    int64_t evaluated_ns = -1;
    assert_int_equal(eni_curve_add(curve, samples, samples / 10, (double)samples / 100, flat, &evaluated_ns),
                     EN_OK);
    memset(flat, 0xff, sizeof flat); /* it was copied, was it not */
    return evaluated_ns > 0;
}

static void test_due_at_multiples(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, NULL, 100, 8);
    assert_false(eni_curve_is_due(curve, 0));
    assert_false(eni_curve_is_due(curve, 99));
    assert_true(eni_curve_is_due(curve, 100));
    assert_true(eni_curve_is_due(curve, 130)); /* steps do not hit multiples */
    add(curve, 130, 1);
    assert_false(eni_curve_is_due(curve, 130));
    assert_false(eni_curve_is_due(curve, 199));
    assert_true(eni_curve_is_due(curve, 200)); /* the grid stays where it was */
    add(curve, 470, 1);                        /* two multiples at once make one point */
    assert_false(eni_curve_is_due(curve, 499));
    assert_true(eni_curve_is_due(curve, 500));
    eni_curve_close(curve);
    assert_int_equal(j.calls, 0); /* nothing is evaluated unless asked */
}

static void test_never_due_without_a_grid(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, "", 0, 8);
    assert_false(eni_curve_is_due(curve, UINT64_MAX));
    add(curve, 1000, 2);
    eni_point last = {0};
    assert_int_equal(eni_curve_finish(curve, &last), EN_OK);
    assert_int_equal(j.calls, 1);
    assert_true(last.loss == 2 && last.accuracy == 0.25 && last.samples == 1000);
    eni_curve_close(curve);
    eni_curve_close(NULL);
}

static void test_a_full_budget_evaluates(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, NULL, 100, 2);
    assert_false(add(curve, 100, 4));
    assert_false(add(curve, 200, 3));
    assert_int_equal(j.calls, 0);
    assert_true(add(curve, 300, 2)); /* no room for a third copy: the first two are evaluated */
    assert_int_equal(j.calls, 2);
    eni_point last;
    assert_int_equal(eni_curve_finish(curve, &last), EN_OK);
    assert_int_equal(j.calls, 3);
    assert_true(last.samples == 300 && last.loss == 2);
    eni_curve_close(curve);
}

/* A model that exceeds the budget alone still gets its one copy. */
static void test_no_budget_is_one_copy(void **state)
{
    (void)state;
    struct judge j = {0};
    eni_curve *curve = open_curve(&j, NULL, 100, 0);
    assert_false(add(curve, 100, 4));
    assert_true(add(curve, 200, 3));
    assert_int_equal(j.calls, 1);
    eni_curve_close(curve);
}

static void test_the_final_model_replaces(void **state)
{
    (void)state;
    struct judge j = {0};
    for (uint64_t copies = 1; copies <= 2; copies++) {
        j.calls = 0;
        eni_curve *curve = open_curve(&j, NULL, 100, copies);
        add(curve, 100, 4);
        assert_false(add(curve, 100, 3)); /* also when the budget was full */
        eni_point last;
        assert_int_equal(eni_curve_finish(curve, &last), EN_OK);
        assert_int_equal(j.calls, 1);
        assert_true(last.loss == 3);
        eni_curve_close(curve);
    }
}

static void test_file(void **state)
{
    (void)state;
    struct judge j = {0};
    char dir[] = "/tmp/entrain-curve-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/eval.jsonl", dir);
    eni_curve *curve = open_curve(&j, dir, 100, 2);
    add(curve, 100, 4);
    add(curve, 200, NAN); /* a model that diverged: JSON has no NaN */
    add(curve, 300, 2);
    assert_int_equal(eni_curve_finish(curve, NULL), EN_OK);
    eni_curve_close(curve);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int i = 1; i <= 3; i++) {
        json_error_t error;
        json_t *o = json_loadf(file, JSON_DISABLE_EOF_CHECK, &error);
        if (o == NULL) fail_msg("line %d: %s", i, error.text);
        assert_int_equal(json_integer_value(json_object_get(o, "samples")), 100 * i);
        assert_int_equal(json_integer_value(json_object_get(o, "update")), 10 * i);
        assert_float_equal(json_real_value(json_object_get(o, "t")), i, 1e-6);
        assert_float_equal(json_number_value(json_object_get(o, "test_accuracy")), 0.25, 1e-9);
        const json_t *loss = json_object_get(o, "test_loss");
        if (i == 2)
            assert_true(json_is_null(loss));
        else
            assert_float_equal(json_number_value(loss), i == 1 ? 4 : 2, 1e-9);
        json_decref(o);
    }
    assert_int_equal(fgetc(file), '\n');
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    unlink(path);
    rmdir(dir);
}

static void keep(void *user, int level, const char *subsystem, const char *text)
{
    (void)level, (void)subsystem;
    snprintf(user, 512, "%s", text);
}

static void test_failures_are_passed_on(void **state)
{
    (void)state;
    struct judge j = {.fail_at = 1};
    char said[512] = "";
    eni_curve *curve = open_curve(&j, NULL, 100, 1);
    float flat[COUNT] = {0};
    int64_t ns;
    assert_int_equal(eni_curve_add(curve, 100, 1, 0, flat, &ns), EN_OK);
    assert_int_equal(eni_curve_add(curve, 200, 2, 0, flat, &ns), EN_ENOMEM);
    j.fail_at = 2;
    assert_int_equal(eni_curve_finish(curve, NULL), EN_ENOMEM);
    eni_curve_close(curve);
    eni_log_set_sink(keep, said);
    eni_curve_config config = {.dir = "/nonexistent", .count = COUNT, .evaluate = judge, .user = &j};
    assert_int_equal(eni_curve_open(&config, &curve), EN_EIO);
    eni_log_set_sink(NULL, NULL);
    assert_non_null(strstr(said, "/nonexistent/eval.jsonl"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_due_at_multiples),         cmocka_unit_test(test_never_due_without_a_grid),
        cmocka_unit_test(test_a_full_budget_evaluates),  cmocka_unit_test(test_no_budget_is_one_copy),
        cmocka_unit_test(test_the_final_model_replaces), cmocka_unit_test(test_file),
        cmocka_unit_test(test_failures_are_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
