/* test_optimizer.c - SGD against torch.optim.SGD's algorithm, transcribed in double; Adam and AdamW against
 * what torch.optim computed (tests/goldens/optimizers.json, made by tools/make_goldens.py). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/memory.h"
#include "core/rng.h"
#include "ops/mean.h"
#include "ops/optimizer.h"

/* Promise: Adam and AdamW are torch.optim's, within 1e-6 a step.
 * Promise: Parameter groups are torch.optim's param_groups, within 1e-6 a step; each element gets its
 * group's rates, wherever ranges begin. */

enum { COUNT = 1003, STEPS = 20 };

/* PyTorch's `_single_tensor_sgd`, line by line; `buf` starts as None, which `first` stands for. */
static void torch_sgd(double *param, double *buf, const float *grad, const eni_hyper *h, int first)
{
    for (int i = 0; i < COUNT; i++) {
        double d_p = (double)grad[i];
        if (h->weight_decay != 0) d_p += (double)h->weight_decay * param[i];
        if (h->momentum != 0) {
            if (first)
                buf[i] = d_p;
            else
                buf[i] = (double)h->momentum * buf[i] + d_p;
            d_p = h->nesterov ? d_p + (double)h->momentum * buf[i] : buf[i];
        }
        param[i] += -(double)h->lr * d_p;
    }
}

static const eni_hyper rates[] = {
    {.lr = 0.1f},
    {.lr = 0.1f, .weight_decay = 0.01f},
    {.lr = 0.01f, .momentum = 0.5f},
    {.lr = 0.01f, .momentum = 0.9f, .weight_decay = 5e-4f},
    {.lr = 0.02f, .momentum = 0.9f, .nesterov = 1},
    {.lr = 0.02f, .momentum = 0.9f, .weight_decay = 1e-4f, .nesterov = 1},
};
enum { RATES = sizeof rates / sizeof *rates };

static void gradient(float *g, uint64_t step)
{
    const eni_rng_key key = {17, ENI_RNG_TEST, 1, step};
    for (uint64_t i = 0; i < COUNT; i++)
        g[i] = (float)(2 * eni_rng_unit(&key, i) - 1);
}

static void agrees_with_pytorch(void **state)
{
    (void)state;
    const eni_optimizer *sgd = eni_optimizer_find("sgd");
    for (int r = 0; r < RATES; r++) {
        float w[COUNT], m[COUNT] = {0}, g[COUNT], *slots[] = {m};
        double param[COUNT], buf[COUNT];
        gradient(w, 1000);
        for (int i = 0; i < COUNT; i++)
            param[i] = (double)w[i];
        assert_int_equal(sgd->slots(&rates[r]), rates[r].momentum != 0);
        for (uint64_t step = 0; step < STEPS; step++) {
            gradient(g, step);
            torch_sgd(param, buf, g, &rates[r], step == 0);
            sgd->step(w, sgd->slots(&rates[r]) ? slots : NULL, g, COUNT, &rates[r]);
            for (int i = 0; i < COUNT; i++) {
                if (!(fabs((double)w[i] - param[i]) <= 2e-6))
                    fail_msg("rates %d, step %d, element %d", r, (int)step, i);
                if (rates[r].momentum != 0) assert_true(fabs((double)m[i] - buf[i]) <= 2e-6);
            }
        }
    }
}

/* The formulas once more in float, operation by operation: the bits are fixed, not only close. */
static void rounds_as_written(void **state)
{
    (void)state;
    const eni_optimizer *sgd = eni_optimizer_find("sgd");
    for (int r = 0; r < RATES; r++) {
        const eni_hyper *h = &rates[r];
        float w[COUNT], m[COUNT], g[COUNT], was[COUNT], *slots[] = {m};
        gradient(w, 1);
        gradient(m, 2);
        gradient(g, 3);
        float old_m[COUNT];
        memcpy(was, w, sizeof was);
        memcpy(old_m, m, sizeof old_m);
        sgd->step(w, slots, g, COUNT, h);
        for (int i = 0; i < COUNT; i++) {
            volatile float decay = h->weight_decay * was[i], kept = h->momentum * old_m[i], d = g[i];
            if (h->weight_decay != 0) d = g[i] + decay;
            volatile float buf = h->momentum != 0 ? kept + d : d, ahead = h->momentum * buf;
            volatile float direction = h->nesterov ? d + ahead : buf, move = h->lr * direction;
            if (h->momentum != 0) assert_true(m[i] == buf);
            assert_true(w[i] == was[i] - move);
        }
    }
}

static void slices_equal_the_whole(void **state)
{
    (void)state;
    const eni_optimizer *sgd = eni_optimizer_find("sgd");
    for (int r = 0; r < RATES; r++)
        for (int parts = 1; parts < 80; parts += 6) {
            float w[2][COUNT], m[2][COUNT], g[COUNT];
            gradient(g, 5);
            for (int k = 0; k < 2; k++) {
                gradient(w[k], 6);
                gradient(m[k], 7);
            }
            sgd->step(w[0], &(float *){m[0]}, g, COUNT, &rates[r]);
            for (int p = 0; p < parts; p++) {
                const uint64_t lo = eni_slice_lo(COUNT, p, parts), hi = eni_slice_lo(COUNT, p + 1, parts);
                sgd->step(w[1] + lo, &(float *){m[1] + lo}, g + lo, hi - lo, &rates[r]);
            }
            assert_memory_equal(w[0], w[1], sizeof w[0]);
            assert_memory_equal(m[0], m[1], sizeof m[0]);
        }
}

/* The formulas of Adam in float, operation by operation; a step in slices, and by eni_mean_step. */
static void adam_rounds_as_written(void **state)
{
    (void)state;
    static const char *const names[] = {"adam", "adamw"};
    for (int k = 0; k < 4; k++) {
        const eni_optimizer *adam = eni_optimizer_find(names[k % 2]);
        const eni_hyper h = {.lr = 0.01f,
                             .weight_decay = k < 2 ? 0 : 0.1f,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .step = 41};
        float w[3][COUNT], m[3][COUNT], v[3][COUNT], g[COUNT];
        gradient(g, 3);
        for (int c = 0; c < 3; c++) {
            gradient(w[c], 1);
            gradient(m[c], 2);
            for (int i = 0; i < COUNT; i++)
                v[c][i] = m[c][i] * m[c][i];
        }
        adam->step(w[0], (float *[]){m[0], v[0]}, g, COUNT, &h);
        for (int p = 0; p < 7; p++) {
            const uint64_t lo = eni_slice_lo(COUNT, p, 7), hi = eni_slice_lo(COUNT, p + 1, 7);
            adam->step(w[1] + lo, (float *[]){m[1] + lo, v[1] + lo}, g + lo, hi - lo, &h);
        }
        const eni_sources from = {.src = (const float *[]){g}, .scale = (float[]){1}, .n = 1, .inv = 1};
        eni_mean_step(adam, w[2], (float *[ENI_MAX_SLOTS]){m[2], v[2]}, &from, COUNT, &h);
        for (int c = 1; c < 3; c++) {
            assert_memory_equal(w[0], w[c], sizeof w[0]);
            assert_memory_equal(m[0], m[c], sizeof m[0]);
            assert_memory_equal(v[0], v[c], sizeof v[0]);
        }
        const double lr = (double)h.lr, decay = (double)h.weight_decay;
        const float rate = (float)(lr / (1 - pow(0.9, 42))), root = (float)sqrt(1 - pow(0.999, 42));
        for (int i = 0; i < COUNT; i++) {
            volatile float old = w[1][i], d = g[i], keep = 1;
            float was[2][COUNT];
            gradient(was[0], 1), gradient(was[1], 2);
            old = was[0][i];
            volatile float decayed = h.weight_decay * old, mean = was[1][i], square = mean * mean;
            if (k % 2 == 0 && decay != 0) d = d + decayed;
            if (k % 2 == 1) keep = (float)(1 - lr * decay);
            volatile float away = d - mean, moved = away * (float)(1 - 0.9);
            mean = mean + moved;
            volatile float kept = square * (float)0.999, part = (float)(1 - 0.999) * d;
            volatile float added = part * d;
            square = kept + added;
            volatile float deviation = sqrtf(square), corrected = deviation / root;
            volatile float below = corrected + (float)1e-8, above = rate * mean, move = above / below;
            volatile float shrunk = old * keep;
            assert_true(m[0][i] == mean && v[0][i] == square && w[0][i] == shrunk - move);
        }
    }
}

/* Within 1e-6 a step. */
static void agrees_with_torch_optim(void **state)
{
    (void)state;
    json_t *goldens = json_load_file(EN_SOURCE_DIR "/tests/goldens/optimizers.json", 0, NULL), *one;
    size_t k, ncases = 0;
    double worst = 0;
    assert_non_null(goldens);
    json_array_foreach(json_object_get(goldens, "cases"), k, one)
    {
        const eni_optimizer *optimizer =
            eni_optimizer_find(json_string_value(json_object_get(one, "optimizer")));
        eni_hyper h = {.lr = (float)json_number_value(json_object_get(one, "lr")),
                       .weight_decay = (float)json_number_value(json_object_get(one, "weight_decay")),
                       .beta1 = json_number_value(json_object_get(one, "beta1")),
                       .beta2 = json_number_value(json_object_get(one, "beta2")),
                       .eps = json_number_value(json_object_get(one, "eps")),
                       .momentum = (float)json_number_value(json_object_get(one, "momentum")),
                       .nesterov = json_integer_value(json_object_get(one, "nesterov")) != 0};
        const uint64_t split = (uint64_t)json_integer_value(json_object_get(one, "split"));
        const eni_param_groups groups = {.ngroups = 2,
                                         .nedges = 2,
                                         .group = {{1, h.weight_decay}, {0.1f, 0}},
                                         .edge = (eni_group_edge[]){{0, 0}, {split, 1}}};
        if (split < 8) h.groups = &groups;
        const json_t *start = json_object_get(one, "start"), *steps = json_object_get(one, "weights");
        enum { N = 8 };
        float w[N], m[N] = {0}, v[N] = {0}, g[N];
        assert_non_null(optimizer);
        assert_int_equal(json_array_size(start), N);
        assert_int_equal(json_array_size(steps), 50);
        for (size_t i = 0; i < N; i++)
            w[i] = (float)json_number_value(json_array_get(start, i));
        for (; h.step < 50; h.step++) {
            const int t = (int)h.step;
            for (int i = 0; i < N; i++)
                g[i] = (float)((i * 37 + t * 101 + 11) % 199 - 99) / 64 / (float)(1 << 2 * (i % 4));
            eni_step_range(optimizer, 0, w, (float *[ENI_MAX_SLOTS]){m, v}, g, N, &h);
            for (size_t i = 0; i < N; i++) {
                const double want = json_number_value(json_array_get(json_array_get(steps, h.step), i));
                const double gap = fabs((double)w[i] - want) / (double)(t + 1);
                if (!(gap <= 1e-6))
                    fail_msg("case %zu, step %d, weight %zu: %.9g, not %.9g", k, t, i, (double)w[i], want);
                worst = gap > worst ? gap : worst;
            }
        }
        ncases++;
    }
    json_decref(goldens);
    assert_true(ncases >= 4);
    print_message("torch.optim, 50 steps of %zu cases: at most %.2g a step apart\n", ncases, worst);
}

/* However the ranges lie, each element gets the rates of its group; a group of one is the run's own. */
static void groups_cut_every_range(void **state)
{
    (void)state;
    const eni_param_groups groups = {.ngroups = 3,
                                     .nedges = 5,
                                     .group = {{1, 0.1f}, {1, 0}, {0.25f, 0.3f}},
                                     .edge =
                                         (eni_group_edge[]){{0, 0}, {100, 1}, {116, 2}, {700, 0}, {9000, 1}}};
    static const char *const names[] = {"sgd", "adam", "adamw"};
    for (int k = 0; k < 3; k++) {
        const eni_optimizer *optimizer = eni_optimizer_find(names[k]);
        const eni_hyper h = {.lr = 0.1f,
                             .momentum = 0.9f,
                             .weight_decay = 0.7f, /* no group's */
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .groups = &groups};
        const uint64_t sizes[] = {COUNT, 1, 7, 64, 100, 333};
        for (size_t c = 0; c < 2 * sizeof sizes / sizeof *sizes; c++) {
            const uint64_t size = sizes[c / 2];
            float w[2][COUNT], m[2][COUNT], v[2][COUNT], g[COUNT];
            gradient(g, 3);
            for (int i = 0; i < 2; i++) {
                gradient(w[i], 1);
                memset(m[i], 0, sizeof m[i]);
                memset(v[i], 0, sizeof v[i]);
            }
            for (uint64_t i = 0; i < COUNT; i++) {
                const int group = i < 100 ? 0 : i < 116 ? 1 : i < 700 ? 2 : 0;
                eni_hyper own = h;
                own.groups = NULL;
                own.lr *= groups.group[group].lr_factor;
                own.weight_decay = groups.group[group].weight_decay;
                optimizer->step(w[0] + i, (float *[]){m[0] + i, v[0] + i}, g + i, 1, &own);
            }
            for (uint64_t lo = 0; lo < COUNT; lo += size) {
                const uint64_t n = COUNT - lo < size ? COUNT - lo : size;
                float *slots[ENI_MAX_SLOTS] = {m[1] + lo, v[1] + lo};
                const eni_sources from = {
                    .src = (const float *[]){g + lo}, .scale = (float[]){1}, .n = 1, .inv = 1};
                if (c % 2 == 0)
                    eni_step_range(optimizer, lo, w[1] + lo, slots, g + lo, n, &h);
                else
                    eni_mean_step_range(optimizer, lo, w[1] + lo, slots, &from, n, &h);
            }
            assert_memory_equal(w[0], w[1], sizeof w[0]);
            assert_memory_equal(m[0], m[1], sizeof m[0]);
            assert_memory_equal(v[0], v[1], sizeof v[0]);
        }
    }
}

static void groups_are_text_and_back(void **state)
{
    (void)state;
    eni_param_groups *groups = eni_groups_new();
    groups->ngroups = 2;
    groups->group[0] = (eni_param_group){1, 0.0005f};
    groups->group[1] = (eni_param_group){0.1f, 0};
    assert_true(eni_groups_add(groups, 0, 0) && eni_groups_add(groups, 512, 1));
    assert_true(eni_groups_add(groups, 528, 1)); /* no edge: the same group goes on */
    assert_true(eni_groups_add(groups, 544, 0));
    char *text = eni_groups_text(groups);
    assert_string_equal(text, "1:0.000500000024,0.100000001:0/0:0,512:1,544:0");
    eni_param_groups *again = eni_groups_parse(text);
    assert_non_null(again);
    assert_true(again->ngroups == 2 && again->nedges == 3 && again->edge[2].lo == 544);
    assert_memory_equal(again->group, groups->group, sizeof groups->group);
    static const char *const wrong[] = {"",
                                        "1:0",
                                        "1:0/",
                                        "1:0/1:0",
                                        "1:0/0:1",
                                        "1:0/0:0,0:0",
                                        "1:0/0:0,",
                                        "1/0:0",
                                        "1:0,/0:0",
                                        "x:0/0:0",
                                        "1:-1/0:0",
                                        "1:nan/0:0",
                                        "1:0/0:0 ",
                                        "1:0/0:-1",
                                        "inf:0/0:0",
                                        "1:0/5:0,2:0",
                                        "0x1:0/0:0",
                                        " 1:0/0:0",
                                        "1:0/0:0,99999999999999999999:0"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (eni_groups_parse(wrong[i]) != NULL) fail_msg("%s was taken", wrong[i]);
    eni_free(text);
    eni_groups_free(again);
    eni_groups_free(groups);
    eni_groups_free(NULL);
}

/* As in PyTorch, no decay means that the weight is not looked at. */
static void no_decay_reads_no_weight(void **state)
{
    (void)state;
    float w[] = {INFINITY}, m[] = {0}, g[] = {1}, *slots[] = {m};
    eni_optimizer_find("sgd")->step(w, slots, g, 1, &rates[2]);
    assert_true(m[0] == 1);
}

static void the_table_is_searched_by_name(void **state)
{
    (void)state;
    assert_null(eni_optimizer_find("sdg"));
    const eni_optimizer *sgd = eni_optimizer_find("sgd");
    assert_non_null(sgd);
    for (int s = 0; s < sgd->slots(&rates[3]); s++)
        assert_non_null(sgd->slot_names[s]);
    assert_string_equal(eni_optimizer_find("adamw")->slot_names[1],
                        "exp_avg_sq"); /* as PyTorch's state_dict */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_pytorch),          cmocka_unit_test(rounds_as_written),
        cmocka_unit_test(slices_equal_the_whole),       cmocka_unit_test(adam_rounds_as_written),
        cmocka_unit_test(groups_cut_every_range),       cmocka_unit_test(groups_are_text_and_back),
        cmocka_unit_test(agrees_with_torch_optim),      cmocka_unit_test(no_decay_reads_no_weight),
        cmocka_unit_test(the_table_is_searched_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
