/* dnn.cc - the part of cuDNN 9 that ops/cuda uses: convolutions of the legacy interface.
 *
 *     y[n,k,p,q] = sum over c,r,s of x[n, c, p*u + r*dilation - pad, ..] * w[k, c, r, s]
 *
 * Descriptors always name sizes in the order n, c, h, w (filters k, c, h, w), whatever the layout: NHWC only
 * changes the strides (header, cudnnSetTensor4dDescriptor). Every result is alpha * result + beta * what was
 * there, with float alpha and beta on the host for the three types here.
 *
 *     algorithm             workspace   the same bits twice
 *     forward 0, 1          1: yes      yes
 *     backward data 0, 1    1: yes      1 only        header, cudnn_ops.h: "non-deterministic"
 *     backward filter 0, 1, 3  1: yes   1 only
 *
 * Algorithms that are not deterministic add in another order each time, and the lists put them first: a
 * caller that promised equal bits must look for CUDNN_DETERMINISTIC. Lists end with an algorithm whose status
 * is CUDNN_STATUS_NOT_SUPPORTED, as real ones do. Uses that the manual leaves undefined are refused.
 * FAKE_CUDNN_REFUSE=nhwc,bf16,f16,fused refuses these. */
#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include <unistd.h>

#include "tests/fake_gpu/library.h"
#include "tests/fake_gpu/numbers.h"
#include "tests/fake_gpu/product.h"

using namespace fake_gpu;

struct cudnnContext {
    uint32_t magic;
    cudaStream_t stream;
};

struct cudnnTensorStruct {
    bool is_set = false;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int64_t n = 0, c = 0, h = 0, w = 0;
    int64_t sn = 0, sc = 0, sh = 0, sw = 0; /* strides, in elements */
};

struct cudnnFilterStruct {
    bool is_set = false;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
    int64_t k = 0, c = 0, h = 0, w = 0;
};

struct cudnnConvolutionStruct {
    bool is_set = false;
    int64_t pad_h = 0, pad_w = 0, stride_h = 0, stride_w = 0, dilation_h = 0, dilation_w = 0;
    int64_t groups = 1;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

struct cudnnActivationStruct {
    bool is_set = false;
    cudnnActivationMode_t mode = CUDNN_ACTIVATION_RELU;
    cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
};

namespace
{

enum : uint32_t { HANDLE = 0xd33bd33b };

thread_local char last_error[256];

__attribute__((format(printf, 2, 3))) cudnnStatus_t refuse(cudnnStatus_t status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    if (is_verbose()) complain("cudnn", "%s", last_error);
    return status;
}

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        const cudnnStatus_t status_ = (call);                                                                \
        if (status_ != CUDNN_STATUS_SUCCESS) return status_;                                                 \
    } while (0)

bool number_of(cudnnDataType_t type, Number *number_out)
{
    switch (type) {
    case CUDNN_DATA_FLOAT: *number_out = Number::F32; return true;
    case CUDNN_DATA_BFLOAT16: *number_out = Number::BF16; return true;
    case CUDNN_DATA_HALF: *number_out = Number::F16; return true;
    default: return false;
    }
}

cudnnStatus_t check_handle(cudnnHandle_t handle)
{
    if (!handle || handle->magic != HANDLE) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "no handle");
    return CUDNN_STATUS_SUCCESS;
}

uint64_t bytes_of(const cudnnTensorStruct &t)
{
    Number type;
    if (!number_of(t.type, &type)) return 0;
    const int64_t last = (t.n - 1) * t.sn + (t.c - 1) * t.sc + (t.h - 1) * t.sh + (t.w - 1) * t.sw;
    return (uint64_t)(last + 1) * size_of(type);
}

uint64_t count_of(const cudnnFilterStruct &f)
{
    return (uint64_t)(f.k * f.c * f.h * f.w);
}

bool is_nhwc(const cudnnTensorStruct &t)
{
    return t.sc == 1 && t.sw == t.c && t.sh == t.w * t.c && t.sn == t.h * t.w * t.c;
}

bool is_nchw(const cudnnTensorStruct &t)
{
    return t.sw == 1 && t.sh == t.w && t.sc == t.h * t.w && t.sn == t.c * t.h * t.w;
}

cudnnStatus_t check_tensor(cudnnTensorDescriptor_t t, const char *name)
{
    if (!t) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor of %s", name);
    if (!t->is_set) return refuse(CUDNN_STATUS_BAD_PARAM, "the descriptor of %s was never set", name);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- one convolution ------------------------------------------------------------------------------------
 */

struct Conv {
    cudnnTensorStruct x, y;
    cudnnFilterStruct w;
    cudnnConvolutionStruct conv;
    Number type;

    int64_t taps() const
    {
        return w.h * w.w;
    }
    int64_t row() const /* elements under one window, of one group */
    {
        return taps() * w.c;
    }
    bool is_tf32() const /* header, CUDNN_FMA_MATH: only FMA instructions */
    {
        return type == Number::F32 && conv.math != CUDNN_FMA_MATH;
    }
    int64_t filter_at(int64_t k, int64_t tap, int64_t c) const
    {
        if (conv.mode == CUDNN_CONVOLUTION) tap = taps() - 1 - tap; /* turned by 180 degrees */
        return w.format == CUDNN_TENSOR_NHWC ? (k * taps() + tap) * w.c + c : (k * w.c + c) * taps() + tap;
    }
};

int64_t output_size(int64_t in, int64_t window, int64_t pad, int64_t stride, int64_t dilation)
{
    const int64_t room = in + 2 * pad - ((window - 1) * dilation + 1);
    return room < 0 ? 0 : room / stride + 1;
}

cudnnStatus_t check_types(const Conv &c)
{
    /* The manual's PSEUDO_HALF, PSEUDO_BFLOAT16 and FLOAT configurations: all data of one type, computed in
     * float. So the gradient of 16-bit weights is of 16 bits. */
    Number type;
    if (c.x.type != c.y.type || c.x.type != c.w.type || !number_of(c.x.type, &type))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "types x %d, w %d, y %d", (int)c.x.type, (int)c.w.type,
                      (int)c.y.type);
    if (c.conv.compute != CUDNN_DATA_FLOAT)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "computes in type %d", (int)c.conv.compute);
    if (c.conv.math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "ALLOW_CONVERSION halves float32: not simulated");
    const char *off = "FAKE_CUDNN_REFUSE";
    if ((type == Number::BF16 && switched_on(off, "bf16")) ||
        (type == Number::F16 && switched_on(off, "f16")))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "16 bits, refused as was asked for");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_layouts(const Conv &c)
{
    /* Manual, supported algorithms: a filter in NHWC goes with x and y in NHWC, packed. Mixtures with an NCHW
     * filter exist for some algorithms; nobody should need them. */
    const bool is_last = c.w.format == CUDNN_TENSOR_NHWC;
    if (is_last ? !is_nhwc(c.x) || !is_nhwc(c.y) : !is_nchw(c.x) || !is_nchw(c.y))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "filter in %s, but x or y is not",
                      is_last ? "NHWC" : "NCHW");
    if (is_last && switched_on("FAKE_CUDNN_REFUSE", "nhwc"))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "NHWC, refused as was asked for");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                    cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y, Conv *c)
{
    TRY(check_handle(handle));
    TRY(check_tensor(x, "x"));
    TRY(check_tensor(y, "y"));
    if (!w || !conv) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no filter or no convolution");
    if (!w->is_set || !conv->is_set) return refuse(CUDNN_STATUS_BAD_PARAM, "filter or convolution never set");
    *c = Conv{*x, *y, *w, *conv, Number::F32};
    number_of(x->type, &c->type);
    if (x->c != w->c * conv->groups || y->c != w->k || w->k % conv->groups)
        return refuse(CUDNN_STATUS_BAD_PARAM, "x has %lld channels, y %lld; the filter %lld to %lld",
                      (long long)x->c, (long long)y->c, (long long)w->c, (long long)w->k);
    const int64_t h = output_size(x->h, w->h, conv->pad_h, conv->stride_h, conv->dilation_h);
    const int64_t q = output_size(x->w, w->w, conv->pad_w, conv->stride_w, conv->dilation_w);
    if (h < 1 || q < 1 || y->n != x->n || y->h != h || y->w != q)
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "y is %lldx%lld, should be %lldx%lld",
                      (long long)y->h, (long long)y->w, (long long)h, (long long)q);
    TRY(check_types(*c));
    return check_layouts(*c);
}

/* ---- algorithms ------------------------------------------------------------------------------------------
 */

enum Pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

struct Choice {
    int algo;
    bool is_deterministic, is_supported;
};

const Choice *choices_of(Pass pass, int *count_out)
{
    static const Choice forward[] = {{CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, true, true},
                                     {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, true, true},
                                     {CUDNN_CONVOLUTION_FWD_ALGO_FFT, true, false}};
    static const Choice data[] = {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, false, true},
                                  {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, true, true},
                                  {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, true, false}};
    static const Choice filter[] = {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, false, true},
                                    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, false, true},
                                    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, true, true},
                                    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT, true, false}};
    *count_out = pass == BACKWARD_FILTER ? 4 : 3;
    return pass == FORWARD ? forward : pass == BACKWARD_DATA ? data : filter;
}

const Choice *find_choice(Pass pass, int algo)
{
    int count;
    const Choice *choices = choices_of(pass, &count);
    for (int i = 0; i < count; i++)
        if (choices[i].algo == algo && choices[i].is_supported) return &choices[i];
    return nullptr;
}

/* Depends on the math type, as real ones do: a caller that takes a list's `memory` must set its mathType. */
uint64_t workspace_of(const Conv &c, int algo, cudnnMathType_t math)
{
    if (algo != 1) return 0; /* number 1 of each pass */
    const uint64_t base = 256 + 4 * count_of(c.w);
    return math == CUDNN_FMA_MATH ? base : base + 1024;
}

cudnnStatus_t workspace_size(Pass pass, const Conv &c, int algo, size_t *bytes_out)
{
    if (!bytes_out) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no place for the size");
    if (!find_choice(pass, algo)) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "algorithm %d", algo);
    *bytes_out = workspace_of(c, algo, c.conv.math);
    return CUDNN_STATUS_SUCCESS;
}

template <typename Perf, typename Algo>
cudnnStatus_t list(Pass pass, const Conv &c, int wanted, int *found_out, Perf *perf)
{
    if (!found_out || !perf || wanted < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "no room for a list of algorithms");
    /* TENSOR_OP_MATH is a permission; entries say what they use. */
    std::vector<cudnnMathType_t> maths;
    if (c.conv.math == CUDNN_TENSOR_OP_MATH && c.type != Number::F32) maths.push_back(CUDNN_TENSOR_OP_MATH);
    if (c.conv.math != CUDNN_FMA_MATH) maths.push_back(CUDNN_DEFAULT_MATH);
    if (c.conv.math == CUDNN_FMA_MATH || c.type == Number::F32) maths.push_back(CUDNN_FMA_MATH);
    int count, found = 0;
    const Choice *choices = choices_of(pass, &count);
    for (int i = 0; i < count; i++)
        for (size_t m = 0; m < maths.size() && found < wanted; m++) {
            if (!choices[i].is_supported && m) continue;
            Perf *entry = &perf[found++];
            memset(entry, 0, sizeof *entry);
            entry->algo = (Algo)choices[i].algo;
            entry->status = choices[i].is_supported ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
            entry->time = choices[i].is_supported ? 0.1f * (float)found : -1.0f;
            entry->memory = choices[i].is_supported ? workspace_of(c, choices[i].algo, maths[m]) : 0;
            entry->determinism = choices[i].is_deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
            entry->mathType = maths[m];
        }
    *found_out = found;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the work --------------------------------------------------------------------------------------------
 */

float factor(float value, bool is_tf32)
{
    return is_tf32 ? round_tf32(value) : value;
}

/* y = alpha * value + beta * y; beta 0 does not read y (manual, "Scaling Parameters"). */
void blend(void *to, Number type, int64_t at, float value, float alpha, float beta)
{
    value *= alpha;
    if (beta != 0.0f) value += beta * load(to, type, at);
    store(to, type, at, value);
}

/* Where tap `tap` of the window of output pixel (p, q) reads; false: in the padding. */
bool input_at(const Conv &c, int64_t p, int64_t q, int64_t tap, int64_t *h_out, int64_t *w_out)
{
    *h_out = p * c.conv.stride_h + tap / c.w.w * c.conv.dilation_h - c.conv.pad_h;
    *w_out = q * c.conv.stride_w + tap % c.w.w * c.conv.dilation_w - c.conv.pad_w;
    return *h_out >= 0 && *h_out < c.x.h && *w_out >= 0 && *w_out < c.x.w;
}

/* The windows of image n, channels of one group: (pixels, taps * channels). */
void unfold(const Conv &c, const void *x, int64_t n, int64_t group, float *windows)
{
    for (int64_t p = 0; p < c.y.h; p++)
        for (int64_t q = 0; q < c.y.w; q++)
            for (int64_t tap = 0; tap < c.taps(); tap++) {
                int64_t h, w;
                const bool is_inside = input_at(c, p, q, tap, &h, &w);
                const int64_t at =
                    is_inside ? n * c.x.sn + h * c.x.sh + w * c.x.sw + group * c.w.c * c.x.sc : 0;
                for (int64_t i = 0; i < c.w.c; i++)
                    *windows++ = is_inside ? factor(load(x, c.type, at + i * c.x.sc), c.is_tf32()) : 0.0f;
            }
}

/* (pixels, channels of the group) of dy. */
void gather(const Conv &c, const void *y, int64_t n, int64_t group, float *to)
{
    const int64_t channels = c.w.k / c.conv.groups;
    for (int64_t p = 0; p < c.y.h; p++)
        for (int64_t q = 0; q < c.y.w; q++)
            for (int64_t k = 0; k < channels; k++)
                *to++ = factor(
                    load(y, c.type, n * c.y.sn + p * c.y.sh + q * c.y.sw + (group * channels + k) * c.y.sc),
                    c.is_tf32());
}

std::vector<float> transposed(const std::vector<float> &from, int64_t rows, int64_t cols)
{
    std::vector<float> to(from.size());
    for (int64_t r = 0; r < rows; r++)
        for (int64_t col = 0; col < cols; col++)
            to[(size_t)(col * rows + r)] = from[(size_t)(r * cols + col)];
    return to;
}

/* The filter of one group: (channels out, taps * channels in). */
std::vector<float> read_filter(const Conv &c, const void *w, int64_t group)
{
    const int64_t channels = c.w.k / c.conv.groups;
    std::vector<float> to;
    to.reserve((size_t)(channels * c.row()));
    for (int64_t k = 0; k < channels; k++)
        for (int64_t tap = 0; tap < c.taps(); tap++)
            for (int64_t i = 0; i < c.w.c; i++)
                to.push_back(factor(load(w, c.type, c.filter_at(group * channels + k, tap, i)), c.is_tf32()));
    return to;
}

/* A workspace is written: who shares it with living data finds out. */
void scribble(void *workspace, uint64_t bytes)
{
    if (workspace) memset(workspace, 0xa5, bytes);
}

/* A new order each time it is asked: the sums of a kernel that adds with atomics. */
std::vector<int64_t> order_of(int64_t count, bool is_fixed)
{
    static std::atomic<uint64_t> calls;
    std::vector<int64_t> order((size_t)count);
    std::iota(order.begin(), order.end(), 0);
    if (is_fixed) return order;
    const uint64_t now = (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count();
    std::shuffle(order.begin(), order.end(), std::mt19937_64(now ^ ((uint64_t)getpid() << 32) ^ ++calls));
    return order;
}

struct Fused { /* of cudnnConvolutionBiasActivationForward */
    const void *z, *bias;
    float z_scale;
    bool has_relu;
};

void forward(const Conv &c, const void *x, const void *w, void *y, float alpha, float beta,
             const Fused *fused)
{
    const int64_t pixels = c.y.h * c.y.w, channels = c.w.k / c.conv.groups;
    std::vector<float> windows((size_t)(pixels * c.row())), sum((size_t)(pixels * channels));
    for (int64_t group = 0; group < c.conv.groups; group++) {
        const std::vector<float> filter = transposed(read_filter(c, w, group), channels, c.row());
        for (int64_t n = 0; n < c.x.n; n++) {
            unfold(c, x, n, group, windows.data());
            multiply(sum.data(), filter.data(), windows.data(), channels, pixels, c.row(), 0, c.row());
            for (int64_t j = 0; j < pixels; j++)
                for (int64_t k = 0; k < channels; k++) {
                    const int64_t channel = group * channels + k;
                    const int64_t at =
                        n * c.y.sn + j / c.y.w * c.y.sh + j % c.y.w * c.y.sw + channel * c.y.sc;
                    float value = sum[(size_t)(j * channels + k)];
                    if (!fused) {
                        blend(y, c.type, at, value, alpha, beta);
                        continue;
                    }
                    value *= alpha;
                    if (fused->z_scale != 0.0f) value += fused->z_scale * load(fused->z, c.type, at);
                    value += load(fused->bias, c.type, channel);
                    store(y, c.type, at, fused->has_relu && !(value > 0.0f) ? 0.0f : value);
                }
        }
    }
}

void backward_data(const Conv &c, const void *w, const void *dy, void *dx, float alpha, float beta,
                   bool is_fixed)
{
    const int64_t pixels = c.y.h * c.y.w, channels = c.w.k / c.conv.groups;
    std::vector<float> windows((size_t)(pixels * c.row())), grad((size_t)(pixels * channels));
    std::vector<float> sum((size_t)(c.x.h * c.x.w * c.w.c));
    for (int64_t group = 0; group < c.conv.groups; group++) {
        const std::vector<float> filter = read_filter(c, w, group);
        for (int64_t n = 0; n < c.x.n; n++) {
            gather(c, dy, n, group, grad.data());
            multiply(windows.data(), filter.data(), grad.data(), c.row(), pixels, channels, 0, channels);
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (int64_t tap : order_of(c.taps(), is_fixed))
                for (int64_t j = 0; j < pixels; j++) {
                    int64_t h, v;
                    if (!input_at(c, j / c.y.w, j % c.y.w, tap, &h, &v)) continue;
                    const float *from = &windows[(size_t)(j * c.row() + tap * c.w.c)];
                    float *to = &sum[(size_t)((h * c.x.w + v) * c.w.c)];
                    for (int64_t i = 0; i < c.w.c; i++)
                        to[i] += from[i];
                }
            for (int64_t at = 0; at < c.x.h * c.x.w; at++)
                for (int64_t i = 0; i < c.w.c; i++)
                    blend(dx, c.type,
                          n * c.x.sn + at / c.x.w * c.x.sh + at % c.x.w * c.x.sw +
                              (group * c.w.c + i) * c.x.sc,
                          sum[(size_t)(at * c.w.c + i)], alpha, beta);
        }
    }
}

void backward_filter(const Conv &c, const void *x, const void *dy, void *dw, float alpha, float beta,
                     bool is_fixed)
{
    const int64_t pixels = c.y.h * c.y.w, channels = c.w.k / c.conv.groups, count = channels * c.row();
    std::vector<float> windows((size_t)(pixels * c.row())), grad((size_t)(pixels * channels));
    std::vector<float> part((size_t)count), sum((size_t)count);
    for (int64_t group = 0; group < c.conv.groups; group++) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t n : order_of(c.x.n, is_fixed)) {
            unfold(c, x, n, group, windows.data());
            gather(c, dy, n, group, grad.data());
            const std::vector<float> turned = transposed(grad, pixels, channels);
            multiply(part.data(), windows.data(), turned.data(), c.row(), channels, pixels, 0, pixels);
            for (size_t i = 0; i < sum.size(); i++)
                sum[i] += part[i];
        }
        for (int64_t k = 0; k < channels; k++)
            for (int64_t at = 0; at < c.row(); at++)
                blend(dw, c.type, c.filter_at(group * channels + k, at / c.w.c, at % c.w.c),
                      sum[(size_t)(k * c.row() + at)], alpha, beta);
    }
}

/* ---- arguments -------------------------------------------------------------------------------------------
 */

struct Memory {
    const char *name;
    const void *at;
    uint64_t bytes;
};

/* Tensor cores load 16 bytes at a time; the legacy calls have no way to say that a tensor is aligned less. */
cudnnStatus_t check_memory(const Memory &memory, uint64_t alignment = 16)
{
    if (!memory.at) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s is NULL", memory.name);
    if (!is_aligned(memory.at, alignment))
        return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "%s lies at %p", memory.name, memory.at);
    if (!is_device_memory(memory.name, memory.at, memory.bytes))
        return refuse(CUDNN_STATUS_EXECUTION_FAILED, "%s is not memory of the device", memory.name);
    return CUDNN_STATUS_SUCCESS;
}

/* The last is written, the others are read. */
cudnnStatus_t check_operands(const Conv &c, Pass pass, int algo, const std::vector<Memory> &operands,
                             void *workspace, size_t workspace_bytes)
{
    for (const Memory &memory : operands)
        TRY(check_memory(memory));
    const Memory &out = operands.back();
    for (size_t i = 0; i + 1 < operands.size(); i++)
        if (overlaps(operands[i].at, operands[i].bytes, out.at, out.bytes))
            return refuse(CUDNN_STATUS_BAD_PARAM, "%s overlaps %s", out.name, operands[i].name);
    if (!find_choice(pass, algo)) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "algorithm %d", algo);
    const uint64_t needs = workspace_of(c, algo, c.conv.math);
    if (workspace_bytes < needs)
        return refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "workspace of %zu bytes under %llu",
                      workspace_bytes, (unsigned long long)needs);
    if (needs) TRY(check_memory({"the workspace", workspace, needs}));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t put(cudnnHandle_t handle, const char *name, Work work)
{
    const cudaError_t error = enqueue(handle->stream, name, std::move(work));
    if (error == cudaSuccess) return CUDNN_STATUS_SUCCESS;
    return refuse(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the stream says %d", (int)error);
}

cudnnStatus_t read_scales(const void *alpha, const void *beta, float *a, float *b)
{
    if (!alpha || !beta) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "alpha or beta is NULL");
    memcpy(a, alpha, sizeof *a);
    memcpy(b, beta, sizeof *b);
    return CUDNN_STATUS_SUCCESS;
}

/* A tensor of one number per channel. */
cudnnStatus_t check_per_channel(cudnnTensorDescriptor_t t, const cudnnTensorStruct &whole, const char *name)
{
    TRY(check_tensor(t, name));
    if (t->n != 1 || t->h != 1 || t->w != 1 || t->c != whole.c || t->sc != 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "%s is not (1, %lld, 1, 1), packed", name, (long long)whole.c);
    if (t->type != whole.type)
        return refuse(CUDNN_STATUS_BAD_PARAM, "%s has type %d, its tensor %d", name, (int)t->type,
                      (int)whole.type);
    return CUDNN_STATUS_SUCCESS;
}

template <typename T> cudnnStatus_t create(T **out)
{
    if (!out) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no place for a descriptor");
    *out = new T;
    return CUDNN_STATUS_SUCCESS;
}

} // namespace

/* ---- the functions ----------------------------------------------------------------------------------------
 */

#pragma GCC visibility push(default)
extern "C" {

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

size_t cudnnGetCudartVersion(void)
{
    return CUDART_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER: return "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    case CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT: return "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    case CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH: return "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED_CUDART: return "CUDNN_STATUS_EXECUTION_FAILED_CUDART";
    default: return "CUDNN_STATUS_UNKNOWN";
    }
}

void cudnnGetLastErrorString(char *message, size_t max)
{
    if (message && max) snprintf(message, max, "%s", last_error);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle_out)
{
    if (!handle_out) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no place for a handle");
    touch_context();
    *handle_out = new cudnnContext{HANDLE, nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    TRY(check_handle(handle));
    handle->magic = 0;
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    TRY(check_handle(handle));
    if (device_of(stream) < 0) return refuse(CUDNN_STATUS_BAD_PARAM, "no such stream");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream_out)
{
    TRY(check_handle(handle));
    *stream_out = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out)
{
    return create(out);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor)
{
    delete tensor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t t, cudnnDataType_t type, int n, int c,
                                           int h, int w, int sn, int sc, int sh, int sw)
{
    if (!t) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no tensor descriptor");
    if (n < 1 || c < 1 || h < 1 || w < 1 || sn < 1 || sc < 1 || sh < 1 || sw < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "tensor of %d x %d x %d x %d", n, c, h, w);
    Number ignored;
    if (!number_of(type, &ignored)) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "type %d: not simulated", type);
    const int64_t last =
        (int64_t)(n - 1) * sn + (int64_t)(c - 1) * sc + (int64_t)(h - 1) * sh + (int64_t)(w - 1) * sw;
    if (last >= INT32_MAX) /* manual: "limited to 2 Giga-elements of type datatype" */
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a tensor of over 2^31 elements");
    *t = cudnnTensorStruct{true, type, n, c, h, w, sn, sc, sh, sw};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w)
{
    if ((int64_t)n * c * h * w > INT32_MAX)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a tensor of over 2^31 elements");
    switch (format) {
    case CUDNN_TENSOR_NCHW: return cudnnSetTensor4dDescriptorEx(t, type, n, c, h, w, c * h * w, h * w, w, 1);
    case CUDNN_TENSOR_NHWC: return cudnnSetTensor4dDescriptorEx(t, type, n, c, h, w, c * h * w, 1, w * c, c);
    default: return refuse(CUDNN_STATUS_NOT_SUPPORTED, "format %d", (int)format);
    }
}

cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t t, size_t *bytes_out)
{
    TRY(check_tensor(t, "a tensor"));
    *bytes_out = bytes_of(*t);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out)
{
    return create(out);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter)
{
    delete filter;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    if (!filter) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no filter descriptor");
    if (k < 1 || c < 1 || h < 1 || w < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "filter of %d x %d x %d x %d", k, c, h, w);
    if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "format %d", (int)format);
    *filter = cudnnFilterStruct{true, type, format, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out)
{
    return create(out);
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t conv)
{
    delete conv;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t conv, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute)
{
    if (!conv) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no convolution descriptor");
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "pad %d %d, stride %d %d, dilation %d %d", pad_h, pad_w,
                      stride_h, stride_w, dilation_h, dilation_w);
    *conv = cudnnConvolutionStruct();
    conv->is_set = true;
    conv->pad_h = pad_h;
    conv->pad_w = pad_w;
    conv->stride_h = stride_h;
    conv->stride_w = stride_w;
    conv->dilation_h = dilation_h;
    conv->dilation_w = dilation_w;
    conv->mode = mode;
    conv->compute = compute;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t conv, cudnnMathType_t math)
{
    if (!conv) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no convolution descriptor");
    if (math < CUDNN_DEFAULT_MATH || math > CUDNN_FMA_MATH)
        return refuse(CUDNN_STATUS_BAD_PARAM, "math type %d", (int)math);
    conv->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionMathType(cudnnConvolutionDescriptor_t conv, cudnnMathType_t *math_out)
{
    if (!conv || !math_out) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no convolution descriptor");
    *math_out = conv->math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t conv, int groups)
{
    if (!conv || groups < 1) return refuse(CUDNN_STATUS_BAD_PARAM, "%d groups", groups);
    conv->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t conv,
                                                    const cudnnTensorDescriptor_t x,
                                                    const cudnnFilterDescriptor_t w, int *n_out, int *c_out,
                                                    int *h_out, int *w_out)
{
    TRY(check_tensor(x, "x"));
    if (!conv || !w || !conv->is_set || !w->is_set || x->c != w->c * conv->groups)
        return refuse(CUDNN_STATUS_BAD_PARAM, "no convolution, or x has other channels than the filter");
    *n_out = (int)x->n;
    *c_out = (int)w->k;
    *h_out = (int)output_size(x->h, w->h, conv->pad_h, conv->stride_h, conv->dilation_h);
    *w_out = (int)output_size(x->w, w->w, conv->pad_w, conv->stride_w, conv->dilation_w);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *out)
{
    return create(out);
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activation)
{
    delete activation;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan, double coef)
{
    (void)coef;
    if (!activation) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no activation descriptor");
    *activation = cudnnActivationStruct{true, mode, nan};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t handle, int *count_out)
{
    TRY(check_handle(handle));
    *count_out = CUDNN_CONVOLUTION_FWD_ALGO_COUNT;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t handle, int *count_out)
{
    TRY(check_handle(handle));
    *count_out = CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t handle, int *count_out)
{
    TRY(check_handle(handle));
    *count_out = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t conv,
                                                     const cudnnTensorDescriptor_t y, const int wanted,
                                                     int *found_out, cudnnConvolutionFwdAlgoPerf_t *perf)
{
    Conv c;
    TRY(check(handle, x, w, conv, y, &c));
    return list<cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t>(FORWARD, c, wanted, found_out,
                                                                          perf);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx, const int wanted,
    int *found_out, cudnnConvolutionBwdDataAlgoPerf_t *perf)
{
    Conv c;
    TRY(check(handle, dx, w, conv, dy, &c));
    return list<cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t>(BACKWARD_DATA, c, wanted,
                                                                                  found_out, perf);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw, const int wanted,
    int *found_out, cudnnConvolutionBwdFilterAlgoPerf_t *perf)
{
    Conv c;
    TRY(check(handle, x, dw, conv, dy, &c));
    return list<cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t>(
        BACKWARD_FILTER, c, wanted, found_out, perf);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t conv,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *bytes_out)
{
    Conv c;
    TRY(check(handle, x, w, conv, y, &c));
    return workspace_size(FORWARD, c, algo, bytes_out);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *bytes_out)
{
    Conv c;
    TRY(check(handle, dx, w, conv, dy, &c));
    return workspace_size(BACKWARD_DATA, c, algo, bytes_out);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *bytes_out)
{
    Conv c;
    TRY(check(handle, x, dw, conv, dy, &c));
    return workspace_size(BACKWARD_FILTER, c, algo, bytes_out);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t xd, const void *x,
                                      const cudnnFilterDescriptor_t wd, const void *w,
                                      const cudnnConvolutionDescriptor_t conv, cudnnConvolutionFwdAlgo_t algo,
                                      void *workspace, size_t workspace_bytes, const void *beta,
                                      const cudnnTensorDescriptor_t yd, void *y)
{
    Conv c;
    float a, b;
    TRY(check(handle, xd, wd, conv, yd, &c));
    TRY(read_scales(alpha, beta, &a, &b));
    const uint64_t w_bytes = count_of(c.w) * size_of(c.type), needs = workspace_of(c, algo, c.conv.math);
    TRY(check_operands(c, FORWARD, algo,
                       {{"x", x, bytes_of(c.x)}, {"w", w, w_bytes}, {"y", y, bytes_of(c.y)}}, workspace,
                       workspace_bytes));
    return put(handle, "cudnnConvolutionForward", [=] {
        if (needs) scribble(workspace, needs);
        forward(c, x, w, y, a, b, nullptr);
    });
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, const cudnnTensorDescriptor_t xd, const void *x,
    const cudnnFilterDescriptor_t wd, const void *w, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t workspace_bytes, const void *alpha2,
    const cudnnTensorDescriptor_t zd, const void *z, const cudnnTensorDescriptor_t bias_desc,
    const void *bias, const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t yd, void *y)
{
    Conv c;
    float a, b;
    TRY(check(handle, xd, wd, conv, yd, &c));
    TRY(read_scales(alpha1, alpha2, &a, &b));
    TRY(check_tensor(zd, "z"));
    TRY(check_per_channel(bias_desc, c.y, "bias"));
    if (switched_on("FAKE_CUDNN_REFUSE", "fused"))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "bias and activation, refused as was asked for");
    if (!activation || !activation->is_set) return refuse(CUDNN_STATUS_BAD_PARAM, "no activation");
    /* Manual: the mode is RELU or IDENTITY, reluNanOpt is NOT_PROPAGATE_NAN, IDENTITY needs
     * IMPLICIT_PRECOMP_GEMM, convolutions are cross-correlations, z and y are described alike. */
    const bool is_identity = activation->mode == CUDNN_ACTIVATION_IDENTITY;
    if ((activation->mode != CUDNN_ACTIVATION_RELU && !is_identity) ||
        activation->nan != CUDNN_NOT_PROPAGATE_NAN || c.conv.mode != CUDNN_CROSS_CORRELATION ||
        (is_identity && algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "activation %d, NaN option %d, algorithm %d",
                      (int)activation->mode, (int)activation->nan, (int)algo);
    if (bytes_of(*zd) != bytes_of(c.y) || zd->type != c.y.type || zd->sc != c.y.sc || zd->c != c.y.c)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "z is not described as y is");
    const uint64_t w_bytes = count_of(c.w) * size_of(c.type), needs = workspace_of(c, algo, c.conv.math);
    TRY(check_operands(c, FORWARD, algo,
                       {{"x", x, bytes_of(c.x)},
                        {"w", w, w_bytes},
                        {"bias", bias, (uint64_t)c.y.c * size_of(c.type)},
                        {"y", y, bytes_of(c.y)}},
                       workspace, workspace_bytes));
    TRY(check_memory({"z", z, bytes_of(*zd)}));
    const Fused fused = {z, bias, b, !is_identity};
    return put(handle, "cudnnConvolutionBiasActivationForward", [=] {
        if (needs) scribble(workspace, needs);
        forward(c, x, w, y, a, 0.0f, &fused);
    });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t wd, const void *w,
                                           const cudnnTensorDescriptor_t dyd, const void *dy,
                                           const cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workspace,
                                           size_t workspace_bytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxd, void *dx)
{
    Conv c;
    float a, b;
    TRY(check(handle, dxd, wd, conv, dyd, &c));
    TRY(read_scales(alpha, beta, &a, &b));
    const uint64_t w_bytes = count_of(c.w) * size_of(c.type), needs = workspace_of(c, algo, c.conv.math);
    TRY(check_operands(c, BACKWARD_DATA, algo,
                       {{"w", w, w_bytes}, {"dy", dy, bytes_of(c.y)}, {"dx", dx, bytes_of(c.x)}}, workspace,
                       workspace_bytes));
    const bool is_fixed = find_choice(BACKWARD_DATA, algo)->is_deterministic;
    return put(handle, "cudnnConvolutionBackwardData", [=] {
        if (needs) scribble(workspace, needs);
        backward_data(c, w, dy, dx, a, b, is_fixed);
    });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t xd, const void *x,
                                             const cudnnTensorDescriptor_t dyd, const void *dy,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
                                             size_t workspace_bytes, const void *beta,
                                             const cudnnFilterDescriptor_t dwd, void *dw)
{
    Conv c;
    float a, b;
    TRY(check(handle, xd, dwd, conv, dyd, &c));
    TRY(read_scales(alpha, beta, &a, &b));
    const uint64_t w_bytes = count_of(c.w) * size_of(c.type), needs = workspace_of(c, algo, c.conv.math);
    TRY(check_operands(c, BACKWARD_FILTER, algo,
                       {{"x", x, bytes_of(c.x)}, {"dy", dy, bytes_of(c.y)}, {"dw", dw, w_bytes}}, workspace,
                       workspace_bytes));
    const bool is_fixed = find_choice(BACKWARD_FILTER, algo)->is_deterministic;
    return put(handle, "cudnnConvolutionBackwardFilter", [=] {
        if (needs) scribble(workspace, needs);
        backward_filter(c, x, dy, dw, a, b, is_fixed);
    });
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void *alpha,
                                           const cudnnTensorDescriptor_t dyd, const void *dy,
                                           const void *beta, const cudnnTensorDescriptor_t dbd, void *db)
{
    float a, b;
    TRY(check_handle(handle));
    TRY(check_tensor(dyd, "dy"));
    TRY(check_per_channel(dbd, *dyd, "db"));
    TRY(read_scales(alpha, beta, &a, &b));
    TRY(check_memory({"dy", dy, bytes_of(*dyd)}));
    TRY(check_memory({"db", db, bytes_of(*dbd)}));
    const cudnnTensorStruct t = *dyd;
    Number type = Number::F32;
    number_of(t.type, &type);
    return put(handle, "cudnnConvolutionBackwardBias", [=] {
        for (int64_t channel = 0; channel < t.c; channel++) {
            float sum = 0.0f;
            for (int64_t n = 0; n < t.n; n++)
                for (int64_t p = 0; p < t.h; p++)
                    for (int64_t q = 0; q < t.w; q++)
                        sum += load(dy, type, n * t.sn + channel * t.sc + p * t.sh + q * t.sw);
            blend(db, type, channel, sum, a, b);
        }
    });
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t ad,
                             const void *from, const void *beta, const cudnnTensorDescriptor_t cd, void *to)
{
    float a, b;
    TRY(check_handle(handle));
    TRY(check_tensor(ad, "A"));
    TRY(check_tensor(cd, "C"));
    TRY(read_scales(alpha, beta, &a, &b));
    const cudnnTensorStruct s = *ad, t = *cd;
    /* Manual: each size of A "must match the corresponding dimension of the destination tensor or must be
     * equal to 1". */
    if ((s.n != 1 && s.n != t.n) || (s.c != 1 && s.c != t.c) || (s.h != 1 && s.h != t.h) ||
        (s.w != 1 && s.w != t.w) || s.type != t.type)
        return refuse(CUDNN_STATUS_BAD_PARAM, "A cannot be spread over C");
    TRY(check_memory({"A", from, bytes_of(s)}));
    TRY(check_memory({"C", to, bytes_of(t)}));
    Number type = Number::F32;
    number_of(t.type, &type);
    return put(handle, "cudnnAddTensor", [=] {
        for (int64_t n = 0; n < t.n; n++)
            for (int64_t c = 0; c < t.c; c++)
                for (int64_t p = 0; p < t.h; p++)
                    for (int64_t q = 0; q < t.w; q++) {
                        const float value = load(from, type,
                                                 (s.n > 1 ? n * s.sn : 0) + (s.c > 1 ? c * s.sc : 0) +
                                                     (s.h > 1 ? p * s.sh : 0) + (s.w > 1 ? q * s.sw : 0));
                        blend(to, type, n * t.sn + c * t.sc + p * t.sh + q * t.sw, value, a, b);
                    }
    });
}

} /* extern "C" */
#pragma GCC visibility pop
