/* flatten.cu - (N, H, W, C) to (N, C * H * W) in PyTorch's order, and back: a transpose per image, through
 * tiles that are read and written along their rows. */
#include "ops/cuda/element.h"

enum { SIDE = 32, HIGH = 8 };

/* Per image (rows, cols) to (cols, rows). One extra column keeps a tile's columns in different banks. */
template <typename T>
__global__ void transpose(const T *from, T *to, uint32_t images, uint32_t rows, uint32_t cols)
{
    __shared__ T tile[SIDE][SIDE + 1];
    const uint32_t x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const uint32_t row = blockIdx.y * SIDE, col = blockIdx.x * SIDE;
    for (uint32_t image = blockIdx.z; image < images; image += gridDim.z) {
        const size_t at = (size_t)image * rows * cols;
        for (uint32_t r = y; r < SIDE; r += HIGH)
            if (row + r < rows && col + x < cols) tile[r][x] = from[at + (size_t)(row + r) * cols + col + x];
        __syncthreads();
        for (uint32_t r = y; r < SIDE; r += HIGH)
            if (col + r < cols && row + x < rows) to[at + (size_t)(col + r) * rows + row + x] = tile[x][r];
        __syncthreads();
    }
}

template <typename T>
static en_status run_typed(const en_plan *plan, const void *from, void *to, int64_t rows, int64_t cols)
{
    const uint32_t images = (uint32_t)plan->op.x.n;
    const dim3 grid(eni_blocks(cols, SIDE), eni_blocks(rows, SIDE), images < 65535 ? images : 65535);
    return ENI_LAUNCH(plan->ctx, transpose<T>, grid, SIDE * HIGH, eni_cuda_stream(plan), (const T *)from,
                      (T *)to, images, (uint32_t)rows, (uint32_t)cols);
}

/* 16 bits are copied as such, whatever they mean. */
static en_status run(const en_plan *plan, const void *from, void *to, int64_t rows, int64_t cols)
{
    if (plan->op.dtype == EN_F32) return run_typed<float>(plan, from, to, rows, cols);
    return run_typed<uint16_t>(plan, from, to, rows, cols);
}

static en_status forward(en_plan *plan, const en_args *args)
{
    return run(plan, args->x, args->y, plan->op.x.h * plan->op.x.w, plan->op.x.c);
}

static en_status backward(en_plan *plan, const en_args *args)
{
    return run(plan, args->dy, args->dx, plan->op.x.c, plan->op.x.h * plan->op.x.w);
}

const eni_cuda_kernel eni_cuda_flatten = {NULL, NULL, forward, NULL, backward};
