/* machine.h - the inside of the simulated GPUs of one process: memory, streams, events, graphs, and the work
 * that is not done yet.
 *
 * Work is a graph of nodes; a stream is only its newest node:
 *
 *     stream 0   copy ---> kernel ---> mark
 *                                        \      a stream that waits for an event gets a node behind both
 *     stream 1   memset ----------------> wait ---> kernel <- tail
 *
 * A node may run when all before it are done; which of those runs is drawn by lot. Nobody but a host thread
 * that waits or asks runs any (machine.cc), and a pacemaker thread when the host has not called for a while,
 * because a real GPU goes on by itself.
 *
 * One mutex guards all of it; it is held while work is done. */
#ifndef FAKE_GPU_MACHINE_H
#define FAKE_GPU_MACHINE_H

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_gpu/fake_gpu.h"

namespace fake_gpu
{

struct Machine;
struct Stream;

/* What is put into a stream: work, or polled work, or neither (a join). */
struct Op {
    const char *name = "";
    Work work;
    std::function<Poll()> begin;
    bool is_host = false; /* host functions see no device memory */
    bool is_kernel = false;
    cudaGraphNodeType type = cudaGraphNodeTypeKernel;
    std::shared_ptr<struct Event> marks; /* external record: each launch of the graph records it anew */
    std::shared_ptr<struct Event> waits; /* external wait */
};

struct Node {
    std::shared_ptr<const Op> op;
    Poll poll; /* begun */
    int missing = 0;
    std::vector<std::shared_ptr<Node>> before, behind;
    bool is_done = false;
    uint64_t wanted = 0; /* the newest search that reached it */
    int64_t done_ns = 0;
};
using NodeRef = std::shared_ptr<Node>;

struct GraphNode {
    std::shared_ptr<const Op> op;
    std::vector<int> before;
};
using GraphNodes = std::vector<GraphNode>;

struct Capture {
    Stream *origin;
    std::thread::id owner;
    cudaStreamCaptureMode mode;
    uint64_t id;
    bool is_invalid = false;
    GraphNodes nodes;
    std::set<Stream *> members;
};

struct Event {
    unsigned flags = 0;
    int device = 0;
    NodeRef node;                     /* NULL: never recorded */
    std::shared_ptr<Capture> capture; /* recorded by a stream that was being recorded itself */
    std::vector<int> capture_tail;
};

struct Stream {
    unsigned flags = 0;
    int priority = 0, device = 0;
    NodeRef tail;
    std::shared_ptr<Capture> capture;
    std::vector<int> capture_tail;
};

struct Graph {
    std::shared_ptr<const GraphNodes> nodes;
};

struct Exec {
    std::shared_ptr<const GraphNodes> nodes;
    NodeRef last; /* launches of one graph follow each other */
};

enum class Kind { device, imported, pinned, host /* nobody's */ };

struct Area {
    Kind kind = Kind::host;
    uintptr_t begin = 0; /* as the user sees it */
    size_t bytes = 0;
    uintptr_t map = 0; /* whole pages behind it */
    size_t map_bytes = 0;
    int fd = -1, device = 0;
    int opened = 0;       /* imported: how often */
    std::string source;   /* imported: whose */
    bool is_ours = false; /* pinned: by cudaMallocHost */
    std::string backing;  /* pinned: what was mapped there then */
    mutable unsigned copies = 0;
};

struct Device {
    cudaUUID_t uuid;
    int index = 0;         /* before CUDA_VISIBLE_DEVICES */
    int context_fd = -1;   /* memfd: tells other processes that we use this device, and how much of it */
    uint64_t *used = NULL; /* in it */
    uint64_t allocated = 0;
};

/* ---- machine.cc: work -------------------------------------------------------------------------------- */

struct Machine {
    std::mutex mutex;
    pid_t pid = 0;
    std::vector<Device> devices;
    cudaError_t sticky = cudaSuccess;
    uint64_t random = 0;

    std::vector<NodeRef> ready;
    uint64_t pending = 0, searches = 0, launches = 0, calls = 0;
    int is_open = 0; /* device memory can be touched */
    const char *running = NULL;

    std::set<Stream *> streams;
    std::map<void *, std::shared_ptr<Event>> events;
    std::set<Graph *> graphs;
    std::set<Exec *> execs;
    std::set<Capture *> captures;
    std::map<uintptr_t, Area> areas; /* by begin */
    uintptr_t arena = 0, arena_next = 0, arena_end = 0;
    uint64_t ids = 0;

    std::condition_variable wake;
    bool has_pacemaker = false;

    uint64_t draw(uint64_t below);

    NodeRef put(std::shared_ptr<const Op> op, const std::vector<NodeRef> &before);
    cudaError_t submit(Stream *stream, Op op);

    /* Does what `target` needs (NULL: everything); gives the mutex away while only peers can go on. False
     * when the device failed. */
    bool settle(std::unique_lock<std::mutex> &lock, const NodeRef &target);
    void progress(int pieces);

    void open_memory();
    void close_memory();

    Stream *stream_of(cudaStream_t handle); /* NULL: no such stream; complains */
    std::shared_ptr<Event> event_of(cudaEvent_t handle);
    Capture *capture_of_thread();
    void fail(cudaError_t error);

  private:
    bool step(uint64_t search);
    bool hangs(const NodeRef &node) const;
    void run(const NodeRef &node);
    void finish(const NodeRef &node);
    uint64_t search(const NodeRef &target);
    void start_pacemaker();
    void pace();
};

/* The one machine; leaked, because the pacemaker may still look at it when the process ends. */
Machine &machine();

/* Frame of every function of the runtime: refuses without a driver, after a fork, within a host function and
 * on a failed device; takes the mutex; remembers the error for cudaGetLastError. */
using Body = std::function<cudaError_t(Machine &, std::unique_lock<std::mutex> &)>;
cudaError_t call(const char *who, const Body &body);

/* As call, for what may not be done by a thread that records a stream. */
cudaError_t call_outside_capture(const char *who, const Body &body);

cudaError_t last_error(bool clear);
cudaError_t last_error_of_thread(); /* the same, with the mutex held */
void remember(cudaError_t error);
int &chosen_device(); /* of this thread */

/* ---- memory.cc ----------------------------------------------------------------------------------------- */

/* The area that holds [memory, memory + bytes) wholly; NULL: none. `why_out` says so in words. */
const Area *find_area(Machine &m, const void *memory, size_t bytes, std::string *why_out);
/* Fresh address space of whole pages with an untouchable page on either side; 0: none left. */
uintptr_t take_space(Machine &m, size_t map_bytes);
void make_context(Machine &m, int device);

} // namespace fake_gpu

#endif
