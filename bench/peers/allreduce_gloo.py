#!/usr/bin/env python3
"""The peer: all_reduce (float32 sum) of torch.distributed over Gloo by size, measured as bench_allreduce measures.

    allreduce_gloo.py --ranks=2 ITERATIONSxBYTES..          all ranks on this host
    bench/namespaces.sh 2 sh -c 'allreduce_gloo.py --ranks=2 --hosts=$HOSTS ITERATIONSxBYTES..'
                                                           each rank in its network namespace

Every iteration starts at a barrier and takes as long as its slowest rank; before it every rank has written to every
page of its vector. One JSON object a size. Needs PyTorch with Gloo (Debian: python3-torch).
"""
import argparse
import json
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARMUP = 3


def time_size(count, iters):
    """Seconds of every iteration of the slowest rank, sorted."""
    x = torch.ones(count)
    times = torch.zeros(iters, dtype=torch.float64)
    for i in range(-WARMUP, iters):
        x[::1024] = 1
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(x)
        if i >= 0:
            times[i] = time.perf_counter() - begin
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return sorted(times.tolist())


def run(rank, a):
    os.environ.update(MASTER_ADDR=a.master, MASTER_PORT=str(a.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=a.ranks)
    for word in a.sizes:
        iters, size = (int(number) for number in word.split("x"))
        times = time_size(size // 4, iters)
        median, p99 = times[len(times) // 2], times[(len(times) * 99 + 99) // 100 - 1]
        if rank == 0:
            print(json.dumps(dict(bench="allreduce", peer="Gloo of torch " + torch.__version__, ranks=a.ranks,
                                  bytes=size, median_us=round(median * 1e6, 2), p99_us=round(p99 * 1e6, 2),
                                  algbw_gb_s=size / median / 1e9)), flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_in_namespaces(a):
    """A process a rank, as `ip netns exec` starts it; the addresses are those of bench/namespaces.sh."""
    line = [sys.executable, __file__, f"--ranks={a.ranks}", "--master=10.78.0.1", "--port=29533"]
    env = dict(os.environ, GLOO_SOCKET_IFNAME="eth0")
    ranks = [subprocess.Popen(["ip", "netns", "exec", f"{a.hosts}-{r}"] + line + [f"--rank={r}"] + a.sizes,
                              env=env) for r in range(a.ranks)]
    return max([abs(rank.wait()) for rank in ranks])


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--hosts", default="", help="prefix of the namespaces")
    p.add_argument("--rank", type=int, default=-1, help="be this one rank")
    p.add_argument("--master", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0)
    p.add_argument("sizes", nargs="+", metavar="ITERATIONSxBYTES")
    a = p.parse_args()
    if a.hosts:
        sys.exit(run_in_namespaces(a))
    if a.rank >= 0:
        run(a.rank, a)
    else:
        a.port = a.port or free_port()
        mp.spawn(run, args=(a,), nprocs=a.ranks)
