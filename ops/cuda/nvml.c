/* nvml.c - finds each function of libnvidia-ml by its name; see nvml.h. */
#include "ops/cuda/nvml.h"

#include <dlfcn.h>
#include <stddef.h>

static int find(void *library, const char *name, void *function_out)
{
    void *found = dlsym(library, name);
    *(void **)function_out = found; /* POSIX's way around ISO C's function pointers */
    return found != NULL;
}

int eni_nvml_open(eni_nvml *nvml)
{
    *nvml = (eni_nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    void *l = nvml->library;
    if (!l) return 0;
    const int is_whole = find(l, "nvmlInit_v2", &nvml->init) & find(l, "nvmlShutdown", &nvml->shutdown) &
                         find(l, "nvmlDeviceGetHandleByUUID", &nvml->by_uuid) &
                         find(l, "nvmlDeviceGetMemoryInfo", &nvml->memory) &
                         find(l, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml->processes) &
                         find(l, "nvmlDeviceGetP2PStatus", &nvml->p2p);
    if (is_whole && nvml->init() == ENI_NVML_OK) return 1;
    dlclose(l);
    *nvml = (eni_nvml){0};
    return 0;
}

void eni_nvml_close(eni_nvml *nvml)
{
    if (!nvml->library) return;
    (void)nvml->shutdown();
    dlclose(nvml->library);
    *nvml = (eni_nvml){0};
}
