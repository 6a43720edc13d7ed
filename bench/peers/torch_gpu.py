#!/usr/bin/env python3
"""The peer on a GPU: the MNIST convnet, or ResNet-18, in PyTorch in the ways in which people run it, on data on the device.

    torch_gpu.py                            reads jobs from stdin, a line each, and answers each with a JSON line
    torch_gpu.py eager convnet 64 bf16 1.0  one job: way, network, batch, precision, seconds of steps

Networks: convnet; resnet18-cifar (32 x 32, 3x3 stem), resnet18 (224 x 224): these are torchvision's.

Ways: eager, channels_last, compile (torch.compile), compile-max (mode=max-autotune), graph (the whole step in a CUDA
graph, channels_last). Precision: fp32, tf32, bf16 (autocast), fp16 (autocast and a gradient scaler; not in a graph). What a
way needs once (compiling, capturing) is done at its first job and kept, so that later jobs can alternate with somebody
else's; nothing of that is timed. The batches are rows of one tensor on the device, taken in order: no loader, no copy.
"""
import argparse
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {"convnet": (1, 28, 28), "resnet18-cifar": (3, 32, 32), "resnet18": (3, 224, 224)}
SAMPLES = {"convnet": 16384, "resnet18-cifar": 4096, "resnet18": 512}  # on the device
WARMUP = 20


class Net(nn.Module):
    """ReLU after pooling: the same function, less work."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5, 1)
        self.conv2 = nn.Conv2d(20, 50, 5, 1)
        self.fc1 = nn.Linear(4 * 4 * 50, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2, 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2, 2))
        return self.fc2(F.relu(self.fc1(x.reshape(-1, 4 * 4 * 50))))


def resnet(name):
    import torch_train  # and with it torchvision
    return torch_train.network(name, "plain")


class Job:
    """One way, network, batch and precision, ready to step."""

    def __init__(self, way, network, batch, precision, device):
        torch.manual_seed(0)
        self.batch, self.device, self.at = batch, device, 0
        self.samples = max(batch, SAMPLES[network])
        self.amp = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        layout = torch.contiguous_format if way == "eager" else torch.channels_last
        self.x = torch.randn(self.samples, *SHAPES[network], device=device).contiguous(memory_format=layout)
        self.y = torch.randint(10, (self.samples,), device=device)
        self.net = (Net() if network == "convnet" else resnet(network)).to(device).to(memory_format=layout)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.5, weight_decay=0 if network == "convnet" else 5e-4,
                                   **({"fused": True} if way != "eager" and device == "cuda" else {}))
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
        self.model = self.net
        if way.startswith("compile"):
            self.model = torch.compile(self.net, mode="max-autotune" if way == "compile-max" else "default")
        self.graph = None
        for _ in range(WARMUP):
            self.step()
        self.sync()
        if way == "graph":
            self.capture()

    def forward_backward(self, x, y):
        with torch.autocast(self.device, self.amp, enabled=self.amp is not None):
            loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss

    def next_batch(self):
        if self.at + self.batch > self.samples:
            self.at = 0
        rows = slice(self.at, self.at + self.batch)
        self.at += self.batch
        return self.x[rows], self.y[rows]

    def capture(self):
        self.static_x, self.static_y = (t.clone() for t in self.next_batch())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.forward_backward(self.static_x, self.static_y)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.forward_backward(self.static_x, self.static_y)

    def step(self):
        x, y = self.next_batch()
        if self.graph is None:
            self.forward_backward(x, y)
        else:
            self.static_x.copy_(x)
            self.static_y.copy_(y)
            self.graph.replay()

    def sync(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def time(self, seconds):
        """(steps, seconds): at least five steps."""
        for _ in range(3):
            self.step()
        self.sync()
        begin, steps = time.perf_counter(), 0
        while steps < 5 or time.perf_counter() - begin < seconds:
            for _ in range(5):
                self.step()
            steps += 5
            if steps % 100 == 0:
                self.sync()
        self.sync()
        return steps, time.perf_counter() - begin


def answer(jobs, device, way, network, batch, precision, seconds):
    tf32 = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    key = (way, network, batch, precision)
    if way == "graph" and (device != "cuda" or precision == "fp16"):
        return {"error": "graphs need a GPU, and no gradient scaler"}
    if key not in jobs:
        jobs[key] = Job(way, network, batch, precision, device)
    steps, took = jobs[key].time(seconds)
    return {"bench": "gpu", "peer": "torch " + torch.__version__, "way": way, "network": network, "batch": batch, "precision": precision,
            "samples_s": round(steps * batch / took, 1), "step_us": round(took / steps * 1e6, 2), "steps": steps}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("job", nargs="*", help="WAY NETWORK BATCH PRECISION SECONDS")
    p.add_argument("--cpu", action="store_true", help="without a GPU: does the script run?")
    args = p.parse_args()
    device = "cpu" if args.cpu else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("this PyTorch sees no GPU", file=sys.stderr)
        return 2
    jobs = {}
    for line in [" ".join(args.job)] if args.job else sys.stdin:
        way, network, batch, precision, seconds = line.split()
        try:
            said = answer(jobs, device, way, network, int(batch), precision, float(seconds))
        except Exception as error:  # one way that does not work here is no reason to lose the others
            said = {"error": (str(error).strip().splitlines() or [type(error).__name__])[0][:200]}
        print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
