/* machine.cc - which piece of work is done next, and by whom. */
#include "tests/fake_gpu/machine.h"
#include "tests/fake_nvml/fake_uuid.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/mman.h>
#include <unistd.h>

namespace fake_gpu
{

namespace
{

thread_local bool is_in_host_function = false;
thread_local cudaError_t thread_error = cudaSuccess;
thread_local int thread_device = 0;

int64_t now_ns()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* FAKE_GPUS devices, of which CUDA_VISIBLE_DEVICES shows some. */
void make_devices(Machine &m)
{
    const int count = (int)option_number("FAKE_GPUS", 1);
    std::vector<int> shown;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; !visible && i < count; i++)
        shown.push_back(i);
    for (const char *at = visible ? visible : ""; *at;) {
        char *end;
        const long index = strtol(at, &end, 10);
        if (end == at || index < 0 || index >= count) break; /* as CUDA does: those before it count */
        shown.push_back((int)index);
        at = *end == ',' ? end + 1 : end;
    }
    for (int index : shown) {
        Device d;
        fake_uuid(option("FAKE_GPU_MACHINE"), index, (unsigned char *)d.uuid.bytes);
        d.index = index;
        m.devices.push_back(d);
    }
}

} // namespace

/* ---- odds and ends ---------------------------------------------------------------------------------- */

void complain(const char *who, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "fake_gpu: %s: %s\n", who, text);
}

/* All of them, once: no mutex, which a fork might find taken. */
const char *option(const char *name)
{
    static const auto &known = *[] {
        auto *all = new std::map<std::string, std::string>;
        for (char **at = environ; *at; at++) {
            const char *equals = strchr(*at, '=');
            if (equals && strncmp(*at, "FAKE_", 5) == 0)
                all->emplace(std::string(*at, (size_t)(equals - *at)), equals + 1);
        }
        return all;
    }();
    const auto found = known.find(name);
    return found == known.end() ? "" : found->second.c_str();
}

int64_t option_number(const char *name, int64_t otherwise)
{
    const char *text = option(name);
    return *text ? strtoll(text, NULL, 0) : otherwise;
}

Machine &machine()
{
    static Machine *only = [] {
        Machine *m = new Machine;
        m->pid = getpid();
        m->random = fake_hash(option("FAKE_GPU_SEED"), 3) | 1;
        make_devices(*m);
        return m;
    }();
    return *only;
}

uint64_t Machine::draw(uint64_t below)
{
    random ^= random << 13; /* xorshift64 */
    random ^= random >> 7;
    random ^= random << 17;
    return (random >> 11) % below;
}

/* ---- the frame of a call -------------------------------------------------------------------------------
 */

int &chosen_device()
{
    return thread_device;
}

void remember(cudaError_t error)
{
    if (error != cudaSuccess) thread_error = error; /* cudaErrorNotReady too: see cudaGetLastError's text */
}

cudaError_t last_error_of_thread()
{
    return thread_error;
}

cudaError_t last_error(bool clear)
{
    cudaError_t error = thread_error;
    Machine &m = machine();
    if (m.pid == getpid()) { /* after a fork, the mutex may be somebody's who is not here */
        std::lock_guard<std::mutex> guard(m.mutex);
        if (m.sticky != cudaSuccess) return m.sticky;
    }
    if (clear) thread_error = cudaSuccess;
    return error;
}

cudaError_t call(const char *who, const Body &body)
{
    const std::string driver = option("FAKE_GPU_DRIVER");
    cudaError_t error;
    if (is_in_host_function) {
        complain(who, "called within a host function");
        error = cudaErrorNotPermitted;
    } else if (driver == "none" || driver == "old") {
        error = cudaErrorInsufficientDriver;
    } else {
        Machine &m = machine();
        if (m.devices.empty()) {
            error = cudaErrorNoDevice;
        } else if (m.pid != getpid()) {
            complain(who, "this process was forked from one that had used the GPU");
            error = cudaErrorInitializationError;
        } else {
            std::unique_lock<std::mutex> lock(m.mutex);
            m.calls++;
            error = m.sticky != cudaSuccess ? m.sticky : body(m, lock);
            if (m.sticky != cudaSuccess) error = m.sticky;
        }
    }
    remember(error);
    return error;
}

cudaError_t call_outside_capture(const char *who, const Body &body)
{
    return call(who, [&](Machine &m, std::unique_lock<std::mutex> &lock) {
        Capture *capture = m.capture_of_thread();
        if (!capture) return body(m, lock);
        complain(who, "not allowed in a thread that records a stream; the recording is spoilt");
        capture->is_invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    });
}

/* ---- handles ------------------------------------------------------------------------------------------- */

Stream *Machine::stream_of(cudaStream_t handle)
{
    Stream *stream = reinterpret_cast<Stream *>(handle);
    if (streams.count(stream)) return stream;
    if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        complain("stream", "the default stream is used, which waits for others and is waited for: make one");
    else
        complain("stream", "%p is not a stream, or was destroyed", (void *)handle);
    return NULL;
}

std::shared_ptr<Event> Machine::event_of(cudaEvent_t handle)
{
    const auto found = events.find(handle);
    if (found != events.end()) return found->second;
    complain("event", "%p is not an event, or was destroyed", (void *)handle);
    return nullptr;
}

Capture *Machine::capture_of_thread()
{
    for (Capture *capture : captures) {
        if (capture->mode == cudaStreamCaptureModeGlobal) return capture;
        if (capture->mode == cudaStreamCaptureModeThreadLocal && capture->owner == std::this_thread::get_id())
            return capture;
    }
    return NULL;
}

void Machine::fail(cudaError_t error)
{
    if (sticky == cudaSuccess) sticky = error;
}

/* ---- putting work in ----------------------------------------------------------------------------------- */

NodeRef Machine::put(std::shared_ptr<const Op> op, const std::vector<NodeRef> &before)
{
    NodeRef node = std::make_shared<Node>();
    node->op = std::move(op);
    for (const NodeRef &b : before) {
        if (!b || b->is_done) continue;
        node->before.push_back(b);
        b->behind.push_back(node);
        node->missing++;
    }
    pending++;
    if (node->missing == 0) ready.push_back(node);
    start_pacemaker();
    return node;
}

cudaError_t Machine::submit(Stream *stream, Op op)
{
    if (stream->capture) {
        Capture &capture = *stream->capture;
        if (capture.is_invalid) return cudaErrorStreamCaptureInvalidated;
        capture.nodes.push_back({std::make_shared<const Op>(std::move(op)), stream->capture_tail});
        stream->capture_tail = {(int)capture.nodes.size() - 1};
        return cudaSuccess;
    }
    stream->tail = put(std::make_shared<const Op>(std::move(op)), {stream->tail});
    return cudaSuccess;
}

/* ---- doing it ------------------------------------------------------------------------------------------ */

void Machine::finish(const NodeRef &node)
{
    node->is_done = true;
    node->done_ns = now_ns();
    if (node->op->marks) node->op->marks->node = node; /* see rearms_marks in graph.cc */
    node->op = nullptr;                                /* which holds the event, which holds this node */
    node->before.clear();
    node->poll = nullptr;
    pending--;
    for (const NodeRef &b : node->behind)
        if (--b->missing == 0) ready.push_back(b);
    node->behind.clear();
}

/* A failed device does nothing any more: what is left in its streams is dropped. */
void Machine::run(const NodeRef &node)
{
    const Op &op = *node->op;
    running = op.name;
    if (sticky == cudaSuccess && op.is_kernel) {
        launches++;
        if ((int64_t)launches == option_number("FAKE_GPU_FAIL_AT", 0)) {
            complain(op.name, "fails, as FAKE_GPU_FAIL_AT=%llu asks", (unsigned long long)launches);
            fail(cudaErrorIllegalAddress);
        }
    }
    if (sticky == cudaSuccess && op.work) {
        if (op.is_host) {
            close_memory();
            is_in_host_function = true;
            op.work();
            is_in_host_function = false;
        } else {
            open_memory();
            op.work();
        }
    }
    running = NULL;
}

/* FAKE_GPU_HANG_AT: this kernel and all later ones never end. */
bool Machine::hangs(const NodeRef &node) const
{
    const int64_t at = option_number("FAKE_GPU_HANG_AT", 0);
    return at > 0 && node->op->is_kernel && (int64_t)launches + 1 >= at;
}

/* Runs one ready node that `search` wants, drawn by lot. False: nothing can go on now. */
bool Machine::step(uint64_t search)
{
    std::vector<size_t> able;
    for (size_t i = 0; i < ready.size(); i++)
        if (!search || ready[i]->wanted == search) able.push_back(i);
    while (!able.empty()) {
        const size_t k = (size_t)draw(able.size()), at = able[k];
        const NodeRef node = ready[at];
        if (hangs(node)) {
            able.erase(able.begin() + (std::ptrdiff_t)k);
            continue;
        }
        if (node->op->begin && sticky == cudaSuccess) {
            if (!node->poll) node->poll = node->op->begin();
            running = node->op->name;
            open_memory();
            const Turn turn = node->poll();
            running = NULL;
            if (turn == Turn::not_yet && sticky == cudaSuccess) {
                able.erase(able.begin() + (std::ptrdiff_t)k);
                continue;
            }
        } else {
            run(node);
        }
        ready.erase(ready.begin() + (std::ptrdiff_t)at);
        finish(node);
        return true;
    }
    return false;
}

/* Marks all that the target waits for. */
uint64_t Machine::search(const NodeRef &target)
{
    const uint64_t id = ++searches;
    std::vector<Node *> open = {target.get()};
    target->wanted = id;
    while (!open.empty()) {
        Node *node = open.back();
        open.pop_back();
        for (const NodeRef &b : node->before) {
            if (b->is_done || b->wanted == id) continue;
            b->wanted = id;
            open.push_back(b.get());
        }
    }
    return id;
}

bool Machine::settle(std::unique_lock<std::mutex> &lock, const NodeRef &target)
{
    /* By lot: nothing but what is needed (who forgot to wait reads old numbers), or all alike (who forgot to
     * wait writes over numbers that are still to be read). */
    const bool only_needed = target && draw(2);
    uint64_t wanted = 0;
    while (sticky == cudaSuccess && (target ? !target->is_done : pending > 0)) {
        if (only_needed && !wanted) wanted = search(target);
        if (step(wanted)) continue;
        close_memory();
        lock.unlock(); /* a peer's turn; another thread of ours may abort the wait */
        std::this_thread::sleep_for(std::chrono::microseconds(30));
        lock.lock();
        wanted = 0; /* another thread's search may have marked the same nodes */
    }
    close_memory();
    return sticky == cudaSuccess;
}

void Machine::progress(int pieces)
{
    while (pieces-- > 0 && step(0)) {
    }
    close_memory();
}

/* ---- the pacemaker ------------------------------------------------------------------------------------- */

void Machine::start_pacemaker()
{
    if (has_pacemaker) {
        if (pending == 1) wake.notify_one();
        return;
    }
    has_pacemaker = true;
    std::thread([this] { pace(); }).detach();
}

/* A rank that waits for its peers elsewhere still does its part in their collectives: after a pause without a
 * call, work goes on. */
void Machine::pace()
{
    const std::chrono::milliseconds pause(option_number("FAKE_GPU_PAUSE_MS", 20));
    std::unique_lock<std::mutex> lock(mutex);
    uint64_t seen = calls;
    for (;;) {
        wake.wait(lock, [this] { return pending > 0; });
        lock.unlock();
        std::this_thread::sleep_for(pause);
        lock.lock();
        if (seen == calls)
            progress(64);
        else
            seen = calls;
    }
}

/* ---- device memory is open only while work is done ----------------------------------------------------- */

static void protect(Machine &m, int how)
{
    for (auto &entry : m.areas) {
        const Area &area = entry.second;
        if (area.kind != Kind::device && area.kind != Kind::imported) continue;
        if (mprotect((void *)area.map, area.map_bytes, how) != 0) {
            perror("fake_gpu: mprotect");
            abort();
        }
    }
}

void Machine::open_memory()
{
    if (is_open) return;
    protect(*this, PROT_READ | PROT_WRITE);
    is_open = 1;
}

void Machine::close_memory()
{
    if (!is_open) return;
    protect(*this, PROT_NONE);
    is_open = 0;
}

/* ---- fake_gpu.h ---------------------------------------------------------------------------------------- */

static cudaError_t enqueue_op(cudaStream_t handle, Op op)
{
    return call(op.name, [&](Machine &m, std::unique_lock<std::mutex> &) {
        Stream *stream = m.stream_of(handle);
        return stream ? m.submit(stream, std::move(op)) : cudaErrorInvalidResourceHandle;
    });
}

cudaError_t enqueue(cudaStream_t stream, const char *name, Work work)
{
    Op op;
    op.name = name;
    op.work = std::move(work);
    return enqueue_op(stream, std::move(op));
}

cudaError_t enqueue_polled(cudaStream_t stream, const char *name, std::function<Poll()> begin)
{
    Op op;
    op.name = name;
    op.begin = std::move(begin);
    return enqueue_op(stream, std::move(op));
}

void fail_device(cudaError_t error)
{
    machine().fail(error);
}

void progress()
{
    call("progress", [](Machine &m, std::unique_lock<std::mutex> &) {
        m.progress(1 + (int)m.draw(8));
        return cudaSuccess;
    });
}

void drain(cudaStream_t handle)
{
    call("drain", [&](Machine &m, std::unique_lock<std::mutex> &lock) {
        Stream *stream = m.stream_of(handle);
        if (stream && stream->tail) m.settle(lock, NodeRef(stream->tail));
        return cudaSuccess;
    });
}

int current_device()
{
    return thread_device;
}

int device_of(cudaStream_t handle)
{
    int device = -1;
    call("device_of", [&](Machine &m, std::unique_lock<std::mutex> &) {
        Stream *stream = m.stream_of(handle);
        if (stream) device = stream->device;
        return cudaSuccess;
    });
    return device;
}

bool is_capturing(cudaStream_t handle)
{
    bool is = false;
    call("is_capturing", [&](Machine &m, std::unique_lock<std::mutex> &) {
        Stream *stream = m.stream_of(handle);
        is = stream && stream->capture;
        return cudaSuccess;
    });
    return is;
}

const unsigned char *uuid_of(int device)
{
    Machine &m = machine(); /* set once, before anything else */
    if (device < 0 || device >= (int)m.devices.size()) return NULL;
    return (const unsigned char *)m.devices[(size_t)device].uuid.bytes;
}

void touch_context()
{
    call("context", [](Machine &m, std::unique_lock<std::mutex> &) {
        make_context(m, thread_device);
        return cudaSuccess;
    });
}

} // namespace fake_gpu
