#!/usr/bin/env python3
"""The peer across hosts: Gloo's all_reduce (float32 sum), one rank in each network namespace.

    bench/namespaces.sh 2 sh -c 'python3 bench/peers/gloo_hosts.py --ranks=2 --hosts=$HOSTS --bytes=4096,67108864'

Prints a JSON object a size: the median over the iterations of the slowest rank's time from a barrier, as
bench_tcp_limit does. Needs torch (Debian: python3-torch) and root."""
import argparse, json, os, statistics, subprocess, sys, time


def rank_main(o):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=o.rank, world_size=o.ranks)
    for size in o.bytes:
        x = torch.ones(size // 4)
        mine = []
        for i in range(-o.warmup, o.iters):
            x.fill_(1)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(x)
            if i >= 0:
                mine.append(time.perf_counter() - begin)
        slowest = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        us = statistics.median(slowest.tolist()) * 1e6
        if o.rank == 0:
            print(json.dumps({"bench": "gloo_hosts", "torch": torch.__version__, "ranks": o.ranks, "bytes": size,
                              "median_us": round(us, 1), "algbw_gb_s": round(size / us / 1e3, 4),
                              "wrong": int((x != o.ranks).sum())}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--hosts", required=True, help="PREFIX of the namespaces, from bench/namespaces.sh")
    p.add_argument("--bytes", type=lambda s: [int(w) for w in s.split(",")], default=[4096, 1 << 20, 64 << 20])
    p.add_argument("--iters", type=int, default=15)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--rank", type=int, default=-1)
    o = p.parse_args()
    if o.rank >= 0:
        return rank_main(o)
    env = dict(os.environ, MASTER_ADDR="10.78.0.1", MASTER_PORT="29533", GLOO_SOCKET_IFNAME="eth0")
    ranks = [subprocess.Popen(["ip", "netns", "exec", f"{o.hosts}-{r}", sys.executable, __file__, *sys.argv[1:],
                               f"--rank={r}"], env=env) for r in range(o.ranks)]
    sys.exit(max(abs(r.wait()) for r in ranks))


main()
