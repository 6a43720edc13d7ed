/* facts.c - which GPUs there are, how they are linked, who uses them. Nothing here opens a context: that
 * would take half a gigabyte of each GPU that is only asked for its name. What the CUDA runtime does not tell
 * without one, the driver's management library does; where that is missing, it stays unknown. */
#include <ctype.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/try.h"
#include "ops/cuda/cuda.h"

/* ---- libnvidia-ml -------------------------------------------------------------------------------------- */

/* The few functions of libnvidia-ml that we ask: it comes with the driver, not with the toolkit,
 * whose header of it is not everywhere. The prototypes are those of NVIDIA's API reference; the versioned
 * ones never change. It is loaded for a question and closed again. */
typedef struct nvmlDevice_st *nvml_device;

enum { NVML_OK = 0, NVML_P2P_NVLINK = 2, NVML_P2P_OK = 0 };
#define NVML_UNKNOWN UINT64_MAX /* NVML_VALUE_NOT_AVAILABLE */

typedef struct nvml_memory {
    unsigned long long total, free, used; /* nvmlMemory_t */
} nvml_memory;

typedef struct nvml_process {
    unsigned int pid; /* nvmlProcessInfo_v2_t, which nvmlDeviceGetComputeRunningProcesses_v3 fills */
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
} nvml_process;

typedef struct nvml_library {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, nvml_device *device);
    int (*memory)(nvml_device device, nvml_memory *memory);
    int (*processes)(nvml_device device, unsigned int *count_inout, nvml_process *processes);
    int (*p2p)(nvml_device a, nvml_device b, int what, int *status);
} nvml_library;

static int find(void *library, const char *name, void *function_out)
{
    void *found = dlsym(library, name);
    *(void **)function_out = found; /* POSIX's way around ISO C's function pointers */
    return found != NULL;
}

/* 1, or 0 where the library is not there or does not work: nothing is logged. */
static int nvml_open(nvml_library *nvml)
{
    *nvml = (nvml_library){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    void *l = nvml->library;
    if (!l) return 0;
    const int is_whole = find(l, "nvmlInit_v2", &nvml->init) & find(l, "nvmlShutdown", &nvml->shutdown) &
                         find(l, "nvmlDeviceGetHandleByUUID", &nvml->by_uuid) &
                         find(l, "nvmlDeviceGetMemoryInfo", &nvml->memory) &
                         find(l, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml->processes) &
                         find(l, "nvmlDeviceGetP2PStatus", &nvml->p2p);
    if (is_whole && nvml->init() == NVML_OK) return 1;
    dlclose(l);
    *nvml = (nvml_library){0};
    return 0;
}

static void nvml_close(nvml_library *nvml)
{
    if (!nvml->library) return;
    (void)nvml->shutdown();
    dlclose(nvml->library);
    *nvml = (nvml_library){0};
}

/* ---- what there is ------------------------------------------------------------------------------------- */

enum { USERS_MAX = 128 };

static void log_to_host(void *user, int level, const char *subsystem, const char *text)
{
    const en_device_host *host = user;
    host->log(level, subsystem, text);
}

void eni_cuda_log_to(const en_device_host *host)
{
    if (!host) return;
    eni_log_set_sink(log_to_host, (void *)host);
    eni_log_set_level(ENI_LOG_TRACE); /* the program's own level decides */
}

/* ---- which there are ----------------------------------------------------------------------------------- */

/* The oldest driver that carries a CUDA of this major version. */
static const char *driver_for(int runtime)
{
    return runtime >= 13000 ? " (580 or later)" : runtime >= 12000 ? " (525 or later)" : "";
}

static void log_no_gpu(cudaError_t error)
{
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver), (void)cudaRuntimeGetVersion(&runtime);
    const char *or_cpu = "or use --device=cpu";
    if (error == cudaErrorNoDevice || error == cudaSuccess)
        eni_error("cuda",
                  "this process sees no GPU: none is in this machine, or CUDA_VISIBLE_DEVICES or the "
                  "container hides "
                  "it (a container needs --gpus=all); %s",
                  or_cpu);
    else if (driver == 0)
        eni_error("cuda",
                  "there is no NVIDIA driver on this host for device cuda: install one for CUDA %d.%d%s, %s",
                  runtime / 1000, runtime % 1000 / 10, driver_for(runtime), or_cpu);
    else if (error == cudaErrorInsufficientDriver)
        eni_error(
            "cuda",
            "the NVIDIA driver is for CUDA %d.%d and this program was built with CUDA %d.%d: install a newer "
            "driver%s, build with an older CUDA, %s",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, driver_for(runtime),
            or_cpu);
    else
        eni_error("cuda",
                  "asking the NVIDIA driver for its GPUs failed: CUDA error %d, %s; see whether nvidia-smi "
                  "works, %s",
                  (int)error, cudaGetErrorString(error), or_cpu);
}

en_status eni_cuda_count(const en_device_host *host, int32_t *n_out)
{
    eni_cuda_log_to(host);
    int n = 0; /* is left alone on errors */
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0) {
        *n_out = n;
        return EN_OK;
    }
    (void)cudaGetLastError();
    log_no_gpu(error);
    return EN_EUNSUPPORTED;
}

/* ---- what one is --------------------------------------------------------------------------------------- */

static int attribute(enum cudaDeviceAttr what, int index)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, what, index) == cudaSuccess) return value;
    (void)cudaGetLastError();
    return 0;
}

/* As nvidia-smi writes it. A slice of a GPU (multi-instance) has a uuid of its own, and is told by its name:
 * "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
static void write_uuid(char uuid_out[48], const struct cudaDeviceProp *properties)
{
    static const char hyphen_before[16] = {[4] = 1, [6] = 1, [8] = 1, [10] = 1};
    char *at = uuid_out + sprintf(uuid_out, "%s-", strstr(properties->name, " MIG ") ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", hyphen_before[i] ? "-" : "", (unsigned char)properties->uuid.bytes[i]);
}

/* What is free, by the driver's management library. */
static uint64_t free_bytes_of(const char *uuid)
{
    nvml_library nvml;
    nvml_device device;
    nvml_memory memory = {0};
    if (!nvml_open(&nvml)) return 0;
    if (nvml.by_uuid(uuid, &device) != NVML_OK || nvml.memory(device, &memory) != NVML_OK) memory.free = 0;
    nvml_close(&nvml);
    return memory.free;
}

static en_status uuid_of(int32_t index, char uuid_out[48])
{
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return EN_EUNSUPPORTED;
    }
    write_uuid(uuid_out, &properties);
    return EN_OK;
}

en_status eni_cuda_facts(const en_device_host *host, int32_t index, en_gpu_facts *facts_out)
{
    eni_cuda_log_to(host);
    struct cudaDeviceProp properties;
    const cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return eni_fail(EN_EUNSUPPORTED, "cuda", "asking what cuda:%d is failed: CUDA error %d, %s", index,
                        (int)error, cudaGetErrorString(error));
    }
    en_gpu_facts facts = {.index = index,
                          .memory_bytes = properties.totalGlobalMem,
                          .major = properties.major,
                          .minor = properties.minor,
                          .cores = properties.multiProcessorCount};
    snprintf(facts.name, sizeof facts.name, "%.63s", properties.name);
    write_uuid(facts.uuid, &properties);
    if (cudaDeviceGetPCIBusId(facts.bus, sizeof facts.bus, index) != cudaSuccess) (void)cudaGetLastError();
    for (char *c = facts.bus; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    facts.free_bytes = free_bytes_of(facts.uuid);
    /* kHz, two transfers a clock, bits */
    facts.bytes_per_s = 2e3 * attribute(cudaDevAttrMemoryClockRate, index) *
                        attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;

    const uint32_t size = facts_out->size < sizeof facts ? facts_out->size : (uint32_t)sizeof facts;
    facts.size = size;
    memcpy(facts_out, &facts, size);
    return EN_OK;
}

/* ---- links and users ----------------------------------------------------------------------------------- */

static int has_nvlink(int32_t a, int32_t b)
{
    char uuid_a[48], uuid_b[48];
    nvml_library nvml;
    nvml_device device_a, device_b;
    int status = -1;
    if (uuid_of(a, uuid_a) != EN_OK || uuid_of(b, uuid_b) != EN_OK || !nvml_open(&nvml)) return 0;
    if (nvml.by_uuid(uuid_a, &device_a) != NVML_OK || nvml.by_uuid(uuid_b, &device_b) != NVML_OK ||
        nvml.p2p(device_a, device_b, NVML_P2P_NVLINK, &status) != NVML_OK)
        status = -1;
    nvml_close(&nvml);
    return status == NVML_P2P_OK;
}

int eni_cuda_link(int32_t a, int32_t b)
{
    int can = 0;
    if (a == b) return EN_LINK_SAME;
    if (cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess) {
        (void)cudaGetLastError();
        return EN_LINK_NONE;
    }
    if (!can) return EN_LINK_HOST;
    return has_nvlink(a, b) ? EN_LINK_NVLINK : EN_LINK_PCIE;
}

en_status eni_cuda_users(int32_t index, en_gpu_user *users_out, int max, int *n_out)
{
    char uuid[48];
    nvml_library nvml;
    nvml_device device;
    nvml_process process[USERS_MAX];
    unsigned int n = USERS_MAX;
    EN_TRY(uuid_of(index, uuid));
    if (!nvml_open(&nvml)) return EN_EUNSUPPORTED;
    const int is_told =
        nvml.by_uuid(uuid, &device) == NVML_OK && nvml.processes(device, &n, process) == NVML_OK;
    nvml_close(&nvml);
    if (!is_told) return EN_EUNSUPPORTED;
    *n_out = (int)n < max ? (int)n : max;
    for (int i = 0; i < *n_out; i++)
        users_out[i] = (en_gpu_user){process[i].pid, process[i].bytes == NVML_UNKNOWN ? 0 : process[i].bytes};
    return EN_OK;
}
