#!/usr/bin/env python3
"""The peer: push and pull through MXNet's KVStore, whose server sums and steps as psd does, measured as bench_pushpull
measures: from a barrier, the slowest worker, the median of the rounds.

    pushpull_mxnet.py --workers=2 -- ROUNDS BYTES..

Starts one scheduler, one server and the workers, as MXNet's own launchers do (DMLC_ROLE). The workers push constant
gradients in dist_sync, the server adds SGD with momentum, and every pulled weight is compared with what that makes of
them. One JSON object a size, of the faster of two layouts: keys of at most 1 MB, as ours, and one key. Needs mxnet 1.9.1
and a numpy before 1.24 (bench/README.md).
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

RATE, MOMENTUM, GRADIENT, WARMUP, MB1 = 2.0**-6, 0.5, 2.0**-3, 3, 1 << 20  # powers of two: few roundings


def weight_after(rounds, workers):
    weight = step = 0.0
    for _ in range(rounds):
        step = MOMENTUM * step - RATE * GRADIENT * workers
        weight += step
    return weight


def time_layout(mx, kv, first_key, counts, rounds):
    """Seconds of every round."""
    keys = range(first_key, first_key + len(counts))
    gradients = [mx.nd.zeros((n,)) for n in counts]
    weights = [mx.nd.zeros((n,)) for n in counts]
    for key, weight in zip(keys, weights):
        kv.init(key, weight)
    mx.nd.waitall()
    times = []
    for i in range(-WARMUP, rounds):
        for gradient in gradients:
            gradient[:] = GRADIENT  # as backward would; a pull has put weights there
        mx.nd.waitall()
        kv._barrier()
        begin = time.perf_counter()
        for key, gradient in zip(keys, gradients):
            kv.push(key, gradient, priority=-key)
        for key, weight in zip(keys, weights):
            kv.pull(key, out=weight, priority=-key)
        for weight in weights:
            weight.wait_to_read()
        if i >= 0:
            times.append(time.perf_counter() - begin)
    expected = weight_after(rounds + WARMUP, kv.num_workers)
    found = [float(edge.asscalar()) for w in weights for edge in (w.min(), w.max())]
    if any(abs(weight / expected - 1) > 1e-5 for weight in found):
        sys.exit(f"pushpull_mxnet.py: weights of {min(found)} to {max(found)} after {rounds + WARMUP} rounds, not {expected}")
    return times


def work(rounds, sizes):
    import mxnet as mx
    kv, key = mx.kv.create("dist_sync"), 0
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=RATE, momentum=MOMENTUM))
    for size in sizes:
        for most in sorted({min(MB1, size), size}):
            counts = [min(most, size - at) // 4 for at in range(0, size, most)]
            times = time_layout(mx, kv, key, counts, rounds)
            print(json.dumps(dict(peer="MXNet " + mx.__version__, bytes=size, buckets=len(counts), times=times)), flush=True)
            key += len(counts)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(workers, words):
    env = dict(os.environ, DMLC_NUM_SERVER="1", DMLC_NUM_WORKER=str(workers), DMLC_PS_ROOT_URI="127.0.0.1",
               DMLC_PS_ROOT_PORT=str(free_port()), DMLC_INTERFACE="lo", DMLC_NODE_HOST="127.0.0.1", OMP_NUM_THREADS="1",
               MXNET_CPU_WORKER_NTHREADS="1")
    others = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", "import mxnet"], env=dict(env, DMLC_ROLE=role))
              for role in ("scheduler", "server")]  # to import it there is to serve
    ours = [subprocess.Popen([sys.executable, "-W", "ignore", __file__] + words, env=dict(env, DMLC_ROLE="worker"),
                             stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    said = [worker.communicate()[0] for worker in ours]
    for other in others:  # they need not end by themselves
        other.terminate()
        other.wait()
    if any(worker.returncode != 0 for worker in ours):
        sys.exit("pushpull_mxnet.py: a worker failed")
    return [[json.loads(line) for line in text.splitlines() if line.startswith("{")] for text in said]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("words", nargs="+", metavar="ROUNDS BYTES")
    a = p.parse_args()
    if os.environ.get("DMLC_ROLE") == "worker":
        work(int(a.words[0]), [int(word) for word in a.words[1:]])
        return
    best = {}
    for rows in zip(*launch(a.workers, a.words)):
        size, slowest = rows[0]["bytes"], sorted(map(max, zip(*(row["times"] for row in rows))))
        median, p99 = statistics.median(slowest), slowest[(len(slowest) * 99 + 99) // 100 - 1]
        row = dict(bench="pushpull", peer=rows[0]["peer"], workers=a.workers, bytes=size, buckets=rows[0]["buckets"],
                   median_us=round(median * 1e6, 2), p99_us=round(p99 * 1e6, 2), gb_s=round(2e-9 * size * a.workers / median, 4))
        if size not in best or row["gb_s"] > best[size]["gb_s"]:
            best[size] = row
    for row in best.values():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
