/* gpu_of_rank.h - which GPU of its host a rank computes on, unless --device=cuda:I says so. `worker` chooses
 * by it and `entrain gpus -n` shows it. */
#ifndef OPS_GPU_OF_RANK_H
#define OPS_GPU_OF_RANK_H

/* Of G GPUs each of the L ranks of the host has a slice of G/L in a row, of which it uses the first: the rest
 * of the slice is for models that span GPUs. With more ranks than GPUs they are dealt out in turns:
 *
 *     G = 4, L = 2     0 . 1 .          G = 2, L = 3     0,2 1           -1 where there is no GPU */
static inline int eni_gpu_of_rank(int local_rank, int nlocal, int ngpus)
{
    if (ngpus < 1 || nlocal < 1 || local_rank < 0) return -1;
    const int slice = ngpus / nlocal > 1 ? ngpus / nlocal : 1;
    return (int)((long long)local_rank * slice % ngpus);
}

#endif
