/* split.c - our own loops over the threads of the device. */
#include "ops/cpu/cpu.h"

/* The start of part i of n, on a multiple of `grain`. */
static int64_t part_start(int64_t count, int64_t grain, int i, int n)
{
    const int64_t grains = (count + grain - 1) / grain, at = grains * i / n * grain;
    return at < count ? at : count;
}

void eni_cpu_split(const en_plan *plan, const en_args *args, int64_t count, int64_t grain,
                   eni_cpu_part_fn part)
{
    const int threads = plan->ctx->threads;
    if (threads == 1 || count <= grain) {
        part(plan, args, 0, count);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < threads; i++)
        part(plan, args, part_start(count, grain, i, threads), part_start(count, grain, i + 1, threads));
}
