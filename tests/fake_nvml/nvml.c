/* nvml.c - libnvidia-ml.so.1 of a machine that is not here, for LD_LIBRARY_PATH=build/fake/nvml: the functions that
 * core/nvml.c asks, with the names and structs of NVIDIA's API reference. The switches are those of the simulated GPU
 * (tests/fake_gpu/README.md), whose users it sees as the system does: a process with a context holds a memfd of a certain
 * name, also processes of other runs. They are read at each call, so that a test can change the machine.
 *
 * FAKE_NVML_FAIL=NvLink,Topology: functions with these words in their names answer with an unknown error.
 * FAKE_NVML_USERS=pid:bytes,..: these use every GPU, and nobody else does.
 *
 * The machine: GPUs 2k and 2k+1 behind one PCIe switch, 4k to 4k+3 on NUMA node k, which has 16 cores twice. Built with
 * LACKS=1, it is the library of an old driver; with LACKS=2, of one that is too old. */
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake_nvml/fake_uuid.h"

#ifndef LACKS
#define LACKS 0
#endif
#define API __attribute__((visibility("default"))) int

enum {
    OK = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    TOO_SMALL = 7,
    NOT_LOADED = 9,
    UNKNOWN = 999
};

struct process { /* nvmlProcessInfo_v2_t */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

struct memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

struct pci { /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

static const char *option(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? text : "";
}

static int64_t option_number(const char *name, int64_t otherwise)
{
    const char *text = option(name);
    return *text != 0 ? strtoll(text, NULL, 0) : otherwise;
}

/* Is a word of FAKE_NVML_FAIL in the function's name? */
static bool fails(const char *function)
{
    char words[256], *rest;
    snprintf(words, sizeof words, "%s", option("FAKE_NVML_FAIL"));
    for (char *word = strtok_r(words, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest))
        if (strstr(function, word) != NULL) return true;
    return false;
}
#define MAY_FAIL                                                                                             \
    if (fails(__func__)) return UNKNOWN

/* ---- handles: 1 + index of a GPU, 1000 + index of a slice (all of them are GPU 0's) ---- */

enum { SLICE = 1000 };

static bool is_sliced(void)
{
    return option_number("FAKE_GPU_MIG", 0) != 0;
}

static int count_things(void) /* CUDA's double calls each slice a GPU */
{
    return (int)option_number("FAKE_GPUS", 1);
}

static int count_gpus(void)
{
    return is_sliced() && count_things() > 1 ? 1 : count_things();
}

static int index_of(const void *device)
{
    const int n = (int)(intptr_t)device;
    return n >= SLICE ? n - SLICE : n - 1;
}

static bool is_slice(const void *device)
{
    return (intptr_t)device >= SLICE;
}

static bool is_there(const void *device)
{
    const int index = index_of(device);
    return index >= 0 && index < (is_slice(device) ? count_things() : count_gpus()) &&
           (!is_slice(device) || is_sliced());
}

/* The bytes by which CUDA's double knows it. */
static void bytes_of(const void *device, unsigned char uuid_out[16])
{
    fake_uuid(option("FAKE_GPU_MACHINE"), index_of(device), uuid_out);
}

static void text_of(const void *device, char text_out[48])
{
    unsigned char uuid[16];
    int n = sprintf(text_out, is_slice(device) ? "MIG-" : "GPU-");
    bytes_of(device, uuid);
    for (int i = 0; i < 16; i++)
        n += sprintf(text_out + n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* ---- who uses them ---- */

/* The bytes that a process uses of the GPU whose memfd has this name; false: it has no context there. */
static bool find_context(const char *process, const char *name, unsigned long long *bytes_out)
{
    char folder[300], target[96];
    bool found = false;
    snprintf(folder, sizeof folder, "/proc/%s/fd", process);
    DIR *files = opendir(folder);
    if (files == NULL) return false;
    for (const struct dirent *entry; !found && (entry = readdir(files)) != NULL;) {
        const ssize_t n = readlinkat(dirfd(files), entry->d_name, target, sizeof target - 1);
        if (n < (ssize_t)strlen(name) || strncmp(target, name, strlen(name)) != 0) continue;
        const int fd = openat(dirfd(files), entry->d_name, O_RDONLY | O_CLOEXEC);
        uint64_t used = 0;
        if (fd >= 0 && pread(fd, &used, sizeof used, 0) == (ssize_t)sizeof used) *bytes_out = used;
        if (fd >= 0) close(fd);
        found = true;
    }
    closedir(files);
    return found;
}

static unsigned named_users(const char *at, struct process *users_out, unsigned room)
{
    unsigned n = 0;
    for (char *end; *at != 0; at = *end == ',' ? end + 1 : end, n++) {
        struct process user = {(unsigned)strtoul(at, &end, 10), UINT64_MAX, UINT32_MAX, UINT32_MAX};
        if (*end == ':') user.bytes = strtoull(end + 1, &end, 10);
        if (*end != ',' && *end != 0) abort();
        if (n < room) users_out[n] = user;
    }
    return n;
}

/* All there are; the first `room` of them are written. */
static unsigned find_users(const void *device, struct process *users_out, unsigned room)
{
    unsigned char uuid[16];
    uint64_t half;
    char name[64];
    unsigned n = 0;
    if (getenv("FAKE_NVML_USERS") != NULL) return named_users(option("FAKE_NVML_USERS"), users_out, room);
    bytes_of(device, uuid);
    memcpy(&half, uuid, sizeof half);
    snprintf(name, sizeof name, "/memfd:fake_gpu.context.%016llx", (unsigned long long)half);
    DIR *processes = opendir("/proc");
    if (processes == NULL) return 0;
    for (const struct dirent *entry; (entry = readdir(processes)) != NULL;) {
        const int pid = atoi(entry->d_name);
        unsigned long long bytes = 0;
        if (pid <= 0 || !find_context(entry->d_name, name, &bytes)) continue;
        if (n < room) users_out[n] = (struct process){(unsigned)pid, bytes, UINT32_MAX, UINT32_MAX};
        n++;
    }
    closedir(processes);
    return n;
}

/* ---- what every driver has ---- */

API nvmlInit_v2(void);
API nvmlInit_v2(void)
{
    MAY_FAIL;
    return strcmp(option("FAKE_GPU_DRIVER"), "none") == 0 ? NOT_LOADED : OK;
}

API nvmlShutdown(void);
API nvmlShutdown(void)
{
    return OK;
}

#if LACKS < 2
API nvmlDeviceGetCount_v2(unsigned *n_out);
API nvmlDeviceGetCount_v2(unsigned *n_out)
{
    MAY_FAIL;
    *n_out = (unsigned)count_gpus();
    return OK;
}
#endif

/* FAKE_NVML_HIDDEN=1: that GPU is another container's. */
API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device_out);
API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device_out)
{
    MAY_FAIL;
    if (index >= (unsigned)count_gpus()) return INVALID_ARGUMENT;
    if (option_number("FAKE_NVML_HIDDEN", -1) == (int64_t)index) return NO_PERMISSION;
    *device_out = (void *)(intptr_t)(1 + index);
    return OK;
}

API nvmlDeviceGetName(void *device, char *name, unsigned bytes);
API nvmlDeviceGetName(void *device, char *name, unsigned bytes)
{
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    snprintf(name, bytes, "Simulated GPU%s", is_slice(device) ? " MIG 1g.1gb" : "");
    return OK;
}

API nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes);
API nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes)
{
    char text[48];
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    text_of(device, text);
    if (bytes <= strlen(text)) return TOO_SMALL;
    strcpy(uuid, text);
    return OK;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out);
API nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out)
{
    char text[48];
    MAY_FAIL;
    const bool among_slices = strncmp(uuid, "MIG-", 4) == 0;
    for (int i = 0; i < count_things(); i++) {
        void *device = (void *)(intptr_t)((among_slices ? SLICE : 1) + i);
        if (!is_there(device)) continue;
        text_of(device, text);
        if (strcmp(text, uuid) != 0) continue;
        *device_out = device;
        return OK;
    }
    return NOT_FOUND;
}

API nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_out);
API nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_out)
{
    struct process users[64];
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    const unsigned n = find_users(device, users, 64);
    unsigned long long total = (unsigned long long)option_number("FAKE_GPU_MEMORY", (int64_t)8 << 30),
                       used = 0;
    unsigned long long usable = (unsigned long long)option_number("FAKE_GPU_OOM_AFTER", INT64_MAX);
    for (unsigned i = 0; i < n && i < 64; i++)
        used += users[i].bytes;
    if (usable > total) usable = total;
    *memory_out = (struct memory){total, usable - (used < usable ? used : usable), used};
    return OK;
}

/* The place on the bus that CUDA's double tells. */
API nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci_out);
API nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci_out)
{
    MAY_FAIL;
    if (!is_there(device) || is_slice(device)) return INVALID_ARGUMENT;
    *pci_out = (struct pci){.bus = (unsigned)index_of(device) + 1};
    snprintf(pci_out->legacy, sizeof pci_out->legacy, "0000:%02X:00.0", pci_out->bus & 0xff);
    snprintf(pci_out->text, sizeof pci_out->text, "00000000:%02X:00.0", pci_out->bus & 0xff);
    return OK;
}

#if LACKS < 1

static bool is_linked_by(const char *link)
{
    return strcmp(option("FAKE_GPU_LINK"), link) == 0;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code);
__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
    return code == UNKNOWN ? "Unknown Error" : "Another Error";
}

API nvmlSystemGetDriverVersion(char *version, unsigned bytes);
API nvmlSystemGetDriverVersion(char *version, unsigned bytes)
{
    MAY_FAIL;
    snprintf(version, bytes, "580.0.fake");
    return OK;
}

API nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
API nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    const int64_t capability = option_number("FAKE_GPU_CAPABILITY", 90);
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    *major = (int)(capability / 10);
    *minor = (int)(capability % 10);
    return OK;
}

API nvmlDeviceGetCpuAffinity(void *device, unsigned nwords, unsigned long *words);
API nvmlDeviceGetCpuAffinity(void *device, unsigned nwords, unsigned long *words)
{
    MAY_FAIL;
    if (!is_there(device) || nwords < 2) return INVALID_ARGUMENT;
    memset(words, 0, nwords * sizeof *words);
    for (int half = 0; half < 2; half++)
        for (unsigned i = 0; i < 16; i++) {
            const unsigned cpu = (unsigned)(index_of(device) / 4) * 16 + (unsigned)half * 64 + i;
            words[cpu / 64] |= 1ul << cpu % 64;
        }
    return OK;
}

API nvmlDeviceGetMemoryAffinity(void *device, unsigned nwords, unsigned long *words, int scope);
API nvmlDeviceGetMemoryAffinity(void *device, unsigned nwords, unsigned long *words, int scope)
{
    MAY_FAIL;
    if (!is_there(device) || nwords < 1 || scope != 0) return INVALID_ARGUMENT;
    memset(words, 0, nwords * sizeof *words);
    words[0] = 1ul << index_of(device) / 4;
    return OK;
}

/* In: room; out: how many there are, also when there was not room enough. */
API nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes);
API nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes)
{
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    if (option_number("FAKE_GPU_NO_USERS", 0)) return NOT_SUPPORTED;
    const unsigned room = *count;
    *count = find_users(device, processes, room);
    return *count > room ? TOO_SMALL : OK;
}

API nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level_out);
API nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level_out)
{
    MAY_FAIL;
    if (!is_there(a) || !is_there(b) || a == b) return INVALID_ARGUMENT;
    *level_out = index_of(a) / 2 == index_of(b) / 2 ? 10 : index_of(a) / 4 == index_of(b) / 4 ? 40 : 50;
    return OK;
}

/* status_out: 0 for "ok", 3 for "not supported" (nvmlGpuP2PStatus_t); what: 2 for NVLink, else PCIe. */
API nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status_out);
API nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status_out)
{
    MAY_FAIL;
    if (!is_there(a) || !is_there(b) || a == b) return INVALID_ARGUMENT;
    const bool by_nvlink = is_linked_by("nvlink") || is_linked_by("nvswitch");
    *status_out = (what == 2 ? by_nvlink : !is_linked_by("none")) ? 0 : 3;
    return OK;
}

/* nvlink: six links, to the other GPUs in turn. nvswitch: eighteen, all to switches. */
API nvmlDeviceGetNvLinkState(void *device, unsigned link, int *is_up_out);
API nvmlDeviceGetNvLinkState(void *device, unsigned link, int *is_up_out)
{
    MAY_FAIL;
    if (!is_there(device) || link >= 18) return INVALID_ARGUMENT;
    if (link >= 6 && !is_linked_by("nvswitch")) return NOT_SUPPORTED;
    *is_up_out = is_linked_by("nvlink") || is_linked_by("nvswitch");
    return OK;
}

API nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type_out);
API nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type_out)
{
    MAY_FAIL;
    if (!is_there(device) || link >= 18) return INVALID_ARGUMENT;
    *type_out = is_linked_by("nvswitch") ? 2 : 0;
    return OK;
}

API nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *pci_out);
API nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *pci_out)
{
    MAY_FAIL;
    const int others = count_gpus() - 1, own = index_of(device);
    if (!is_there(device) || link >= 18) return INVALID_ARGUMENT;
    *pci_out = (struct pci){.bus = 0xc0 + link % 6}; /* a switch */
    if (is_linked_by("nvswitch") || others < 1) return OK;
    const int other = (int)link % others;
    pci_out->bus = (unsigned)(other < own ? other : other + 1) + 1;
    return OK;
}

API nvmlDeviceGetMigMode(void *device, unsigned *current_out, unsigned *pending_out);
API nvmlDeviceGetMigMode(void *device, unsigned *current_out, unsigned *pending_out)
{
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    *current_out = *pending_out = is_sliced();
    return OK;
}

API nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *n_out);
API nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *n_out)
{
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    *n_out = is_sliced() ? 7 : 0;
    return OK;
}

API nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice_out);
API nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **slice_out)
{
    MAY_FAIL;
    if (!is_there(device)) return INVALID_ARGUMENT;
    if (!is_sliced() || index >= (unsigned)count_things()) return NOT_FOUND;
    *slice_out = (void *)(intptr_t)(SLICE + index);
    return OK;
}

#endif
