#!/usr/bin/env python3
"""Strategies in virtual time obey the laws of the papers they are from: test_laws.py BUILD. Exit 77: no numpy."""
import os
import pathlib
import sys

try:
    import numpy as np
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

# Promise: asynchrony in virtual time is the momentum 1 - 1/W of Mitliagkas et al. 2016, within 0.002 for W = 2 and 8.
# Promise: bounded staleness costs what ps-sync costs at bound 0 and what ps-async costs without bound, and no more in between.
# Promise: periodic averaging in virtual time takes what Wang and Joshi 2019 say, within 1 % for periods from 1 to 32.

os.environ["ENTRAIN_LIBRARY"] = str(pathlib.Path(sys.argv[1]).resolve() / "libentrain.so")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
sys.dont_write_bytecode = True
import entrain  # noqa: E402


def seconds(strategy, workers=32, compute="lognormal:10ms,0.7", steps=200, **settings):
    """Virtual time of a run whose gradients mean nothing."""
    return entrain.simulate(lambda w, m, r: 0.01 * np.ones(1), np.zeros(1), workers=workers, strategy=strategy, steps=steps,
                            compute=compute, net="none", lr=1e-3, **settings).seconds


def bounded_staleness():
    """Ho et al. 2013: waiting falls with the bound, from ps-sync's to ps-async's; a persistent straggler defeats it."""
    times = [seconds(f"ssp:bound={bound}") for bound in (0, 1, 2, 4, 8, 16, 1000000)]
    assert times[0] == seconds("ps-sync") and times[-1] == seconds("ps-async"), times
    assert all(a > b for a, b in zip(times, times[1:])), times
    slow = [seconds(f"ssp:bound={bound}", compute="fixed:10ms", straggler="1:3") for bound in (0, 8)]
    assert 0.95 * slow[0] < slow[1] <= slow[0], slow
    print(f"PROMISE ssp, 32 workers, lognormal 0.7: {times[0]:.2f} s at bound 0 (ps-sync's) to {times[-1]:.2f} s without one "
          f"(ps-async's); with a worker 3 times slower bound 8 gains {100 * (1 - slow[1] / slow[0]):.1f} %")


def periodic_averaging():
    """Wang and Joshi 2019: a step of period tau takes E[max over W workers of tau gradients] / tau."""
    workers, steps, worst = 8, 3200, 0
    rng = np.random.default_rng(0)
    for period in (1, 2, 4, 8, 16, 32):
        got = seconds(f"grouped:period={period}", workers, "exp:10ms", steps, groups=workers) / steps
        want = rng.gamma(period, 10e-3, size=(200000, workers)).max(1).mean() / period
        worst = max(worst, abs(got / want - 1))
    assert worst < 0.01, worst
    print(f"PROMISE periodic averaging, 8 exponential workers, periods 1 to 32: step time within {100 * worst:.1f} % of Wang and Joshi's")


def implicit_momentum():
    """Mitliagkas et al. 2016: the mean path of W memoryless workers is that of momentum 1 - 1/W."""
    rate, steps, fitted = 0.05, 60, {}
    for workers, seeds in ((2, 400), (8, 1200)):
        mean = np.zeros(steps)
        for seed in range(1, seeds + 1):
            path = []
            entrain.simulate(lambda w, m, r: w, np.ones(1), workers=workers, strategy="ps-async", steps=steps // workers + 1, lr=rate,
                             seed=seed, compute="exp:1ms", net="none", eval=lambda w: path.append(float(w[0])), eval_every=1)
            mean += np.array(path[:steps]) / seeds
        now, before = np.diff(mean)[1:] + rate * mean[1:-1], np.diff(mean)[:-1] + rate * mean[1:-1]
        fitted[workers] = before @ now / (before @ before)
        assert abs(fitted[workers] - (1 - 1 / workers)) < 0.002, fitted
    print(f"PROMISE implicit momentum of ps-async: {fitted[2]:.4f} and {fitted[8]:.4f} for 2 and 8 workers, 1 - 1/W is 0.5 and 0.875")


bounded_staleness()
periodic_averaging()
implicit_momentum()
