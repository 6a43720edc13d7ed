/* Convolutions of the simulated cuDNN against the definition, in both layouts and three types; which
 * algorithms give the same bits twice; what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

enum { MOST = 1 << 18, WORKSPACE = 1 << 20 };

struct rig {
    cudnnHandle_t handle;
    cudaStream_t stream;
    cudnnTensorDescriptor_t x, y, b;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    char *device[4], *host[4], *workspace; /* x, w, y, b */
};

static struct rig rig;
enum { X, W, Y, B };

struct conv {
    int n, c, h, w, k, r, s, pad, stride, groups;
    cudnnTensorFormat_t format;
    cudnnDataType_t type;
    float alpha, beta;
    int p, q; /* of y */
};

/* Whole numbers of a few bits: exact in every type, so 16 bits can be written by hand. */
static void put(void *array, cudnnDataType_t type, int64_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint16_t half =
        type == CUDNN_DATA_BFLOAT16 ? (uint16_t)(bits >> 16)
        : value == 0
            ? 0
            : (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
    if (type == CUDNN_DATA_FLOAT)
        memcpy((char *)array + 4 * i, &value, 4);
    else
        memcpy((char *)array + 2 * i, &half, 2);
}

static float get(const void *array, cudnnDataType_t type, int64_t i)
{
    float value;
    uint16_t half;
    memcpy(&value, (const char *)array + (type == CUDNN_DATA_FLOAT ? 4 * i : 0), 4);
    memcpy(&half, (const char *)array + 2 * i, 2);
    if (type == CUDNN_DATA_FLOAT) return value;
    const uint32_t bits = type == CUDNN_DATA_BFLOAT16 ? (uint32_t)half << 16
                          : half & 0x7fff
                              ? (uint32_t)(half & 0x8000) << 16 | (((uint32_t)half >> 10 & 31) + 112) << 23 |
                                    (uint32_t)(half & 0x3ff) << 13
                              : 0;
    memcpy(&value, &bits, 4);
    return value;
}

/* Element (a, b, c, d) of sizes (., C, H, W), named in cuDNN's order. */
static int64_t at(cudnnTensorFormat_t format, int64_t a, int64_t b, int64_t c, int64_t d, int C, int H,
                  int Wd)
{
    return format == CUDNN_TENSOR_NHWC ? ((a * H + c) * Wd + d) * C + b : ((a * C + b) * H + c) * Wd + d;
}

static void describe(struct conv *v)
{
    int n, c;
    cudnnSetTensor4dDescriptor(rig.x, v->format, v->type, v->n, v->c, v->h, v->w);
    cudnnSetFilter4dDescriptor(rig.w, v->type, v->format, v->k, v->c / v->groups, v->r, v->s);
    cudnnSetConvolution2dDescriptor(rig.conv, v->pad, v->pad, v->stride, v->stride, 1, 1,
                                    CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    cudnnSetConvolutionMathType(rig.conv, CUDNN_FMA_MATH);
    cudnnSetConvolutionGroupCount(rig.conv, v->groups);
    assert_int_equal(cudnnGetConvolution2dForwardOutputDim(rig.conv, rig.x, rig.w, &n, &c, &v->p, &v->q), 0);
    assert_int_equal(n, v->n);
    assert_int_equal(c, v->k);
    cudnnSetTensor4dDescriptor(rig.y, v->format, v->type, n, c, v->p, v->q);
    cudnnSetTensor4dDescriptor(rig.b, CUDNN_TENSOR_NCHW, v->type, 1, c, 1, 1);
}

static void fill(const struct conv *v, int what, float scale)
{
    uint32_t seed = 17u + (uint32_t)what;
    for (int64_t i = 0; i < MOST / 4; i++) {
        seed = seed * 1664525u + 1013904223u;
        put(rig.host[what], v->type, i, ((float)(seed >> 30) - 1) * scale);
    }
    assert_int_equal(cudaMemcpyAsync(rig.device[what], rig.host[what], MOST, cudaMemcpyDefault, rig.stream),
                     0);
}

static void fetch(int what)
{
    assert_int_equal(cudaMemcpyAsync(rig.host[what], rig.device[what], MOST, cudaMemcpyDefault, rig.stream),
                     0);
    assert_int_equal(cudaStreamSynchronize(rig.stream), 0);
}

/* All products of the convolution: out[..] += a[..] * b[..] where the three are x, w, y in some order. */
static void by_definition(const struct conv *v, int target, float *sum)
{
    static const int order[4][2] = {{W, Y}, {X, Y}, {X, W}, {0, 0}};
    const int cg = v->c / v->groups, kg = v->k / v->groups;
    for (int n = 0; n < v->n; n++)
        for (int k = 0; k < v->k; k++)
            for (int p = 0; p < v->p; p++)
                for (int q = 0; q < v->q; q++)
                    for (int c = 0; c < cg; c++)
                        for (int r = 0; r < v->r; r++)
                            for (int s = 0; s < v->s; s++) {
                                const int h = p * v->stride + r - v->pad, w = q * v->stride + s - v->pad;
                                if (h < 0 || h >= v->h || w < 0 || w >= v->w) continue;
                                const int64_t where[3] = {
                                    at(v->format, n, k / kg * cg + c, h, w, v->c, v->h, v->w),
                                    at(v->format, k, c, r, s, cg, v->r, v->s),
                                    at(v->format, n, k, p, q, v->k, v->p, v->q)};
                                const int a = order[target][0], b = order[target][1];
                                sum[where[target]] +=
                                    get(rig.host[a], v->type, where[a]) * get(rig.host[b], v->type, where[b]);
                            }
}

static int64_t count_of(const struct conv *v, int what)
{
    const int64_t counts[4] = {(int64_t)v->n * v->c * v->h * v->w,
                               (int64_t)v->k * (v->c / v->groups) * v->r * v->s,
                               (int64_t)v->n * v->k * v->p * v->q, v->k};
    return counts[what];
}

static cudnnStatus_t run(const struct conv *v, int target, int algo)
{
    char *const *d = rig.device;
    if (target == Y)
        return cudnnConvolutionForward(rig.handle, &v->alpha, rig.x, d[X], rig.w, d[W], rig.conv,
                                       (cudnnConvolutionFwdAlgo_t)algo, rig.workspace, WORKSPACE, &v->beta,
                                       rig.y, d[Y]);
    if (target == X)
        return cudnnConvolutionBackwardData(rig.handle, &v->alpha, rig.w, d[W], rig.y, d[Y], rig.conv,
                                            (cudnnConvolutionBwdDataAlgo_t)algo, rig.workspace, WORKSPACE,
                                            &v->beta, rig.x, d[X]);
    return cudnnConvolutionBackwardFilter(rig.handle, &v->alpha, rig.x, d[X], rig.y, d[Y], rig.conv,
                                          (cudnnConvolutionBwdFilterAlgo_t)algo, rig.workspace, WORKSPACE,
                                          &v->beta, rig.w, d[W]);
}

static void check(struct conv v, int algo)
{
    static float sum[MOST / 4], before[MOST / 4];
    describe(&v);
    for (int target = X; target <= Y; target++) {
        for (int what = X; what <= B; what++)
            fill(&v, what, 1);
        memset(sum, 0, sizeof sum);
        by_definition(&v, target, sum);
        for (int64_t i = 0; i < count_of(&v, target); i++)
            before[i] = get(rig.host[target], v.type, i);
        assert_int_equal(run(&v, target, algo), CUDNN_STATUS_SUCCESS);
        fetch(target);
        for (int64_t i = 0; i < count_of(&v, target); i++)
            assert_float_equal(get(rig.host[target], v.type, i), v.alpha * sum[i] + v.beta * before[i], 0);
    }
}

static const struct conv plain = {.n = 3,
                                  .c = 2,
                                  .h = 7,
                                  .w = 6,
                                  .k = 4,
                                  .r = 3,
                                  .s = 2,
                                  .pad = 1,
                                  .stride = 1,
                                  .groups = 1,
                                  .format = CUDNN_TENSOR_NHWC,
                                  .type = CUDNN_DATA_FLOAT,
                                  .alpha = 1};

static void three_passes_by_the_definition(void **state)
{
    (void)state;
    const cudnnDataType_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF};
    for (int which = 0; which < 24; which++) {
        struct conv v = plain;
        v.format = which & 1 ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
        v.stride = which & 2 ? 2 : 1;
        v.groups = which & 4 ? 2 : 1;
        v.type = types[which / 8];
        if (v.type != CUDNN_DATA_FLOAT) v.n = 1; /* sums stay exact in 8 bits */
        check(v, which & 1);
        v.alpha = 2;
        v.beta = 1;
        if (v.type == CUDNN_DATA_FLOAT) check(v, 1 - (which & 1));
    }
}

static void bias_and_activation(void **state)
{
    (void)state;
    struct conv v = plain;
    describe(&v);
    for (int what = X; what <= B; what++)
        fill(&v, what, 1);
    static float sum[MOST / 4];
    memset(sum, 0, sizeof sum);
    by_definition(&v, Y, sum);
    cudnnActivationDescriptor_t relu;
    cudnnCreateActivationDescriptor(&relu);
    cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0);
    const float one = 1, zero = 0;
    const cudnnConvolutionFwdAlgo_t algo = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    char *const *d = rig.device;
    assert_int_equal(cudnnConvolutionBiasActivationForward(rig.handle, &one, rig.x, d[X], rig.w, d[W],
                                                           rig.conv, algo, NULL, 0, &zero, rig.y, d[Y], rig.b,
                                                           d[B], relu, rig.y, d[Y]),
                     0);
    fetch(Y);
    for (int64_t i = 0; i < count_of(&v, Y); i++) {
        const float value = sum[i] + get(rig.host[B], v.type, i % v.k);
        assert_float_equal(get(rig.host[Y], v.type, i), value > 0 ? value : 0, 0);
    }
    cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN, 0);
    assert_int_equal(cudnnConvolutionBiasActivationForward(rig.handle, &one, rig.x, d[X], rig.w, d[W],
                                                           rig.conv, algo, NULL, 0, &zero, rig.y, d[Y], rig.b,
                                                           d[B], relu, rig.y, d[Y]),
                     CUDNN_STATUS_NOT_SUPPORTED); /* identity goes with PRECOMP_GEMM alone */
    cudnnDestroyActivationDescriptor(relu);

    assert_int_equal(cudnnAddTensor(rig.handle, &one, rig.b, d[B], &one, rig.y, d[Y]), 0);
    static char before[MOST];
    memcpy(before, rig.host[Y], MOST);
    fetch(Y);
    for (int64_t i = 0; i < count_of(&v, Y); i++)
        assert_float_equal(get(rig.host[Y], v.type, i),
                           get(before, v.type, i) + get(rig.host[B], v.type, i % v.k), 0);
    assert_int_equal(cudnnConvolutionBackwardBias(rig.handle, &one, rig.y, d[Y], &zero, rig.b, d[B]), 0);
    fetch(B);
    for (int k = 0; k < v.k; k++) {
        float all = 0;
        for (int64_t i = k; i < count_of(&v, Y); i += v.k)
            all += get(rig.host[Y], v.type, i);
        assert_float_equal(get(rig.host[B], v.type, k), all, 0);
    }
}

/* How many of ten runs give the bits of the first. */
static int same_bits(const struct conv *v, int target, int algo)
{
    static char first[MOST];
    int same = 0;
    for (int i = 0; i < 10; i++) {
        for (int what = X; what <= B; what++)
            fill(v, what, 0);
        cudaStreamSynchronize(rig.stream);      /* the same memory is filled again */
        for (int what = X; what <= Y; what++) { /* numbers whose sums are rounded */
            uint32_t seed = 99u + (uint32_t)what;
            for (int64_t e = 0; e < MOST / 4; e++) {
                seed = seed * 1664525u + 1013904223u;
                const float value = (float)(int32_t)seed * 1e-9f;
                memcpy(rig.host[what] + 4 * e, &value, 4);
            }
            assert_int_equal(
                cudaMemcpyAsync(rig.device[what], rig.host[what], MOST, cudaMemcpyDefault, rig.stream), 0);
        }
        assert_int_equal(run(v, target, algo), 0);
        fetch(target);
        if (i == 0) memcpy(first, rig.host[target], MOST);
        same += !memcmp(first, rig.host[target], (size_t)count_of(v, target) * 4);
    }
    return same;
}

static void some_algorithms_add_in_another_order(void **state)
{
    (void)state;
    struct conv v = plain;
    v.n = 8;
    describe(&v);
    assert_int_equal(same_bits(&v, Y, 0), 10);
    assert_int_equal(same_bits(&v, Y, 1), 10);
    assert_int_equal(same_bits(&v, X, 1), 10);
    assert_int_equal(same_bits(&v, W, 1), 10);
    assert_true(same_bits(&v, X, 0) < 10);
    assert_true(same_bits(&v, W, 0) < 10);
    assert_true(same_bits(&v, W, 3) < 10);

    cudnnConvolutionBwdFilterAlgoPerf_t list[8];
    int count;
    assert_int_equal(cudnnGetConvolutionBackwardFilterAlgorithm_v7(rig.handle, rig.x, rig.y, rig.conv, rig.w,
                                                                   8, &count, list),
                     0);
    assert_true(count >= 3);
    assert_int_equal(list[0].determinism, CUDNN_NON_DETERMINISTIC);
    assert_int_equal(list[count - 1].status, CUDNN_STATUS_NOT_SUPPORTED);
    for (int i = 0; i < count; i++) {
        size_t bytes;
        if (list[i].status != CUDNN_STATUS_SUCCESS) continue;
        assert_int_equal(list[i].mathType, CUDNN_FMA_MATH);
        assert_int_equal(cudnnGetConvolutionBackwardFilterWorkspaceSize(rig.handle, rig.x, rig.y, rig.conv,
                                                                        rig.w, list[i].algo, &bytes),
                         0);
        assert_int_equal(bytes, list[i].memory);
    }
}

/* By default float32 may use tensor cores, which round the factors to 10 bits; FMA_MATH forbids it. */
static void default_math_is_tf32(void **state)
{
    (void)state;
    struct conv v = plain;
    v.h = v.w = v.r = v.s = v.k = v.c = v.n = 1;
    v.pad = 0;
    describe(&v);
    const float x = 1.0001f, w = 1;
    memcpy(rig.host[X], &x, 4);
    memcpy(rig.host[W], &w, 4);
    for (int what = X; what <= W; what++)
        cudaMemcpyAsync(rig.device[what], rig.host[what], 4, cudaMemcpyDefault, rig.stream);
    assert_int_equal(run(&v, Y, 0), 0);
    fetch(Y);
    assert_float_equal(get(rig.host[Y], v.type, 0), x, 0);
    cudnnSetConvolutionMathType(rig.conv, CUDNN_DEFAULT_MATH);
    assert_int_equal(run(&v, Y, 0), 0);
    fetch(Y);
    assert_float_equal(get(rig.host[Y], v.type, 0), 1, 0);
}

static void what_is_refused(void **state)
{
    (void)state;
    struct conv v = plain;
    const float one = 1, zero = 0;
    const cudnnConvolutionFwdAlgo_t precomp = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    char *const *d = rig.device;
    describe(&v);
#define FORWARD(from, to, algo, bytes)                                                                       \
    cudnnConvolutionForward(rig.handle, &one, rig.x, from, rig.w, d[W], rig.conv, algo, rig.workspace,       \
                            bytes, &zero, rig.y, to)
    assert_int_equal(FORWARD(d[X], d[Y], precomp, WORKSPACE), 0);
    assert_int_not_equal(FORWARD(d[X], d[Y], precomp, 16), 0);
    assert_int_not_equal(FORWARD(d[X] + 4, d[Y], precomp, WORKSPACE), 0);
    assert_int_not_equal(FORWARD(rig.host[X], d[Y], precomp, WORKSPACE), 0);
    assert_int_not_equal(FORWARD(d[X], d[X], precomp, WORKSPACE), 0);
    assert_int_not_equal(FORWARD(NULL, d[Y], precomp, WORKSPACE), 0);
    assert_int_not_equal(FORWARD(d[X], d[Y], CUDNN_CONVOLUTION_FWD_ALGO_FFT, WORKSPACE), 0);
    cudnnSetFilter4dDescriptor(rig.w, v.type, CUDNN_TENSOR_NCHW, v.k, v.c, v.r, v.s); /* x is NHWC */
    assert_int_equal(FORWARD(d[X], d[Y], precomp, WORKSPACE), CUDNN_STATUS_NOT_SUPPORTED);
    describe(&v);
    cudnnSetFilter4dDescriptor(rig.w, CUDNN_DATA_HALF, CUDNN_TENSOR_NHWC, v.k, v.c, v.r, v.s);
    assert_int_equal(FORWARD(d[X], d[Y], precomp, WORKSPACE), CUDNN_STATUS_NOT_SUPPORTED);
    describe(&v);
    cudnnSetTensor4dDescriptor(rig.y, v.format, v.type, v.n, v.k, v.p + 1, v.q);
    assert_int_not_equal(FORWARD(d[X], d[Y], precomp, WORKSPACE), 0);
    char text[200] = "";
    cudnnGetLastErrorString(text, sizeof text);
    assert_non_null(strstr(text, "y is"));
#undef FORWARD
}

static int open_all(void **state)
{
    (void)state;
    if (cudaStreamCreateWithFlags(&rig.stream, cudaStreamNonBlocking) || cudnnCreate(&rig.handle) ||
        cudnnSetStream(rig.handle, rig.stream) || cudaMalloc((void **)&rig.workspace, WORKSPACE))
        return 1;
    for (int i = 0; i < 4; i++)
        if (cudaMalloc((void **)&rig.device[i], MOST) || cudaMallocHost((void **)&rig.host[i], MOST))
            return 1;
    return cudnnCreateTensorDescriptor(&rig.x) || cudnnCreateTensorDescriptor(&rig.y) ||
           cudnnCreateTensorDescriptor(&rig.b) || cudnnCreateFilterDescriptor(&rig.w) ||
           cudnnCreateConvolutionDescriptor(&rig.conv);
}

static int close_all(void **state)
{
    (void)state;
    cudnnDestroyTensorDescriptor(rig.x);
    cudnnDestroyTensorDescriptor(rig.y);
    cudnnDestroyTensorDescriptor(rig.b);
    cudnnDestroyFilterDescriptor(rig.w);
    cudnnDestroyConvolutionDescriptor(rig.conv);
    return cudnnDestroy(rig.handle) != CUDNN_STATUS_SUCCESS;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_passes_by_the_definition),
        cmocka_unit_test(bias_and_activation),
        cmocka_unit_test(some_algorithms_add_in_another_order),
        cmocka_unit_test(default_math_is_tf32),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
