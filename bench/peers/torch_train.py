#!/usr/bin/env python3
"""The peer: the MNIST convnet on Fashion-MNIST, or torchvision's ResNet-18, in PyTorch, alone or as DDP over Gloo,
measured as bench_train measures.

    torch_train.py --style=plain,best --steps=150                       one worker, one thread
    torch_train.py --strategy=ddp --workers=2 --style=best --steps=150  DDP
    torch_train.py --strategy=ddp --workers=2 --steps=1                 how long until the first step has ended?
    torch_train.py --data=batch --steps=20                              peak memory without the data set
    torch_train.py --model=resnet18-cifar --data=batch --batch=128 --warmup=1 --steps=3 --style=plain,best,compiled
    torch_train.py --ops=batchnorm:32x32x64 --batch=128 --steps=20      operations alone, as bench_layers --op has them

plain: as the tutorials write it (NCHW, ReLU before pooling). best: channels_last, ReLU after pooling, the same function.
compiled: best, by torch.compile. bf16: best, under autocast. resnet18 is for images of 32 x 32 in three colours; resnet18-cifar has a 3 x 3 stem and
no first pooling. The data set is decoded into a tensor before the clock starts, kinder than a user's own DataLoader;
--data=batch has one batch of random numbers in its place. --warmup steps are not timed. One JSON object a style:
samples/s over all workers, seconds from the start of this program to the end of the first step, the peak memory of a
worker so far.
"""
import argparse
import gzip
import json
import os
import resource
import socket
import struct
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

DATA = "/usr/share/datasets/fashion-mnist"


def seconds_since_start(pid):
    """Since the process was started, by the kernel's account (10 ms steps)."""
    with open(f"/proc/{pid}/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def idx(name):
    with gzip.open(os.path.join(DATA, name)) as f:
        raw = f.read()
    dims = raw[3]
    shape = struct.unpack(">" + "I" * dims, raw[4:4 + 4 * dims])
    return torch.frombuffer(bytearray(raw[4 + 4 * dims:]), dtype=torch.uint8).reshape(shape)


def load(kind, batch, model):
    if kind == "batch":
        shape = (1, 28, 28) if model == "convnet" else (3, 32, 32)
        return torch.randn(batch, *shape), torch.randint(10, (batch,))
    x = (idx("train-images-idx3-ubyte.gz").float() / 255 - 0.1307) / 0.3081
    return x.unsqueeze(1), idx("train-labels-idx1-ubyte.gz").long()


class Net(nn.Module):
    def __init__(self, best):
        super().__init__()
        self.best = best
        self.conv1 = nn.Conv2d(1, 20, 5, 1)
        self.conv2 = nn.Conv2d(20, 50, 5, 1)
        self.fc1 = nn.Linear(4 * 4 * 50, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        if self.best:
            x = F.relu(F.max_pool2d(self.conv1(x), 2, 2))
            x = F.relu(F.max_pool2d(self.conv2(x), 2, 2))
        else:
            x = F.max_pool2d(F.relu(self.conv1(x)), 2, 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2, 2)
        x = x.reshape(-1, 4 * 4 * 50)
        return self.fc2(F.relu(self.fc1(x)))


def network(model, style):
    if model == "convnet":
        return Net(style != "plain")
    import torchvision
    net = torchvision.models.resnet18(num_classes=10)
    if model == "resnet18-cifar":
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return net


def train(rank, a, style, x, y):
    """Seconds of the timed steps, and when the first step of all had ended."""
    torch.manual_seed(0)
    net = network(a.model, style)
    if style != "plain":
        x = x.contiguous(memory_format=torch.channels_last)
        net = net.to(memory_format=torch.channels_last)
    if style == "compiled":
        net = torch.compile(net)
    model = nn.parallel.DistributedDataParallel(net) if a.strategy == "ddp" else net
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    order = torch.Generator()
    order.manual_seed(1)
    first = begin = None
    perm, at = torch.randperm(len(x), generator=order)[rank::a.workers], 0
    if a.data == "batch":
        perm = torch.arange(a.batch)
    for step in range(a.steps):
        if step == min(a.warmup, a.steps - 1):
            begin = time.perf_counter()
        if at + a.batch > len(perm):
            at = 0
        i = perm[at:at + a.batch]
        at += a.batch
        with torch.autocast("cpu", torch.bfloat16, enabled=style == "bf16"):
            loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if first is None:
            first = seconds_since_start(a.parent)
    return time.perf_counter() - begin, first


def run(rank, a):
    torch.set_num_threads(a.threads)
    if a.strategy == "ddp":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
        dist.init_process_group("gloo", rank=rank, world_size=a.workers)
    x, y = load(a.data, a.batch, a.model)
    for style in a.style.split(","):
        took, first = train(rank, a, style, x, y)
        steps = a.steps - min(a.warmup, a.steps - 1)
        if rank == 0:
            print(json.dumps(dict(
                bench="train", peer="torch " + torch.__version__, model=a.model, strategy=a.strategy, style=style,
                workers=a.workers, threads=a.threads, batch=a.batch, samples_s=round(steps * a.batch * a.workers / took, 1),
                first_step_s=round(first, 3),
                peak_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1))), flush=True)
    if a.strategy == "ddp":
        dist.destroy_process_group()


def median_us(run, steps):
    times = []
    for _ in range(steps + 2):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return sorted(times[2:])[steps // 2] * 1e6


def time_ops(a):
    """Forward, and backward to everything that has a gradient, of operations by themselves; channels_last."""
    torch.set_num_threads(a.threads)
    for op in a.ops.split(","):
        kind, shape = op.split(":")
        h, w, c = map(int, shape.split("x"))
        norm = nn.BatchNorm2d(c)
        run = {"batchnorm": lambda x: F.relu(norm(x), inplace=True), "maxpool": lambda x: F.max_pool2d(x, 3, 2, 1),
               "avgpool": lambda x: F.adaptive_avg_pool2d(x, 1)}[kind]
        x = torch.randn(a.batch, c, h, w).contiguous(memory_format=torch.channels_last).requires_grad_()
        y, wanted = run(x), (x, *norm.parameters()) if kind == "batchnorm" else (x,)
        dy = torch.randn_like(y)
        for name, what in (("forward", lambda: run(x)),
                           ("backward", lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True))):
            print(json.dumps(dict(bench="ops", peer="torch " + torch.__version__, layer=op, way=name,
                                  us=round(median_us(what, a.steps), 1))), flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--strategy", default="single", choices=["single", "ddp"])
    p.add_argument("--model", default="convnet", choices=["convnet", "resnet18", "resnet18-cifar"])
    p.add_argument("--style", default="plain", help="plain, best, compiled, bf16, or several with commas")
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--data", default="fashion-mnist", choices=["fashion-mnist", "batch"])
    p.add_argument("--ops", default="", help="KIND:HxWxC,..: batchnorm (with relu), maxpool (3x3, stride 2), avgpool")
    a = p.parse_args()
    a.parent, a.port = os.getpid(), free_port()
    if a.ops:
        time_ops(a)
    elif a.strategy == "ddp":
        mp.spawn(run, args=(a,), nprocs=a.workers)
    else:
        run(0, a)
