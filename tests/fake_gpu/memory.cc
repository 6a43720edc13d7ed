/* memory.cc - what addresses mean. Device memory is a memfd each, mapped at the end of its pages, with an
 * untouchable page on either side:
 *
 *     | no access | ..garbage.. [user's bytes, up to a multiple of 256] | no access |
 *
 * so that running over the end faults, and an address is aligned to 256 and to nothing more. Address space is
 * never used twice: a pointer to freed memory stays one. Between pieces of work all of it is PROT_NONE. */
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_gpu/machine.h"

namespace fake_gpu
{

namespace
{

constexpr size_t page = 4096, device_align = 256;
constexpr size_t arena_bytes = (size_t)1 << 38;
constexpr uint64_t handle_magic = 0x656c646e61686366;

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

uint64_t device_bytes()
{
    return (uint64_t)option_number("FAKE_GPU_MEMORY", (int64_t)8 << 30);
}

/* The part that this process can have. */
uint64_t usable_bytes()
{
    return std::min(device_bytes(), (uint64_t)option_number("FAKE_GPU_OOM_AFTER", INT64_MAX));
}

/* A handle's 64 bytes. */
struct Handle {
    uint64_t magic, id;
    int64_t pid;
    int32_t fd, device;
    uint64_t map_bytes, offset, bytes;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t), "a handle has 64 bytes");

std::string name_of(uint64_t id, pid_t pid)
{
    return "fake_gpu." + std::to_string(pid) + "." + std::to_string(id);
}

const char *kind_name(Kind kind)
{
    switch (kind) {
    case Kind::device: return "device memory";
    case Kind::imported: return "opened IPC memory";
    case Kind::pinned: return "pinned host memory";
    default: return "host memory that is not pinned";
    }
}

bool is_on_device(Kind kind)
{
    return kind == Kind::device || kind == Kind::imported;
}

/* ---- device memory ------------------------------------------------------------------------------------- */

cudaError_t map_area(Machine &m, Area area, uintptr_t *begin_out)
{
    const uintptr_t at = take_space(m, area.map_bytes);
    if (!at) return cudaErrorMemoryAllocation;
    void *got = mmap((void *)at, area.map_bytes, m.is_open ? PROT_READ | PROT_WRITE : PROT_NONE,
                     MAP_SHARED | MAP_FIXED, area.fd, 0);
    if (got == MAP_FAILED) {
        complain("memory", "mmap of %zu bytes: %s", area.map_bytes, strerror(errno));
        return cudaErrorMemoryAllocation;
    }
    area.map = at;
    area.begin = at + area.begin; /* was the offset */
    *begin_out = area.begin;
    m.areas[area.begin] = area;
    return cudaSuccess;
}

void unmap_area(Machine &m, uintptr_t begin)
{
    const Area area = m.areas[begin];
    m.areas.erase(begin);
    mmap((void *)area.map, area.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
         -1, 0);
    if (area.fd >= 0) close(area.fd);
}

/* Fresh memory holds signalling garbage: NaN as float, -1 as an integer. */
void fill_with_garbage(int fd, size_t bytes)
{
    static const std::vector<char> garbage((size_t)1 << 20, (char)0xff);
    bytes = std::min(bytes, (size_t)64 << 20);
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = pwrite(fd, garbage.data(), std::min(garbage.size(), bytes - at), (off_t)at);
        if (n <= 0) return;
        at += (size_t)n;
    }
}

void account(Machine &m, int device, int64_t bytes)
{
    Device &d = m.devices[(size_t)device];
    d.allocated += (uint64_t)bytes;
    if (d.used) *d.used = d.allocated;
}

cudaError_t take_memory(Machine &m, size_t bytes, void **memory_out)
{
    const int device = chosen_device();
    make_context(m, device);
    const size_t user = round_up(bytes, device_align);
    const uint64_t limit = std::min(device_bytes(), (uint64_t)option_number("FAKE_GPU_OOM_AFTER", INT64_MAX));
    if (user < bytes || m.devices[(size_t)device].allocated + user > limit) return cudaErrorMemoryAllocation;

    Area area;
    area.kind = Kind::device;
    area.device = device;
    area.bytes = bytes;
    area.map_bytes = round_up(user, page);
    area.begin = area.map_bytes - user;
    area.source = name_of(++m.ids, m.pid);
    area.fd = memfd_create(area.source.c_str(), MFD_CLOEXEC);
    if (area.fd < 0 || ftruncate(area.fd, (off_t)area.map_bytes) != 0) {
        complain("cudaMalloc", "%zu bytes: %s", area.map_bytes, strerror(errno));
        if (area.fd >= 0) close(area.fd);
        return cudaErrorMemoryAllocation;
    }
    fill_with_garbage(area.fd, area.map_bytes);
    uintptr_t begin;
    const cudaError_t error = map_area(m, area, &begin);
    if (error != cudaSuccess) {
        close(area.fd);
        return error;
    }
    account(m, device, (int64_t)user);
    *memory_out = (void *)begin;
    return cudaSuccess;
}

/* ---- pinned memory ------------------------------------------------------------------------------------- */

/* The files and offsets that are mapped in [lo, hi). */
std::string backing_of(uintptr_t lo, uintptr_t hi)
{
    std::string text;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return text;
    unsigned long begin, end, offset, inode, last_inode = ~0ul;
    unsigned long to_file = 0, last_to_file = 0; /* offset - address: one mapping may be cut in parts */
    char device[16], line[512];
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %*s %lx %15s %lu", &begin, &end, &offset, device, &inode) != 5) continue;
        if (end <= lo || begin >= hi) continue;
        to_file = inode ? offset - begin : 0;
        if (inode == last_inode && to_file == last_to_file) continue;
        last_inode = inode;
        last_to_file = to_file;
        text += std::string(device) + " " + std::to_string(inode) + " " + std::to_string(to_file) + ";";
    }
    fclose(maps);
    return text;
}

/* A GPU goes on with the pages that were pinned, whatever is mapped there by now. */
bool is_remapped(const char *who, const Area &area)
{
    if (backing_of(area.map, area.map + area.map_bytes) == area.backing) return false;
    complain(who, "pinned memory at %p: other pages are mapped there now", (void *)area.begin);
    return true;
}

/* What is pinned are pages: a second range may not share one with the first. */
cudaError_t pin(Machine &m, const char *who, void *memory, size_t bytes, bool is_ours)
{
    if (!memory || !bytes) return cudaErrorInvalidValue;
    Area area;
    area.kind = Kind::pinned;
    area.begin = (uintptr_t)memory;
    area.bytes = bytes;
    area.map = area.begin / page * page;
    area.map_bytes = round_up(area.begin + bytes, page) - area.map;
    area.is_ours = is_ours;
    area.device = chosen_device();
    for (const auto &entry : m.areas) {
        const Area &other = entry.second;
        if (other.map >= area.map + area.map_bytes || area.map >= other.map + other.map_bytes) continue;
        if (is_on_device(other.kind)) {
            complain(who, "%p is device memory", memory);
            return cudaErrorInvalidValue;
        }
        complain(who, "%p shares a page with memory that is pinned already", memory);
        return cudaErrorHostMemoryAlreadyRegistered;
    }
    unsigned char in_core;
    for (size_t at = 0; at < area.map_bytes; at += page)
        if (mincore((void *)(area.map + at), page, &in_core) != 0 && errno == ENOMEM) {
            complain(who, "%p: not mapped", (void *)(area.map + at));
            return cudaErrorInvalidValue;
        }
    make_context(m, area.device);
    area.backing = backing_of(area.map, area.map + area.map_bytes);
    m.areas[area.begin] = area;
    return cudaSuccess;
}

cudaError_t take_pinned(const char *who, void **memory_out, size_t bytes)
{
    return call_outside_capture(who, [&](Machine &m, std::unique_lock<std::mutex> &) {
        if (!memory_out) return cudaErrorInvalidValue;
        *memory_out = NULL;
        if (!bytes) return cudaSuccess;
        void *memory =
            mmap(NULL, round_up(bytes, page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
        memset(memory, 0xff, round_up(bytes, page));
        const cudaError_t error = pin(m, who, memory, bytes, true);
        if (error == cudaSuccess) *memory_out = memory;
        return error;
    });
}

/* ---- copies -------------------------------------------------------------------------------------------- */

/* The kind of memory [memory, + bytes) is; false, with a complaint, if it is not wholly inside one area. */
bool classify(Machine &m, const char *who, const char *side, const void *memory, size_t bytes, Kind *kind_out)
{
    std::string why;
    const Area *area = find_area(m, memory, bytes, &why);
    if (!area && !why.empty()) {
        complain(who, "%s: %s", side, why.c_str());
        return false;
    }
    *kind_out = area ? area->kind : Kind::host;
    return true;
}

bool fits(const char *who, const char *side, bool wants_device, Kind kind, bool is_async)
{
    if (wants_device != is_on_device(kind)) {
        complain(who, "%s is %s, which the direction denies", side, kind_name(kind));
        return false;
    }
    if (kind == Kind::host && is_async) {
        complain(who, "%s is %s", side, kind_name(kind));
        return false;
    }
    return true;
}

cudaError_t check_copy(Machine &m, const char *who, const void *dst, const void *src, size_t bytes,
                       cudaMemcpyKind kind, bool is_async)
{
    Kind to, from;
    if (!classify(m, who, "destination", dst, bytes, &to) || !classify(m, who, "source", src, bytes, &from))
        return cudaErrorInvalidValue;
    bool to_device = is_on_device(to), from_device = is_on_device(from);
    if (kind != cudaMemcpyDefault) {
        to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    }
    if (!fits(who, "destination", to_device, to, is_async) ||
        !fits(who, "source", from_device, from, is_async))
        return cudaErrorInvalidValue;
    const uintptr_t d = (uintptr_t)dst, s = (uintptr_t)src;
    if (d < s + bytes && s < d + bytes) {
        complain(who, "source and destination overlap");
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

/* Memory that was freed after work on it was enqueued is an error when that work runs. */
void do_copy(Machine &m, const char *who, void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    bool is_well = check_copy(m, who, dst, src, bytes, kind, true) == cudaSuccess;
    for (const void *side : {(const void *)dst, src}) {
        std::string why;
        const Area *area = is_well ? find_area(m, side, bytes, &why) : NULL;
        if (area && area->kind == Kind::pinned && area->copies++ % 32 == 0) /* it takes a while to look */
            is_well = !is_remapped(who, *area);
    }
    if (is_well)
        memcpy(dst, src, bytes);
    else
        m.fail(cudaErrorIllegalAddress);
}

/* ---- a fault in device memory says whose it is --------------------------------------------------------- */

struct sigaction earlier;

void put_text(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

/* Says it and lets the fault happen again, for whoever else wants to know. */
void explain(int, siginfo_t *info, void *)
{
    Machine &m = machine();
    const uintptr_t at = (uintptr_t)info->si_addr;
    if (at >= m.arena && at < m.arena_end) {
        if (m.running) {
            put_text("fake_gpu: ");
            put_text(m.running);
            put_text(": touches device memory that it was not given (out of bounds, or freed)\n");
        } else {
            put_text("fake_gpu: the host touches device memory\n");
        }
    }
    sigaction(SIGSEGV, &earlier, NULL);
}

void explain_faults()
{
    struct sigaction action = {};
    action.sa_sigaction = explain;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &earlier);
}

} // namespace

uintptr_t take_space(Machine &m, size_t map_bytes)
{
    if (!m.arena) {
        explain_faults();
        void *got = mmap(NULL, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) return 0;
        m.arena = m.arena_next = (uintptr_t)got;
        m.arena_end = m.arena + arena_bytes;
    }
    const uintptr_t at = m.arena_next + page;
    if (at + map_bytes + page > m.arena_end) return 0;
    m.arena_next = at + map_bytes;
    return at;
}

/* A memfd whose name tells other processes who uses which GPU; it holds the bytes that are used (nvml.cc). */
void make_context(Machine &m, int device)
{
    Device &d = m.devices[(size_t)device];
    if (d.context_fd >= 0) return;
    char name[64];
    uint64_t half;
    memcpy(&half, d.uuid.bytes, sizeof half);
    snprintf(name, sizeof name, "fake_gpu.context.%016llx", (unsigned long long)half);
    d.context_fd = memfd_create(name, MFD_CLOEXEC);
    if (d.context_fd < 0 || ftruncate(d.context_fd, (off_t)page) != 0) return;
    void *got = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, d.context_fd, 0);
    if (got != MAP_FAILED) d.used = (uint64_t *)got;
}

const Area *find_area(Machine &m, const void *memory, size_t bytes, std::string *why_out)
{
    const uintptr_t p = (uintptr_t)memory;
    auto after = m.areas.upper_bound(p);
    if (after != m.areas.begin()) {
        const Area &area = std::prev(after)->second;
        if (p < area.begin + area.bytes || (p == area.begin + area.bytes && bytes == 0)) {
            if (bytes <= area.begin + area.bytes - p) return &area;
            *why_out = "ends " + std::to_string(p + bytes - area.begin - area.bytes) + " bytes after " +
                       std::to_string(area.bytes) + " bytes of " + kind_name(area.kind);
            return NULL;
        }
    }
    if (p >= m.arena && p < m.arena_end)
        *why_out = "device memory that is not, or no longer, allocated";
    else if (after != m.areas.end() && bytes && after->second.begin < p + bytes)
        *why_out = std::string("begins before ") + kind_name(after->second.kind);
    return NULL;
}

static int reaches_kind(const char *who, const void *memory, size_t bytes, bool device_only)
{
    int ok = bytes == 0;
    if (ok) return ok;
    call(who, [&](Machine &m, std::unique_lock<std::mutex> &) {
        Kind kind;
        if (!classify(m, who, "argument", memory, bytes, &kind)) return cudaSuccess;
        ok = device_only ? is_on_device(kind) : kind != Kind::host;
        if (!ok) complain(who, "%p is %s", memory, kind_name(kind));
        return cudaSuccess;
    });
    return ok;
}

int reaches(const char *who, const void *memory, size_t bytes)
{
    return reaches_kind(who, memory, bytes, false);
}

int is_device_memory(const char *who, const void *memory, size_t bytes)
{
    return reaches_kind(who, memory, bytes, true);
}

} // namespace fake_gpu

using namespace fake_gpu;
using Lock = std::unique_lock<std::mutex>;

extern "C" {

/* ---- taking and giving --------------------------------------------------------------------------------- */

FAKE_GPU_API cudaError_t cudaMalloc(void **memory_out, size_t bytes)
{
    return call_outside_capture("cudaMalloc", [&](Machine &m, Lock &) {
        if (!memory_out) return cudaErrorInvalidValue;
        *memory_out = NULL;
        return bytes ? take_memory(m, bytes, memory_out) : cudaSuccess;
    });
}

/* Waits for all that was enqueued, as the real one does in practice. */
FAKE_GPU_API cudaError_t cudaFree(void *memory)
{
    return call_outside_capture("cudaFree", [&](Machine &m, Lock &lock) {
        if (!memory) return cudaSuccess;
        const auto found = m.areas.find((uintptr_t)memory);
        if (found == m.areas.end() || found->second.kind != Kind::device) {
            complain("cudaFree", "%p was not given by cudaMalloc, or is free already", memory);
            return cudaErrorInvalidValue;
        }
        const size_t user = round_up(found->second.bytes, device_align);
        const int device = found->second.device;
        if (!m.settle(lock, nullptr)) return m.sticky;
        if (!m.areas.count((uintptr_t)memory)) return cudaErrorInvalidValue;
        unmap_area(m, (uintptr_t)memory);
        account(m, device, -(int64_t)user);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaMallocHost(void **memory_out, size_t bytes)
{
    return take_pinned("cudaMallocHost", memory_out, bytes);
}

FAKE_GPU_API cudaError_t cudaHostAlloc(void **memory_out, size_t bytes, unsigned int)
{
    return take_pinned("cudaHostAlloc", memory_out, bytes);
}

FAKE_GPU_API cudaError_t cudaFreeHost(void *memory)
{
    return call_outside_capture("cudaFreeHost", [&](Machine &m, Lock &lock) {
        if (!memory) return cudaSuccess;
        const auto found = m.areas.find((uintptr_t)memory);
        if (found == m.areas.end() || !found->second.is_ours) {
            complain("cudaFreeHost", "%p was not given by cudaMallocHost, or is free already", memory);
            return cudaErrorInvalidValue;
        }
        if (!m.settle(lock, nullptr)) return m.sticky;
        munmap(memory, m.areas[(uintptr_t)memory].map_bytes);
        m.areas.erase((uintptr_t)memory);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    return call_outside_capture("cudaHostRegister", [&](Machine &m, Lock &) {
        if (flags & ~(unsigned)(cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly))
            return cudaErrorInvalidValue;
        return pin(m, "cudaHostRegister", memory, bytes, false);
    });
}

FAKE_GPU_API cudaError_t cudaHostUnregister(void *memory)
{
    return call_outside_capture("cudaHostUnregister", [&](Machine &m, Lock &lock) {
        const auto found = m.areas.find((uintptr_t)memory);
        if (found == m.areas.end() || found->second.kind != Kind::pinned || found->second.is_ours) {
            complain("cudaHostUnregister", "%p was not pinned by cudaHostRegister", memory);
            return cudaErrorHostMemoryNotRegistered;
        }
        if (!m.settle(lock, nullptr)) return m.sticky;
        const bool is_wrong = is_remapped("cudaHostUnregister", m.areas[(uintptr_t)memory]);
        m.areas.erase((uintptr_t)memory);
        return is_wrong ? cudaErrorInvalidValue : cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaHostGetDevicePointer(void **device_out, void *host, unsigned int flags)
{
    return call("cudaHostGetDevicePointer", [&](Machine &m, Lock &) {
        std::string why;
        const Area *area = find_area(m, host, 1, &why);
        if (!device_out || flags || !area || area->kind != Kind::pinned) return cudaErrorInvalidValue;
        *device_out = host;
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *memory)
{
    return call("cudaPointerGetAttributes", [&](Machine &m, Lock &) {
        if (!out) return cudaErrorInvalidValue;
        memset(out, 0, sizeof *out);
        std::string why;
        const Area *area = find_area(m, memory, 1, &why);
        out->type = !area                      ? cudaMemoryTypeUnregistered
                    : is_on_device(area->kind) ? cudaMemoryTypeDevice
                                               : cudaMemoryTypeHost;
        out->device = area ? area->device : cudaInvalidDeviceId;
        if (area) out->devicePointer = const_cast<void *>(memory);
        if (area && !is_on_device(area->kind)) out->hostPointer = const_cast<void *>(memory);
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaMemGetInfo(size_t *free_out, size_t *total_out)
{
    return call("cudaMemGetInfo", [&](Machine &m, Lock &) {
        make_context(m, chosen_device());
        const uint64_t used = m.devices[(size_t)chosen_device()].allocated;
        if (free_out) *free_out = usable_bytes() - std::min(used, usable_bytes());
        if (total_out) *total_out = device_bytes();
        return cudaSuccess;
    });
}

/* ---- copies -------------------------------------------------------------------------------------------- */

FAKE_GPU_API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                                         cudaStream_t handle)
{
    return call("cudaMemcpyAsync", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (!bytes) return cudaSuccess;
        const cudaError_t error = check_copy(m, "cudaMemcpyAsync", dst, src, bytes, kind, true);
        if (error != cudaSuccess) return error;
        Op op;
        op.name = "copy";
        op.type = cudaGraphNodeTypeMemcpy;
        op.work = [&m, dst, src, bytes, kind] { do_copy(m, "cudaMemcpyAsync", dst, src, bytes, kind); };
        return m.submit(stream, std::move(op));
    });
}

FAKE_GPU_API cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t handle)
{
    return call("cudaMemsetAsync", [&](Machine &m, Lock &) {
        Stream *stream = m.stream_of(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (!bytes) return cudaSuccess;
        Kind kind;
        if (!classify(m, "cudaMemsetAsync", "memory", memory, bytes, &kind)) return cudaErrorInvalidValue;
        if (kind == Kind::host) {
            complain("cudaMemsetAsync", "%p is %s", memory, kind_name(kind));
            return cudaErrorInvalidValue;
        }
        Op op;
        op.name = "set";
        op.type = cudaGraphNodeTypeMemset;
        op.work = [&m, memory, value, bytes] {
            std::string why;
            if (find_area(m, memory, bytes, &why))
                memset(memory, value, bytes);
            else
                m.fail(cudaErrorIllegalAddress);
        };
        return m.submit(stream, std::move(op));
    });
}

/* At once, and without a look at streams: that is what the real one does where all streams are
 * cudaStreamNonBlocking. Those that are not, it waits for. */
FAKE_GPU_API cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return call_outside_capture("cudaMemcpy", [&](Machine &m, Lock &lock) {
        if (!bytes) return cudaSuccess;
        const cudaError_t error = check_copy(m, "cudaMemcpy", dst, src, bytes, kind, false);
        if (error != cudaSuccess) return error;
        const std::set<Stream *> streams = m.streams;
        for (Stream *stream : streams)
            if (!(stream->flags & cudaStreamNonBlocking) && stream->tail)
                if (!m.settle(lock, NodeRef(stream->tail))) return m.sticky;
        m.open_memory();
        memcpy(dst, src, bytes);
        m.close_memory();
        return cudaSuccess;
    });
}

FAKE_GPU_API cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    return call_outside_capture("cudaMemset", [&](Machine &m, Lock &) {
        if (!bytes) return cudaSuccess;
        Kind kind;
        if (!classify(m, "cudaMemset", "memory", memory, bytes, &kind) || kind == Kind::host)
            return cudaErrorInvalidValue;
        m.open_memory();
        memset(memory, value, bytes);
        m.close_memory();
        return cudaSuccess;
    });
}

/* ---- memory of other processes ------------------------------------------------------------------------- */

FAKE_GPU_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle_out, void *memory)
{
    return call("cudaIpcGetMemHandle", [&](Machine &m, Lock &) {
        if (option_number("FAKE_GPU_NO_IPC", 0)) return cudaErrorNotSupported;
        const auto found = m.areas.find((uintptr_t)memory);
        if (!handle_out || found == m.areas.end() || found->second.kind != Kind::device) {
            complain("cudaIpcGetMemHandle", "%p is not the begin of device memory of this process", memory);
            return cudaErrorInvalidValue;
        }
        const Area &area = found->second;
        Handle handle = {};
        handle.magic = handle_magic;
        handle.id = strtoull(area.source.c_str() + area.source.rfind('.') + 1, NULL, 10);
        handle.pid = m.pid;
        handle.fd = area.fd;
        handle.device = m.devices[(size_t)area.device].index;
        handle.map_bytes = area.map_bytes;
        handle.offset = area.begin - area.map;
        handle.bytes = area.bytes;
        memset(handle_out, 0, sizeof *handle_out);
        memcpy(handle_out, &handle, sizeof handle);
        return cudaSuccess;
    });
}

/* The exporter's descriptor, by /proc; -1: it is gone, or that is another file by now. */
static int open_exported(const Handle &handle)
{
    char path[64], target[128];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)handle.pid, (int)handle.fd);
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return -1;
    target[n] = 0;
    const std::string name = "/memfd:" + name_of(handle.id, (pid_t)handle.pid);
    if (strncmp(target, name.c_str(), name.size()) != 0) return -1;
    return open(path, O_RDWR | O_CLOEXEC);
}

FAKE_GPU_API cudaError_t cudaIpcOpenMemHandle(void **memory_out, cudaIpcMemHandle_t given, unsigned int flags)
{
    return call_outside_capture("cudaIpcOpenMemHandle", [&](Machine &m, Lock &) {
        if (option_number("FAKE_GPU_NO_IPC", 0)) return cudaErrorNotSupported;
        Handle handle;
        memcpy(&handle, &given, sizeof handle);
        if (!memory_out || flags != cudaIpcMemLazyEnablePeerAccess || handle.magic != handle_magic)
            return cudaErrorInvalidValue;
        if (handle.pid == m.pid) {
            complain("cudaIpcOpenMemHandle", "the handle is of this very process");
            return cudaErrorDeviceUninitialized;
        }
        if (m.devices[(size_t)chosen_device()].index != handle.device) {
            complain("cudaIpcOpenMemHandle", "memory of GPU %d, opened on another", (int)handle.device);
            return cudaErrorInvalidDevice;
        }
        const std::string source = name_of(handle.id, (pid_t)handle.pid);
        for (auto &entry : m.areas)
            if (entry.second.kind == Kind::imported && entry.second.source == source) {
                entry.second.opened++;
                *memory_out = (void *)entry.first;
                return cudaSuccess;
            }
        Area area;
        area.kind = Kind::imported;
        area.device = chosen_device();
        area.bytes = handle.bytes;
        area.map_bytes = handle.map_bytes;
        area.begin = handle.offset;
        area.source = source;
        area.opened = 1;
        area.fd = open_exported(handle);
        if (area.fd < 0) return cudaErrorMapBufferObjectFailed;
        make_context(m, area.device);
        uintptr_t begin;
        const cudaError_t error = map_area(m, area, &begin);
        if (error == cudaSuccess)
            *memory_out = (void *)begin;
        else
            close(area.fd);
        return error;
    });
}

FAKE_GPU_API cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    return call_outside_capture("cudaIpcCloseMemHandle", [&](Machine &m, Lock &lock) {
        const auto found = m.areas.find((uintptr_t)memory);
        if (found == m.areas.end() || found->second.kind != Kind::imported) {
            complain("cudaIpcCloseMemHandle", "%p was not given by cudaIpcOpenMemHandle", memory);
            return cudaErrorInvalidValue;
        }
        if (--found->second.opened > 0) return cudaSuccess;
        if (!m.settle(lock, nullptr)) return m.sticky;
        unmap_area(m, (uintptr_t)memory);
        return cudaSuccess;
    });
}

} // extern "C"
