/* gpu_of_rank.c - see gpu_of_rank.h. */
#include "ops/gpu_of_rank.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"

en_status eni_gpu_pick(const char *spec, int count, int local_rank, int nlocal, int32_t *index_out)
{
    const char *colon = strchr(spec, ':');
    const long index =
        colon != NULL ? strtol(colon + 1, NULL, 10) : eni_gpu_of_rank(local_rank, nlocal, count);
    if (index >= 0 && index < count) {
        *index_out = (int32_t)index;
        return EN_OK;
    }
    if (count == 1)
        eni_error("gpu",
                  "--device=%s: this host has one GPU, cuda:0 (`entrain gpus` lists it; CUDA_VISIBLE_DEVICES "
                  "hides others)",
                  spec);
    else
        eni_error("gpu",
                  "--device=%s: this host has %d GPUs, cuda:0 to cuda:%d (`entrain gpus` lists them; "
                  "CUDA_VISIBLE_DEVICES hides others)",
                  spec, count, count - 1);
    return EN_EINVAL;
}

en_status eni_gpu_check(const char *spec, const en_device *device, const en_device_host *host)
{
    int32_t count = 0, index;
    EN_TRY(device->gpu->count(host, &count));
    return eni_gpu_pick(spec, count, 0, 1, &index);
}
