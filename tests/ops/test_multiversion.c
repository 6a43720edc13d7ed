/* test_multiversion.c - the machine versions (multiversion.h) of mean.c, optimizer.c, ref/conv.c and of the cpu
 * device's batchnorm.c, pool.c and winograd.c give the bits of the plain version. The plain_ functions are the same
 * sources, compiled without versions and without vectors; see CMakeLists.txt. On a machine without AVX both sides are
 * plain, and the test says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "ops/mean.h"
#include "ops/optimizer.h"
#include "ops/ref/ref.h"
#include "tests/ops/trial.h"

/* Promise: Our own loops give the same bits with and without vectors, also on plain x86-64. */

#ifdef EN_HAVE_ONEDNN
#include "ops/cpu/cpu.h"
extern const eni_cpu_kernel plain_cpu_batchnorm, plain_cpu_pool, plain_cpu_winograd;
#endif

void plain_mean(float *dst, const float *const *src, const float *scale, int n, float inv, uint64_t count);
void plain_mean_first(float *acc, const float *src, float scale, uint64_t count);
void plain_mean_last(float *acc, const float *src, float scale, float inv, uint64_t count);
void plain_mean_add(float *acc, const float *src, float scale, uint64_t count);
void plain_lin(float *y, float a, const float *x, float b, uint64_t count);
bool plain_all_finite(const float *src, uint64_t count);
const eni_optimizer *plain_optimizer_find(const char *name);
extern const eni_ref_kernel plain_conv;

enum { COUNT = 4099 };

static void fill(float *to, uint64_t stream)
{
    const eni_rng_key key = {23, ENI_RNG_TEST, 2, stream};
    for (uint64_t i = 0; i < COUNT; i++)
        to[i] = (float)(2 * eni_rng_unit(&key, i) - 1);
}

static void mean_and_lin(void **state)
{
    (void)state;
    static float src[4][COUNT], a[COUNT], b[COUNT];
    const float *sources[4], scale[4] = {64, 33, 7, 1};
    for (uint64_t k = 0; k < 4; k++) {
        fill(src[k], k);
        sources[k] = src[k];
    }
    for (int n = 1; n <= 4; n++) {
        eni_mean(a, sources, scale, n, 1.0f / 105, COUNT);
        plain_mean(b, sources, scale, n, 1.0f / 105, COUNT);
        assert_memory_equal(a, b, sizeof a);
    }
    eni_mean_first(a, src[0], 0.3f, COUNT), plain_mean_first(b, src[0], 0.3f, COUNT);
    eni_mean_add(a, src[1], 0.7f, COUNT), plain_mean_add(b, src[1], 0.7f, COUNT);
    eni_mean_last(a, src[3], 0.4f, 1.0f / 9, COUNT), plain_mean_last(b, src[3], 0.4f, 1.0f / 9, COUNT);
    eni_lin(a, 0.1f, src[2], 0.9f, COUNT), plain_lin(b, 0.1f, src[2], 0.9f, COUNT);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(eni_all_finite(a, COUNT), plain_all_finite(b, COUNT));
}

static void optimizer(void **state)
{
    (void)state;
    for (int c = 0; c < 6; c++) {
        const eni_hyper h = {.lr = 0.013f,
                             .momentum = c < 2 ? 0.0f : 0.9f,
                             .nesterov = c >= 4,
                             .weight_decay = c % 2 == 0 ? 0.0f : 1e-4f};
        static float w[2][COUNT], m[2][COUNT], g[COUNT];
        const eni_optimizer *sgd[] = {eni_optimizer_find("sgd"), plain_optimizer_find("sgd")};
        assert_ptr_not_equal(sgd[0]->step, sgd[1]->step);
        fill(g, 9);
        for (int k = 0; k < 2; k++) {
            fill(w[k], 10);
            fill(m[k], 11);
            for (int s = 0; s < 10; s++)
                sgd[k]->step(w[k], &(float *){m[k]}, g, COUNT, &h);
        }
        assert_memory_equal(w[0], w[1], sizeof w[0]);
        assert_memory_equal(m[0], m[1], sizeof m[0]);
    }
}

static void adam(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        const char *name = c < 2 ? "adam" : "adamw";
        eni_hyper h = {.lr = 0.013f,
                       .weight_decay = c % 2 == 0 ? 0.0f : 1e-2f,
                       .beta1 = 0.9,
                       .beta2 = 0.999,
                       .eps = 1e-8};
        static float w[2][COUNT], m[2][COUNT], v[2][COUNT], g[COUNT];
        const eni_optimizer *optimizers[] = {eni_optimizer_find(name), plain_optimizer_find(name)};
        assert_ptr_not_equal(optimizers[0]->step, optimizers[1]->step);
        memset(m, 0, sizeof m), memset(v, 0, sizeof v);
        fill(w[0], 10), fill(w[1], 10);
        for (h.step = 0; h.step < 10; h.step++) {
            fill(g, 20 + h.step);
            for (int k = 0; k < 2; k++)
                optimizers[k]->step(w[k], (float *[]){m[k], v[k]}, g, COUNT, &h);
        }
        assert_memory_equal(w[0], w[1], sizeof w[0]);
        assert_memory_equal(m[0], m[1], sizeof m[0]);
        assert_memory_equal(v[0], v[1], sizeof v[0]);
    }
}

static void ref_convolution(void **state)
{
    (void)state;
    eni_device ref;
    assert_int_equal(eni_device_open("ref", "", 1, &ref), EN_OK);
    const en_op op = conv_op((en_extent){2, 9, 8, 19}, 21, 3, 2, 1, EN_OP_BIAS);
    trial a, b;
    trial_init(&a, &ref, &op, 1);
    trial_init(&b, &ref, &op, 1);
    trial_run(&a);
    const en_args args = trial_args(&b);
    assert_int_equal(plain_conv.forward(&op, &args), EN_OK);
    assert_int_equal(plain_conv.backward_weights(&op, &args), EN_OK);
    assert_int_equal(plain_conv.backward_data(&op, &args), EN_OK);
    assert_memory_equal(a.y, b.y, (size_t)a.ny * sizeof(float));
    assert_memory_equal(a.dw, b.dw, (size_t)a.nw * sizeof(float));
    assert_memory_equal(a.db, b.db, (size_t)a.nb * sizeof(float));
    assert_memory_equal(a.dx, b.dx, (size_t)a.nx * sizeof(float));
    trial_fini(&a);
    trial_fini(&b);
    eni_device_close(&ref);
}

#ifdef EN_HAVE_ONEDNN

/* run_plan.c calls this for a primitive; no test here has one. */
en_status eni_dnnl_check(dnnl_status_t status, const char *what)
{
    (void)what;
    return status == dnnl_success ? EN_OK : EN_EBUG;
}

static bool has_no_memory;

/* winograd.c calls this in place of dnnl_sgemm. */
dnnl_status_t plain_sgemm(char is_a_turned, char is_b_turned, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                          float alpha, const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb,
                          float beta, float *c, dnnl_dim_t ldc);
dnnl_status_t plain_sgemm(char is_a_turned, char is_b_turned, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k,
                          float alpha, const float *a, dnnl_dim_t lda, const float *b, dnnl_dim_t ldb,
                          float beta, float *c, dnnl_dim_t ldc)
{
    if (has_no_memory) return dnnl_out_of_memory;
    return dnnl_sgemm(is_a_turned, is_b_turned, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static void a_product_without_memory_fails_its_pass(void **state)
{
    (void)state;
    eni_device cpu;
    if (!open_cpu(&cpu, 1)) skip();
    const en_op op = conv_op((en_extent){6, 16, 16, 16}, 24, 3, 1, 1, 0);
    trial t;
    trial_init(&t, &cpu, &op, 1);
    en_ctx ctx = {.threads = 1};
    en_plan plan = {.op = op, .y = t.y_extent, .ctx = &ctx};
    const en_args args = trial_args(&t);
    const bool has_workspace =
        strncmp(t.info.forward, "winograd:", 9) == 0; /* it is another kernel's off x86-64 */
    for (int fails = 0; has_workspace && fails < 2; fails++) {
        has_no_memory = fails;
        const en_status want = fails ? EN_EBUG : EN_OK; /* by the check above */
        assert_int_equal(plain_cpu_winograd.forward(&plan, &args), want);
        assert_int_equal(plain_cpu_winograd.backward_weights(&plan, &args), want);
        assert_int_equal(plain_cpu_winograd.backward_data(&plan, &args), want);
    }
    has_no_memory = false;
    trial_fini(&t);
    eni_device_close(&cpu);
    if (!has_workspace) skip();
}

static const eni_cpu_kernel *plain_of(const en_op *op, const trial *t)
{
    if (op->kind == EN_OP_BATCHNORM) return &plain_cpu_batchnorm;
    if (op->kind == EN_OP_MAXPOOL || op->kind == EN_OP_RELU_MAXPOOL) return &plain_cpu_pool;
    return strncmp(t->info.forward, "winograd:", 9) == 0 ? &plain_cpu_winograd : NULL;
}

static void run_plain(const eni_cpu_kernel *kernel, trial *t)
{
    en_ctx ctx = {.threads = 1};
    en_plan plan = {.op = t->op, .y = t->y_extent, .ctx = &ctx};
    const en_args args = trial_args(t);
    assert_int_equal(kernel->prepare(&plan), EN_OK);
    assert_int_equal(plan.info.saved_bytes, t->info.saved_bytes);
    assert_int_equal(plan.info.workspace_bytes, t->info.workspace_bytes);
    assert_int_equal(kernel->forward(&plan, &args), EN_OK);
    if (t->nw > 0) assert_int_equal(kernel->backward_weights(&plan, &args), EN_OK);
    assert_int_equal(kernel->backward_data(&plan, &args), EN_OK);
}

static void cpu_device(void **state)
{
    (void)state;
    eni_device cpu;
    if (!open_cpu(&cpu, 1)) skip();
    int count;
    const en_op *ops = trial_ops(&count);
    for (int i = 0; i < count; i++) {
        trial a, b;
        if (ops[i].flags & EN_OP_NO_DX) continue;
        trial_init(&a, &cpu, &ops[i], 1);
        trial_init(&b, &cpu, &ops[i], 1);
        const eni_cpu_kernel *plain = plain_of(&ops[i], &a);
        if (plain == NULL) {
            trial_fini(&a);
            trial_fini(&b);
            continue;
        }
        trial_run(&a);
        run_plain(plain, &b);
        assert_memory_equal(a.y, b.y, (size_t)a.ny * sizeof(float));
        assert_memory_equal(a.dy, b.dy, (size_t)a.ny * sizeof(float));
        assert_memory_equal(a.dx, b.dx, (size_t)a.nx * sizeof(float));
        assert_memory_equal(a.dw, b.dw, (size_t)a.nw * sizeof(float));
        assert_memory_equal(a.db, b.db, (size_t)a.nb * sizeof(float));
        assert_memory_equal(a.stats, b.stats, (size_t)a.nstats * sizeof(float));
        trial_fini(&a);
        trial_fini(&b);
    }
    eni_device_close(&cpu);
}

#else

static void cpu_device(void **state)
{
    (void)state;
    skip();
}

static void a_product_without_memory_fails_its_pass(void **state)
{
    (void)state;
    skip();
}

#endif

int main(void)
{
#if defined(__x86_64__)
    print_message("this machine: avx2 %s, avx512f %s\n", __builtin_cpu_supports("avx2") ? "yes" : "no",
                  __builtin_cpu_supports("avx512f") ? "yes" : "no");
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_and_lin), cmocka_unit_test(optimizer),
        cmocka_unit_test(adam),         cmocka_unit_test(ref_convolution),
        cmocka_unit_test(cpu_device),   cmocka_unit_test(a_product_without_memory_fails_its_pass)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
