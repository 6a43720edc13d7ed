#!/usr/bin/env python3
"""Strategies in virtual time obey the laws of the papers they are from: test_laws.py BUILD. Exit 77: no numpy."""
import os
import pathlib
import sys
import tempfile

try:
    import numpy as np
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

# Promise: asynchrony in virtual time is the momentum 1 - 1/W of Mitliagkas et al. 2016, within 0.002 for W = 2 and 8.
# Promise: bounded staleness costs what ps-sync costs at bound 0 and what ps-async costs without bound, and no more in between.
# Promise: periodic averaging in virtual time takes what Wang and Joshi 2019 say, within 1 % for periods from 1 to 32.
# Promise: a server with a service time and its workers are the closed queue of machines and a repairman, within 2 %.
# Promise: transient and rotating stragglers, traces and links between machines take in virtual time what can be computed by hand.

os.environ["ENTRAIN_LIBRARY"] = str(pathlib.Path(sys.argv[1]).resolve() / "libentrain.so")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
sys.dont_write_bytecode = True
import entrain  # noqa: E402


def seconds(strategy, workers=32, compute="lognormal:10ms,0.7", steps=200, net="none", count=1, **settings):
    """Virtual time of a run whose gradients mean nothing."""
    return entrain.simulate(lambda w, m, r: 0.01 * np.ones(count), np.zeros(count), workers=workers, strategy=strategy,
                            steps=steps, compute=compute, net=net, lr=1e-3, **settings).seconds


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
    """Wang and Joshi 2019: a step of period tau takes E[max over W workers of tau gradients] / tau, and D / tau for the messages."""
    workers, steps, worst, wired = 8, 3200, 0, 0
    rng = np.random.default_rng(0)
    for period in (1, 2, 4, 8, 16, 32):
        got = seconds(f"grouped:period={period}", workers, "exp:10ms", steps, groups=workers) / steps
        want = rng.gamma(period, 10e-3, size=(200000, workers)).max(1).mean() / period
        worst = max(worst, abs(got / want - 1))
        got = seconds(f"grouped:period={period}", workers, "lognormal:1ms,0.7", steps, groups=workers, net="delay:50us") / steps
        times = rng.lognormal(np.log(1e-3) - 0.7 ** 2 / 2, 0.7, size=(32000 // period, period, workers)).sum(1)
        wired = max(wired, abs(got / ((times.max(1).mean() + 2 * (workers - 1) * 50e-6) / period) - 1))
    assert worst < 0.01 and wired < 0.03, (worst, wired)
    print(f"PROMISE periodic averaging, 8 exponential workers, periods 1 to 32: step time within {100 * worst:.1f} % of Wang and "
          f"Joshi's; lognormal ones with a delay of 50 us: {100 * wired:.1f} %")


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


def queue_at_the_server():
    """Exponential workers and an exponential server are machines and a repairman: a closed queue, solved in any textbook."""
    worst = 0
    for workers, ratio in ((2, 1.0), (8, 0.1), (8, 0.5), (32, 0.02)):
        busy = [1.0]  # of each number of waiting pushes, the weight
        for n in range(workers):
            busy.append(busy[-1] * (workers - n) * ratio)
        want = 10e-3 * ratio / (1 - 1 / sum(busy))  # a push takes this long
        steps = 16000 // workers
        got = seconds("ps-async", workers, "exp:10ms", steps, server_time=f"exp:{10000 * ratio:.0f}us") / (steps * workers)
        worst = max(worst, abs(got / want - 1))
    assert worst < 0.02, worst
    alone = seconds("ps-async", 1, "fixed:10ms", 100, count=250000, bucket_cap=1 << 20, server_time="0=fixed:2ms+3ms/MB")
    assert abs(alone - 100 * 15e-3) < 1e-9, alone
    print(f"PROMISE a server's queue, 2 to 32 workers: throughput within {100 * worst:.1f} % of the machine repairman's")


def slow_ranks():
    """Each in closed form."""
    rotating = seconds("ring", 8, "fixed:10ms", 400, straggler="rotating:3:25")
    assert abs(rotating - 400 * 30e-3) < 1e-9, rotating  # in each step one of them is slow
    some = seconds("ring", 8, "fixed:10ms", 400, straggler="0-1=rotating:3:25,4-7:2")
    assert abs(some - 400 * 30e-3) < 1e-9, some
    share = 1 - 0.99 ** 10  # of the steps that are slow
    transient = seconds("solo", 1, "fixed:10ms", 20000, straggler="transient:5:0.01:10") / 20000 / 10e-3
    assert abs(transient / (1 + 4 * share) - 1) < 0.02, transient
    all_slow = seconds("ring", 8, "fixed:10ms", 3000, straggler="transient:5:0.01:10") / 3000 / 10e-3
    assert abs(all_slow / (1 + 4 * (1 - (1 - share) ** 8)) - 1) < 0.05, all_slow
    print(f"PROMISE transient stragglers: step time {transient:.3f} alone and {all_slow:.3f} among 8, computed {1 + 4 * share:.3f} "
          f"and {1 + 4 * (1 - (1 - share) ** 8):.3f}; rotating ones exact")


def traces():
    """A rank's step k takes the trace's k-th time."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "times").write_text("0.001\n0.003\n0.005\n")
        assert abs(seconds("solo", 1, f"trace:{path}/times", 10) - 28e-3) < 1e-12
        for rank, times in enumerate(([1, 9], [4, 4, 4])):
            (path / f"metrics-{rank}.jsonl").write_text("".join(f'{{"compute_ns": {t}000000}}\n' for t in times))
        assert abs(seconds("ring", 2, f"trace:{path}", 4) - (4 + 9 + 4 + 9) * 1e-3) < 1e-12


def links():
    """A ring's hop takes what its longest link takes; the ranks of a machine queue at its link to the server."""
    net = "rate:1GB,delay:2us;machines=rate:100MB,delay:50us"
    hop, piece = 50e-6, 1024 * 4 / 8 / 100e6
    ring = seconds("ring", 8, "fixed:10ms", 10, net, 1024, local_size=4, bucket_cap=4096)
    assert abs(ring - 10 * (10e-3 + 14 * (hop + piece))) < 1e-7, ring
    inside = seconds("grouped:period=0", 8, "fixed:10ms", 10, net, 1024, local_size=4, bucket_cap=4096)
    assert abs(inside - 10 * (10e-3 + 6 * (2e-6 + 1.024e-6))) < 1e-7, inside
    push = seconds("ps-sync", 4, "fixed:10ms", 10, net, 1024, local_size=4, bucket_cap=4096)
    # The answers arrive one after the other, so the pushes of all later steps do not meet; at the end, a notice.
    assert abs(push - 10 * (10e-3 + 2 * hop + 5 * 40.96e-6) - 3 * 40.96e-6 - hop) < 1e-7, push


bounded_staleness()
periodic_averaging()
queue_at_the_server()
slow_ranks()
traces()
links()
implicit_momentum()
