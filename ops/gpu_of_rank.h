/* gpu_of_rank.h - which GPU of its host a rank computes on. `worker` chooses by it, `entrain gpus -n` shows
 * it. */
#ifndef OPS_GPU_OF_RANK_H
#define OPS_GPU_OF_RANK_H

#include "entrain/device.h"

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

/* Pure: the GPU of a rank among `count`: "cuda": as above; "cuda:I": I. EN_EINVAL, logged. */
en_status eni_gpu_pick(const char *spec, int count, int local_rank, int nlocal, int32_t *index_out);

/* There is a GPU, and `spec` names one that is there: EN_OK; EN_EINVAL, EN_EUNSUPPORTED, logged with the
 * remedy. `device` is the one of GPUs. Opens no context. */
en_status eni_gpu_check(const char *spec, const en_device *device, const en_device_host *host);

#endif
