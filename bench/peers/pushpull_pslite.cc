// pushpull_pslite.cc - the peer: push and pull through ps-lite's public interface, measured as bench_pushpull
// measures.
//
// No part of the build. ps-lite is somebody else's: build it as its own repository says, compile this file
// against it
// (`c++ -std=c++11 -O3 -I PSLITE/include pushpull_pslite.cc` and its libraries), and give the program to
// bench/run.py --ps-lite=PROGRAM. It is started once for every role, as ps-lite's own launchers do
// (DMLC_ROLE):
//
//     pushpull_pslite ROUNDS BYTES..
//
// Kinder to the peer than ours: the server sums nothing, steps nothing and copies nothing (it answers a pull
// with the block that was pushed), workers neither rewrite the gradient nor look at the weights, and nobody
// waits for the other worker. Every worker prints a JSON object for every size, in buckets of at most 1 MB
// and in one piece.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "ps/ps.h"

static std::map<ps::Key, ps::SArray<float>> store;

static void answer(const ps::KVMeta &meta, const ps::KVPairs<float> &request, ps::KVServer<float> *server)
{
    ps::KVPairs<float> response;
    if (meta.push) store[request.keys[0]] = request.vals; // shares the memory that the message came in
    if (meta.pull) {
        const ps::SArray<float> &values = store[request.keys[0]];
        response.keys = request.keys;
        response.vals = values;
        response.lens = ps::SArray<int>(1, (int)values.size());
    }
    server->Response(meta, response);
}

struct bucket {
    ps::SArray<ps::Key> key;
    ps::SArray<float> gradient, weights;
    ps::SArray<int> length;
};

// The vector in buckets of at most `most` bytes, under keys that no other layout has.
static std::vector<bucket> lay_out(size_t bytes, size_t most)
{
    static ps::Key key;
    std::vector<bucket> buckets;
    for (size_t at = 0; at < bytes; at += most) {
        const size_t count = std::min(most, bytes - at) / sizeof(float);
        bucket b;
        b.key = ps::SArray<ps::Key>(1, key++);
        b.gradient = ps::SArray<float>(count, 1.0f);
        b.weights = ps::SArray<float>(count, 0.0f);
        b.length = ps::SArray<int>(1, (int)count);
        buckets.push_back(b);
    }
    return buckets;
}

static double exchange(ps::KVWorker<float> &worker, std::vector<bucket> &buckets)
{
    std::vector<int> waits;
    const auto begin = std::chrono::steady_clock::now();
    for (auto &b : buckets)
        waits.push_back(worker.ZPush(b.key, b.gradient, b.length));
    for (int wait : waits)
        worker.Wait(wait);
    waits.clear();
    for (auto &b : buckets)
        waits.push_back(worker.ZPull(b.key, &b.weights, &b.length));
    for (int wait : waits)
        worker.Wait(wait);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

static void work(int rounds, size_t bytes, size_t most)
{
    ps::KVWorker<float> worker(0, 0);
    auto buckets = lay_out(bytes, most);
    std::vector<double> times;
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup); // the other worker is at this size too
    for (int i = -3; i < rounds; i++) {
        const double took = exchange(worker, buckets);
        if (i >= 0) times.push_back(took);
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2], p99 = times[(times.size() * 99 + 99) / 100 - 1];
    printf("{\"bench\":\"pushpull\",\"peer\":\"ps-lite\",\"rank\":%d,\"workers\":%d,\"bytes\":%zu,"
           "\"buckets\":%zu,"
           "\"median_us\":%.2f,\"p99_us\":%.2f,\"gb_s\":%.4f}\n",
           ps::MyRank(), ps::NumWorkers(), bytes, buckets.size(), median * 1e6, p99 * 1e6,
           2.0 * (double)bytes / median / 1e9);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    ps::Start(0);
    ps::KVServer<float> *server = nullptr;
    if (ps::IsServer()) {
        server = new ps::KVServer<float>(0);
        server->set_request_handle(answer);
    }
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup + ps::kScheduler);
    if (ps::IsWorker())
        for (int i = 2; i < argc; i++) {
            const size_t bytes = strtoull(argv[i], nullptr, 10);
            for (size_t most : {size_t(1) << 20, bytes}) // as ours, and in one piece
                work(atoi(argv[1]), bytes, most);
        }
    ps::Finalize(0, true);
    delete server;
    return 0;
}
