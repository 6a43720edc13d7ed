/* device.cc - which GPUs there are, what they are like, and errors in words. */
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/fake_gpu/machine.h"

using namespace fake_gpu;
using Lock = std::unique_lock<std::mutex>;

namespace
{

constexpr int driver_version = 13000;

int capability()
{
    return (int)option_number("FAKE_GPU_CAPABILITY", 90);
}

bool has_device(const Machine &m, int device)
{
    return device >= 0 && device < (int)m.devices.size();
}

bool is_sliced()
{
    return option_number("FAKE_GPU_MIG", 0) != 0;
}

int bus_of(const Machine &m, int device)
{
    return is_sliced() ? 1 : m.devices[(size_t)device].index + 1;
}

/* FAKE_GPU_LINK=none|pcie|nvlink (pcie): how any two GPUs are linked. */
bool are_linked()
{
    return strcmp(option("FAKE_GPU_LINK"), "none") != 0 && !is_sliced();
}

struct Named {
    cudaError_t error;
    const char *name, *text;
};

const Named errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const Named *find_error(cudaError_t error)
{
    for (const Named &named : errors)
        if (named.error == error) return &named;
    return NULL;
}

} // namespace

extern "C" {

FAKE_GPU_API const char *cudaGetErrorName(cudaError_t error)
{
    const Named *named = find_error(error);
    return named ? named->name : "unrecognized error code";
}

FAKE_GPU_API const char *cudaGetErrorString(cudaError_t error)
{
    const Named *named = find_error(error);
    return named ? named->text : "unrecognized error code";
}

FAKE_GPU_API cudaError_t cudaGetLastError(void)
{
    return last_error(true);
}

FAKE_GPU_API cudaError_t cudaPeekAtLastError(void)
{
    return last_error(false);
}

/* 0 without a driver, like the real one. */
FAKE_GPU_API cudaError_t cudaDriverGetVersion(int *version_out)
{
    if (!version_out) return cudaErrorInvalidValue;
    const std::string driver = option("FAKE_GPU_DRIVER");
    *version_out = driver == "none" ? 0 : driver == "old" ? 12020 : driver_version;
    return cudaSuccess;
}

FAKE_GPU_API cudaError_t cudaRuntimeGetVersion(int *version_out)
{
    if (!version_out) return cudaErrorInvalidValue;
    *version_out = CUDART_VERSION;
    return cudaSuccess;
}

FAKE_GPU_API cudaError_t cudaGetDeviceCount(int *count_out)
{
    if (count_out) *count_out = 0;
    return call("cudaGetDeviceCount", [&](Machine &m, Lock &) {
        if (!count_out) return cudaErrorInvalidValue;
        *count_out = (int)m.devices.size();
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaSetDevice(int device)
{
    return call("cudaSetDevice", [&](Machine &m, Lock &) {
        if (!has_device(m, device)) return cudaErrorInvalidDevice;
        chosen_device() = device;
        make_context(m, device);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaGetDevice(int *device_out)
{
    return call("cudaGetDevice", [&](Machine &, Lock &) {
        if (!device_out) return cudaErrorInvalidValue;
        *device_out = chosen_device();
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    return call("cudaGetDeviceProperties", [&](Machine &m, Lock &) {
        if (!out) return cudaErrorInvalidValue;
        if (!has_device(m, device)) return cudaErrorInvalidDevice;
        memset(out, 0, sizeof *out);
        snprintf(out->name, sizeof out->name, "Simulated GPU%s", is_sliced() ? " MIG 1g.1gb" : "");
        out->uuid = m.devices[(size_t)device].uuid;
        out->totalGlobalMem = (size_t)option_number("FAKE_GPU_MEMORY", (int64_t)8 << 30);
        out->sharedMemPerBlock = 48 << 10;
        out->regsPerBlock = 65536;
        out->warpSize = 32;
        out->maxThreadsPerBlock = 1024;
        out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
        out->maxThreadsDim[2] = 64;
        out->maxGridSize[0] = INT32_MAX;
        out->maxGridSize[1] = out->maxGridSize[2] = 65535;
        out->totalConstMem = 64 << 10;
        out->major = capability() / 10;
        out->minor = capability() % 10;
        out->multiProcessorCount = 4;
        out->maxThreadsPerMultiProcessor = 2048;
        out->canMapHostMemory = out->unifiedAddressing = out->concurrentKernels = 1;
        out->asyncEngineCount = 2;
        out->memoryBusWidth = 256;
        out->l2CacheSize = 4 << 20;
        out->ECCEnabled = 1;
        out->pciBusID = bus_of(m, device);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaDeviceGetAttribute(int *value_out, enum cudaDeviceAttr attribute, int device)
{
    return call("cudaDeviceGetAttribute", [&](Machine &m, Lock &) {
        if (!value_out) return cudaErrorInvalidValue;
        if (!has_device(m, device)) return cudaErrorInvalidDevice;
        switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value_out = 1024; break;
        case cudaDevAttrWarpSize: *value_out = 32; break;
        case cudaDevAttrMultiProcessorCount: *value_out = 4; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value_out = 2048; break;
        case cudaDevAttrClockRate: *value_out = 1000000; break;
        case cudaDevAttrMemoryClockRate: *value_out = 1000000; break; /* kHz */
        case cudaDevAttrGlobalMemoryBusWidth: *value_out = 256; break;
        case cudaDevAttrL2CacheSize: *value_out = 4 << 20; break;
        case cudaDevAttrComputeCapabilityMajor: *value_out = capability() / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value_out = capability() % 10; break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value_out = 48 << 10; break;
        case cudaDevAttrPciBusId: *value_out = bus_of(m, device); break;
        case cudaDevAttrPciDeviceId:
        case cudaDevAttrPciDomainId:
        case cudaDevAttrIntegrated:
        case cudaDevAttrComputeMode: *value_out = 0; break;
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrCanMapHostMemory:
        case cudaDevAttrHostRegisterSupported:
        case cudaDevAttrConcurrentKernels:
        case cudaDevAttrCanUseHostPointerForRegisteredMem: *value_out = 1; break;
        case cudaDevAttrIpcEventSupport: *value_out = !option_number("FAKE_GPU_NO_IPC", 0); break;
        case cudaDevAttrAsyncEngineCount: *value_out = 2; break;
        default:
            complain("cudaDeviceGetAttribute", "attribute %d is not simulated", (int)attribute);
            return cudaErrorInvalidValue;
        }
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaDeviceGetPCIBusId(char *bus, int length, int device)
{
    return call("cudaDeviceGetPCIBusId", [&](Machine &m, Lock &) {
        if (!bus || length < 13) return cudaErrorInvalidValue;
        if (!has_device(m, device)) return cudaErrorInvalidDevice;
        snprintf(bus, (size_t)length, "0000:%02X:00.0", bus_of(m, device));
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaDeviceCanAccessPeer(int *can_out, int device, int peer)
{
    return call("cudaDeviceCanAccessPeer", [&](Machine &m, Lock &) {
        if (!can_out || !has_device(m, device) || !has_device(m, peer)) return cudaErrorInvalidDevice;
        *can_out = device != peer && are_linked();
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    return call("cudaDeviceEnablePeerAccess", [&](Machine &m, Lock &) {
        if (flags || !has_device(m, peer) || peer == chosen_device() || !are_linked())
            return cudaErrorInvalidDevice;
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaDeviceGetP2PAttribute(int *value_out, enum cudaDeviceP2PAttr attribute, int a,
                                                   int b)
{
    return call("cudaDeviceGetP2PAttribute", [&](Machine &m, Lock &) {
        if (!value_out || !has_device(m, a) || !has_device(m, b) || a == b) return cudaErrorInvalidDevice;
        switch (attribute) {
        case cudaDevP2PAttrAccessSupported: *value_out = are_linked(); break;
        case cudaDevP2PAttrPerformanceRank: *value_out = 0; break;
        case cudaDevP2PAttrNativeAtomicSupported:
            *value_out = strcmp(option("FAKE_GPU_LINK"), "nvlink") == 0; /* true of NVLink alone */
            break;
        default: return cudaErrorInvalidValue;
        }
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaDeviceGetStreamPriorityRange(int *least_out, int *greatest_out)
{
    return call("cudaDeviceGetStreamPriorityRange", [&](Machine &, Lock &) {
        if (least_out) *least_out = 0;
        if (greatest_out) *greatest_out = -5;
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaSetDeviceFlags(unsigned int)
{
    return call("cudaSetDeviceFlags", [](Machine &, Lock &) { return cudaSuccess; });
}

FAKE_GPU_API cudaError_t cudaInitDevice(int device, unsigned int, unsigned int)
{
    return call("cudaInitDevice", [&](Machine &m, Lock &) {
        if (!has_device(m, device)) return cudaErrorInvalidDevice;
        make_context(m, device);
        return cudaSuccess;
    });
}

} // extern "C"
