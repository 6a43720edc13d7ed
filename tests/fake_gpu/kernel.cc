/* kernel.cc - a kernel's blocks one after the other, in drawn order, and the threads of a block one after the
 * other, upwards, downwards or from the middle:
 *
 *     fiber A:  thread 0, thread 1 .. thread 7 waits at a barrier
 *     fiber B:                            thread 8 .. waits
 *     ..                                  all are there: each goes on when it is its turn
 *
 * A fiber takes the next thread when one has ended: a kernel that never waits is a plain loop on one stack.
 */
#include "tests/fake_gpu/kernel.h"

#include <numeric>
#include <vector>

#include "tests/fake_gpu/fiber.h"
#include "tests/fake_gpu/machine.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace fake_gpu
{

namespace
{

enum class State : char { fresh, running, at_barrier, in_warp, ready, ended };

struct Thread {
    State state = State::fresh;
    Fiber *fiber = NULL;
    unsigned mask = 0;
};

/* Two sets of values, used in turn: a thread that is late to read finds its own set untouched. */
struct Warp {
    unsigned arrived = 0, ended = 0;
    int turn = 0;
    unsigned long long value[2][32];
    unsigned votes[2] = {0, 0};
};

/* The grid that runs; the machine's mutex is held. */
struct Grid {
    const std::function<void()> *body = NULL;
    const char *error = NULL;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<Fiber *> idle;
    int n = 0, next = 0, live = 0, waiting = 0, current = -1, order = 0, start = 0;
    Fiber *fiber = NULL; /* that runs now */
};

Grid &grid()
{
    static Grid *only = new Grid;
    return *only;
}

void become(Grid &g, int t)
{
    const unsigned u = (unsigned)t;
    g.current = t;
    threadIdx.x = u % blockDim.x;
    threadIdx.y = u / blockDim.x % blockDim.y;
    threadIdx.z = u / blockDim.x / blockDim.y;
}

int nth_thread(const Grid &g, int i)
{
    switch (g.order) {
    case 0: return i;
    case 1: return g.n - 1 - i;
    default: return (i + g.start) % g.n;
    }
}

/* ---- who may go on ------------------------------------------------------------------------------------- */

unsigned lanes_of(const Grid &g, int warp)
{
    const int lanes = std::min(32, g.n - 32 * warp);
    return lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
}

void check_barrier(Grid &g)
{
    if (!g.waiting || g.waiting < g.live) return;
    for (Thread &t : g.threads)
        if (t.state == State::at_barrier) t.state = State::ready;
    g.waiting = 0;
}

/* Those who wait agree on a mask; lanes that have ended, or never were, need not come. */
void check_warp(Grid &g, int w)
{
    Warp &warp = g.warps[(size_t)w];
    if (!warp.arrived) return;
    unsigned mask = 0;
    for (int lane = 0; lane < 32; lane++)
        if (warp.arrived & 1u << lane) {
            const unsigned its = g.threads[(size_t)(32 * w + lane)].mask;
            if (mask && its != mask) g.error = "threads of a warp shuffle with different masks";
            mask |= its;
        }
    if ((mask & lanes_of(g, w) & ~warp.ended) != warp.arrived) return;
    for (int lane = 0; lane < 32; lane++)
        if (warp.arrived & 1u << lane) g.threads[(size_t)(32 * w + lane)].state = State::ready;
    warp.arrived = 0;
    warp.turn ^= 1;
    warp.votes[warp.turn] = 0;
    for (unsigned long long &v : warp.value[warp.turn])
        v = 0xffffffffffffffffu; /* of lanes that are not there */
}

void leave(Grid &g)
{
    Fiber *self = g.fiber;
    const int t = g.current;
    g.threads[(size_t)t].fiber = self;
    fiber_leave(self);
    become(g, t);
    g.threads[(size_t)t].state = State::running;
}

/* The endless loop of every fiber: the next thread of the block, and the one after. */
void take_threads(void *)
{
    Grid &g = grid();
    for (;;) {
        while (g.next < g.n) {
            const int t = nth_thread(g, g.next++);
            g.threads[(size_t)t].state = State::running;
            become(g, t);
            (*g.body)();
            g.threads[(size_t)t].state = State::ended;
            g.warps[(size_t)(t / 32)].ended |= 1u << t % 32;
            g.live--;
            check_barrier(g);
            check_warp(g, t / 32);
        }
        g.idle.push_back(g.fiber);
        fiber_leave(g.fiber);
    }
}

void resume(Grid &g, Fiber *fiber)
{
    g.fiber = fiber;
    fiber_resume(fiber);
}

void begin_block(Grid &g, int threads)
{
    g.n = g.live = threads;
    g.next = g.waiting = 0;
    g.threads.assign((size_t)threads, Thread());
    g.warps.assign((size_t)(threads + 31) / 32, Warp());
    for (Warp &warp : g.warps)
        std::fill(&warp.value[0][0], &warp.value[0][0] + 64, 0xffffffffffffffffu);
}

/* False: threads wait forever. */
bool run_block(Grid &g)
{
    while (g.live > 0) {
        if (g.next < g.n) {
            if (g.idle.empty()) g.idle.push_back(fiber_new(take_threads, NULL));
            Fiber *fiber = g.idle.back();
            g.idle.pop_back();
            resume(g, fiber);
            continue;
        }
        bool any = false;
        for (int i = 0; i < g.n; i++) {
            Thread &t = g.threads[(size_t)nth_thread(g, i)];
            if (t.state != State::ready) continue;
            any = true;
            resume(g, t.fiber);
        }
        if (!any) return false;
    }
    return true;
}

/* Blocks in an order of their own: (a i + b) mod n, a and n without a common factor. */
void run_grid(const char *name, dim3 blocks, dim3 threads, const std::function<void()> &body)
{
    Machine &m = machine();
    Grid &g = grid();
    gridDim = blocks;
    blockDim = threads;
    g.body = &body;
    g.error = NULL;
    const uint64_t n = (uint64_t)blocks.x * blocks.y * blocks.z;
    uint64_t a = 1 + m.draw(n), b = m.draw(n);
    while (std::gcd(a, n) != 1)
        a++;
    g.order = (int)m.draw(3);
    const int count = (int)(threads.x * threads.y * threads.z);
    g.start = (int)m.draw((uint64_t)count);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t k = (a * i + b) % n;
        blockIdx.x = (unsigned)(k % blocks.x);
        blockIdx.y = (unsigned)(k / blocks.x % blocks.y);
        blockIdx.z = (unsigned)(k / blocks.x / blocks.y);
        begin_block(g, count);
        if (!run_block(g) && !g.error)
            g.error = "threads of a block wait at a barrier, or a shuffle, for others that do not come";
        if (g.error) {
            complain(name, "block %llu: %s", (unsigned long long)k, g.error);
            m.fail(cudaErrorLaunchFailure);
            return;
        }
    }
}

} // namespace

cudaError_t launch(const char *name, cudaStream_t handle, dim3 blocks, dim3 threads,
                   std::function<void()> thread)
{
    return call(name, [&](Machine &m, std::unique_lock<std::mutex> &) {
        Stream *stream = m.stream_of(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (stream->device != chosen_device()) {
            complain(name, "GPU %d is chosen, the stream is of GPU %d", chosen_device(), stream->device);
            return cudaErrorInvalidResourceHandle;
        }
        const uint64_t count = (uint64_t)threads.x * threads.y * threads.z;
        if (!count || count > 1024 || threads.z > 64 || !blocks.x || !blocks.y || !blocks.z ||
            blocks.x > 0x7fffffffu || blocks.y > 65535 || blocks.z > 65535) {
            complain(name, "grid (%u, %u, %u) of blocks (%u, %u, %u)", blocks.x, blocks.y, blocks.z,
                     threads.x, threads.y, threads.z);
            return cudaErrorInvalidConfiguration;
        }
        const cudaError_t earlier = last_error_of_thread(); /* who launches asks cudaGetLastError */
        if (earlier != cudaSuccess) {
            complain(name, "cudaGetLastError says %d, of an earlier call", (int)earlier);
            return earlier;
        }
        Op op;
        op.name = name;
        op.is_kernel = true;
        op.work = [name, blocks, threads, thread = std::move(thread)] {
            run_grid(name, blocks, threads, thread);
        };
        return m.submit(stream, std::move(op));
    });
}

/* ---- within a thread ----------------------------------------------------------------------------------- */

int lane()
{
    return grid().current % 32;
}

void barrier()
{
    Grid &g = grid();
    g.threads[(size_t)g.current].state = State::at_barrier;
    g.waiting++;
    check_barrier(g);
    if (g.threads[(size_t)g.current].state == State::at_barrier || g.live > 1)
        leave(g);
    else
        g.threads[(size_t)g.current].state = State::running;
}

/* Puts the thread to its warp; returns which set of values is this turn's. */
static int meet(Grid &g, unsigned mask, unsigned long long value, bool vote)
{
    const int t = g.current, w = t / 32, lane = t % 32;
    Warp &warp = g.warps[(size_t)w];
    if (!(mask & 1u << lane)) g.error = "a thread shuffles with a mask that it is not in";
    const int turn = warp.turn;
    warp.value[turn][lane] = value;
    if (vote) warp.votes[turn] |= 1u << lane;
    warp.arrived |= 1u << lane;
    g.threads[(size_t)t].mask = mask;
    g.threads[(size_t)t].state = State::in_warp;
    check_warp(g, w);
    if (g.threads[(size_t)t].state == State::in_warp || g.live > 1)
        leave(g);
    else
        g.threads[(size_t)t].state = State::running;
    return turn;
}

unsigned long long exchange(unsigned mask, unsigned long long value, int from)
{
    Grid &g = grid();
    const int w = g.current / 32;
    const int turn = meet(g, mask, value, false);
    return g.warps[(size_t)w].value[turn][from & 31];
}

unsigned ballot(unsigned mask, bool yes)
{
    Grid &g = grid();
    const int w = g.current / 32;
    const int turn = meet(g, mask, 0, yes);
    return g.warps[(size_t)w].votes[turn];
}

} // namespace fake_gpu
