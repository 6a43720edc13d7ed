#!/usr/bin/env python3
"""golden_traces.py [--check] FOLDER: a run of each strategy, computed here from the equation of its paper and nothing else.

One weight, which begins at 0; the rate is 1/2; the gradient of micro-batch m at x is x / 2 + C[m], of one sample. A step takes a
rank of a run `times` (us), messages and sums take no time, and so a run fits a page. FOLDER gets a file for each strategy: the
run's inputs, then what happens, in the words of tests/conform/trace.h. test_goldens.c compares them with the reference of
`entrain conform` and with the plugin. --check compares and writes nothing; exit 1: a file is not what is computed here.
"""
import heapq
import itertools
import math
import pathlib
import sys

RATE = 0.5
C = [-1, 2, -0.5, 1.5, -2, 0.75, -1.25, 1, -0.25, 2.5, -1.75, 0.5, -0.75, 1.25, -2.25, 1.75]


def slope(x, m):
    return x / 2 + C[m]


# ---- strategies with a server: what it does when the gradient of worker r arrives -------------------------------------

class Server:
    """w; version; of each worker: the version and weights that it was sent last, its calls so far; who waits, in order of arrival."""
    period, alpha = 0, 0

    def __init__(self, workers):
        self.w, self.version, self.workers = 0.0, 0, workers
        self.sent = {r: (0, 0.0) for r in workers}
        self.clock = {r: 0 for r in workers}
        self.waiting, self.answered = [], []

    def step(self, d):
        self.w -= RATE * d
        self.version += 1

    def answer(self, r):
        self.sent[r] = self.version, self.w
        self.answered.append(r)

    def delay(self, r):
        return self.version - self.sent[r][0]

    def gone(self, r):
        pass


class PsAsync(Server):
    """w <- w - eta g; the worker goes on from w. Dean et al. 2012, section 4.1."""

    def push(self, r, g):
        self.step(g)
        self.answer(r)
        return 1


class Ssp(Server):
    """.. and a worker at clock c waits until the slowest has c - s. Ho et al. 2013, section 3."""
    bound = 1

    def push(self, r, g):
        self.step(g)
        self.waiting.append(r)
        self.release()
        return 1

    def release(self):
        for r in self.waiting[:]:
            if self.clock[r] - self.bound <= min(self.clock[i] for i in self.workers):
                self.waiting.remove(r)
                self.answer(r)

    def gone(self, r):
        if self.workers:
            self.release()


class PsSync(Server):
    """w <- w - eta (mean of all g), when all are there. Li et al. 2014, section 3.4; Valiant 1990."""

    def __init__(self, workers):
        super().__init__(workers)
        self.sum = 0.0

    def push(self, r, g):
        self.sum += g
        self.waiting.append(r)
        if len(self.waiting) == len(self.workers):
            self.step(self.sum / len(self.waiting))
            for i in self.waiting:
                self.answer(i)
            self.sum, self.waiting = 0.0, []
        return 1


class Ringmaster(Server):
    """w <- w - gamma g if delay < R, else g is ignored. Maranjyan et al. 2025, algorithm 4."""
    threshold = 2

    def push(self, r, g):
        counts = self.delay(r) < self.threshold
        if counts:
            self.step(g)
        self.answer(r)
        return 1 if counts else math.nan


class DelayAdaptive(Server):
    """The rate times min(1, W / delay). Koloskova et al. 2022; Mishchenko et al. 2022."""

    def push(self, r, g):
        weight = min(1, len(self.sent) / max(1, self.delay(r)))
        self.step(weight * g)
        self.answer(r)
        return weight


class Softsync(Server):
    """w <- w - eta (mean of c = floor(W / n) gradients, each over its staleness), as they come. Zhang et al. 2016, section 3."""
    splits = 2

    def __init__(self, workers):
        super().__init__(workers)
        self.gathered = []

    def push(self, r, g):
        weight = 1 / max(1, self.delay(r))
        self.gathered.append(weight * g)
        if len(self.gathered) == len(self.sent) // self.splits:
            self.step(sum(self.gathered) / len(self.gathered))
            self.gathered = []
        self.answer(r)
        return weight


class DcAsgd(Server):
    """w <- w - eta (g + lambda g g (w - w_bak(r))). Zheng et al. 2017, equation 10, algorithm 2."""
    lam = 0.125

    def push(self, r, g):
        self.step(g + self.lam * g * g * (self.w - self.sent[r][1]))
        self.answer(r)
        return 1


class Easgd(Server):
    """If period divides t: d = alpha (x - z), x <- x - d, z <- z + d; then x <- x - eta g(x before). Zhang et al. 2015, algorithm 1."""
    period, alpha = 2, 0.25

    def exchange(self, x):
        d = self.alpha * (x - self.w)
        self.w += d
        self.version += 1
        return x - d


def serve(server, ranks, hosts, times, budget, claims):
    """A run: its events. Ranks of one of `hosts` (lists) step together, and the first of them speaks for all."""
    events, queue, order = [], [], itertools.count()
    claim, x, step = itertools.count(), [0.0] * ranks, [0] * ranks

    def begin(host):
        batches = {r: next(claim) if claims else step[r] * ranks + r for r in host}
        lead = host[0]
        if min(batches.values()) >= budget:
            events.append(f"gone {lead}")
            server.workers.remove(lead)
            server.answered = []
            server.gone(lead)
            go_on(None)
            return
        for r in host:
            events.append(f"step {r} {step[r]} {batches[r]} {x[r]:.9g}")
        heapq.heappush(queue, (now + max(times[r] for r in host), next(order), host, batches))

    def go_on(pushed):
        answered, server.answered = server.answered, []
        events.extend(f"reply {r} {server.version}" for r in answered)
        if pushed is not None:
            events.append(f"taken {pushed[0]} {server.version} {pushed[1]:.9g}")
        for r in answered:
            host = next(h for h in hosts if h[0] == r)
            for i in host:
                x[i] = server.w
            begin(host)

    now = 0
    for host in hosts:
        begin(host)
    while queue:
        now, _, host, batches = heapq.heappop(queue)
        lead, g = host[0], sum(slope(x[r], batches[r]) for r in host) / len(host)
        calls = server.period == 0 or step[lead] % server.period == 0
        for r in host:
            step[r] += 1
        if calls:
            events.append(f"push {lead} {server.version} {server.sent[lead][0]}")
        if server.period > 0:
            if calls:
                x[lead] = server.exchange(x[lead])
                server.sent[lead] = server.version, server.w
                events += [f"reply {lead} {server.version}", f"taken {lead} {server.version} nan"]
            x[lead] -= RATE * g
            begin(host)
        else:
            server.clock[lead] += 1
            weight = server.push(lead, g)
            go_on((lead, weight))
    return events, server.w


# ---- strategies in rounds: the next weights of all ranks, from theirs x, their gradients g and the number of the step t -------

def ring(x, g, t):
    """x <- x - eta mean g. Goyal et al. 2017, equation 2."""
    return [v - RATE * mean(g) for v in x]


def grouped(x, g, t, period=2):
    """x <- x - eta (mean g of the group), then every `period` steps the mean of all. Lin et al. 2020, hierarchical local SGD."""
    x = [v - RATE * mean(g[r - r % 2:r - r % 2 + 2]) for r, v in enumerate(x)]
    return [mean(x)] * len(x) if (t + 1) % period == 0 else x


def local_sgd(x, g, t, period=3, start=1):
    """x <- x - eta g, and the mean of all after `period` steps and in the first `start`. Stich 2019, algorithm 1; Lin et al. 2020."""
    x = [v - RATE * d for v, d in zip(x, g)]
    return [mean(x)] * len(x) if (t + 1) % period == 0 or t < start else x


class Slowmo:
    """Every tau steps u <- beta u + (x0 - mean x) / gamma, x0 <- x0 - alpha gamma u. Wang et al. 2020, algorithm 1."""

    def __init__(self, period=2, beta=0.5, alpha=0.75):
        self.period, self.beta, self.alpha, self.x0, self.u = period, beta, alpha, 0.0, 0.0

    def __call__(self, x, g, t):
        x = [v - RATE * d for v, d in zip(x, g)]
        if (t + 1) % self.period != 0:
            return x
        self.u = self.beta * self.u + (self.x0 - mean(x)) / RATE
        self.x0 -= self.alpha * RATE * self.u
        return [self.x0] * len(x)


class Diloco:
    """Every H steps delta = mean(theta - x); theta by Nesterov's SGD along delta. Douillard et al. 2023, algorithm 1."""

    def __init__(self, period=2, lr=0.7, momentum=0.9):
        self.period, self.lr, self.momentum, self.theta, self.m = period, lr, momentum, 0.0, 0.0

    def __call__(self, x, g, t):
        x = [v - RATE * d for v, d in zip(x, g)]
        if (t + 1) % self.period != 0:
            return x
        delta = mean([self.theta - v for v in x])
        self.m = self.momentum * self.m + delta
        self.theta -= self.lr * (delta + self.momentum * self.m)
        return [self.theta] * len(x)


def d_psgd(x, g, t):
    """x_i <- (x_i-1 + x_i + x_i+1) / 3 - eta g_i(x_i). Lian et al. 2017, algorithm 1, on a ring."""
    n = len(x)
    return [(x[i - 1] + x[i] + x[(i + 1) % n]) / 3 - RATE * g[i] for i in range(n)]


def mean(values):
    return sum(values) / len(values)


def rounds(strategy, ranks, steps):
    events, x = [], [0.0] * ranks
    for t in range(steps):
        events += [f"step {r} {t} {t * ranks + r} {v:.9g}" for r, v in enumerate(x)]
        x = strategy(x, [slope(v, t * ranks + r) for r, v in enumerate(x)], t)
    return events, mean(x)


# ---- the files --------------------------------------------------------------------------------------------------------

# strategy and options: ranks, ranks of a host or group, times, what computes it
RUNS = {
    "ps-async": (3, 1, (1000, 1370, 3100), PsAsync),
    "ssp:bound=1": (3, 1, (1000, 1370, 3100), Ssp),
    "ps-sync": (3, 1, (1370, 1000, 3100), PsSync),
    "hierarchical": (4, 2, (1000, 1370, 1100, 1500), PsSync),
    "ringmaster:threshold=2": (3, 1, (1000, 1370, 4300), Ringmaster),
    "delay-adaptive": (3, 1, (1000, 1370, 5300), DelayAdaptive),
    "softsync:splits=2": (4, 1, (1000, 1370, 1730, 2900), Softsync),
    "dc-asgd:lambda=0.125": (3, 1, (1000, 1370, 3100), DcAsgd),
    "easgd:period=2,alpha=0.25": (3, 1, (1000, 1370, 2900), Easgd),
    "ring": (3, 1, (1000,) * 3, ring),
    "grouped:period=2": (4, 2, (1000,) * 4, grouped),
    "local-sgd:period=3,start=1": (3, 1, (1000,) * 3, local_sgd),
    "slowmo:period=2,beta=0.5,alpha=0.75": (3, 1, (1000,) * 3, Slowmo()),
    "diloco:period=2,lr=0.7,momentum=0.9": (3, 1, (1000,) * 3, Diloco()),
    "d-psgd": (4, 1, (1000,) * 4, d_psgd),
}


def text_of(spec, ranks, together, times, strategy):
    is_server = isinstance(strategy, type)
    claims = is_server and strategy is not PsSync
    budget = 16 // ranks * ranks if is_server else 4 * ranks  # rounds end with a period
    if is_server:
        hosts = [list(range(r, r + together)) for r in range(0, ranks, together)]
        events, model = serve(strategy([h[0] for h in hosts]), ranks, hosts, times, budget, claims)
    else:
        events, model = rounds(strategy, ranks, budget // ranks)
    head = [f"strategy {spec}", f"ranks {ranks}", f"together {together}", f"claims {int(claims)}",
            "times " + " ".join(map(str, times)), "gradients " + " ".join(f"{c:g}" for c in C[:budget]), f"model {model:.9g}", ""]
    return "\n".join(head + events) + "\n"


def main():
    is_check, folder = "--check" in sys.argv[1:], pathlib.Path(sys.argv[-1])
    wrong = []
    for spec, run in RUNS.items():
        path = folder / (spec.partition(":")[0] + ".txt")
        text = text_of(spec, *run)
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            wrong.append(path.name)
    if wrong:
        sys.exit(f"golden_traces.py: not what the papers' equations give: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
