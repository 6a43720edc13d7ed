#!/usr/bin/env python3
"""numpy_network.py - a perceptron in numpy under four strategies, on 16 simulated workers of which one is slow."""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import entrain  # noqa: E402

IN, HIDDEN, CLASSES, SAMPLES, BATCH = 20, 32, 5, 4000, 20
rng = np.random.default_rng(0)
x = rng.normal(size=(SAMPLES, IN))
y = (x @ rng.normal(size=(IN, CLASSES)) + x ** 2 @ rng.normal(size=(IN, CLASSES))).argmax(1)
sizes = [IN * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES]
w0 = np.concatenate([rng.normal(size=n) * s for n, s in zip(sizes, (0.2, 0, 0.2, 0))])


def layers(w):
    a, b, c, d = np.split(w, np.cumsum(sizes)[:-1])
    return a.reshape(IN, HIDDEN), b, c.reshape(HIDDEN, CLASSES), d


def forward(w, rows):
    a, b, c, d = layers(w)
    hidden = np.maximum(x[rows] @ a + b, 0)
    scores = hidden @ c + d
    p = np.exp(scores - scores.max(1, keepdims=True))
    return hidden, p / p.sum(1, keepdims=True)


def grad(w, micro_batch, rank):
    rows = np.random.default_rng(micro_batch).integers(0, SAMPLES, BATCH)
    hidden, p = forward(w, rows)
    p[np.arange(BATCH), y[rows]] -= 1
    p /= BATCH
    back = (p @ layers(w)[2].T) * (hidden > 0)
    return np.concatenate([(x[rows].T @ back).ravel(), back.sum(0), (hidden.T @ p).ravel(), p.sum(0)])


def accuracy(w):
    return float((forward(w, slice(None))[1].argmax(1) == y).mean())


print(f"{'strategy':14s} {'seconds':>8s} {'accuracy':>9s} {'staleness':>10s}   steps of rank 0 and of the slow one")
for strategy in "ring", "ps-sync", "ps-async", "ssp:bound=3":
    run = entrain.simulate(grad, w0, workers=16, strategy=strategy, steps=150, batch_size=BATCH, tensors=sizes, lr=0.1,
                           compute="lognormal:10ms,0.3", straggler="1:4")
    print(f"{strategy:14s} {run.seconds:8.2f} {100 * accuracy(run.weights):8.1f}% {run.staleness_mean:10.2f}"
          f"   {run.rank_steps[0]}, {run.rank_steps[1]}")
