#!/usr/bin/env python3
"""python/entrain on the libentrain.so of a build folder: test_simulate.py BUILD numpy|torch|examples. Exit 77: no numpy, no torch."""
import os
import pathlib
import subprocess
import sys

try:
    import numpy as np
    if sys.argv[2] == "torch":
        import torch
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
os.environ["ENTRAIN_LIBRARY"] = str(BUILD / "libentrain.so")
sys.path.insert(0, str(TOP / "python"))
sys.dont_write_bytecode = True
import entrain  # noqa: E402

CURVATURE = np.linspace(0.5, 1.5, 48).astype(np.float32)


def quadratic(param, micro_batch, rank):
    return CURVATURE * (param - 1 - 0.1 * np.random.default_rng(micro_batch).uniform(-1, 1, 48))


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), f"{error!s} lacks one of {words}"
        return error
    raise AssertionError(f"no {kind.__name__}")


class Mlp:
    """Two layers by numpy, in float64: 6 -> 8 -> 3, tanh, cross entropy."""
    SHAPES = [(8, 6), (8,), (3, 8), (3,)]

    def __init__(self, n=240):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(n, 6)).astype(np.float32)
        self.y = (self.x[:, 0] + self.x[:, 1] ** 2 > self.x[:, 2]).astype(int) + (self.x[:, 3] > 1)
        self.init = np.concatenate([0.5 * rng.normal(size=np.prod(s)) for s in self.SHAPES]).astype(np.float32)
        self.losses = []

    def split(self, flat):
        at, parts = 0, []
        for shape in self.SHAPES:
            n = int(np.prod(shape))
            parts.append(flat[at:at + n].reshape(shape))
            at += n
        return parts

    def loss(self, flat, x, y):
        a, b, c, d = self.split(np.asarray(flat, np.float64))
        h = np.tanh(x @ a.T + b)
        z = h @ c.T + d
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        e = p.copy()
        e[np.arange(len(y)), y] -= 1
        e /= len(y)
        dh = (e @ c) * (1 - h * h)
        grad = np.concatenate([(dh.T @ x).ravel(), dh.sum(0), (e.T @ h).ravel(), e.sum(0)])
        return -np.log(p[np.arange(len(y)), y]).mean(), grad

    def grad(self, param, micro_batch, rank):
        rows = np.arange(micro_batch * 16, micro_batch * 16 + 16) % len(self.y)
        loss, grad = self.loss(param, self.x[rows], self.y[rows])
        self.losses.append(loss)
        return grad


def test_numpy():
    for w in 2, 3, 4:
        ring, server = (entrain.simulate(quadratic, np.zeros(48), workers=w, strategy=s, lr=0.1, steps=60, bucket_cap=64,
                                         tensors=[16, 16, 16]) for s in ("ring", "ps-sync"))
        assert ring.weights.tobytes() == server.weights.tobytes() and ring.equal_ranks
        assert abs(ring.weights - 1).max() < 0.1
    again = [entrain.simulate(quadratic, np.zeros(48), workers=6, strategy="ps-async", lr=0.02, steps=50,
                              compute="lognormal:2ms,0.7", eval=lambda w: float(abs(w - 1).max()), eval_every=100) for _ in range(2)]
    assert again[0].log_sha256 == again[1].log_sha256 and again[0].curve == again[1].curve
    samples = [point[0] for point in again[0].curve]
    assert samples == [0, 100, 200, 300, 300], samples
    assert again[0].rank_steps.sum() == 300 == again[0].applied
    mlp = Mlp()
    before = mlp.loss(mlp.init, mlp.x, mlp.y)[0]
    run = entrain.simulate(mlp.grad, mlp.init, workers=8, strategy="ssp:bound=2", lr=0.05, steps=300, straggler=["1:3", "2:2"])
    assert mlp.loss(run.weights, mlp.x, mlp.y)[0] < 0.7 * before
    assert len(run.staleness) > 0 and run.rank_steps[1] < run.rank_steps[0]
    broken = raises(ZeroDivisionError, [], lambda: entrain.simulate(lambda p, m, r: p * (1 // (m - 7)), np.ones(3)))
    assert broken.__traceback__ is not None
    raises(ValueError, ["2", "3"], lambda: entrain.simulate(lambda p, m, r: p[:2], np.zeros(3)))
    raises(RuntimeError, ["nan", "0"], lambda: entrain.simulate(lambda p, m, r: p * np.nan, np.zeros(3)))
    raises(ValueError, ["lrr", "lr"], lambda: entrain.simulate(quadratic, np.zeros(48), lrr=1))
    raises(ValueError, ["ring"], lambda: entrain.simulate(quadratic, np.zeros(48), strategy="rung"))
    raises(ValueError, ["48", "7"], lambda: entrain.simulate(quadratic, np.zeros(48), tensors=[3, 4]))
    raises(ValueError, ["read-only"], lambda: entrain.simulate(lambda p, m, r: p.__setitem__(0, 1), np.zeros(3)))


def test_torch():
    import entrain.torch
    numbers = Mlp()
    for strategy in "ring", "ps-async":
        numbers.losses.clear()
        by_numpy = entrain.simulate(numbers.grad, numbers.init, workers=8, strategy=strategy, lr=0.05, steps=13, compute="exp:5ms",
                                    tensors=[int(np.prod(s)) for s in Mlp.SHAPES])
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        with torch.no_grad():
            for p, part in zip(model.parameters(), numbers.split(numbers.init)):
                p.copy_(torch.from_numpy(part))
        x, y = torch.from_numpy(numbers.x), torch.from_numpy(numbers.y)
        losses = []

        def grad(param, micro_batch, rank):
            with torch.no_grad():
                for p, part in zip(model.parameters(), numbers.split(param)):
                    p.copy_(torch.from_numpy(part.copy()))
            rows = torch.arange(micro_batch * 16, micro_batch * 16 + 16) % len(y)
            model.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            losses.append(loss.item())
            return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()

        by_torch = entrain.simulate(grad, numbers.init, workers=8, strategy=strategy, lr=0.05, steps=13, compute="exp:5ms",
                                    tensors=[int(np.prod(s)) for s in Mlp.SHAPES])
        assert len(losses) == 104 and max(abs(a - b) for a, b in zip(losses, numbers.losses)) < 1e-5
        assert by_torch.log_sha256 == by_numpy.log_sha256  # the same events at the same times
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    loss = torch.nn.functional.cross_entropy

    def evaluate(m):
        with torch.no_grad():
            return loss(m(x), y).item()

    run = entrain.torch.simulate(model, loss, (x, y), workers=4, strategy="ps-sync", batch_size=16, steps=100, lr=0.2,
                                 evaluate=evaluate, eval_every=1600)
    assert run.curve[-1][2] < 0.8 * run.curve[0][2] and evaluate(model) == run.curve[-1][2]
    assert run.samples == 6400
    raises(ValueError, ["batch_size"], lambda: entrain.torch.simulate(model, loss, (x, y), batch_size=1000))


def test_examples():
    for example in sorted((TOP / "examples" / "virtual").glob("*.py")):
        done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=250)
        if "No module named 'torch'" in done.stderr:
            continue
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 2, f"{example.name}: {done.stdout}{done.stderr}"


if __name__ == "__main__":
    globals()[f"test_{sys.argv[2]}"]()
