/* nccl.cc - the part of NCCL 2.28 that ops/cuda uses, among processes of one machine.
 *
 *     rank 0                   rank 1                  one memfd, found through the unique id as
 *                                                      /proc/PID/fd/FD of rank 0; gone with its last user:
 *     posted 7 | done 6        posted 7 | done 7       counters, a line of them for each rank
 *     [ piece 6 ][ piece 7 ]   [ piece 6 ][ piece 7 ]  what each rank gives, in pieces of 1 MiB
 *
 * A collective runs piece by piece: a rank copies its own piece in and counts `posted`; when all have, each
 * computes the result for itself and counts `done`; a slot is written again when all are done with it. A
 * missing rank makes the others wait forever, as in NCCL, until ncclCommAbort. With FAKE_NCCL_NOTICE=1 its
 * death is an ncclRemoteError (each rank holds a lock on its byte of the memfd, which dies with it).
 *
 * Sums have the order of a ring: element e begins at rank e / 512 + 1 and ends at rank e / 512 (modulo the
 * world), the same on all ranks, so nobody may count on the order of the ranks but in a world of two.
 *
 * A communicator with blocking = 0 does what src/group.cc of NCCL does: every call that starts something
 * returns ncclInProgress, and the work is in its stream only some time later, when ncclCommGetAsyncError says
 * ncclSuccess; until then any other call is an ncclInvalidArgument, which stays. Here "later" is the second
 * question, or FAKE_NCCL_LATER_MS (30). */
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_gpu/library.h"
#include "tests/fake_gpu/numbers.h"

using namespace fake_gpu;

namespace
{

enum { RANKS = 16, SEGMENT = 512 /* elements */ };
enum : uint64_t { PIECE = 1 << 20, BOX = 1 << 16, TAG = 0xfa4e0cc1fa4e0cc1ull };

/* A rank's call, recorded so that a mismatch is found and not computed. */
struct Key {
    uint64_t kind, count, type, op, root, offset;
    uint64_t is_recorded; /* NCCL's guide, CUDA graphs: a collective is captured by all ranks or by none */

    bool operator==(const Key &other) const
    {
        return !memcmp(this, &other, sizeof *this);
    }
};

struct Member {
    std::atomic<uint32_t> is_present;
    int32_t nranks;
    unsigned char uuid[16];
    std::atomic<uint64_t> posted, done;
    Key key[2];
};

/* A letter box from one rank to another: ncclSend and ncclRecv. */
struct Box {
    std::atomic<uint64_t> written, read;
    uint64_t bytes;
};

struct Shared {
    std::atomic<uint64_t>
        tag; /* tells a memfd of ours, and this world, from another behind the same number */
    Member member[RANKS];
    Box box[RANKS][RANKS];
};

const uint64_t PIECES_AT = (sizeof(Shared) + 4095) / 4096 * 4096;
const uint64_t BOXES_AT = PIECES_AT + RANKS * 2 * PIECE;
const uint64_t SHARED_BYTES = BOXES_AT + RANKS * RANKS * BOX;

struct Id { /* inside ncclUniqueId */
    uint64_t tag;
    int32_t pid, fd;
};

std::mutex last_mutex;
char last_error[512];

__attribute__((format(printf, 2, 3))) ncclResult_t warn(ncclResult_t result, const char *format, ...)
{
    std::lock_guard<std::mutex> guard(last_mutex);
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    if (is_verbose()) complain("nccl", "%s", last_error);
    return result;
}

struct RedOp {
    ncclRedOp_t kind = ncclSum;
    bool has_scale = false, is_on_device = false;
    float scale = 1.0f;
    const void *scale_at = nullptr;
    ncclDataType_t type = ncclFloat32;
    bool is_live = false;
};

struct Task;

/* One rank's part of a communicator. Lives as long as work that needs it. */
struct Core {
    ~Core();
    std::mutex mutex; /* of what follows; never held while the machine is called */
    int rank = 0, nranks = 0, device = 0, fd = -1;
    bool is_blocking = true, is_finalized = false;
    uint64_t tag = 0;
    char *map = nullptr;
    ncclResult_t state = ncclInProgress; /* what ncclCommGetAsyncError says */
    bool is_ready = false, is_launching = false;
    int questions = 0; /* since something was begun */
    std::vector<std::pair<cudaStream_t, std::vector<Task>>> unlaunched;
    std::vector<RedOp> ops;
    std::atomic<bool> is_aborted{false}, is_gone{false};
    std::atomic<int> running{0}; /* kernels that are on the device */
    std::atomic<int> graphs{0};  /* recorded kernels that could be launched again */
    std::atomic<int> inside{0};  /* threads within a call */
    std::atomic<const void *> turn{nullptr};
    uint64_t piece = 0; /* the next; only within work */
    uint64_t sent[RANKS] = {}, received[RANKS] = {};

    Shared *shared() const
    {
        return (Shared *)map;
    }
    char *slot(int of, uint64_t at) const
    {
        return map + PIECES_AT + ((uint64_t)of * 2 + at % 2) * PIECE;
    }
    char *box(int from, int to) const
    {
        return map + BOXES_AT + ((uint64_t)from * RANKS + (uint64_t)to) * BOX;
    }
};

Core::~Core()
{
    if (map) munmap(map, SHARED_BYTES);
    if (fd >= 0) close(fd);
}

using CoreRef = std::shared_ptr<Core>;

} // namespace

struct ncclComm {
    uint64_t magic;
    CoreRef core; /* NULL once it was destroyed; the handle itself is kept, to know it again */
};

namespace
{

/* ---- one task within a kernel
 * ------------------------------------------------------------------------------ */

enum Kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE };
const char *const names[] = {"ncclAllReduce",     "ncclReduce", "ncclBroadcast", "ncclAllGather",
                             "ncclReduceScatter", "ncclSend",   "ncclRecv"};

struct Task {
    Kind kind;
    const char *from;
    char *to;
    uint64_t count; /* as the caller gave it */
    ncclDataType_t type;
    RedOp op;
    int root; /* or the peer */
    bool is_recorded = false;
    /* progress of one run: */
    uint64_t at = 0; /* elements that are finished */
    bool is_posted = false;
};

uint64_t size_of_type(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

bool number_of(ncclDataType_t type, Number *number_out)
{
    switch (type) {
    case ncclFloat32: *number_out = Number::F32; return true;
    case ncclBfloat16: *number_out = Number::BF16; return true;
    case ncclFloat16: *number_out = Number::F16; return true;
    default: return false;
    }
}

bool has_arithmetic(Kind kind)
{
    return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
}

/* Elements that pass through the slots. */
uint64_t total_of(const Core &core, const Task &task)
{
    return task.kind == REDUCE_SCATTER ? task.count * (uint64_t)core.nranks : task.count;
}

float rounded(Number type, float value)
{
    char memory[4];
    store(memory, type, 0, value);
    return load(memory, type, 0);
}

/* Copies this rank's piece in, multiplied by its own factor: ncclDevPreMulSum. */
void post(Core &core, const Task &task, uint64_t count)
{
    char *slot = core.slot(core.rank, core.piece);
    const uint64_t size = size_of_type(task.type);
    const bool gives = task.kind != BROADCAST || core.rank == task.root;
    Number type;
    if (!gives) return;
    if (!has_arithmetic(task.kind) || !task.op.has_scale || !number_of(task.type, &type)) {
        memcpy(slot, task.from + task.at * size, count * size);
        return;
    }
    const float scale = rounded(type, task.op.is_on_device ? load(task.op.scale_at, type, 0) : task.op.scale);
    for (uint64_t i = 0; i < count; i++)
        store(slot, type, (int64_t)i, load(task.from, type, (int64_t)(task.at + i)) * scale);
}

float combine(ncclRedOp_t op, float a, float b)
{
    switch (op) {
    case ncclProd: return a * b;
    case ncclMax: return a > b ? a : b;
    case ncclMin: return a < b ? a : b;
    default: return a + b;
    }
}

/* Element i of this piece in the order of a ring. */
void reduce_element(const Core &core, const Task &task, Number type, uint64_t i, char *to, uint64_t to_at)
{
    const int last = (int)((task.at + i) / SEGMENT % (uint64_t)core.nranks);
    float sum = 0.0f;
    for (int step = 1; step <= core.nranks; step++) {
        const char *slot = core.slot((last + step) % core.nranks, core.piece);
        const float value = load(slot, type, (int64_t)i);
        sum = step == 1 ? value : rounded(type, combine(task.op.kind, sum, value));
    }
    store(to, type, (int64_t)to_at, sum);
}

void take(Core &core, const Task &task, uint64_t count)
{
    const uint64_t size = size_of_type(task.type);
    const uint64_t first = (uint64_t)core.rank * task.count, behind = first + task.count;
    Number type = Number::F32;
    number_of(task.type, &type);
    switch (task.kind) {
    case BROADCAST:
        if (task.to != task.from || core.rank != task.root)
            memcpy(task.to + task.at * size, core.slot(task.root, core.piece), count * size);
        break;
    case ALL_GATHER:
        for (int r = 0; r < core.nranks; r++)
            memcpy(task.to + ((uint64_t)r * task.count + task.at) * size, core.slot(r, core.piece),
                   count * size);
        break;
    case REDUCE:
        if (core.rank != task.root) break;
        /* fall through */
    case ALL_REDUCE:
        for (uint64_t i = 0; i < count; i++)
            reduce_element(core, task, type, i, task.to, task.at + i);
        break;
    case REDUCE_SCATTER:
        for (uint64_t i = 0; i < count; i++)
            if (task.at + i >= first && task.at + i < behind)
                reduce_element(core, task, type, i, task.to, task.at + i - first);
        break;
    default: break;
    }
}

/* Whether all ranks have come as far; whether they all do the same. */
bool all(const Core &core, std::atomic<uint64_t> Member::*counter, uint64_t least)
{
    for (int r = 0; r < core.nranks; r++)
        if ((core.shared()->member[r].*counter).load(std::memory_order_acquire) < least) return false;
    return true;
}

bool do_all_agree(const Core &core, const Key &key, const Task &task)
{
    for (int r = 0; r < core.nranks; r++) {
        const Key &other = core.shared()->member[r].key[core.piece % 2];
        if (other == key) continue;
        if (other.is_recorded != key.is_recorded)
            complain("nccl", "%s: one of ranks %d and %d has recorded it in a graph, the other has not",
                     names[task.kind], core.rank, r);
        complain("nccl",
                 "rank %d is in %s of %llu from %llu on, rank %d in %s of %llu from %llu on: real ranks "
                 "would hang",
                 core.rank, names[task.kind], (unsigned long long)key.count, (unsigned long long)key.offset,
                 r, names[other.kind % 7], (unsigned long long)other.count, (unsigned long long)other.offset);
        return false;
    }
    return true;
}

Turn step_collective(Core &core, Task &task)
{
    const uint64_t total = total_of(core, task), size = size_of_type(task.type);
    Member &self = core.shared()->member[core.rank];
    while (task.at < total) {
        const uint64_t count = std::min(total - task.at, PIECE / size);
        const Key key = {(uint64_t)task.kind, task.count, (uint64_t)task.type,       (uint64_t)task.op.kind,
                         (uint64_t)task.root, task.at,    (uint64_t)task.is_recorded};
        if (!task.is_posted) {
            if (core.piece >= 2 && !all(core, &Member::done, core.piece - 1)) return Turn::not_yet;
            self.key[core.piece % 2] = key;
            post(core, task, count);
            self.posted.store(core.piece + 1, std::memory_order_release);
            task.is_posted = true;
        }
        if (!all(core, &Member::posted, core.piece + 1)) return Turn::not_yet;
        if (!do_all_agree(core, key, task)) {
            fail_device(cudaErrorLaunchFailure);
            return Turn::failed;
        }
        take(core, task, count);
        self.done.store(++core.piece, std::memory_order_release);
        task.at += count;
        task.is_posted = false;
    }
    return Turn::done;
}

Turn step_letter(Core &core, Task &task)
{
    const uint64_t size = size_of_type(task.type);
    const bool sends = task.kind == SEND;
    Box &box = sends ? core.shared()->box[core.rank][task.root] : core.shared()->box[task.root][core.rank];
    char *letter = sends ? core.box(core.rank, task.root) : core.box(task.root, core.rank);
    while (task.at < task.count) {
        const uint64_t count = std::min(task.count - task.at, BOX / size);
        const uint64_t written = box.written.load(std::memory_order_acquire);
        const uint64_t read = box.read.load(std::memory_order_acquire);
        if (sends ? written != read : written == read) return Turn::not_yet;
        if (sends) {
            memcpy(letter, task.from + task.at * size, count * size);
            box.bytes = count * size;
            box.written.store(written + 1, std::memory_order_release);
        } else {
            if (box.bytes != count * size) {
                complain("nccl", "rank %d sent %llu bytes, rank %d awaits %llu", task.root,
                         (unsigned long long)box.bytes, core.rank, (unsigned long long)(count * size));
                fail_device(cudaErrorLaunchFailure);
                return Turn::failed;
            }
            memcpy(task.to + task.at * size, letter, count * size);
            box.read.store(read + 1, std::memory_order_release);
        }
        task.at += count;
    }
    return Turn::done;
}

/* A kernel: the tasks of one group on one stream. Letters go on side by side, collectives one by one. */
Turn step_kernel(Core &core, std::vector<Task> &tasks)
{
    bool is_done = true, is_collective_open = false;
    for (Task &task : tasks) {
        const bool is_letter = task.kind == SEND || task.kind == RECEIVE;
        if (!is_letter && is_collective_open) continue;
        const Turn turn = is_letter ? step_letter(core, task) : step_collective(core, task);
        if (turn == Turn::failed) return turn;
        if (turn == Turn::not_yet) {
            is_done = false;
            is_collective_open |= !is_letter;
        }
    }
    return is_done ? Turn::done : Turn::not_yet;
}

Poll begin_kernel(const CoreRef &core, const std::vector<Task> &tasks, bool is_recorded)
{
    auto mine = std::make_shared<std::vector<Task>>(tasks);
    for (Task &task : *mine)
        task.is_recorded = is_recorded;
    core->running++;
    return [core, mine]() -> Turn {
        if (core->is_gone && !core->is_aborted)
            complain("nccl", "a kernel of a communicator that was destroyed");
        Turn turn = Turn::failed;
        if (!core->is_aborted && !core->is_gone) {
            const void *nobody = nullptr; /* kernels of one communicator follow each other */
            if (!core->turn.compare_exchange_strong(nobody, mine.get()) && nobody != mine.get())
                return Turn::not_yet;
            turn = step_kernel(*core, *mine);
        }
        if (turn == Turn::not_yet) return turn;
        const void *self = mine.get();
        core->turn.compare_exchange_strong(self, nullptr);
        core->running--;
        return turn;
    };
}

/* src/enqueue.cc, persistentDestructor: a graph keeps the communicators of its kernels from being freed. */
struct Hold {
    CoreRef core;

    explicit Hold(const CoreRef &held) : core(held)
    {
        core->graphs++;
    }
    ~Hold()
    {
        core->graphs--;
    }
};

ncclResult_t launch(const CoreRef &core, cudaStream_t stream, const std::vector<Task> &tasks)
{
    const std::shared_ptr<Hold> hold = is_capturing(stream) ? std::make_shared<Hold>(core) : nullptr;
    const cudaError_t error = enqueue_polled(stream, names[tasks[0].kind], [core, tasks, hold] {
        return begin_kernel(core, tasks, hold != nullptr);
    });
    if (error == cudaSuccess) return ncclSuccess;
    return warn(ncclUnhandledCudaError, "Cuda failure %d", (int)error);
}

/* ---- a communicator's life
 * ------------------------------------------------------------------------------------ */

bool is_alive(const Core &core, int rank)
{
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return fcntl(core.fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

/* All there? And may they be one world? src/init.cc: "Duplicate GPU detected". */
ncclResult_t look_around(Core &core)
{
    Member *member = core.shared()->member;
    for (int r = 0; r < core.nranks; r++)
        if (!member[r].is_present.load(std::memory_order_acquire)) return ncclInProgress;
    for (int r = 0; r < core.nranks; r++) {
        if (member[r].nranks != core.nranks)
            return warn(ncclInvalidUsage, "rank %d knows of %d ranks, rank %d of %d", r, member[r].nranks,
                        core.rank, core.nranks);
        for (int other = 0; other < r; other++)
            if (!memcmp(member[r].uuid, member[other].uuid, 16) ||
                option_number("FAKE_GPU_MIG", 0)) /* it compares places on the bus */
                return warn(ncclInvalidUsage,
                            "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", r, other,
                            core.device);
    }
    return ncclSuccess;
}

ncclResult_t enter(Core &core, const Id &id)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id.pid, id.fd);
    core.fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (core.fd < 0 || fstat(core.fd, &st) || (uint64_t)st.st_size != SHARED_BYTES)
        return warn(ncclSystemError, "the process %d that made the unique id does not answer", id.pid);
    core.map = (char *)mmap(nullptr, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, core.fd, 0);
    if (core.map == MAP_FAILED) core.map = nullptr;
    if (!core.map || core.shared()->tag != id.tag)
        return warn(ncclSystemError, "nothing of ours behind this unique id");
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = core.rank;
    lock.l_len = 1;
    Member &self = core.shared()->member[core.rank];
    if (fcntl(core.fd, F_OFD_SETLK, &lock) || self.is_present)
        return warn(ncclInvalidUsage, "rank %d is there already", core.rank);
    self.nranks = core.nranks;
    memcpy(self.uuid, uuid_of(core.device), 16);
    self.is_present.store(1, std::memory_order_release);
    return ncclSuccess;
}

/* Init and launches go on here: from questions, from waits, and from a thread of our own. */
void go_on(const CoreRef &core, bool is_impatient)
{
    std::vector<std::pair<cudaStream_t, std::vector<Task>>> ready;
    {
        std::lock_guard<std::mutex> guard(core->mutex);
        if (core->state != ncclInProgress || core->is_launching) return;
        if (core->is_aborted) return;
        if (!core->is_ready) {
            const ncclResult_t result = look_around(*core);
            if (result == ncclInProgress) return;
            if (result != ncclSuccess) {
                core->state = result;
                return;
            }
            core->is_ready = true;
        }
        if (!is_impatient && ++core->questions < 2) return;
        if (core->is_finalized && (core->running > 0 || core->graphs > 0)) return;
        ready.swap(core->unlaunched);
        core->is_launching = true; /* until it is in its stream, nobody else says that it is */
    }
    ncclResult_t result = ncclSuccess;
    for (auto &one : ready)
        if (result == ncclSuccess) result = launch(core, one.first, one.second);
    std::lock_guard<std::mutex> guard(core->mutex);
    core->is_launching = false;
    if (core->state == ncclInProgress) core->state = result;
}

/* NCCL launches from a thread of its own; whoever does not ask still gets his work done. */
void launch_later(const CoreRef &core)
{
    std::thread([core] {
        std::this_thread::sleep_for(std::chrono::milliseconds(option_number("FAKE_NCCL_LATER_MS", 30)));
        go_on(core, true);
    }).detach();
}

void set_in_progress(const CoreRef &core)
{
    core->state = ncclInProgress;
    core->questions = 0;
}

ncclResult_t wait_ready(const CoreRef &core)
{
    for (;;) {
        go_on(core, true);
        {
            std::lock_guard<std::mutex> guard(core->mutex);
            if (core->state != ncclInProgress) return core->state;
        }
        if (core->is_aborted) return ncclInternalError;
        progress();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

/* The communicator behind a handle, while one call lasts. */
struct Call {
    CoreRef core;
    ncclResult_t result = ncclSuccess;

    Call(ncclComm_t comm, const char *who)
    {
        if (!comm || comm->magic != TAG) {
            result = warn(ncclInvalidArgument, "%s : comm argument is NULL or not one", who);
            return;
        }
        core = comm->core;
        if (!core) {
            complain("nccl", "%s with a communicator that was destroyed or aborted", who);
            result = warn(ncclInvalidArgument, "Error: corrupted comm object detected");
            return;
        }
        core->inside++;
    }
    ~Call()
    {
        if (core) core->inside--;
    }
};

/* src/init.cc, ncclCommEnsureReady */
ncclResult_t ensure_ready(const CoreRef &core)
{
    std::lock_guard<std::mutex> guard(core->mutex);
    if (core->state == ncclInProgress)
        return warn(ncclInvalidArgument,
                    "Attempt to use communicator before the previous operation returned ncclSuccess");
    return core->state;
}

/* ---- groups
 * --------------------------------------------------------------------------------------------------- */

struct Pending {
    CoreRef core;
    cudaStream_t stream;
    Task task;
};

struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    std::vector<CoreRef> inits;
    std::vector<Pending> tasks;
};

thread_local Group group;

ncclResult_t finish_inits(const std::vector<CoreRef> &inits)
{
    ncclResult_t result = ncclSuccess;
    for (const CoreRef &core : inits) {
        const ncclResult_t one = core->is_blocking ? wait_ready(core) : ncclInProgress;
        if (one != ncclSuccess && result == ncclSuccess) result = one;
    }
    return result;
}

ncclResult_t launch_tasks(const std::vector<Pending> &tasks)
{
    ncclResult_t result = ncclSuccess;
    std::vector<bool> is_taken(tasks.size());
    for (size_t i = 0; i < tasks.size(); i++) {
        if (is_taken[i]) continue;
        std::vector<Task> kernel;
        for (size_t j = i; j < tasks.size(); j++)
            if (tasks[j].core == tasks[i].core && tasks[j].stream == tasks[i].stream) {
                is_taken[j] = true;
                kernel.push_back(tasks[j].task);
            }
        const CoreRef &core = tasks[i].core;
        if (core->is_blocking) {
            const ncclResult_t one = launch(core, tasks[i].stream, kernel);
            if (result == ncclSuccess) result = one;
            continue;
        }
        {
            std::lock_guard<std::mutex> guard(core->mutex);
            set_in_progress(core);
            core->unlaunched.emplace_back(tasks[i].stream, kernel);
        }
        launch_later(core);
        if (result == ncclSuccess) result = ncclInProgress;
    }
    return result;
}

ncclResult_t end_group()
{
    if (--group.depth > 0) return ncclSuccess;
    Group ended;
    std::swap(ended, group);
    if (ended.error != ncclSuccess) return ended.error;
    const ncclResult_t result = finish_inits(ended.inits);
    return ended.tasks.empty() ? result : launch_tasks(ended.tasks);
}

/* src/misc/argcheck.cc and what a kernel would fault on. */
ncclResult_t check_arguments(const Core &core, const Task &task, cudaStream_t stream)
{
    const char *name = names[task.kind];
    if (task.root < 0 || task.root >= core.nranks)
        return warn(ncclInvalidArgument, "%s : invalid root %d", name, task.root);
    const uint64_t size = size_of_type(task.type);
    if (!size) return warn(ncclInvalidArgument, "%s : invalid type %d", name, (int)task.type);
    Number number;
    if (has_arithmetic(task.kind) && !number_of(task.type, &number))
        return warn(ncclInvalidArgument, "%s of type %d: not simulated", name, (int)task.type);
    if (device_of(stream) != core.device)
        return warn(ncclUnhandledCudaError, "%s : the stream is not of device %d", name, core.device);
    const uint64_t bytes = task.count * size, whole = bytes * (uint64_t)core.nranks;
    const bool reads = task.kind != RECEIVE && (task.kind != BROADCAST || core.rank == task.root);
    const bool writes = task.kind != SEND && (task.kind != REDUCE || core.rank == task.root);
    if (reads && !reaches(name, task.from, task.kind == REDUCE_SCATTER ? whole : bytes))
        return warn(ncclInvalidArgument, "%s : sendbuff %p is not a valid pointer", name, (void *)task.from);
    if (writes && !reaches(name, task.to, task.kind == ALL_GATHER ? whole : bytes))
        return warn(ncclInvalidArgument, "%s : recvbuff %p is not a valid pointer", name, (void *)task.to);
    return ncclSuccess;
}

ncclResult_t find_op(Core &core, ncclRedOp_t op, ncclDataType_t type, RedOp *out)
{
    *out = RedOp();
    out->kind = op;
    if (op >= 0 && op < ncclNumOps) {
        if (op ==
            ncclAvg) { /* src/enqueue.cc, hostToDevRedOp: a factor before the sum, not a division after it */
            out->has_scale = true;
            out->scale = float(1.0 / core.nranks);
        }
        return ncclSuccess;
    }
    std::lock_guard<std::mutex> guard(core.mutex);
    const size_t at = (size_t)op - ncclNumOps;
    if (at >= core.ops.size() || !core.ops[at].is_live)
        return warn(ncclInvalidArgument, "reduction operation %d unknown to this communicator", (int)op);
    if (core.ops[at].type != type)
        return warn(ncclInvalidArgument, "Data type supplied to user-created ncclRedOp_t does not match type "
                                         "given to reduction operation");
    *out = core.ops[at];
    return ncclSuccess;
}

ncclResult_t submit(Kind kind, const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                    int root, ncclComm_t comm, cudaStream_t stream)
{
    Call call(comm, names[kind]);
    if (call.result != ncclSuccess) return call.result;
    Task task = {kind, (const char *)from, (char *)to, count, type, RedOp(), root, false, 0, false};
    group.depth++;
    ncclResult_t result = ensure_ready(call.core);
    if (result == ncclSuccess) result = check_arguments(*call.core, task, stream);
    if (result == ncclSuccess) result = find_op(*call.core, op, type, &task.op);
    if (result == ncclSuccess && count > 0) group.tasks.push_back({call.core, stream, task});
    if (result != ncclSuccess) {
        if (group.error == ncclSuccess) group.error = result;
        if (!call.core->is_blocking) { /* src/enqueue.cc: the error stays with a non-blocking communicator */
            std::lock_guard<std::mutex> guard(call.core->mutex);
            call.core->state = result;
        }
    }
    const ncclResult_t ended = end_group();
    return result != ncclSuccess ? result : ended;
}

ncclResult_t init(ncclComm_t *comm_out, int nranks, ncclUniqueId unique, int rank, const ncclConfig_t *config)
{
    if (!comm_out) return warn(ncclInvalidArgument, "CommInitRank : newcomm argument is NULL");
    *comm_out = nullptr;
    if (config && (config->magic != 0xcafebeefu || config->size != sizeof *config))
        return warn(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (nranks < 1 || nranks > RANKS || rank < 0 || rank >= nranks)
        return warn(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, nranks);
    Id id;
    memcpy(&id, &unique, sizeof id);
    touch_context();
    CoreRef core = std::make_shared<Core>();
    core->rank = rank;
    core->nranks = nranks;
    core->device = current_device();
    core->is_blocking = !config || config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking;
    const ncclResult_t entered = enter(*core, id);
    if (entered != ncclSuccess && core->is_blocking) return entered;
    if (entered != ncclSuccess) core->state = entered;
    *comm_out = new ncclComm{TAG, core};
    group.depth++;
    group.inits.push_back(core);
    ncclResult_t result = end_group();
    if (core->is_blocking && result != ncclSuccess) *comm_out = nullptr;
    if (!core->is_blocking && entered == ncclSuccess) launch_later(core);
    return result;
}

/* Waits until the kernels have left the device, and (src/init.cc, commDestroySync) "until all graphs
 * referencing us die": an abort, too, does not return before cudaGraphExecDestroy. */
void wait_idle(Core &core)
{
    while (core.running > 0 || core.graphs > 0) {
        progress();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

/* Ends the handle, which is kept: whoever uses it again is told. */
void give_up(ncclComm_t comm, const CoreRef &core, const char *who)
{
    static std::mutex mutex;
    static auto &ended = *new std::vector<ncclComm_t>;
    std::lock_guard<std::mutex> guard(mutex);
    ended.push_back(comm);
    if (core->inside > 1)
        complain("nccl", "%s frees a communicator while another thread uses it: a crash in NCCL", who);
    core->is_gone = true;
    comm->core = nullptr;
}

} // namespace

/* ---- the functions
 * ---------------------------------------------------------------------------------------------- */

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int *version_out)
{
    if (!version_out) return ncclInvalidArgument;
    *version_out = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) { /* src/init.cc */
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *unique_out)
{
    if (!unique_out) return warn(ncclInvalidArgument, "GetUniqueId : uniqueId argument is NULL");
    const int fd = memfd_create("fake-nccl", MFD_CLOEXEC); /* stays open, as NCCL's root listens on */
    if (fd < 0 || ftruncate(fd, (off_t)SHARED_BYTES)) return warn(ncclSystemError, "memfd: %d", errno);
    Shared *shared = (Shared *)mmap(nullptr, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return warn(ncclSystemError, "mmap: %d", errno);
    std::random_device device;
    const Id id = {TAG ^ ((uint64_t)device() << 32 | device()), (int32_t)getpid(), fd};
    shared->tag = id.tag;
    munmap(shared, sizeof *shared);
    memset(unique_out, 0, sizeof *unique_out);
    memcpy(unique_out, &id, sizeof id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_out, int nranks, ncclUniqueId unique, int rank,
                                    ncclConfig_t *config)
{
    return init(comm_out, nranks, unique, rank, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm_out, int nranks, ncclUniqueId unique, int rank)
{
    return init(comm_out, nranks, unique, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result_out)
{
    Call call(comm, "ncclCommGetAsyncError");
    if (call.result != ncclSuccess) return call.result;
    if (!result_out) return warn(ncclInvalidArgument, "ncclCommGetAsyncError : asyncError argument is NULL");
    progress();
    go_on(call.core, false);
    std::lock_guard<std::mutex> guard(call.core->mutex);
    Core &core = *call.core;
    if (core.is_ready && core.state == ncclSuccess && option_number("FAKE_NCCL_NOTICE", 0))
        for (int r = 0; r < core.nranks; r++)
            if (r != core.rank && !is_alive(core, r))
                core.state = warn(ncclRemoteError, "rank %d is gone", r);
    *result_out = core.state;
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (!comm) return ncclSuccess;
    Call call(comm, "ncclCommFinalize");
    if (call.result != ncclSuccess) return call.result;
    const ncclResult_t ready = ensure_ready(call.core);
    if (ready != ncclSuccess) return ready;
    {
        std::lock_guard<std::mutex> guard(call.core->mutex);
        if (call.core->is_finalized) return warn(ncclInvalidArgument, "finalized twice");
        call.core->is_finalized = true;
        if (!call.core->is_blocking) {
            set_in_progress(call.core);
            return ncclInProgress;
        }
    }
    wait_idle(*call.core);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm) return ncclSuccess;
    Call call(comm, "ncclCommDestroy");
    if (call.result != ncclSuccess) return call.result;
    const ncclResult_t ready = ensure_ready(call.core);
    if (ready != ncclSuccess) return ready;
    wait_idle(*call.core);
    give_up(comm, call.core, "ncclCommDestroy");
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm) return ncclSuccess;
    Call call(comm, "ncclCommAbort");
    if (call.result != ncclSuccess) return call.result;
    call.core->is_aborted = true;
    wait_idle(*call.core);
    give_up(comm, call.core, "ncclCommAbort");
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count_out)
{
    Call call(comm, "ncclCommCount");
    if (call.result != ncclSuccess) return call.result;
    *count_out = call.core->nranks;
    return ensure_ready(call.core);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank_out)
{
    Call call(comm, "ncclCommUserRank");
    if (call.result != ncclSuccess) return call.result;
    *rank_out = call.core->rank;
    return ensure_ready(call.core);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op_out, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    Call call(comm, "ncclRedOpCreatePreMulSum");
    if (call.result != ncclSuccess) return call.result;
    const ncclResult_t ready = ensure_ready(call.core);
    if (ready != ncclSuccess) return ready;
    Number number;
    if (!op_out || !scalar || !number_of(type, &number))
        return warn(ncclInvalidArgument, "a factor that is NULL, or of type %d", (int)type);
    RedOp op;
    op.kind = ncclSum;
    op.has_scale = op.is_live = true;
    op.type = type;
    op.is_on_device = residence == ncclScalarDevice;
    op.scale_at = scalar;
    if (!op.is_on_device) {
        op.scale = load(scalar, number, 0);
    } else if (!reaches("ncclRedOpCreatePreMulSum", scalar, size_of_type(type))) {
        return warn(ncclInvalidArgument, "the factor is not in memory of the device");
    }
    std::lock_guard<std::mutex> guard(call.core->mutex);
    call.core->ops.push_back(op);
    *op_out = (ncclRedOp_t)(ncclNumOps + (int)call.core->ops.size() - 1);
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    Call call(comm, "ncclRedOpDestroy");
    if (call.result != ncclSuccess) return call.result;
    std::lock_guard<std::mutex> guard(call.core->mutex);
    const size_t at = (size_t)op - ncclNumOps;
    if (op < ncclNumOps || at >= call.core->ops.size() || !call.core->ops[at].is_live)
        return warn(ncclInvalidArgument, "ncclRedOpDestroy : operator unknown to this communicator.");
    call.core->ops[at].is_live = false;
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return submit(ALL_REDUCE, from, to, count, type, op, 0, comm, stream);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    return submit(REDUCE, from, to, count, type, op, root, comm, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return submit(BROADCAST, from, to, count, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return submit(ALL_GATHER, from, to, count, type, ncclSum, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return submit(REDUCE_SCATTER, from, to, count, type, op, 0, comm, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit(SEND, from, nullptr, count, type, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return submit(RECEIVE, nullptr, to, count, type, ncclSum, peer, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (group.depth == 0) return warn(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    return end_group();
}

} /* extern "C" */
#pragma GCC visibility pop
