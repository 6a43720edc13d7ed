#!/usr/bin/env python3
"""implicit_momentum.py - asynchrony is momentum (Mitliagkas et al. 2016): on a quadratic, W memoryless workers without momentum
follow, on average, the path of one worker with momentum 1 - 1/W. This fits the momentum to the mean of many runs."""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import entrain  # noqa: E402

RATE, STEPS, SEEDS = 0.05, 60, 300

print("workers   momentum fitted   1 - 1/W")
for workers in 2, 4:
    mean = np.zeros(STEPS)
    for seed in range(1, SEEDS + 1):
        path = []
        entrain.simulate(lambda w, m, r: w, np.ones(1), workers=workers, strategy="ps-async", steps=STEPS // workers, lr=RATE, seed=seed,
                         compute="exp:1ms", net="none", eval=lambda w: path.append(float(w[0])), eval_every=1)
        mean += np.array(path[:STEPS]) / SEEDS
    # E[w(t+1)] - E[w(t)] = mu (E[w(t)] - E[w(t-1)]) - rate E[w(t)] (1 - mu): least squares over mu.
    step, drift = np.diff(mean)[1:], mean[1:-1]
    before = np.diff(mean)[:-1]
    a, b = before + RATE * drift, step + RATE * drift
    print(f"{workers:7d} {a @ b / (a @ a):17.3f} {1 - 1 / workers:9.3f}")
