#!/usr/bin/env python3
"""test_rank.py BUILD: entrain.Rank, on numpy: the same bytes under ring and ps-sync, errors with their text on all ranks, Ctrl-C."""
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError:
    print("SKIP: no numpy")
    sys.exit(77)

build = pathlib.Path(sys.argv[1]).resolve()
source = pathlib.Path(__file__).resolve().parents[2]
os.environ.update(ENTRAIN_LIBRARY=str(build / "libentrain.so"), PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=str(source / "python"), OMP_NUM_THREADS="1")
sys.dont_write_bytecode = True
sys.path.insert(0, str(source / "python"))
import entrain.rank  # noqa: E402

# Promise: A numpy program (entrain.Rank) ends with the same bytes under ring and ps-sync.
# Promise: A program's own schedule of the rate, and the clipped mean gradient, give the same bytes under all strategies that have
# Promise: them, and in a run that is killed and resumed.
# Promise: A tensor in another order of dimensions, as PyTorch's channels_last, is saved row-major, byte for byte; runs of either order
# Promise: resume each other's checkpoints.
# Promise: A program's own optimizer ends with the bytes of the library's under ring, local-sgd and d-psgd.
# Promise: Ranks whose tensors, memories or schedules differ name the first one that does, with both values.
# Promise: An exception in one Python rank reaches the others as a RunError with its type and text.
WAIT = 120


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ranks(n, program, strategy="ring", out=None, **settings):
    """Starts them; the processes, psd last if the strategy wants one."""
    port, started = free_port(), []
    meet = "server" if strategy.startswith(("ps", "ssp")) else "rendezvous"
    texts = [f"{k.replace('_', '-')}={v}" for k, v in dict(settings, strategy=strategy, world_size=n, quiet="on").items()]
    texts += ([f"{meet}=tcp://127.0.0.1:{port}"] if strategy != "solo" else []) + ([f"out={out}"] if out else [])
    for r in range(n):
        started.append(subprocess.Popen([sys.executable, *program, *texts, f"rank={r}"], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True))
    if meet == "server":
        started.append(subprocess.Popen([build / "psd", f"--listen=tcp://127.0.0.1:{port}", f"--strategy={strategy}",
                                         f"--world-size={n}", "--shards=3"], stderr=subprocess.DEVNULL))
    return started


def ended(processes):
    """(exit code, stdout, stderr) of each."""
    said = [p.communicate(timeout=WAIT) for p in processes]
    return [(p.returncode, *text) for p, text in zip(processes, said)]


SCRIPT = """
import sys, time, numpy as np, entrain
what, settings = sys.argv[1], dict(text.split("=", 1) for text in sys.argv[2:])
me = int(settings["rank"])
def judge(w):
    if what == "evaluate": raise LookupError("no test set here")
    return float(w["w"].sum())
with entrain.Rank({"w": np.ones((5, 3)), "s": 2.0}, 1000, evaluate=judge, batch_size=10, lr=0.01, **settings) as rank:
    for step, samples in enumerate(rank.batches()):
        if step == 1: print("begun", flush=True)
        if what == "raises" and me == 1 and step == 5: raise KeyError("no such layer")
        if what == "breaks" and me == 1 and step == 5: break
        if what == "sleeps": time.sleep(0.005)
        rank.gradients["w"][...] = 0.5 * rank.weights["w"]
        rank.gradients["s"][...] = rank.weights["s"]
        rank.finish(1.0)
print("done", step)
"""


def check_layout(top):
    """ctypes sees every struct as a C compiler does."""
    pairs = [(entrain.rank._Tensor, "tensor"), (entrain.rank._Score, "score"), (entrain.rank._Options, "options"),
             (entrain.rank._Facts, "facts"), (entrain.rank._Batch, "batch"), (entrain.rank._Memory, "memory"), (entrain.rank._Rates, "rates")]
    lines, expected = [], []
    for type, name in pairs:
        lines.append(f'printf("%zu\\n", sizeof(en_rank_{name}));')
        expected.append(ctypes.sizeof(type))
        for field, *_ in type._fields_:
            lines.append(f'printf("%zu\\n", offsetof(en_rank_{name}, {field}));')
            expected.append(getattr(type, field).offset)
    (top / "layout.c").write_text("#include <entrain/rank.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "}\n")
    subprocess.run(["cc", "-I", source / "include", top / "layout.c", "-o", top / "layout"], check=True)
    found = subprocess.run([top / "layout"], capture_output=True, text=True, check=True).stdout.split()
    assert [int(n) for n in found] == expected, (found, expected)


def check_example(top):
    hashes = {}
    for strategy in ("ring", "ps-sync", "ps-async"):
        out = top / strategy
        for code, said, errors in ended(ranks(2, [source / "examples/rank/numpy_only.py"], strategy, out, epochs=3)[:2]):
            assert code == 0, (strategy, errors)
            assert "loss and accuracy" in said
        hashes[strategy] = json.loads((out / "result.json").read_text())["params_sha256"]
    assert hashes["ring"] == hashes["ps-sync"], hashes
    print("PROMISE numpy_only.py, two ranks: ring ends with the bytes of ps-sync")


def check_exceptions():
    for what, texts in (("raises", ("rank 1", "KeyError", "no such layer")), ("breaks", ("rank 1", "before the end"))):
        begin = time.monotonic()
        zero, one = ended(ranks(2, ["-c", SCRIPT, what], steps=1000000))
        assert zero[0] == 1 and "RunError" in zero[2], zero
        for text in texts:
            assert text in zero[2].split("RunError")[-1], (what, text, zero[2])
        assert (one[0] == 1 and "KeyError" in one[2]) if what == "raises" else one[0] == 0, one
        assert time.monotonic() - begin < WAIT / 2
    zero = ended(ranks(2, ["-c", SCRIPT, "evaluate"], steps=10))[0]  # at the end: rank 1 may have left
    assert zero[0] == 1 and zero[2].rstrip().endswith("LookupError: no test set here"), zero
    print("PROMISE an exception in one of two Python ranks: the other's RunError has its type and text")


def check_interrupts():
    for times in (1, 2):
        processes = ranks(2, ["-c", SCRIPT, "sleeps"], steps=1000000)
        for p in processes:
            assert p.stdout.readline() == "begun\n", p.stderr.read()
        for i in range(times):
            processes[1].send_signal(signal.SIGINT)
            time.sleep(0.001 if i == 0 else 0)
        ends = ended(processes)
        codes = [end[0] for end in ends]
        assert codes == [0, 0] if times == 1 else codes[1] in (0, 1, 130, -2), ends


CHILDREN = """
import os, signal, sys, time, numpy as np, entrain
settings = dict(text.split("=", 1) for text in sys.argv[1:])
def child():
    pid = os.fork()
    if pid == 0: time.sleep(1000)
    return pid
def end(pid):
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
with entrain.Rank({"w": np.ones(3)}, 1000, batch_size=10, **settings) as rank:
    kept = child()
    for step, samples in enumerate(rank.batches()):
        if step == 5: end(child())
        rank.gradients["w"][...] = 0.1
        rank.finish(1.0)
end(kept)
print("done", step)
"""


def check_children():
    """Children made by fork: their SIGTERM is not this run's, and it does not wait for them at its end."""
    for code, said, errors in ended(ranks(2, ["-c", CHILDREN], steps=50)):
        assert code == 0 and said.endswith("done 49\n"), (code, said, errors)


AGAIN = """
import sys, time, numpy as np, entrain
settings, kept = dict(text.split("=", 1) for text in sys.argv[1:]), []
def judge(w):  # the other rank is at its next run before this one has ended
    time.sleep(0.2)
    return 1.0
for run in range(4):
    rank = entrain.Rank({"w": np.ones(3)}, 100, batch_size=10, evaluate=judge, **settings)
    kept.append(rank.weights)  # which keeps its memory
    for samples in rank.batches():
        rank.gradients["w"][...] = run
        rank.finish(1.0)
    rank.end()
print("done", [float(weights["w"][0]) for weights in kept])
"""


def check_again():
    """Processes that open one Rank after another meet in each run anew, at one address."""
    for code, said, errors in ended(ranks(2, ["-c", AGAIN], steps=2, lr=0.5, momentum=0)):
        assert code == 0 and said.endswith("done [1.0, 0.0, -1.0, -2.0]\n"), (code, said, errors)


FORKED = """
import os, sys, numpy as np, entrain
settings = dict(text.split("=", 1) for text in sys.argv[1:])
with entrain.Rank({"w": np.ones(3)}, 1000, batch_size=10, **settings) as rank:
    for step, samples in enumerate(rank.batches()):
        if step == 5 and os.fork() == 0:
            try:
                rank.finish(1.0)
            except entrain.RunError as error:
                assert "made by fork" in str(error), error
                sys.exit(7)  # through this with, as a child that ends by itself
        rank.finish(1.0)
        if step == 5: assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
print("done", step)
"""


def check_forked(top):
    """A child's calls are refused, and its end is not the run's: nothing of its copy is written."""
    out = top / "forked"
    for code, said, errors in ended(ranks(2, ["-c", FORKED], out=out, steps=20)):
        assert code == 0 and said.endswith("done 19\n"), (code, said, errors)
    for me in range(2):
        steps = [json.loads(line)["step"] for line in (out / f"metrics-{me}.jsonl").read_text().splitlines()]
        assert steps == list(range(20)), steps


def check_calls():
    for settings, text in (({"stratgy": "ring"}, "strategy"), ({"lr": "fast"}, "lr"), ({"model_": "mlp"}, "model"),
                           ({"batch_size": 0}, "batch-size")):
        try:
            entrain.Rank({"w": [1.0]}, 10, environment=False, quiet=True, **settings)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{settings} was taken")
    with entrain.Rank({"w": [1.0]}, 10, environment=False, mute=True, quiet=True, strategy="solo", batch_size=5, steps=1) as rank:
        try:
            rank.finish(1)
        except ValueError as error:
            assert "no step has begun" in str(error), error
        else:
            raise AssertionError("a step was finished that had not begun")
        for samples in rank.batches():
            rank.finish(1)
    for rates, text in (({"w": (-1, 0)}, "lr_factor"), ({"w": (1, float("nan"))}, "weight_decay")):
        try:
            entrain.Rank({"w": [1.0]}, 10, rates=rates, environment=False, mute=True, strategy="solo")
        except ValueError as error:
            assert "tensor w" in str(error) and text in str(error), error
        else:
            raise AssertionError(f"{rates} were taken")
    with entrain.Rank({"w": [1.0], "a": [1.0], "b": [1.0]}, 10, rates={"a": (0.5, 0), "b": (1, 0.5)}, environment=False, mute=True,
                      strategy="solo", lr=1, momentum=0, batch_size=10, steps=1, log_level="error") as rank:
        for samples in rank.batches():
            for gradient in rank.gradients.values():
                gradient[:] = 0.25
            rank.finish(1)
    assert [rank.weights[name][0] for name in "wab"] == [0.75, 0.875, 0.25], rank.weights
    kept = []
    for _ in range(20):
        with entrain.Rank({"w": [1.0, 2.0]}, 10, environment=False, mute=True, quiet=True, strategy="solo", lr=1, momentum=0,
                          batch_size=5, steps=2, log_level="error") as rank:
            kept.append(rank.weights["w"])
            assert rank.about["steps"] == 2 and rank.about["strategy"] == "solo" and rank.about["lr"] == 1
            for samples in rank.batches():
                assert samples.shape == (5,) and samples.max() < 10
                rank.gradients["w"][:] = 0.5
                rank.finish(1)
        assert rank.weights["w"].tolist() == [0, 1], rank.weights
    assert all(array.tolist() == [0, 1] for array in kept)  # their memory is still there
    with entrain.Rank({"w": [1.0, 2.0]}, 10, environment=False, mute=True, quiet=True, strategy="solo", steps_itself=True,
                      batch_size=5, steps=2, log_level="error") as rank:
        for samples in rank.batches():
            rank.gradients["w"][:] = 0.25
            rank.finish(1)
            rank.weights["w"][:] -= 2 * rank.gradients["w"]
    assert rank.weights["w"].tolist() == [0, 1], rank.weights
    descriptors = len(os.listdir("/proc/self/fd"))
    kept.clear()
    assert len(os.listdir("/proc/self/fd")) < descriptors


def check_memories(top):
    """Arrays of several types come back with a checkpoint; an evaluation sees those that belong to its weights."""
    settings = dict(environment=False, mute=True, quiet=True, strategy="solo", batch_size=10, checkpoint_every=20, eval_every=20,
                    log_level="error")
    begun = []
    for steps, resume in ((4, {}), (8, {"resume": "auto"})):
        count, judged = np.zeros((), np.int64), []
        memories = {"count": count, "wide": np.full((2, 3), 0.1), "flags": np.array([True, False]), "half": np.ones(3, np.float16),
                    "mask": np.array([0, -np.inf], np.float32), "bn.num_batches_tracked": np.ones(2, np.int64)}
        generator = {"generator": np.zeros(5, np.uint8)}
        with entrain.Rank({"w": [1.0]}, 100, memories=memories, own_memories=generator, steps=steps, out=top / "memories",
                          evaluate=lambda w: judged.append((int(count), memories["flags"].tolist())) or 1.0,
                          **settings, **resume) as rank:
            begun.append((int(count), memories["wide"].tolist(), generator["generator"].tolist()))
            for samples in rank.batches():
                count += 1
                memories["wide"] += 1
                memories["bn.num_batches_tracked"] -= 1
                memories["flags"][:] = ~memories["flags"]
                generator["generator"] += 3
                rank.finish(1)
            rank.end()
            assert judged == [(n, [True, False]) for n in range(2 + 4 * (steps == 8), steps + 1, 2)], judged
        assert memories["mask"].tolist() == [0, -np.inf] and memories["bn.num_batches_tracked"].tolist() == [1 - steps] * 2
        assert count == steps and generator["generator"][4] == 3 * steps
    header = max((top / "memories" / "checkpoints").glob("*.safetensors")).read_bytes()
    header = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])
    saved = {name: (header[name]["dtype"], header[name]["shape"]) for name in ("count", "wide", "flags", "half", "mask")}
    assert saved == {"count": ("I64", []), "wide": ("F64", [2, 3]), "flags": ("BOOL", [2]), "half": ("F16", [3]),
                     "mask": ("U8", [2, 4])}, saved  # not finite: no number that F32 may hold
    assert begun == [(0, [[0.1] * 3] * 2, [0] * 5), (4, [[0.1 + 1 + 1 + 1 + 1] * 3] * 2, [12] * 5)], begun
    for memories, text in (({"m": [1.0]}, "memory m"), ({"m": np.zeros((3, 3)).T[1:]}, "memory m"),
                           ({"w": np.zeros(1)}, "both called w"), ({"m": np.zeros((1,) * 8, complex)}, "fewer dimensions"),
                           ({"m": np.array([None])}, "Python objects"), ({"__metadata__": np.zeros(1)}, "__metadata__")):
        try:
            entrain.Rank({"w": [1.0]}, 10, memories=memories, strategy="solo", steps=1, mute=True, environment=False)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{memories} were taken")


OWN = """
import sys, numpy as np, entrain
settings = dict(text.split("=", 1) for text in sys.argv[1:])
me, seen = int(settings["rank"]), []
noise, count = np.full(3, 10 * me), np.full((), me)
with entrain.Rank({"w": np.ones(3)}, 1000, batch_size=10, memories={"count": count}, own_memories={"noise": noise},
                  evaluate=lambda w: seen.append((int(noise[0]), int(count))) or 1.0, **settings) as rank:
    for samples in rank.batches():
        noise += 1
        count += 1
        rank.finish(1.0)
    rank.end()
print(noise[0], count, seen)
"""


def check_own_memories(top):
    """The curve needs the memories of rank 0 only, and takes them as they are; a checkpoint has each rank's own."""
    out = top / "own"
    said = [said.splitlines()[-1] for code, said, errors in ended(ranks(2, ["-c", OWN], out=out, steps=8, eval_every=40, checkpoint_every=80))]
    assert said == ["8 8 [(2, 2), (4, 4), (6, 6), (8, 8)]", "18 8 []"], said
    snapshots = json.loads((out / "result.json").read_text())["snapshots"]
    assert snapshots["taken"] == 4 and snapshots["after_seconds"] == 0, snapshots  # no gather after training
    newest = max((out / "checkpoints").glob("*.safetensors")).read_bytes()
    for name in (b'"rank.0/state/noise"', b'"rank.1/state/noise"'):
        assert name in newest, name


def check_settings():
    """A setting has its default's type; of a switch every word that the flags take, and no other."""
    os.environ["ENTRAIN_SETTINGS"] = "set=width=32\nset=amp=true\nset=deep=Off\nset=wide=2"
    assert (entrain.setting("width", 64), entrain.setting("amp", False), entrain.setting("deep", True)) == (32, True, False)
    assert (entrain.setting("width"), entrain.setting("none", 1.5)) == ("32", 1.5)
    try:
        entrain.setting("wide", True)
    except ValueError as error:
        assert "neither on nor off" in str(error), error
    else:
        raise AssertionError("2 was taken as a switch")
    del os.environ["ENTRAIN_SETTINGS"]


SCHEDULED = """
import os, signal, sys, numpy as np, entrain
settings = dict(text.split("=", 1) for text in sys.argv[2:])
x = np.random.default_rng(3).normal(size=(205, 4)).astype(np.float32)
with entrain.Rank({"w": np.ones(4), "b": np.zeros(4)}, len(x), schedule=lambda step, epoch: min(1, (step + 1) / 9) * 0.7 ** epoch,
                  rates={"b": (0.5, 0.01)}, lr=0.1, momentum=0.9, **settings) as rank:
    for step, samples in enumerate(rank.batches()):
        if sys.argv[1] == "dies" and step == 13 and rank.about["rank"] == 1: os.kill(os.getpid(), signal.SIGKILL)
        rank.gradients["w"][...] = (x[samples] * rank.weights["w"]).mean(0)
        rank.gradients["b"][...] = x[samples].mean(0) + rank.weights["b"]
        rank.finish(1.0)
"""


def check_schedules(top):
    """A schedule of the program reaches ranks and servers alike, and a resumed run goes on in its middle."""
    def run(name, n, strategy, what="trains", **settings):
        ends = ended(ranks(n, ["-c", SCHEDULED, what], strategy, top / name, epochs=4, batch_size=10, **settings)[:n])
        assert all(code == 0 for code, *_ in ends) or what == "dies", ends
        return what == "dies" or json.loads((top / name / "result.json").read_text())["params_sha256"]
    hashes = [run("s-ring", 2, "ring"), run("s-ps-sync", 2, "ps-sync"), run("s-solo", 1, "solo", accumulate=2)]
    assert len(set(hashes)) == 1, hashes
    for strategy in "ring", "ps-sync":
        run(f"s-{strategy}-resumed", 2, strategy, "dies", checkpoint_every=40, resume="auto")
        assert run(f"s-{strategy}-resumed", 2, strategy, checkpoint_every=40, resume="auto") == hashes[0], strategy
    print("PROMISE a program's schedule: ring, ps-sync, solo --accumulate=2 and runs killed and resumed end with the same bytes")
    for code, _, said in ended(ranks(2, ["-c", SCHEDULED.replace("0.7", "0.5"), "trains"], "ring", top / "s-ring-resumed", epochs=5,
                                     batch_size=10, checkpoint_every=40, resume="auto")):
        assert code == 2 and "lr-points" in said and "0.343" in said and "0.0625" in said, said
    clipped = [run("c-ring", 2, "ring", clip_norm=0.3), run("c-solo", 1, "solo", accumulate=2, clip_norm=0.3)]
    assert clipped[0] == clipped[1] != hashes[0], (clipped, hashes)
    run("c-resumed", 2, "ring", "dies", clip_norm=0.3, checkpoint_every=40, resume="auto")
    assert run("c-resumed", 2, "ring", clip_norm=0.3, checkpoint_every=40, resume="auto") == clipped[0]
    print("PROMISE the clipped mean gradient: ring, solo --accumulate=2 and a run killed and resumed end with the same bytes")
    alone = dict(environment=False, mute=True, strategy="solo", batch_size=5, steps=4, lr=1, momentum=0, log_level="error")
    for clip_norm, gradient, expected in ((0, 1, -3.75), (0.25, 0.5, -0.0625 * 3.75), (2.5, 0.5, -0.5 * 3.75)):  # 16 elements
        with entrain.Rank({"w": [0.0] * 16}, 10, schedule=lambda step, epoch: (2, 1, 0.5, 0.25)[step], clip_norm=clip_norm, **alone) as rank:
            for samples in rank.batches():
                rank.gradients["w"][:] = gradient
                rank.finish(1)
        assert np.allclose(rank.weights["w"], expected, rtol=1e-5), rank.weights

    def wrong(step, epoch):
        raise LookupError("no such step")
    for kind, settings, text in ((LookupError, {"schedule": wrong}, "no such step"), (ValueError, {"schedule": lambda *at: -1}, "-1 for step 0"),
                                 (ValueError, {"schedule": lambda *at: 1, "lr_schedule": "cosine"}, "omit lr-schedule"),
                                 (ValueError, {"clip_norm": 1, "strategy": "local-sgd"}, "strategy=ring or solo"),
                                 (ValueError, {"strategy": "local-sgd", "steps_itself": True}, "options.step"),
                                 (ValueError, {"clip_norm": -1}, "clip-norm"), (ValueError, {"schedule": 5}, "schedule=5"),
                                 (ValueError, {"clip_norm": 1e-320, "strategy": "local-sgd"}, "at least 1e-30"),
                                 (ValueError, {"model": "a\nb"}, "options.model has a line break")):
        try:
            entrain.Rank({"w": [1.0]}, 10, **dict(alone, **settings))
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{settings} were taken")


OWN_STEPS = """
import sys, numpy as np, entrain
settings = dict(text.split("=", 1) for text in sys.argv[2:])
x = np.random.default_rng(3).normal(size=(205, 4)).astype(np.float32)
def step(names):
    for name in names:
        rank.weights[name] -= np.float32(0.1) * rank.gradients[name]
    return len(names)  # not a status
first = {"w": np.ones(4), "b": np.zeros(4), "large": np.ones((300, 1001))}
with entrain.Rank(first, len(x), step=step if sys.argv[1] == "own" else None, lr=0.1, momentum=0, bucket_cap_mb=0.5, **settings) as rank:
    for samples in rank.batches():
        rank.gradients["w"][...] = (x[samples] * rank.weights["w"]).mean(0)
        rank.gradients["b"][...] = x[samples].mean(0) + rank.weights["b"]
        rank.gradients["large"][...] = rank.weights["large"] * x[samples].mean()
        rank.finish(1.0)
"""


def check_own_steps(top):
    """The program's own optimizer, by bucket where ranks step with their own gradient."""
    for strategy in "ring", "local-sgd:period=3", "d-psgd":
        hashes = set()
        for what in "native", "own":
            out = top / f"{what}-{strategy[:5]}"
            ends = ended(ranks(2, ["-c", OWN_STEPS, what], strategy, out, epochs=2, batch_size=10))
            assert all(code == 0 for code, *_ in ends), (strategy, what, ends)
            hashes.add(json.loads((out / "result.json").read_text())["params_sha256"])
        assert len(hashes) == 1, strategy
    *started, psd = ranks(2, ["-c", OWN_STEPS, "own"], "ps-sync", epochs=2)
    for code, _, said in ended(started):
        assert code == 2 and "strategy=ring or solo, or one with local steps" in said, said
    psd.kill()
    psd.wait()
    print("PROMISE numpy's own step under ring, local-sgd and d-psgd ends with the bytes of the library's")


ORDERED = """
import os, signal, sys, numpy as np, entrain
settings = dict(text.split("=", 1) for text in sys.argv[3:])
order, me = sys.argv[1], int(settings["rank"])
x = np.random.default_rng(3).normal(size=(205, 2, 3, 4, 5)).astype(np.float32)
def laid(array):
    return array if order == "rows" else array.transpose(1, 3, 0, 2).copy().transpose(2, 0, 3, 1)
table = laid(np.arange(120.0).reshape(2, 3, 4, 5))
with entrain.Rank({"w": laid(np.linspace(-1, 1, 120).astype(np.float32).reshape(2, 3, 4, 5)), "s": np.float32(2)}, len(x), lr=0.1,
                  momentum=0.9, memories={"table": table}, evaluate=lambda w: float(np.multiply(w["w"], x[0], order="C").sum() ** 2), **settings) as rank:
    assert rank.weights["w"].strides == rank.gradients["w"].strides == laid(x[0]).strides
    for step, samples in enumerate(rank.batches()):
        if sys.argv[2] == "dies" and step == 13 and me == 1: os.kill(os.getpid(), signal.SIGKILL)
        table += x[0]
        rank.gradients["w"][...] = np.multiply(x[samples], rank.weights["w"], order="C").mean(0)
        rank.gradients["s"][...] = x[samples].mean()
        rank.finish(1.0)
"""


def check_orders(top):
    """An array keeps its order of dimensions in the run's memory; its files are those of row-major ones."""
    def run(name, what="trains", order="rows", **settings):
        ends = ended(ranks(2, ["-c", ORDERED, order, what], "ring", top / name, epochs=4, batch_size=10, checkpoint_every=60, eval_every=100,
                           save=top / f"{name}.safetensors", **(settings or {"resume": "auto"})))
        assert all(code == 0 for code, *_ in ends) or what == "dies", ends
    run("o-rows")
    run("o-other", order="other")
    run("o-changed", "dies")
    run("o-changed", order="other")
    run("o-back", "dies", "other")
    run("o-back")
    results = [json.loads((top / name / "result.json").read_text()) for name in ("o-rows", "o-other", "o-changed", "o-back")]
    for key in "params_sha256", "buffers_sha256", "init_sha256", "test_loss":
        assert len({str(result[key]) for result in results}) == 1, (key, results)
    assert [len(result["resumed_from"]) for result in results] == [0, 0, 1, 1]
    saved = {(top / f"{name}.safetensors").read_bytes() for name in ("o-rows", "o-other", "o-changed", "o-back")}
    assert len(saved) == 1
    for name in "o-first-rows", "o-first-other":
        run(name, order=name[8:], init=top / "o-rows.safetensors")
    assert len({(top / f"{name}.safetensors").read_bytes() for name in ("o-rows", "o-first-rows", "o-first-other")}) == 2
    print("PROMISE tensors in another order of dimensions: the saved file is that of row-major ones, and each resumes the other's run")


DIFFERS = """
import sys, numpy as np, entrain
settings = dict(text.split("=", 1) for text in sys.argv[2:])
what = sys.argv[1] if settings["rank"] == "1" else ""
tensors = {"a": np.ones(2), "fc.weight": np.ones((3, 4 + (what == "shape")), np.float32, "F" if what == "dimensions" else "C"), "b": np.ones(2)}
if what == "extra": tensors = {"a": np.ones(2), "extra": [1.0], **tensors}
if what == "order": tensors = {name: tensors[name] for name in ("a", "b", "fc.weight")}
memories = {"steps": np.zeros(2, np.float64 if what == "type" else np.int64)}
rates = {"fc.weight": (0.5, 0.25), **({"b": (0.5, 0)} if what == "rates" else {})}
if what == "decay": settings["weight_decay"], rates["b"] = "0.125", (1, 0)
entrain.Rank(tensors, 100 - (what == "samples"), schedule=lambda step, epoch: (1 - (what == "schedule") / 2) / (1 + step * (1 + (what == "late" and step > 7))),
             momentum=0.75 if what == "momentum" else 0.5, rates=rates, model="other" if what == "model" else "model",
             **{"own_memories" if what == "own" else "memories": memories}, **settings)
"""


def check_differences():
    """The first difference by name, with both values."""
    for what, *words in (("shape", "tensor fc.weight differs", "(3, 4)", "(3, 5)"), ("type", "memory steps differs", "I64", "F64"),
                         ("extra", "tensor extra differs", "none", "F32 (1"), ("order", "tensor fc.weight differs", "at place 1", "at place 2"),
                         ("own", "memory steps differs", "I64 (2) at", "I64 (2) of each rank"),
                         ("rates", "tensor b differs", "F32 (2) at", "F32 (2) with lr_factor 0.5 and weight_decay 0 at"),
                         ("decay", "weight-decay differs", "0,", "0.125"), ("momentum", "momentum differs", "0.5", "0.75"),
                         ("model", "model differs", "model,", "other"), ("samples", "train-samples differs", "100", "99"),
                         ("schedule", "lr-points differs", "0:1,", "0:0.5,"), ("late", "lr-points differs", "0.111", "0.0588"),
                         ("dimensions", "tensor fc.weight differs", "F32 (3, 4) at", "with dimensions in the order (1, 0)")):
        ends = ended(ranks(2, ["-c", DIFFERS, what], steps=9))
        assert all(code in (1, 2) for code, *_ in ends) and any(code == 2 for code, *_ in ends), ends
        lines = [line for _, _, said in ends for line in said.splitlines() if all(word in line for word in words)]
        assert lines and all("rank 0 has" in line and "rank 1 has" in line for line in lines), (what, ends)
    print("PROMISE ranks that differ in a tensor's shape, place or rates, a memory, a setting, the data or the schedule: named with both values")


def check_forks():
    """A signal to a child is not one to the run, and a child that outlives it holds nothing up."""
    def fork():
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(told, b"!")
            time.sleep(WAIT)
            os._exit(0)
        os.read(ready, 1)
        os.close(ready), os.close(told)
        return child
    with entrain.Rank({"w": [1.0]}, 10, environment=False, mute=True, quiet=True, strategy="solo", batch_size=5, steps=50,
                      log_level="error") as rank:
        for step, samples in enumerate(rank.batches()):
            if step == 1:
                kept, ended = fork(), fork()
                os.kill(ended, signal.SIGTERM)
                assert os.waitpid(ended, 0)[1] == signal.SIGTERM
            rank.finish(1)
    assert step == 49, step
    os.kill(kept, signal.SIGKILL)
    assert os.waitpid(kept, 0)[1] == signal.SIGKILL


with tempfile.TemporaryDirectory() as folder:
    os.environ["XDG_RUNTIME_DIR"] = folder
    check_settings()
    check_calls()
    check_memories(pathlib.Path(folder))
    check_own_memories(pathlib.Path(folder))
    check_forks()
    check_layout(pathlib.Path(folder))
    check_example(pathlib.Path(folder))
    check_exceptions()
    check_interrupts()
    check_children()
    check_again()
    check_forked(pathlib.Path(folder))
    check_schedules(pathlib.Path(folder))
    check_own_steps(pathlib.Path(folder))
    check_differences()
    check_orders(pathlib.Path(folder))
