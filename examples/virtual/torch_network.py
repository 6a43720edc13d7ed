#!/usr/bin/env python3
"""torch_network.py - a PyTorch module under three strategies, on 8 simulated workers."""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import entrain.torch  # noqa: E402

torch.manual_seed(0)
x = torch.randn(4000, 20)
y = (x @ torch.randn(20, 5) + x ** 2 @ torch.randn(20, 5)).argmax(1)


def accuracy(model):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


print(f"{'strategy':14s} {'seconds':>8s} {'accuracy':>9s} {'staleness':>10s}")
for strategy in "ring", "ps-async", "ssp:bound=3":
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))
    run = entrain.torch.simulate(model, torch.nn.functional.cross_entropy, (x, y), workers=8, strategy=strategy, batch_size=20,
                                 steps=150, lr=0.1, compute="exp:10ms", evaluate=accuracy)
    print(f"{strategy:14s} {run.seconds:8.2f} {100 * run.curve[-1][2]:8.1f}% {run.staleness_mean:10.2f}")
