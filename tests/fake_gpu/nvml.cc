/* nvml.cc - the part of NVIDIA's management library that ops/cuda asks. It comes with drivers, not with
 * toolkits, so there is no header to check against: names and structs are those of NVIDIA's API reference.
 * Found by fake_gpu_dlopen.
 *
 * Who uses a GPU is seen as the system sees it: a process with a context holds a memfd of a certain name
 * (make_context in memory.cc), also processes of other runs; FAKE_GPU_NO_USERS=1: the driver does not tell,
 * as in most containers. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "tests/fake_gpu/fake_gpu.h"

using namespace fake_gpu;

namespace
{

enum Status {
    ok = 0,
    invalid_argument = 2,
    not_supported = 3,
    not_found = 6,
    too_small = 7,
    driver_not_loaded = 9
};

struct Process { /* nvmlProcessInfo_v2_t */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

struct Memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

/* A handle is the device's index + 1. */
int index_of(const void *device)
{
    return (int)(intptr_t)device - 1;
}

bool is_linked_by(const char *link)
{
    return strcmp(option("FAKE_GPU_LINK"), link) == 0;
}

std::string text_of(const unsigned char *uuid)
{
    char text[48];
    snprintf(text, sizeof text, option_number("FAKE_GPU_MIG", 0) ? "MIG-" : "GPU-");
    for (int i = 0, n = 4; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text[n++] = '-';
        n += snprintf(text + n, sizeof text - (size_t)n, "%02x", uuid[i]);
    }
    return text;
}

/* The bytes that a process uses of the GPU whose memfd has this name; false: it has no context there. */
bool find_context(const std::string &process, const std::string &name, unsigned long long *bytes_out)
{
    const std::string folder = "/proc/" + process + "/fd";
    DIR *open_files = opendir(folder.c_str());
    if (!open_files) return false;
    bool found = false;
    while (const dirent *entry = readdir(open_files)) {
        char target[96];
        const std::string path = folder + "/" + entry->d_name;
        const ssize_t n = readlink(path.c_str(), target, sizeof target - 1);
        if (n < (ssize_t)name.size() || strncmp(target, name.c_str(), name.size()) != 0) continue;
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        uint64_t used = 0;
        if (fd >= 0 && pread(fd, &used, sizeof used, 0) == (ssize_t)sizeof used) *bytes_out = used;
        if (fd >= 0) close(fd);
        found = true;
        break;
    }
    closedir(open_files);
    return found;
}

std::vector<Process> find_users(const unsigned char *uuid)
{
    uint64_t half;
    memcpy(&half, uuid, sizeof half);
    char name[64];
    snprintf(name, sizeof name, "/memfd:fake_gpu.context.%016llx", (unsigned long long)half);
    std::vector<Process> users;
    DIR *processes = opendir("/proc");
    if (!processes) return users;
    while (const dirent *entry = readdir(processes)) {
        const int pid = atoi(entry->d_name);
        unsigned long long bytes = 0;
        if (pid <= 0 || !find_context(entry->d_name, name, &bytes)) continue;
        users.push_back({(unsigned)pid, bytes, 0xffffffffu, 0xffffffffu});
    }
    closedir(processes);
    return users;
}

} // namespace

extern "C" {

FAKE_GPU_API int nvmlInit_v2(void)
{
    return strcmp(option("FAKE_GPU_DRIVER"), "none") == 0 ? driver_not_loaded : ok;
}

FAKE_GPU_API int nvmlShutdown(void)
{
    return ok;
}

FAKE_GPU_API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out)
{
    if (!uuid || !device_out) return invalid_argument;
    for (int i = 0; uuid_of(i); i++)
        if (text_of(uuid_of(i)) == uuid) {
            *device_out = (void *)(intptr_t)(i + 1);
            return ok;
        }
    return not_found;
}

FAKE_GPU_API int nvmlDeviceGetMemoryInfo(void *device, Memory *memory_out)
{
    const unsigned char *uuid = uuid_of(index_of(device));
    if (!uuid || !memory_out) return invalid_argument;
    memory_out->total = (unsigned long long)option_number("FAKE_GPU_MEMORY", (int64_t)8 << 30);
    memory_out->used = 0;
    for (const Process &user : find_users(uuid))
        memory_out->used += user.bytes;
    const unsigned long long usable =
        std::min(memory_out->total, (unsigned long long)option_number("FAKE_GPU_OOM_AFTER", INT64_MAX));
    memory_out->free = usable - std::min(usable, memory_out->used);
    return ok;
}

/* In: room; out: how many there are, also when there was not room enough. */
FAKE_GPU_API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes)
{
    const unsigned char *uuid = uuid_of(index_of(device));
    if (!uuid || !count) return invalid_argument;
    if (option_number("FAKE_GPU_NO_USERS", 0)) return not_supported;
    const std::vector<Process> users = find_users(uuid);
    const unsigned room = *count;
    *count = (unsigned)users.size();
    if (users.size() > room || (!processes && !users.empty())) return too_small;
    std::copy(users.begin(), users.end(), processes);
    return ok;
}

/* status_out: 0 for "ok", 3 for "not supported" (nvmlGpuP2PStatus_t); what: 2 for NVLink, else PCIe. */
FAKE_GPU_API int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status_out)
{
    if (!uuid_of(index_of(a)) || !uuid_of(index_of(b)) || a == b || !status_out) return invalid_argument;
    const bool is_linked = what == 2 ? is_linked_by("nvlink") : !is_linked_by("none");
    *status_out = is_linked ? 0 : 3;
    return ok;
}

/* A GPU has six links, all of them up or all of them down. */
FAKE_GPU_API int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *is_up_out)
{
    if (!uuid_of(index_of(device)) || link >= 18 || !is_up_out) return invalid_argument;
    if (link >= 6) return not_supported;
    *is_up_out = is_linked_by("nvlink");
    return ok;
}

} // extern "C"
