/* pixels.cu - images from stored bytes: cut, mirrored, normalised by a table, as data/pixels.c. A thread for each
 * value of an image; the grid's second dimension walks over the images. */
#include "core/try.h"
#include "ops/cuda/element.h"

__global__ void pixels(const __grid_constant__ en_gpu_pixels p, uint32_t values)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= values) return;
    const int channel = (int)(i % (uint32_t)p.channels), at = (int)(i / (uint32_t)p.channels);
    const int x = at % p.width, y = at / p.width;
    for (uint64_t n = blockIdx.y; n < p.count; n += gridDim.y) {
        const en_gpu_cut cut = *(const en_gpu_cut *)((const uint8_t *)p.cuts + n * p.cut_bytes);
        const int row = cut.top + y, column = cut.left + (cut.is_flipped ? p.width - 1 - x : x);
        const bool is_inside = row >= 0 && row < p.stored_height && column >= 0 && column < p.stored_width;
        const int64_t offset = (int64_t)row * p.row_step + column * p.pixel_step + channel * p.channel_step;
        const uint8_t byte = is_inside ? p.images[cut.image * p.image_bytes + (uint64_t)offset] : 0;
        p.out[n * values + i] = p.table[channel * 256 + byte];
    }
}

en_status eni_cuda_pixels(en_ctx *ctx, int stream, const en_gpu_pixels *given)
{
    if (given->size < sizeof *given) {
        eni_cuda_say("unsupported images: %u bytes describe them, expected %zu", given->size, sizeof *given);
        return EN_EUNSUPPORTED;
    }
    if (given->count == 0) return EN_OK;
    EN_TRY(eni_cuda_select(ctx));
    const uint32_t values = (uint32_t)given->height * (uint32_t)given->width * (uint32_t)given->channels;
    const dim3 grid(eni_blocks(values, ENI_BLOCK), given->count < 65535 ? (uint32_t)given->count : 65535);
    return ENI_LAUNCH(ctx, pixels, grid, ENI_BLOCK, ctx->stream[stream], *given, values);
}
