// tick.cu - the kernel of an event in a graph (streams.c): it counts, in a word that the host reads.
#include "ops/cuda/kernel_launch.h"

namespace
{

__global__ void tick(volatile uint32_t *word)
{
    __threadfence_system();
    *word = *word + 1;
    __threadfence_system();
}

} // namespace

en_status eni_cuda_tick(en_ctx *ctx, cudaStream_t stream, uint32_t *word)
{
    return ENI_LAUNCH(ctx, tick, 1, 1, stream, word);
}
