/* Products of the simulated cuBLASLt against plain loops: every transposition, order, type and epilogue, and
 * what the manual forbids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>

enum { MOST = 1 << 16, WORKSPACE = 1 << 20 };

/* ---- numbers of 16 bits, written once more so that a mistake in numbers.h is found
 * ------------------------- */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t to_bf16(float value)
{
    const uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* For values that a half holds exactly: no rounding needed. */
static uint16_t to_half(float value)
{
    const uint32_t bits = bits_of(value);
    if (value == 0) return 0;
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 127 + 15) << 10) |
                      (bits >> 13 & 0x3ff));
}

static float from_half(uint16_t half)
{
    if (!(half & 0x7fff)) return 0;
    return of_bits((uint32_t)(half & 0x8000) << 16 | (((uint32_t)half >> 10 & 31) - 15 + 127) << 23 |
                   (uint32_t)(half & 0x3ff) << 13);
}

static size_t size_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static void put(void *array, cudaDataType_t type, int64_t i, float value)
{
    const uint16_t half = type == CUDA_R_16BF ? to_bf16(value) : to_half(value);
    if (type == CUDA_R_32F)
        memcpy((char *)array + 4 * i, &value, 4);
    else
        memcpy((char *)array + 2 * i, &half, 2);
}

static float get(const void *array, cudaDataType_t type, int64_t i)
{
    float value;
    uint16_t half;
    memcpy(&value, (const char *)array + (type == CUDA_R_32F ? 4 : 0) * i, 4);
    memcpy(&half, (const char *)array + 2 * i, 2);
    return type == CUDA_R_32F ? value : type == CUDA_R_16BF ? of_bits((uint32_t)half << 16) : from_half(half);
}

/* ---- one product
 * --------------------------------------------------------------------------------------------- */

/* Small whole numbers: every product and sum is exact in each type, in any order. */
static float small(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(int)(*seed >> 28) - 8.0f;
}

struct rig {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    cublasLtMatmulPreference_t preference;
    char *a, *b, *c, *d, *bias, *mask, *workspace; /* on the device */
    char *host[6];                                 /* pinned: a, b, c, d, bias, mask */
};

static struct rig rig;
static float offset; /* added to what is in A */

struct product {
    int m, n, k, ta, tb, a_row, b_row, extra_ld;
    cudaDataType_t in, out;
    cublasComputeType_t compute;
    cublasLtEpilogue_t epilogue;
    float alpha, beta;
    uint64_t workspace;
    int64_t mask_ld; /* 0: the least */
};

struct matrix {
    cublasLtMatrixLayout_t layout;
    int64_t rows, cols, ld;
    int is_row;
};

static int64_t at(const struct matrix *x, int64_t i, int64_t j)
{
    return x->is_row ? i * x->ld + j : i + j * x->ld;
}

static struct matrix matrix_of(int64_t rows, int64_t cols, cudaDataType_t type, int is_row, int extra)
{
    struct matrix x = {NULL, rows, cols, (is_row ? cols : rows) + extra, is_row};
    const int32_t order = is_row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    assert_int_equal(cublasLtMatrixLayoutCreate(&x.layout, type, (uint64_t)rows, (uint64_t)cols, x.ld), 0);
    assert_int_equal(
        cublasLtMatrixLayoutSetAttribute(x.layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order), 0);
    return x;
}

static void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what, const void *value,
                size_t bytes)
{
    assert_int_equal(cublasLtMatmulDescSetAttribute(desc, what, value, bytes), 0);
}

static int64_t mask_ld_of(const struct product *p)
{
    return p->mask_ld ? p->mask_ld : (p->m + 127) / 128 * 128;
}

static cublasLtMatmulDesc_t desc_of(const struct product *p)
{
    cublasLtMatmulDesc_t desc;
    assert_int_equal(cublasLtMatmulDescCreate(&desc, p->compute, CUDA_R_32F), 0);
    const int32_t ta = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = p->epilogue;
    const int64_t ld = mask_ld_of(p);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    set(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &rig.bias, sizeof rig.bias);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &rig.mask, sizeof rig.mask);
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    return desc;
}

static void copy(void *to, const void *from, size_t bytes)
{
    assert_int_equal(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, rig.stream), cudaSuccess);
}

/* Runs it; the results are in rig.host[3..5]. */
static cublasStatus_t run(const struct product *p, struct matrix *a, struct matrix *b, struct matrix *d)
{
    *a = matrix_of(p->ta ? p->k : p->m, p->ta ? p->m : p->k, p->in, p->a_row, p->extra_ld);
    *b = matrix_of(p->tb ? p->n : p->k, p->tb ? p->k : p->n, p->in, p->b_row, p->extra_ld);
    *d = matrix_of(p->m, p->n, p->out, 0, p->extra_ld);
    const cublasLtMatmulDesc_t desc = desc_of(p);
    uint32_t seed = 7;
    for (int which = 0; which < 5; which++)
        for (int64_t i = 0; i < MOST / 4; i++)
            put(rig.host[which], which < 2 ? p->in : p->out, i, small(&seed) + (which ? 0 : offset));
    for (int64_t i = 0; i < MOST / 4; i++)
        rig.host[5][i] = (char)small(&seed);
    char *device[6] = {rig.a, rig.b, rig.c, rig.d, rig.bias, rig.mask};
    for (int i = 0; i < 6; i++)
        copy(device[i], rig.host[i], MOST);
    assert_int_equal(cublasLtMatmulPreferenceSetAttribute(rig.preference,
                                                          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &p->workspace, sizeof p->workspace),
                     0);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(rig.handle, desc, a->layout, b->layout, d->layout,
                                                           d->layout, rig.preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_SUCCESS && count == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmul(rig.handle, desc, &p->alpha, rig.a, a->layout, rig.b, b->layout, &p->beta,
                                rig.c, d->layout, rig.d, d->layout, &found.algo, rig.workspace,
                                found.workspaceSize, rig.stream);
    for (int i = 3; i < 6; i++)
        copy(rig.host[i], device[i], MOST);
    assert_int_equal(cudaStreamSynchronize(rig.stream), cudaSuccess);
    cublasLtMatmulDescDestroy(desc);
    cublasLtMatrixLayoutDestroy(a->layout);
    cublasLtMatrixLayoutDestroy(b->layout);
    cublasLtMatrixLayoutDestroy(d->layout);
    return status;
}

static int mask_at(const uint8_t *mask, int64_t ld, int64_t i, int64_t j)
{
    return mask[(i + j * ld) / 8] >> ((i + j * ld) % 8) & 1;
}

/* The same by the definition, from a second copy of the inputs. */
static void check(const struct product *p)
{
    struct matrix a, b, d;
    static char in[6][MOST];
    uint32_t seed = 7;
    for (int which = 0; which < 5; which++)
        for (int64_t i = 0; i < MOST / 4; i++)
            put(in[which], which < 2 ? p->in : p->out, i, small(&seed));
    for (int64_t i = 0; i < MOST / 4; i++)
        in[5][i] = (char)small(&seed);
    assert_int_equal(run(p, &a, &b, &d), CUBLAS_STATUS_SUCCESS);
    static float grad[1024];
    memset(grad, 0, sizeof grad);
    const uint32_t e = p->epilogue;
    const int has_bias = (e & CUBLASLT_EPILOGUE_BIAS) != 0, has_relu = (e & CUBLASLT_EPILOGUE_RELU) != 0;
    const int64_t ld = mask_ld_of(p);
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->m; i++) {
            float sum = 0;
            for (int64_t q = 0; q < p->k; q++)
                sum += get(in[0], p->in, p->ta ? at(&a, q, i) : at(&a, i, q)) *
                       get(in[1], p->in, p->tb ? at(&b, j, q) : at(&b, q, j));
            float value = p->alpha * sum;
            if (p->beta != 0) value += p->beta * get(in[2], p->out, at(&d, i, j));
            if (has_bias) value += get(in[4], p->out, i);
            if (e & 128 && has_relu) assert_int_equal(mask_at((uint8_t *)rig.host[5], ld, i, j), value > 0);
            if (has_relu && value < 0) value = 0;
            if (e & 8 && !mask_at((uint8_t *)in[5], ld, i, j)) value = 0;
            if (e & 16) grad[i] += value;
            float stored;
            put(&stored, p->out, 0, value); /* rounded, for 16 bits */
            assert_float_equal(get(rig.host[3], p->out, at(&d, i, j)), get(&stored, p->out, 0), 0);
        }
    if (e == CUBLASLT_EPILOGUE_BGRADA) /* rows of D: sums of op(A) over k */
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t q = 0; q < p->k; q++)
                grad[i] += get(in[0], p->in, p->ta ? at(&a, q, i) : at(&a, i, q));
    if (e == CUBLASLT_EPILOGUE_BGRADB) /* columns of D: sums of op(B) over k */
        for (int64_t j = 0; j < p->n; j++)
            for (int64_t q = 0; q < p->k; q++)
                grad[j] += get(in[1], p->in, p->tb ? at(&b, j, q) : at(&b, q, j));
    const int64_t grads = e == CUBLASLT_EPILOGUE_BGRADB ? p->n : e & (16 | 256) ? p->m : 0;
    for (int64_t i = 0; i < grads; i++)
        assert_float_equal(get(rig.host[4], p->out, i), grad[i], 0);
}

static const struct product plain = {.m = 19,
                                     .n = 7,
                                     .k = 11,
                                     .in = CUDA_R_32F,
                                     .out = CUDA_R_32F,
                                     .compute = CUBLAS_COMPUTE_32F,
                                     .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                                     .alpha = 1};

static const cublasLtEpilogue_t epilogues[] = {
    CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU,        CUBLASLT_EPILOGUE_RELU_AUX,
    CUBLASLT_EPILOGUE_BIAS,    CUBLASLT_EPILOGUE_RELU_BIAS,   CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
    CUBLASLT_EPILOGUE_DRELU,   CUBLASLT_EPILOGUE_DRELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,
    CUBLASLT_EPILOGUE_BGRADB,
};

static void every_transposition_order_and_size(void **state)
{
    (void)state;
    for (int which = 0; which < 64; which++) {
        struct product p = plain;
        p.ta = which & 1;
        p.tb = which >> 1 & 1;
        p.a_row = which >> 2 & 1;
        p.b_row = which >> 3 & 1;
        p.extra_ld = which >> 4 & 1 ? 3 : 0;
        if (which >> 5 & 1) p.m = 64, p.n = 33, p.k = 5;
        p.beta = which % 3 == 0 ? 2 : 0;
        p.alpha = which % 5 == 0 ? -2 : 1;
        check(&p);
    }
}

static void every_epilogue_and_type(void **state)
{
    (void)state;
    const cudaDataType_t types[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
    for (size_t e = 0; e < sizeof epilogues / sizeof *epilogues; e++)
        for (int in = 0; in < 3; in++)
            for (int wide = 0; wide < 2; wide++)
                for (int turned = 0; turned < 4; turned++) {
                    struct product p = plain;
                    p.in = types[in];
                    p.out = wide ? CUDA_R_32F : types[in];
                    p.epilogue = epilogues[e];
                    p.ta = turned & 1;
                    p.tb = turned >> 1;
                    p.k = 3; /* sums stay within the 8 bits of a bfloat16 */
                    p.m = turned == 3 ? 130 : 19;
                    check(&p);
                }
}

static void a_long_sum_is_split(void **state)
{
    (void)state;
    struct product p = plain;
    p.k = 600;
    p.workspace = WORKSPACE;
    check(&p);
}

/* The 13 lowest bits of a factor are lost, to the nearest. */
static void tf32_rounds_the_factors(void **state)
{
    (void)state;
    struct product p = plain;
    p.k = 1;
    struct matrix a, b, d;
    offset = 0.0003f;
    static char exact[MOST];
    assert_int_equal(run(&p, &a, &b, &d), 0);
    memcpy(exact, rig.host[3], MOST);
    p.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    assert_int_equal(run(&p, &a, &b, &d), 0);
    int differ = 0;
    for (int64_t i = 0; i < p.m * p.n; i++) {
        const float factor = get(rig.host[0], CUDA_R_32F, i % p.m);
        const float rounded = of_bits((bits_of(factor) + 0x1000) & 0xffffe000);
        assert_float_equal(get(rig.host[3], CUDA_R_32F, i), rounded * get(rig.host[1], CUDA_R_32F, i / p.m),
                           0);
        differ += get(rig.host[3], CUDA_R_32F, i) != get(exact, CUDA_R_32F, i);
    }
    assert_true(differ > 0);
    offset = 0;
    p.in = CUDA_R_16BF;
    assert_int_equal(run(&p, &a, &b, &d), CUBLAS_STATUS_NOT_SUPPORTED);
}

static void what_the_manual_forbids(void **state)
{
    (void)state;
    struct matrix a, b, d;
    struct product p = plain;
    p.in = CUDA_R_32F, p.out = CUDA_R_16BF;
    assert_int_equal(run(&p, &a, &b, &d), CUBLAS_STATUS_NOT_SUPPORTED);
    p = plain;
    p.epilogue = CUBLASLT_EPILOGUE_RELU_AUX;
    p.mask_ld = 64;
    assert_int_equal(run(&p, &a, &b, &d), CUBLAS_STATUS_INVALID_VALUE);
    p = plain;
    p.epilogue = CUBLASLT_EPILOGUE_BGRADB;
    p.alpha = 2;
    assert_int_equal(run(&p, &a, &b, &d), CUBLAS_STATUS_NOT_SUPPORTED);
    setenv("FAKE_CUBLAS_REFUSE", "relu,bgradb", 1);
    p.alpha = 1;
    assert_int_equal(run(&p, &a, &b, &d), CUBLAS_STATUS_NOT_SUPPORTED);
    p.epilogue = CUBLASLT_EPILOGUE_BGRADA;
    assert_int_equal(run(&p, &a, &b, &d), CUBLAS_STATUS_SUCCESS);
    unsetenv("FAKE_CUBLAS_REFUSE");
}

/* One product of 32 x 32 with these pointers and this promise of alignment. */
static cublasStatus_t place(const char *a, char *d, char *workspace, uint64_t workspace_bytes,
                            uint32_t promise, const char *bias_then, const char *bias_now)
{
    struct product p = plain;
    p.m = p.n = 32;
    p.k = 512;
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    const struct matrix x = matrix_of(32, 512, CUDA_R_32F, 0, 0), y = matrix_of(512, 32, CUDA_R_32F, 0, 0);
    const struct matrix z = matrix_of(32, 32, CUDA_R_32F, 0, 0);
    const cublasLtMatmulDesc_t desc = desc_of(&p);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_then, sizeof bias_then);
    const uint64_t most = WORKSPACE;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, 8);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &promise, 4);
    cublasLtMatmulHeuristicResult_t found;
    int count;
    assert_int_equal(cublasLtMatmulAlgoGetHeuristic(rig.handle, desc, x.layout, y.layout, z.layout, z.layout,
                                                    preference, 1, &found, &count),
                     0);
    assert_int_equal(count, 1);
    assert_true(found.workspaceSize > 0);
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_now, sizeof bias_now);
    const cublasStatus_t status =
        cublasLtMatmul(rig.handle, desc, &p.alpha, a, x.layout, rig.b, y.layout, &p.beta, d, z.layout, d,
                       z.layout, &found.algo, workspace, workspace_bytes, rig.stream);
    assert_int_equal(cudaStreamSynchronize(rig.stream), cudaSuccess);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(desc);
    cublasLtMatrixLayoutDestroy(x.layout);
    cublasLtMatrixLayoutDestroy(y.layout);
    cublasLtMatrixLayoutDestroy(z.layout);
    return status;
}

static void memory_must_be_right(void **state)
{
    (void)state;
    char *bias = rig.bias;
    char *work = rig.workspace;
    assert_int_equal(place(rig.a, rig.d, work, WORKSPACE, 256, bias, bias), 0);
    assert_int_equal(place(rig.a + 4, rig.d, work, WORKSPACE, 4, bias, bias), 0);
    assert_int_not_equal(place(rig.a + 4, rig.d, work, WORKSPACE, 256, bias, bias), 0); /* promised 256 */
    assert_int_not_equal(place(rig.a, rig.d, work, 64, 256, bias, bias), 0);            /* too small */
    assert_int_not_equal(place(rig.a, rig.d, work + 16, WORKSPACE - 16, 256, bias, bias), 0);
    assert_int_not_equal(place(rig.a, rig.d, NULL, 0, 256, bias, bias), 0);
    assert_int_not_equal(place(rig.host[0], rig.d, work, WORKSPACE, 256, bias, bias),
                         0);                                                        /* not the device's */
    assert_int_not_equal(place(rig.a, rig.a, work, WORKSPACE, 256, bias, bias), 0); /* D is A */
    assert_int_not_equal(place(rig.a + 512, rig.d, work, WORKSPACE, 256, bias, bias), 0); /* beyond */
    assert_int_equal(place(rig.a, rig.d, work, WORKSPACE, 256, bias + 4, bias + 8), 0);
    assert_int_not_equal(place(rig.a, rig.d, work, WORKSPACE, 256, NULL, bias + 4), 0);
    assert_int_not_equal(place(rig.a, rig.d, work, WORKSPACE, 256, bias, NULL), 0);
}

static int open_all(void **state)
{
    (void)state;
    char **device[] = {&rig.a, &rig.b, &rig.c, &rig.d, &rig.bias, &rig.mask};
    cublasLtCreate(&rig.handle);
    cublasLtMatmulPreferenceCreate(&rig.preference);
    if (cudaStreamCreateWithFlags(&rig.stream, cudaStreamNonBlocking)) return 1;
    for (int i = 0; i < 6; i++)
        if (cudaMalloc((void **)device[i], MOST + 256) || cudaMallocHost((void **)&rig.host[i], MOST))
            return 1;
    return cudaMalloc((void **)&rig.workspace, WORKSPACE) != cudaSuccess;
}

static int close_all(void **state)
{
    (void)state;
    cublasLtMatmulPreferenceDestroy(rig.preference);
    cublasLtDestroy(rig.handle);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_transposition_order_and_size),
        cmocka_unit_test(every_epilogue_and_type),
        cmocka_unit_test(a_long_sum_is_split),
        cmocka_unit_test(tf32_rounds_the_factors),
        cmocka_unit_test(what_the_manual_forbids),
        cmocka_unit_test(memory_must_be_right),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
