#!/usr/bin/env python3
"""python/entrain on the libentrain.so of a build folder: test_simulate.py BUILD numpy|torch|examples. Exit 77: no numpy, no torch."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

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


def what_is_written_is_taken():
    """The example of the module, and the settings of that of entrain/sim.h."""
    example = re.search(r"run = (entrain\.simulate\(.*\))", entrain.__doc__).group(1).replace("steps=1000", "steps=10")
    assert eval(example, {"entrain": entrain, "grad": quadratic, "w0": np.zeros(48)}).samples == 640
    header = (TOP / "include/entrain/sim.h").read_text()
    settings = dict(re.findall(r'"([a-z]+)=([^"]*)"', re.search(r"settings\[\] = {(.*)}", header).group(1)))
    assert len(settings) > 3 and entrain.simulate(quadratic, np.zeros(48), **dict(settings, steps=10)).samples == 640


def ctrl_c_ends_a_run():
    """Also one that comes while the library computes, as it does here nearly always."""
    mine, noted = signal.getsignal(signal.SIGINT), threading.Event()
    for delay in 0.2, 0.3, 0.4:
        timer = threading.Timer(delay, lambda: (noted.set(), os.kill(os.getpid(), signal.SIGINT)))
        timer.start()
        begin = time.monotonic()
        raises(KeyboardInterrupt, [], lambda: entrain.simulate(lambda p, m, r: p, np.zeros(20000), workers=8, strategy="ps-async",
                                                               steps=100000, bucket_cap=4096))
        timer.join()
        assert time.monotonic() - begin < 60 and signal.getsignal(signal.SIGINT) is mine


def each_thread_has_its_own_sentence():
    wrong = []

    def fail(word):
        for _ in range(100):
            try:
                entrain.simulate(quadratic, np.zeros(48), compute=word)
            except ValueError as error:
                if word not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=fail, args=[f"law{i}:1ms"]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


def weights_may_be_kept():
    kept = []
    entrain.simulate(lambda p, m, r: kept.append(p) or p - 1, np.zeros(3), workers=1, strategy="solo", lr=0.5, steps=3)
    assert [w.tolist() for w in kept] == [[0] * 3, [0.5] * 3, [0.75] * 3]


def the_named_library_is_taken_or_none():
    env = dict(os.environ, ENTRAIN_LIBRARY="/nowhere/libentrain.so", PYTHONPATH=str(TOP / "python"))
    code = "import entrain; entrain.simulate(lambda p, m, r: p, [1.0])"
    done = subprocess.run([sys.executable, "-B", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode != 0 and "/nowhere/libentrain.so" in done.stderr, done.stderr


def numbers_have_points_in_every_locale():
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", f"{folder}/de_DE.UTF-8"], capture_output=True)
        except FileNotFoundError:
            return
        if not os.path.isdir(f"{folder}/de_DE.UTF-8"):  # this system has no sources of locales
            return
        env = dict(os.environ, LOCPATH=folder, PYTHONPATH=str(TOP / "python"))
        code = ("import entrain, locale; locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8'); "
                "print(entrain.simulate(lambda p, m, r: p, [1.0], lr=0.5, steps=1, workers=1, strategy='solo').weights[0] == 0.5)")
        done = subprocess.run([sys.executable, "-B", "-c", code], env=env, capture_output=True, text=True)
        assert done.stdout == "True\n", done.stderr


def test_numpy():
    numbers_have_points_in_every_locale()
    what_is_written_is_taken()
    ctrl_c_ends_a_run()
    each_thread_has_its_own_sentence()
    weights_may_be_kept()
    the_named_library_is_taken_or_none()
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
    pairs = [(x[i], torch.stack([y[i], y[i]])) for i in range(len(y))]  # with vectors as targets
    entrain.torch.simulate(model, lambda out, y: loss(out, y[:, 0]), pairs, batch_size=16, steps=2)
    raises(ValueError, ["batch_size"], lambda: entrain.torch.simulate(model, loss, (x, y), batch_size=1000))
    model, ends = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(6, 3)), set()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    for state in 1, 2:  # of the process's generator, which has no part in it
        torch.manual_seed(state)
        model.load_state_dict(before)
        ends.add(entrain.torch.simulate(model, loss, (x, y), batch_size=16, steps=3).weights_sha256)
    assert len(ends) == 1


def test_examples():
    for example in sorted((TOP / "examples" / "virtual").glob("*.py")):
        done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=250)
        if "No module named 'torch'" in done.stderr:
            continue
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 2, f"{example.name}: {done.stdout}{done.stderr}"


if __name__ == "__main__":
    globals()[f"test_{sys.argv[2]}"]()
