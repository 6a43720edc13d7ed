/* nvml.h - the few functions of libnvidia-ml that we ask: it comes with the driver, not with the toolkit,
 * whose header of it is not everywhere. The prototypes are those of NVIDIA's API reference; the versioned
 * ones never change. It is loaded for a question and closed again. */
#ifndef OPS_CUDA_NVML_H
#define OPS_CUDA_NVML_H

#include <stdint.h>

typedef struct nvmlDevice_st *eni_nvml_device;

enum { ENI_NVML_OK = 0, ENI_NVML_P2P_NVLINK = 2, ENI_NVML_P2P_OK = 0 };
#define ENI_NVML_UNKNOWN UINT64_MAX /* NVML_VALUE_NOT_AVAILABLE */

typedef struct eni_nvml_memory {
    unsigned long long total, free, used; /* nvmlMemory_t */
} eni_nvml_memory;

typedef struct eni_nvml_process {
    unsigned int pid; /* nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills */
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
} eni_nvml_process;

typedef struct eni_nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, eni_nvml_device *device);
    int (*memory)(eni_nvml_device device, eni_nvml_memory *memory);
    int (*processes)(eni_nvml_device device, unsigned int *count_inout, eni_nvml_process *processes);
    int (*p2p)(eni_nvml_device a, eni_nvml_device b, int what, int *status);
} eni_nvml;

/* 1, or 0 where the library is not there or does not work: nothing is logged. */
int eni_nvml_open(eni_nvml *nvml);
void eni_nvml_close(eni_nvml *nvml);

#endif
