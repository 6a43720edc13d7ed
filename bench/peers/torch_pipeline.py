#!/usr/bin/env python3
"""The peer: torchvision's ResNet-18 for 32 x 32 images, with the 3 x 3 stem of torch_train.py, as two stages of
torch.distributed.pipelining over Gloo: a process and a thread each.

    torch_pipeline.py --schedule=gpipe,1f1b --style=plain,best --micro-batches=8 --batch=128 --steps=4

Cut before --split, where Entrain's --stages=2 cuts. plain: as the tutorial writes it. best: channels_last within each stage; what
goes between them is NCHW, as Gloo sends it. The batch is one of random numbers. --warmup steps are not timed; a step begins at a
barrier and is over when the slower stage has stepped its weights. One JSON object a schedule and style: samples/s by the median step,
and the two passes' own time by stage, medians over the timed steps' chunks (what is waited for is not in them).
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from torch_train import free_port, network

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Enter(torch.autograd.Function):
    """channels_last within the stage; its gradient leaves as NCHW again."""

    @staticmethod
    def forward(ctx, x):
        return x.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx, dx):
        return dx.contiguous()


class Part(nn.Module):
    """The children [first, end) of a ResNet, in their order; flat before fc, as its own forward does it."""

    def __init__(self, children, best):
        super().__init__()
        self.best = best
        for name, child in children:
            self.add_module(name, child)
        if best:
            self.to(memory_format=torch.channels_last)

    def forward(self, x):
        if self.best:
            x = Enter.apply(x)
        for name, child in self.named_children():
            x = child(x.flatten(1) if name == "fc" else x)
        return x.contiguous()


def timed(stage, name, times):
    """Has the stage note what its own computing takes."""
    compute = getattr(stage, name)

    def run(*args, **named):
        begin = time.perf_counter()
        done = compute(*args, **named)
        times.append(time.perf_counter() - begin)
        return done

    setattr(stage, name, run)


def train(rank, a, schedule, style):
    torch.manual_seed(0)
    children = list(network("resnet18-cifar", style).named_children())
    at = [name for name, _ in children].index(a.split)
    part = Part(children[:at] if rank == 0 else children[at:], style == "best")
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    forward, backward = [], []
    timed(stage, "forward_one_chunk", forward)
    timed(stage, "backward_one_chunk", backward)
    pipeline = SCHEDULES[schedule](stage, a.micro_batches, loss_fn=F.cross_entropy)
    opt = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.5)
    x, y = torch.randn(a.batch, 3, 32, 32), torch.randint(10, (a.batch,))
    steps = []
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            forward.clear(), backward.clear()
        dist.barrier()
        begin = time.perf_counter()
        opt.zero_grad()
        if rank == 0:
            pipeline.step(x)
        else:
            pipeline.step(target=y)
        opt.step()
        took = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        steps.append(took.item())
    own = [None, None]
    dist.all_gather_object(own, [round(statistics.median(times) * 1e3, 2) for times in (forward, backward)])
    if rank == 0:
        print(json.dumps(dict(
            bench="pipeline", peer="torch " + torch.__version__, model="resnet18-cifar", schedule=schedule, style=style, stages=2,
            micro_batches=a.micro_batches, batch=a.batch, samples_s=round(a.batch / statistics.median(steps[a.warmup:]), 2),
            forward_ms=[o[0] for o in own], backward_ms=[o[1] for o in own])), flush=True)


def run(rank, a):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for schedule in a.schedule.split(","):
        for style in a.style.split(","):
            train(rank, a, schedule, style)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--schedule", default="1f1b", help="gpipe, 1f1b, or both with a comma")
    p.add_argument("--style", default="plain", help="plain, best, or both with a comma")
    p.add_argument("--split", default="layer3", help="the child that begins the second stage")
    p.add_argument("--micro-batches", type=int, default=8)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--warmup", type=int, default=1)
    a = p.parse_args()
    a.port = free_port()
    mp.spawn(run, args=(a,), nprocs=2)
