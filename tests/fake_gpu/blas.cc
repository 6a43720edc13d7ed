/* blas.cc - the part of cuBLASLt that ops/cuda uses, as cublasLt.h and the manual of cuBLAS 13 describe it.
 *
 *     D = epilogue(alpha * op(A) * op(B) + beta * C)       op(A) (m, k), op(B) (k, n), C and D (m, n)
 *
 * Matrices are column-major unless a layout says CUBLASLT_ORDER_ROW: element (i, j) lies at i + j * ld. The
 * layouts of A and B describe what is in memory, before op().
 *
 * "Header" below is cublasLt.h, "manual" the page of cublasLtMatmul(). Uses that the manual leaves undefined
 * are refused, so that nobody relies on them. FAKE_CUBLAS_REFUSE=bgradb,relu_aux_bias,.. makes the heuristic
 * find nothing for these epilogues (or for tf32, bf16, f16), as it does on some GPUs;
 * FAKE_CUBLAS_REFUSE_RUN=default,.. lets it find something that is refused when it is run. */
#include <cublasLt.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/fake_gpu/library.h"
#include "tests/fake_gpu/numbers.h"
#include "tests/fake_gpu/product.h"

using namespace fake_gpu;

struct cublasLtContext {
    uint32_t magic;
};

namespace
{

enum : uint32_t { HANDLE = 0x10b1a500, LAYOUT, MATMUL, PREFERENCE, ALGO };

struct Layout {
    uint32_t magic = LAYOUT;
    uint32_t type = 0;
    int32_t order = CUBLASLT_ORDER_COL;
    uint64_t rows = 0, cols = 0;
    int64_t ld = 0;
    int32_t batches = 1;
    int64_t batch_stride = 0;

    int64_t row_stride() const
    {
        return order == CUBLASLT_ORDER_COL ? 1 : ld;
    }
    int64_t col_stride() const
    {
        return order == CUBLASLT_ORDER_COL ? ld : 1;
    }
};

struct Matmul {
    uint32_t magic = MATMUL;
    int32_t compute = 0, scale = 0;
    int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N, trans_c = CUBLAS_OP_N;
    int32_t fill = CUBLAS_FILL_MODE_FULL;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
    int32_t bias_type = -1, aux_type = -1, sm_count = 0;
};

struct Preference {
    uint32_t magic = PREFERENCE;
    uint32_t search = CUBLASLT_SEARCH_BEST_FIT;
    uint64_t workspace = 0; /* header: default 0, no workspace allowed */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256; /* header: default 256 */
    float waves = 0;
    uint64_t implementations = ~0ull;
};

/* The contents of the eight opaque words of a cublasLtMatmulAlgo_t. */
struct Algo {
    uint32_t magic;
    uint32_t splits;      /* of k: the reason why sums differ between algorithms */
    uint32_t is_in_place; /* they are added in D, in its type; else in the workspace */
    uint64_t problem;
    uint64_t workspace;
    uint16_t align_a, align_b, align_c, align_d, align_bias, align_aux;
    uint32_t reserved[5];
};
static_assert(sizeof(Algo) <= sizeof(cublasLtMatmulAlgo_t), "the opaque words are too few");

template <typename T, typename Opaque> T *open(Opaque *handle, uint32_t magic)
{
    T *own = reinterpret_cast<T *>(handle);
    return own && own->magic == magic ? own : nullptr;
}

Layout *open(cublasLtMatrixLayout_t handle)
{
    return open<Layout>(handle, LAYOUT);
}

Matmul *open(cublasLtMatmulDesc_t handle)
{
    return open<Matmul>(handle, MATMUL);
}

Preference *open(cublasLtMatmulPreference_t handle)
{
    return open<Preference>(handle, PREFERENCE);
}

#define REFUSE(status, ...)                                                                                  \
    do {                                                                                                     \
        if (is_verbose()) complain("cublasLt", __VA_ARGS__);                                                 \
        return status;                                                                                       \
    } while (0)

/* Reads one attribute. Header, of all SetAttribute functions: INVALID_VALUE "if buf is NULL or sizeInBytes
 * doesn't match the size of the internal storage for the selected attribute". */
template <typename T> cublasStatus_t set(T *to, const void *from, size_t bytes)
{
    if (!from || bytes != sizeof *to)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "an attribute of %zu bytes was given %zu", sizeof *to, bytes);
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- epilogues ----------------------------------------------------------------------------------------- */

struct Epilogue {
    uint32_t value;
    const char *name;
    bool has_bias; /* reads a bias */
    bool has_relu, writes_aux, reads_aux;
    bool grad_d, grad_a, grad_b; /* writes a bias gradient: sums of D's rows, of A or of B over k */
};

const Epilogue epilogues[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, "default", 0, 0, 0, 0, 0, 0, 0},
    {CUBLASLT_EPILOGUE_RELU, "relu", 0, 1, 0, 0, 0, 0, 0},
    {CUBLASLT_EPILOGUE_RELU_AUX, "relu_aux", 0, 1, 1, 0, 0, 0, 0},
    {CUBLASLT_EPILOGUE_BIAS, "bias", 1, 0, 0, 0, 0, 0, 0},
    {CUBLASLT_EPILOGUE_RELU_BIAS, "relu_bias", 1, 1, 0, 0, 0, 0, 0},
    {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, "relu_aux_bias", 1, 1, 1, 0, 0, 0, 0},
    {CUBLASLT_EPILOGUE_DRELU, "drelu", 0, 0, 0, 1, 0, 0, 0},
    {CUBLASLT_EPILOGUE_DRELU_BGRAD, "drelu_bgrad", 0, 0, 0, 1, 1, 0, 0},
    {CUBLASLT_EPILOGUE_BGRADA, "bgrada", 0, 0, 0, 0, 0, 1, 0},
    {CUBLASLT_EPILOGUE_BGRADB, "bgradb", 0, 0, 0, 0, 0, 0, 1},
};

const Epilogue *find_epilogue(uint32_t value)
{
    for (const Epilogue &epilogue : epilogues)
        if (epilogue.value == value) return &epilogue;
    return nullptr;
}

bool needs_bias(const Epilogue &e)
{
    return e.has_bias || e.grad_d || e.grad_a || e.grad_b;
}

bool needs_aux(const Epilogue &e)
{
    return e.writes_aux || e.reads_aux;
}

/* ---- one problem --------------------------------------------------------------------------------------- */

struct Problem {
    int64_t m, n, k;
    Layout a, b, c, d;
    bool is_a_turned, is_b_turned, is_tf32;
    Number in, out;
    Matmul matmul;
    const Epilogue *epilogue;

    int64_t bias_count() const
    {
        return epilogue->grad_b ? n : m; /* header: rows of D, but columns of D for BGRADB */
    }
};

bool number_of(uint32_t type, Number *number_out)
{
    switch (type) {
    case CUDA_R_32F: *number_out = Number::F32; return true;
    case CUDA_R_16BF: *number_out = Number::BF16; return true;
    case CUDA_R_16F: *number_out = Number::F16; return true;
    default: return false;
    }
}

cublasStatus_t check_layout(const Layout &layout, const char *name, bool is_c)
{
    if (layout.order != CUBLASLT_ORDER_COL && layout.order != CUBLASLT_ORDER_ROW)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "%s has order %d", name, layout.order);
    if (!layout.rows || !layout.cols || layout.rows > INT32_MAX || layout.cols > INT32_MAX)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s is %llu x %llu", name, (unsigned long long)layout.rows,
               (unsigned long long)layout.cols);
    const int64_t least = layout.order == CUBLASLT_ORDER_COL ? (int64_t)layout.rows : (int64_t)layout.cols;
    (void)is_c; /* manual: ld 0 of C broadcasts; nobody here does */
    if (layout.ld < least)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s has ld %lld under %lld", name, (long long)layout.ld,
               (long long)least);
    if (layout.batches != 1) REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "%s is a batch: not simulated", name);
    return CUBLAS_STATUS_SUCCESS;
}

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        const cublasStatus_t status_ = (call);                                                               \
        if (status_ != CUBLAS_STATUS_SUCCESS) return status_;                                                \
    } while (0)

/* The table of the manual, "computeType, scaleType, Atype/Btype, Ctype, Bias Type". A and B have one type. */
cublasStatus_t check_types(Problem *problem)
{
    const Matmul &mm = problem->matmul;
    Number a, b, c, d;
    if (!number_of(problem->a.type, &a) || !number_of(problem->b.type, &b) ||
        !number_of(problem->c.type, &c) || !number_of(problem->d.type, &d) || a != b || c != d)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "types A %u, B %u, C %u, D %u", problem->a.type, problem->b.type,
               problem->c.type, problem->d.type);
    if (d != a && d != Number::F32)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "factors of type %u give no D of type %u", problem->a.type,
               problem->d.type);
    const bool is_fast = mm.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!is_fast && mm.compute != CUBLAS_COMPUTE_32F && mm.compute != CUBLAS_COMPUTE_32F_PEDANTIC)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "compute type %d", mm.compute);
    if (is_fast && a != Number::F32)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "TF32 with factors that are not float32");
    if (mm.scale != CUDA_R_32F) REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "scale type %d", mm.scale);
    if (needs_bias(*problem->epilogue) && mm.bias_type != -1 && (uint32_t)mm.bias_type != problem->d.type)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "bias type %d with D of type %u", mm.bias_type, problem->d.type);
    if (mm.aux_type != -1) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "a ReLU mask has no data type");
    problem->is_tf32 = is_fast;
    problem->in = a;
    problem->out = d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_epilogue(const Problem &problem)
{
    const Epilogue &e = *problem.epilogue;
    /* Manual, note 6: epilogues that combine ReLU or dReLU with bias are not supported where D has
     * CUBLASLT_ORDER_ROW; older manuals say so of every one of them. */
    if (e.value != CUBLASLT_EPILOGUE_DEFAULT && problem.d.order == CUBLASLT_ORDER_ROW)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "epilogue %s with a row-major D", e.name);
    /* Header, EPILOGUE_AUX_LD: "Must be divisible by 128 and be no less than the number of rows" of D. */
    if (needs_aux(e) && (problem.matmul.aux_ld % 128 || problem.matmul.aux_ld < problem.m))
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "ld %lld of the mask: not a multiple of 128, or under %lld",
               (long long)problem.matmul.aux_ld, (long long)problem.m);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, Problem *problem)
{
    if (!open(desc) || !open(a) || !open(b) || !open(c) || !open(d))
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "a descriptor is NULL, or not what it should be");
    problem->matmul = *open(desc);
    problem->a = *open(a);
    problem->b = *open(b);
    problem->c = *open(c);
    problem->d = *open(d);
    problem->epilogue = find_epilogue(problem->matmul.epilogue);
    if (!problem->epilogue) REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "epilogue %u", problem->matmul.epilogue);
    TRY(check_layout(problem->a, "A", false));
    TRY(check_layout(problem->b, "B", false));
    TRY(check_layout(problem->c, "C", true));
    TRY(check_layout(problem->d, "D", false));
    if (problem->matmul.trans_c != CUBLAS_OP_N || problem->matmul.fill != CUBLAS_FILL_MODE_FULL)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "a turned or partial C");
    problem->is_a_turned = problem->matmul.trans_a != CUBLAS_OP_N;
    problem->is_b_turned = problem->matmul.trans_b != CUBLAS_OP_N;
    problem->m = (int64_t)problem->d.rows;
    problem->n = (int64_t)problem->d.cols;
    const int64_t am = (int64_t)(problem->is_a_turned ? problem->a.cols : problem->a.rows);
    const int64_t ak = (int64_t)(problem->is_a_turned ? problem->a.rows : problem->a.cols);
    const int64_t bk = (int64_t)(problem->is_b_turned ? problem->b.cols : problem->b.rows);
    const int64_t bn = (int64_t)(problem->is_b_turned ? problem->b.rows : problem->b.cols);
    problem->k = ak;
    if (am != problem->m || bn != problem->n || ak != bk)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "op(A) %lldx%lld times op(B) %lldx%lld is not D %lldx%lld",
               (long long)am, (long long)ak, (long long)bk, (long long)bn, (long long)problem->m,
               (long long)problem->n);
    /* Manual, first note: C and D have one type, size and order. */
    if (problem->c.rows != problem->d.rows || problem->c.cols != problem->d.cols ||
        problem->c.order != problem->d.order)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "C is not laid out as D");
    TRY(check_types(problem));
    return check_epilogue(*problem);
}

void mix(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * 0x9e3779b97f4a7c15ull;
    *hash ^= *hash >> 29;
}

/* An algorithm is for one problem: what the real library merely may refuse with another one. */
uint64_t hash_of(const Problem &problem)
{
    uint64_t hash = 1;
    for (const Layout *layout : {&problem.a, &problem.b, &problem.c, &problem.d})
        for (uint64_t part : {(uint64_t)layout->type, (uint64_t)layout->order, layout->rows, layout->cols,
                              (uint64_t)layout->ld})
            mix(&hash, part);
    for (uint64_t part : {(uint64_t)problem.is_a_turned, (uint64_t)problem.is_b_turned,
                          (uint64_t)problem.matmul.compute, (uint64_t)problem.epilogue->value})
        mix(&hash, part);
    return hash;
}

Algo choose(const Problem &problem, const Preference &preference, bool is_second)
{
    Algo algo = {};
    algo.magic = ALGO;
    algo.splits = 1;
    algo.problem = hash_of(problem);
    const uint64_t partials = 4ull * (uint64_t)(problem.m * problem.n);
    /* Header, INPLACE: "using the output buffer (and output data type)". Many pieces, so that it shows. */
    if (!is_second && problem.k >= 256 && problem.out != Number::F32 &&
        (preference.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE)) {
        algo.splits = (uint32_t)problem.k / 8;
        algo.is_in_place = 1;
    } else if (!is_second && problem.k >= 256 &&
               (preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))
        algo.splits = problem.k >= 1024 ? 4 : 2;
    if (!algo.is_in_place && algo.splits * partials > preference.workspace) algo.splits = 1;
    algo.workspace = algo.splits > 1 && !algo.is_in_place ? algo.splits * partials : 0;
    const auto least = [](uint32_t alignment) { return (uint16_t)(alignment < 16 ? alignment : 16); };
    algo.align_a = least(preference.align_a);
    algo.align_b = least(preference.align_b);
    algo.align_c = least(preference.align_c);
    algo.align_d = least(preference.align_d);
    /* Header, BIAS_POINTER: the heuristic depends "on its value to determine expected pointer alignment". How
     * much of that alignment is then needed it does not say: all of it, here. */
    algo.align_bias = (uint16_t)alignment_of(problem.matmul.bias);
    algo.align_aux = (uint16_t)alignment_of(problem.matmul.aux);
    return algo;
}

bool is_found(const Problem &problem)
{
    const char *refuse = "FAKE_CUBLAS_REFUSE";
    if (switched_on(refuse, problem.epilogue->name)) return false;
    if (problem.is_tf32 && switched_on(refuse, "tf32")) return false;
    if (problem.in == Number::BF16 && switched_on(refuse, "bf16")) return false;
    return !(problem.in == Number::F16 && switched_on(refuse, "f16"));
}

/* ---- the work ------------------------------------------------------------------------------------------ */

uint64_t bytes_of(const Layout &layout, Number type)
{
    const uint64_t last = (uint64_t)((layout.rows - 1) * (uint64_t)layout.row_stride() +
                                     (layout.cols - 1) * (uint64_t)layout.col_stride());
    return (last + 1) * size_of(type);
}

struct Arguments {
    const void *a, *b, *c;
    void *d, *bias, *aux, *workspace;
    bool is_device; /* of alpha and beta */
    const float *alpha, *beta;
    float alpha_value, beta_value;
};

/* to[j][i] = matrix element (i, j), or (j, i) when it is turned. */
void pack(float *to, const void *from, Number type, const Layout &layout, bool is_turned, bool is_tf32)
{
    const int64_t rows = (int64_t)(is_turned ? layout.cols : layout.rows);
    const int64_t cols = (int64_t)(is_turned ? layout.rows : layout.cols);
    const int64_t down = is_turned ? layout.col_stride() : layout.row_stride();
    const int64_t right = is_turned ? layout.row_stride() : layout.col_stride();
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            const float value = load(from, type, i * down + j * right);
            to[j * rows + i] = is_tf32 ? round_tf32(value) : value;
        }
}

/* Piece by piece of k, each rounded to the type of D as it is added. */
void sum_in_place(const Problem &p, const Algo &algo, const float *a, const float *b, float *sum)
{
    const int64_t count = p.m * p.n;
    std::vector<float> piece((size_t)count);
    std::fill(sum, sum + count, 0.0f);
    for (uint32_t s = 0; s < algo.splits; s++) {
        multiply(piece.data(), a, b, p.m, p.n, p.k, p.k * s / algo.splits, p.k * (s + 1) / algo.splits);
        for (int64_t i = 0; i < count; i++) {
            uint64_t there = 0;
            store(&there, p.out, 0, sum[i] + piece[(size_t)i]);
            sum[i] = load(&there, p.out, 0);
        }
    }
}

/* One piece of k: the partial sums go through the workspace, as the real kernels send them. */
void sum_products(const Problem &p, const Algo &algo, const Arguments &args, const float *a, const float *b,
                  float *sum)
{
    if (algo.splits == 1) {
        multiply(sum, a, b, p.m, p.n, p.k, 0, p.k);
        return;
    }
    if (algo.is_in_place) {
        sum_in_place(p, algo, a, b, sum);
        return;
    }
    const int64_t count = p.m * p.n;
    float *partial = (float *)args.workspace;
    for (uint32_t s = 0; s < algo.splits; s++)
        multiply(partial + s * count, a, b, p.m, p.n, p.k, p.k * s / algo.splits,
                 p.k * (s + 1) / algo.splits);
    for (int64_t i = 0; i < count; i++) {
        sum[i] = partial[i];
        for (uint32_t s = 1; s < algo.splits; s++)
            sum[i] += partial[s * count + i];
    }
}

/* Bit (i, j) of the mask: ld counts bits (header, EPILOGUE_AUX_LD); the lowest bit of a byte comes first. */
bool read_bit(const void *mask, int64_t ld, int64_t i, int64_t j)
{
    const int64_t bit = i + j * ld;
    return ((const uint8_t *)mask)[bit / 8] >> (bit % 8) & 1;
}

void write_bit(void *mask, int64_t ld, int64_t i, int64_t j, bool is_set)
{
    const int64_t bit = i + j * ld;
    uint8_t *byte = (uint8_t *)mask + bit / 8;
    *byte = (uint8_t)((*byte & ~(1u << bit % 8)) | (unsigned)is_set << bit % 8);
}

void finish(const Problem &p, const Arguments &args, const float *sum)
{
    const Epilogue &e = *p.epilogue;
    const float alpha = args.is_device ? *args.alpha : args.alpha_value;
    const float beta = args.is_device ? *args.beta : args.beta_value;
    std::vector<float> grad((size_t)(e.grad_d ? p.m : 0));
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++) {
            float value = alpha * sum[j * p.m + i];
            if (beta != 0.0f) /* then C is not read: BLAS, and cuBLAS with it */
                value += beta * load(args.c, p.out, i * p.c.row_stride() + j * p.c.col_stride());
            if (e.has_bias) value += load(args.bias, p.out, i);
            if (e.writes_aux) write_bit(args.aux, p.matmul.aux_ld, i, j, value > 0.0f);
            if (e.has_relu && !(value > 0.0f)) value = 0.0f;
            if (e.reads_aux && !read_bit(args.aux, p.matmul.aux_ld, i, j)) value = 0.0f;
            if (e.grad_d) grad[(size_t)i] += value;
            store(args.d, p.out, i * p.d.row_stride() + j * p.d.col_stride(), value);
        }
    for (int64_t i = 0; e.grad_d && i < p.m; i++)
        store(args.bias, p.out, i, grad[(size_t)i]);
}

/* Header, BGRADA and BGRADB: "the reduction happens over the GEMM's k dimension". a (k, m), b (n, k). */
void write_input_grad(const Problem &p, const Arguments &args, const float *a, const float *b)
{
    for (int64_t i = 0; i < p.bias_count(); i++) {
        float sum = 0.0f;
        for (int64_t q = 0; q < p.k; q++)
            sum += p.epilogue->grad_a ? a[q * p.m + i] : b[i * p.k + q];
        store(args.bias, p.out, i, sum);
    }
}

void run(const Problem &p, const Algo &algo, const Arguments &args)
{
    std::vector<float> a((size_t)(p.k * p.m)), b((size_t)(p.n * p.k)), sum((size_t)(p.m * p.n));
    pack(a.data(), args.a, p.in, p.a, p.is_a_turned, p.is_tf32);
    pack(b.data(), args.b, p.in, p.b, p.is_b_turned, p.is_tf32);
    sum_products(p, algo, args, a.data(), b.data(), sum.data());
    if (p.epilogue->grad_a || p.epilogue->grad_b) write_input_grad(p, args, a.data(), b.data());
    finish(p, args, sum.data());
}

cublasStatus_t check_memory(const void *memory, uint64_t bytes, uint32_t alignment, const char *name)
{
    if (!memory) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s is NULL", name);
    if (!is_aligned(memory, alignment))
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s at %p, but the algorithm was asked for %u bytes", name,
               memory, alignment);
    if (!is_device_memory(name, memory, bytes)) return CUBLAS_STATUS_EXECUTION_FAILED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_arguments(const Problem &p, const Algo &algo, const Arguments &args,
                               uint64_t workspace_bytes)
{
    TRY(check_memory(args.a, bytes_of(p.a, p.in), algo.align_a, "A"));
    TRY(check_memory(args.b, bytes_of(p.b, p.in), algo.align_b, "B"));
    TRY(check_memory(args.c, bytes_of(p.c, p.out), algo.align_c, "C"));
    TRY(check_memory(args.d, bytes_of(p.d, p.out), algo.align_d, "D"));
    if (args.c == args.d && p.c.ld != p.d.ld)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "C is D, with another ld"); /* manual, first note */
    const uint64_t d_bytes = bytes_of(p.d, p.out);
    if (overlaps(args.d, d_bytes, args.a, bytes_of(p.a, p.in)) ||
        overlaps(args.d, d_bytes, args.b, bytes_of(p.b, p.in)) ||
        (args.c != args.d && overlaps(args.d, d_bytes, args.c, bytes_of(p.c, p.out))))
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "D overlaps a factor, or C in part");
    if (needs_bias(*p.epilogue))
        TRY(check_memory(args.bias, (uint64_t)p.bias_count() * size_of(p.out), algo.align_bias, "the bias"));
    if (needs_aux(*p.epilogue))
        TRY(check_memory(args.aux, (uint64_t)(p.matmul.aux_ld / 8 * p.n), algo.align_aux, "the mask"));
    if (workspace_bytes < algo.workspace)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "workspace of %llu bytes; the algorithm needs %llu",
               (unsigned long long)workspace_bytes, (unsigned long long)algo.workspace);
    /* Manual: "must be 256B aligned (i.e. lowest 8 bits of address must be 0)". */
    if (workspace_bytes && args.workspace)
        TRY(check_memory(args.workspace, workspace_bytes, 256, "the workspace"));
    if (algo.workspace && !args.workspace) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "the workspace is NULL");
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_scalars(const Problem &p, const void *alpha, const void *beta, Arguments *args)
{
    if (!alpha || !beta) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "alpha or beta is NULL");
    args->is_device = p.matmul.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
    const bool is_grad = p.epilogue->grad_a || p.epilogue->grad_b;
    if (args->is_device) {
        if (is_grad) REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "does alpha scale a gradient of the bias? not said");
        args->alpha = (const float *)alpha;
        args->beta = (const float *)beta;
        TRY(check_memory(alpha, 4, 4, "alpha"));
        return check_memory(beta, 4, 4, "beta");
    }
    if (p.matmul.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "pointer mode %d", p.matmul.pointer_mode);
    memcpy(&args->alpha_value, alpha, 4);
    memcpy(&args->beta_value, beta, 4);
    if (is_grad && args->alpha_value != 1.0f)
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "does alpha scale a gradient of the bias? not said");
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename Opaque> cublasStatus_t destroy(Opaque *handle, uint32_t magic)
{
    T *own = open<T>(handle, magic);
    if (!own) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "destroys what is not there");
    own->magic = 0;
    delete own;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

/* ---- the functions ------------------------------------------------------------------------------------- */

#pragma GCC visibility push(default)
extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle_out)
{
    if (!handle_out) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "NULL for a handle");
    *handle_out = new cublasLtContext{HANDLE};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy<cublasLtContext>(handle, HANDLE);
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
    default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    default: return cublasLtGetStatusName(status);
    }
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusString(status);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout_out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (!layout_out) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "NULL for a layout");
    Layout *layout = new Layout;
    layout->type = (uint32_t)type;
    layout->rows = rows;
    layout->cols = cols;
    layout->ld = ld;
    *layout_out = reinterpret_cast<cublasLtMatrixLayout_t>(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy<Layout>(layout, LAYOUT);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *from,
                                                size_t bytes)
{
    Layout *layout = open(handle);
    if (!layout) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "an attribute of no layout");
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return set(&layout->type, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return set(&layout->order, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return set(&layout->rows, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return set(&layout->cols, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return set(&layout->ld, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(&layout->batches, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(&layout->batch_stride, from, bytes);
    default: REFUSE(CUBLAS_STATUS_INVALID_VALUE, "attribute %d of a layout: not simulated", (int)attribute);
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc_out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (!desc_out) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "NULL for a descriptor");
    Matmul *matmul = new Matmul;
    matmul->compute = (int32_t)compute;
    matmul->scale = (int32_t)scale;
    *desc_out = reinterpret_cast<cublasLtMatmulDesc_t>(matmul);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy<Matmul>(desc, MATMUL);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void *from,
                                              size_t bytes)
{
    Matmul *matmul = open(desc);
    if (!matmul) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "an attribute of no descriptor");
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return set(&matmul->compute, from, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return set(&matmul->scale, from, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return set(&matmul->pointer_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&matmul->trans_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&matmul->trans_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSC: return set(&matmul->trans_c, from, bytes);
    case CUBLASLT_MATMUL_DESC_FILL_MODE: return set(&matmul->fill, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&matmul->epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&matmul->bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&matmul->aux, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&matmul->aux_ld, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return set(&matmul->aux_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(&matmul->bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return set(&matmul->sm_count, from, bytes);
    default: REFUSE(CUBLAS_STATUS_INVALID_VALUE, "attribute %d of a product: not simulated", (int)attribute);
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference_out)
{
    if (!preference_out) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "NULL for a preference");
    *preference_out = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy<Preference>(preference, PREFERENCE);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *from, size_t bytes)
{
    Preference *preference = open(handle);
    if (!preference) REFUSE(CUBLAS_STATUS_INVALID_VALUE, "an attribute of no preference");
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE: return set(&preference->search, from, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(&preference->workspace, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(&preference->reductions, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(&preference->align_a, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(&preference->align_b, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(&preference->align_c, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(&preference->align_d, from, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT: return set(&preference->waves, from, bytes);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK: return set(&preference->implementations, from, bytes);
    default: REFUSE(CUBLAS_STATUS_INVALID_VALUE, "attribute %d of a preference", (int)attribute);
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *found_out)
{
    if (!handle || handle->magic != HANDLE) REFUSE(CUBLAS_STATUS_NOT_INITIALIZED, "no handle");
    if (!open(preference) || wanted <= 0 || !results || !found_out)
        REFUSE(CUBLAS_STATUS_INVALID_VALUE, "heuristic: no preference, no room, or no place for the count");
    Problem problem;
    *found_out = 0;
    TRY(check(desc, a, b, c, d, &problem));
    if (!is_found(problem)) { /* callers meet both ways of saying it; PyTorch checks both */
        const bool is_loud = problem.epilogue->value % 3 != 0;
        REFUSE(is_loud ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS,
               "no algorithm for epilogue %s, as was asked for", problem.epilogue->name);
    }
    for (int i = 0; i < wanted && i < 2; i++) {
        const Algo algo = choose(problem, *open(preference), i == 1);
        memset(&results[i], 0, sizeof results[i]);
        memcpy(&results[i].algo, &algo, sizeof algo);
        results[i].workspaceSize = algo.workspace;
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 0.5f;
        *found_out = i + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *given, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    if (!handle || handle->magic != HANDLE) REFUSE(CUBLAS_STATUS_NOT_INITIALIZED, "no handle");
    Problem problem;
    TRY(check(desc, a_layout, b_layout, c_layout, d_layout, &problem));
    Algo algo;
    if (given) {
        memcpy(&algo, given, sizeof algo);
        if (algo.magic != ALGO || algo.problem != hash_of(problem))
            REFUSE(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was found for another product");
    } else { /* manual: "an implicit heuristics query with default search preferences" */
        if (!is_found(problem)) REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm, as was asked for");
        algo = choose(problem, Preference(), true);
    }
    Arguments args = {a,       b,       c,    d,   problem.matmul.bias, problem.matmul.aux, workspace, false,
                      nullptr, nullptr, 0.0f, 0.0f};
    TRY(check_scalars(problem, alpha, beta, &args));
    TRY(check_arguments(problem, algo, args, workspace_bytes));
    if (switched_on("FAKE_CUBLAS_REFUSE_RUN", problem.epilogue->name))
        REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "refused when run, as was asked for");
    const cudaError_t error =
        enqueue(stream, "cublasLtMatmul", [problem, algo, args] { run(problem, algo, args); });
    if (error != cudaSuccess) REFUSE(CUBLAS_STATUS_EXECUTION_FAILED, "the stream says %d", (int)error);
    return CUBLAS_STATUS_SUCCESS;
}

} /* extern "C" */
#pragma GCC visibility pop
