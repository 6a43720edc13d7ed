#!/usr/bin/env python3
"""numpy_only.py: a network in numpy as the ranks of a run, under any strategy.

    PYTHONPATH=../../python python3 numpy_only.py strategy=ring world-size=2 rank=0 &
    PYTHONPATH=../../python python3 numpy_only.py strategy=ring world-size=2 rank=1

Or with torchrun --no_python --nproc_per_node=2 python3 numpy_only.py strategy=ring. With ps-sync, ps-async or ssp:bound=2
also start `entrain psd --strategy=.. --world-size=2`, and give server=tcp://127.0.0.1:5555. Or compare strategies, and widths:

    entrain compare -n 2 --arm=ring --arm=ps-async --arm=wide=ring:set.width=128 --out=spirals -- python3 numpy_only.py
"""
import sys

import numpy as np

import entrain

rng = np.random.default_rng(1)  # two spirals, the same on all ranks
turn = rng.uniform(0.5, 3, 2000).astype(np.float32)
label = (np.arange(2000) % 2).astype(np.int64)
angle = 2 * turn + np.pi * label
points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1).astype(np.float32)


def forward(w, x):
    hidden = np.maximum(x @ w["w1"] + w["b1"], 0)
    score = hidden @ w["w2"] + w["b2"]
    p = np.exp(score - score.max(1, keepdims=True))
    return hidden, p / p.sum(1, keepdims=True)


def loss_and_share(p, y):
    return float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean()), float((p.argmax(1) == y).mean())


def main():
    width = entrain.setting("width", 64)
    first = {"w1": rng.normal(0, 1, (2, width)), "b1": np.zeros(width), "w2": rng.normal(0, 0.2, (width, 2)), "b2": np.zeros(2)}
    settings = dict({"strategy": "ring", "epochs": "20", "batch-size": "20", "lr": "0.05", "momentum": "0.9"},
                    **dict(text.split("=", 1) for text in sys.argv[1:]))
    with entrain.Rank(first, 2000, has_accuracy=True, model="spirals", **settings,
                      evaluate=lambda w: loss_and_share(forward(w, points)[1], label)) as rank:
        w, g = rank.weights, rank.gradients
        for samples in rank.batches():
            x, y = points[samples], label[samples]
            hidden, p = forward(w, x)
            loss, share = loss_and_share(p, y)
            p[np.arange(len(y)), y] -= 1
            p /= len(y)
            back = (p @ w["w2"].T) * (hidden > 0)
            g["b2"][:], g["w2"][:] = p.sum(0), hidden.T @ p
            rank.ready("b2")
            rank.ready("w2")  # leaves while the rest is computed
            g["b1"][:], g["w1"][:] = back.sum(0), x.T @ back
            rank.finish(loss, share)
    print(f"rank {rank.about['rank']}: {rank.about['strategy']}, loss and accuracy %.3f %.3f"
          % loss_and_share(forward(rank.weights, points)[1], label))


if __name__ == "__main__":
    main()
