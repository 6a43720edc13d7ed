/* facts.c - the GPUs that this process can compute on. Nothing here opens a context: that would take half a
 * gigabyte of each GPU, only to learn its name. The driver reports links and users (core/nvml.h). */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "ops/cuda/cuda.h"
#include "ops/ref/ref.h"

/* ---- which GPUs there are ------------------------------------------------------------------------------ */

/* The oldest driver with a CUDA of this major version. */
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
                  "this process sees no GPU: this machine has none, or CUDA_VISIBLE_DEVICES or the container "
                  "hides it (a container needs --gpus=all); %s",
                  or_cpu);
    else if (driver == 0)
        eni_error("cuda", "no NVIDIA driver for device cuda on this host: install one for CUDA %d.%d%s, %s",
                  runtime / 1000, runtime % 1000 / 10, driver_for(runtime), or_cpu);
    else if (error == cudaErrorInsufficientDriver)
        eni_error("cuda",
                  "the NVIDIA driver is for CUDA %d.%d, but this program was built with CUDA %d.%d: install "
                  "a newer driver%s, build with an older CUDA, %s",
                  driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, driver_for(runtime),
                  or_cpu);
    else
        eni_error("cuda",
                  "querying the NVIDIA driver failed: CUDA error %d, %s; check whether nvidia-smi works, %s",
                  (int)error, cudaGetErrorString(error), or_cpu);
}

en_status eni_cuda_count(const en_device_host *host, int32_t *n_out)
{
    eni_ref_log_to(host);
    int n = 0; /* unchanged on errors */
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0) {
        *n_out = n;
        return EN_OK;
    }
    (void)cudaGetLastError();
    log_no_gpu(error);
    return EN_EUNSUPPORTED;
}

/* ---- the facts of one ---------------------------------------------------------------------------------- */

static int attribute(enum cudaDeviceAttr what, int index)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, what, index) == cudaSuccess) return value;
    (void)cudaGetLastError();
    return 0;
}

/* In nvidia-smi's form. A slice of a GPU (multi-instance) has its own uuid, and is recognised by its name:
 * "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
static void write_uuid(char uuid_out[48], const struct cudaDeviceProp *properties)
{
    static const char hyphen_before[16] = {[4] = 1, [6] = 1, [8] = 1, [10] = 1};
    char *at = uuid_out + sprintf(uuid_out, "%s-", strstr(properties->name, " MIG ") ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", hyphen_before[i] ? "-" : "", (unsigned char)properties->uuid.bytes[i]);
}

en_status eni_cuda_facts(const en_device_host *host, int32_t index, en_gpu_facts *facts_out)
{
    eni_ref_log_to(host);
    struct cudaDeviceProp properties;
    const cudaError_t error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return eni_fail(EN_EUNSUPPORTED, "cuda", "querying cuda:%d failed: CUDA error %d, %s", index,
                        (int)error, cudaGetErrorString(error));
    }
    en_gpu_facts facts = {.index = index,
                          .memory_bytes = properties.totalGlobalMem,
                          .major = properties.major,
                          .minor = properties.minor,
                          .cores = properties.multiProcessorCount};
    snprintf(facts.name, sizeof facts.name, "%.63s", properties.name);
    write_uuid(facts.uuid, &properties);
    /* kHz, two transfers a clock, bits */
    facts.bytes_per_s = 2e3 * attribute(cudaDevAttrMemoryClockRate, index) *
                        attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8;

    const uint32_t size = facts_out->size < sizeof facts ? facts_out->size : (uint32_t)sizeof facts;
    facts.size = size;
    memcpy(facts_out, &facts, size);
    return EN_OK;
}
