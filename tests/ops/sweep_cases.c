/* sweep_cases.c - see sweep_cases.h. */
#include "tests/ops/sweep_cases.h"

#include "tests/ops/trial.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

static const int64_t batches[] = {1, 2, 3, 7, 20, 64};
static const int64_t channels[] = {1, 3, 4, 6, 8, 12, 16, 20, 24, 50, 64};
static const int64_t kernels[] = {1, 3, 5, 7};
enum { PADS = 2 };

/* With an image whose sides are multiples of 2 and 3, or are odd: where a stride divides the sides, oneDNN picks others of
 * its implementations. */
static const struct {
    int64_t by;
    bool is_whole;
} strides[] = {{1, false}, {2, false}, {2, true}, {3, false}, {3, true}};

/* ---- what went wrong once: oneDNN's backward pass by weights of 1 x 1 windows with a stride ---------------- */

static const struct {
    int64_t n, side, in, out;
} strided[] = {{64, 32, 4, 8},  {1, 32, 8, 16},  {1, 32, 3, 6}, {2, 32, 8, 16}, {7, 32, 8, 16},
               {7, 32, 12, 24}, {1, 16, 1, 16},  {2, 16, 3, 6}, {7, 16, 4, 8},  {2, 16, 20, 40},
               {7, 16, 24, 50}, {1, 16, 24, 48}, {2, 16, 6, 16}};

static int64_t ntrials(void)
{
    int count;
    (void)trial_ops(&count);
    return count;
}

int64_t sweep_fixed(void)
{
    return COUNT(strided) + ntrials();
}

static en_op fixed_case(int64_t i)
{
    int count;
    if (i >= COUNT(strided)) return trial_ops(&count)[i - COUNT(strided)];
    const en_extent x = {strided[i].n, strided[i].side, strided[i].side, strided[i].in};
    return conv_op(x, strided[i].out, 1, 2, 0, 0);
}

/* ---- all combinations -------------------------------------------------------------------------------------- */

/* The last digit of a number to the base `count`, which it loses. Digits add up in `sum`. */
static int64_t digit(int64_t *number, int64_t count, int64_t *sum)
{
    const int64_t last = *number % count;
    *number /= count;
    *sum += last;
    return last;
}

static uint32_t bias_and_relu(int64_t alternation)
{
    return (alternation & 1 ? EN_OP_BIAS : 0) | (alternation & 2 ? EN_OP_FUSE_RELU : 0);
}

#define LINEARS (COUNT(batches) * COUNT(channels) * COUNT(channels))
#define CONVS   (LINEARS * COUNT(kernels) * COUNT(strides) * PADS)

/* No smaller than the window, and smaller in large batches. */
static en_extent image_of(int64_t n, int64_t kernel, bool is_whole)
{
    const int64_t least = n >= 64 ? 5 : n >= 20 ? 7 : 9, side = kernel + 1 > least ? kernel + 1 : least;
    const int64_t whole = n >= 64 && kernel <= 6 ? 6 : 12;
    return is_whole ? (en_extent){n, whole, kernel <= 6 ? 6 : 12, 0} : (en_extent){n, side, side - 1, 0};
}

static en_op conv_case(int64_t i)
{
    int64_t sum = 0;
    const int64_t is_padded = digit(&i, PADS, &sum), stride = digit(&i, COUNT(strides), &sum);
    const int64_t kernel = kernels[digit(&i, COUNT(kernels), &sum)];
    const int64_t out = channels[digit(&i, COUNT(channels), &sum)];
    const int64_t in = channels[digit(&i, COUNT(channels), &sum)];
    const int64_t n = batches[digit(&i, COUNT(batches), &sum)];
    const int64_t pad = !is_padded ? 0 : kernel == 1 ? 1 : kernel / 2;
    en_extent x = image_of(n, kernel, strides[stride].is_whole);
    x.c = in;
    return conv_op(x, out, kernel, strides[stride].by, pad, bias_and_relu(sum));
}

static en_op linear_case(int64_t i)
{
    int64_t sum = 0;
    const int64_t out = channels[digit(&i, COUNT(channels), &sum)];
    const int64_t in = channels[digit(&i, COUNT(channels), &sum)];
    return linear_op(batches[digit(&i, COUNT(batches), &sum)], in, out, bias_and_relu(sum));
}

/* The other kinds, without their extents. */
static const en_op others[] = {
    {.kind = EN_OP_BATCHNORM, .flags = EN_OP_BIAS},
    {.kind = EN_OP_BATCHNORM, .flags = EN_OP_BIAS | EN_OP_FUSE_RELU},
    {.kind = EN_OP_BATCHNORM, .flags = EN_OP_BIAS | EN_OP_FUSE_ADD},
    {.kind = EN_OP_BATCHNORM, .flags = EN_OP_BIAS | EN_OP_FUSE_RELU | EN_OP_FUSE_ADD},
    {.kind = EN_OP_BATCHNORM, .flags = EN_OP_BIAS | EN_OP_FUSE_RELU | EN_OP_FUSE_ADD | EN_OP_FORWARD_ONLY},
    {.kind = EN_OP_RELU},
    {.kind = EN_OP_ADD},
    {.kind = EN_OP_ADD, .flags = EN_OP_FUSE_RELU},
    {.kind = EN_OP_MAXPOOL, .kernel_h = 2, .stride_h = 2},
    {.kind = EN_OP_MAXPOOL, .kernel_h = 3, .stride_h = 2, .pad_h = 1},
    {.kind = EN_OP_MAXPOOL, .kernel_h = 3, .stride_h = 1, .flags = EN_OP_FORWARD_ONLY},
    {.kind = EN_OP_RELU_MAXPOOL, .kernel_h = 2, .stride_h = 2, .flags = EN_OP_FORWARD_ONLY},
    {.kind = EN_OP_RELU_MAXPOOL, .kernel_h = 2, .stride_h = 2},
    {.kind = EN_OP_RELU_MAXPOOL, .kernel_h = 3, .stride_h = 2, .pad_h = 1},
    {.kind = EN_OP_RELU_MAXPOOL, .kernel_h = 2, .stride_h = 3, .pad_h = 1},
    {.kind = EN_OP_AVGPOOL},
    {.kind = EN_OP_AVGPOOL, .kernel_h = 2, .stride_h = 2},
    {.kind = EN_OP_AVGPOOL, .kernel_h = 3, .stride_h = 2, .pad_h = 1},
    {.kind = EN_OP_FLATTEN},
    {.kind = EN_OP_LOG_SOFTMAX},
    {.kind = EN_OP_NLL},
    {.kind = EN_OP_CROSS_ENTROPY},
    {.kind = EN_OP_MSE},
};

/* The largest has more pixels than batchnorm.c sums at a time, in two images. */
static const struct {
    int64_t h, w;
} images[] = {{1, 1}, {2, 3}, {5, 4}, {9, 8}, {27, 26}};

static en_op other_case(int64_t i)
{
    int64_t sum = 0;
    en_op op = others[digit(&i, COUNT(others), &sum)];
    const int64_t image = digit(&i, COUNT(images), &sum), c = channels[digit(&i, COUNT(channels), &sum)];
    op.x = (en_extent){batches[digit(&i, COUNT(batches), &sum)], images[image].h, images[image].w, c};
    op.size = sizeof op;
    op.dtype = EN_F32;
    op.channels = op.kind == EN_OP_BATCHNORM ? c : 0;
    op.kernel_w = op.kernel_h;
    op.stride_w = op.stride_h;
    op.pad_w = op.pad_h;
    op.eps = 1e-5f;
    op.momentum = 0.1f;
    return op;
}

int64_t sweep_cases(void)
{
    return sweep_fixed() + CONVS + LINEARS + COUNT(others) * COUNT(images) * COUNT(channels) * COUNT(batches);
}

bool sweep_case(int64_t i, en_op *op_out)
{
    const int64_t fixed = sweep_fixed(), combination = i - fixed;
    en_extent y;
    *op_out = i < fixed                       ? fixed_case(i)
              : combination < CONVS           ? conv_case(combination)
              : combination < CONVS + LINEARS ? linear_case(combination - CONVS)
                                              : other_case(combination - CONVS - LINEARS);
    const bool is_alone = op_out->kind == EN_OP_BATCHNORM && !(op_out->flags & EN_OP_FORWARD_ONLY) &&
                          op_out->x.n * op_out->x.h * op_out->x.w == 1; /* one value has no variance */
    return en_op_output(op_out, &y) == EN_OK && !is_alone;
}
