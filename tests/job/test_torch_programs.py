#!/usr/bin/env python3
"""test_torch_programs.py BUILD convnet|ends|timed|strategies|examples: PyTorch programs as the ranks that `entrain run` starts.

    test_torch_programs.py BUILD program WHAT SETTING=VALUE..     is such a program
"""
import json
import math
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

from torch_rig import BUILD, SOURCE, WAIT, Net, checks, free_port, optimizer_of, samples, torch, turn
import entrain.torch
from torch import nn

# Promise: Our convnet written in PyTorch has the losses of our worker's from the same initial file, under ring and ps-sync: 12 steps
# Promise: to 1e-5, on the same samples (order_sha256).
# Promise: Each strategy of `entrain strategies` trains mnist.py and tiny_gpt.py, or refuses in one sentence.
# Promise: With loader processes and a rank that is four times slower, ps-async's mean staleness is W - 1, and ssp keeps its bound.
# Promise: An exception in one PyTorch rank reaches the others with its type and text. A rank that is killed, also behind `sh -c`, that
# Promise: exits, never joins or joins twice is named, a killed one in 2 s. Nothing is left, loader processes included.
# Promise: One Ctrl-C ends a PyTorch run in good order; a second one ends it at once, whatever a rank waits for.
# Promise: torchrun starts the same program as entrain run, with the same bytes.
# Promise: mnist.py and tiny_gpt.py learn; resnet.py ends with the same bytes under ring and ps-sync, with and without loader processes.
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


# ---- the ranks' programs ----

def misbehave(what, model):
    """In the middle of a step."""
    print("at", time.monotonic(), flush=True)
    if what == "raises":
        raise KeyError("no such layer")
    if what == "joins-twice":
        entrain.torch.Rank(model, optimizer_of("nesterov", model), data=samples(103))
    if what == "leaves":
        sys.exit(0)
    if what == "exits":
        os._exit(0)
    if what == "hangs":
        threading.Event().wait()
    os.kill(os.getpid(), signal.SIGKILL)


class ReadSlowly(torch.utils.data.TensorDataset):
    def __getitem__(self, i):
        threading.Event().wait(0.02)
        return super().__getitem__(i)


def wide():
    """A step of a few milliseconds."""
    return nn.Sequential(nn.Linear(12, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))


def program(what, *texts):
    """Rank 1 is the one that `what` is about."""
    is_one, settings = os.environ["RANK"] == "1", dict(text.split("=", 1) for text in texts)
    if what == "stays-away" and is_one:
        return
    torch.manual_seed(7)
    model, loaders = wide() if what == "is-slow" else Net(), {"trains": 0, "is-slow": 2}.get(what, 4)
    data = ReadSlowly(*samples(103)) if what == "reads-slowly" else samples(6400 if what == "is-slow" else 103)
    rank = entrain.torch.Rank(model, optimizer_of("nesterov", model), data=data, batch_size=6, join_timeout=f"{WAIT}s", **settings)
    begun = time.monotonic()
    for step, (x, y) in enumerate(rank.batches(num_workers=loaders)):
        if step == 5 and not is_one:
            print("trains", flush=True)
        if step == 5 and is_one and what not in ("trains", "loads", "is-slow", "reads-slowly"):
            misbehave(what, model)
        turn(rank, model, x, y)
        if what == "is-slow" and is_one:
            threading.Event().wait(3 * (time.monotonic() - begun))
        begun = time.monotonic()
    rank.end()


def goldens():
    """tools/ has our convnet in PyTorch, and our data; None without them."""
    sys.path.insert(0, str(SOURCE / "tools"))
    try:
        import make_accuracy_goldens
        return make_accuracy_goldens if FASHION.exists() else None
    except ImportError:
        return None


def convnet_program(init):
    theirs, count = goldens(), 2000
    (x, y), model = theirs.load_split(FASHION, "train"), theirs.Convnet()
    model.load_state_dict(theirs.safetensors.torch.load_file(init))
    rank = entrain.torch.Rank(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5), data=(x[:count], y[:count]))
    for x, y in rank.batches():
        loss = model.loss(x, y)
        loss.backward()
        rank.step(loss)
    rank.end()


# ---- starting them ----

def line_of(*command, n=2, **settings):
    texts = [f"--{key.replace('_', '-')}={value}" for key, value in {"join_timeout": f"{WAIT}s", **settings}.items()]
    return [BUILD / "entrain", "run", f"-n{n}", *texts, *(["--", *command] if command else [])]


def entrain_run(*command, **settings):
    return subprocess.run(line_of(*command, **settings), capture_output=True, text=True, timeout=2 * WAIT)


def own(*words):
    return [sys.executable, __file__, str(BUILD), *map(str, words)]


def behind_shell(*words):
    return ["sh", "-c", shlex.join(own(*words)) + "; exit $?"]


def new_folder(name):
    return pathlib.Path(os.environ["XDG_RUNTIME_DIR"], name)


def result_in(out):
    return json.loads((out / "result.json").read_text())


def says(text, *words):
    return any(all(word in line for word in words) for line in text.splitlines())


def expect_nothing_left():
    """Of a run: processes are known by a variable of their environment."""
    mark, until, found = f"ENTRAIN_TEST_MARK={os.environ['ENTRAIN_TEST_MARK']}".encode(), time.monotonic() + WAIT, [0]
    while found and time.monotonic() < until:
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                    found.append((folder.name, (folder / "cmdline").read_bytes()))
            except OSError:  # it has ended
                continue
        time.sleep(0.01 if found else 0)
    assert not found, found


# ---- our convnet ----

def convnet():
    theirs = goldens()
    if theirs is None:
        print("SKIP: no safetensors, or no Fashion-MNIST (Debian: dataset-fashion-mnist)")
        sys.exit(77)
    torch.manual_seed(3)
    init, common = new_folder("init.safetensors"), dict(batch_size=64, steps=12)
    theirs.safetensors.torch.save_file(theirs.Convnet().state_dict(), init)
    for strategy in "ring", "ps-sync":
        found = {}
        for whose, command, more in (("ours", [], dict(init=init, model="convnet", data="fashion-mnist", lr=0.01, momentum=0.5, threads=1,
                                                       limit_train_samples=2000, limit_test_samples=64)),
                                     ("PyTorch's", own("convnet_program", init), {})):
            out = new_folder(f"{whose}-{strategy}")
            ended = entrain_run(*command, strategy=strategy, out=out, quiet="on", **common, **more)
            assert ended.returncode == 0, (whose, strategy, ended.stderr)
            lines = [json.loads(line) for rank in (0, 1) for line in (out / f"metrics-{rank}.jsonl").read_text().splitlines()]
            found[whose] = result_in(out), [(line["micro_batch"], line["loss"]) for line in lines]
        (result, losses), (other, others) = found.values()
        gap = max(abs(a[1] - b[1]) for a, b in zip(losses, others, strict=True))
        assert [a[0] for a in losses] == [b[0] for b in others] and len(losses) == 24, (losses, others)
        assert gap <= 1e-5 and losses[11][1] < losses[0][1] - 0.02, (strategy, gap, losses, others)
        for key in "init_sha256", "order_sha256", "updates":
            assert result[key] == other[key], (strategy, key, result[key], other[key])
        print(f"PROMISE convnet in PyTorch under {strategy}, 2 ranks: 12 losses each, at most {gap:.1e} from our worker's")


# ---- every strategy ----

REFUSED = {"solo": ("solo", "one")}  # at two ranks


def strategies():
    listed = subprocess.run([BUILD / "entrain", "strategies"], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^([a-z][\w-]*) +\S", listed, re.M)
    assert len(names) >= 17 and {"ring", "ps-async", "d-psgd", "diloco"} <= set(names), names
    os.environ.update(PYTHONPATH=str(SOURCE / "python"), FASHION_MNIST="/none")
    for name in names:
        for script in "mnist", "tiny_gpt":
            out = new_folder(f"{script}-{name}")
            ended = entrain_run(sys.executable, SOURCE / f"examples/torch/{script}.py", strategy=name, steps=3, batch_size=16, out=out,
                                quiet="on")
            if name in REFUSED:
                said = [line for line in ended.stderr.splitlines() if re.search(r" E \S+: ", line)]
                assert ended.returncode == 2 and len(said) == 1 and says(said[0], *REFUSED[name]), (name, script, ended)
                continue
            assert ended.returncode == 0, (name, script, ended.returncode, ended.stderr)
            result = result_in(out)
            computed = sum(of["samples_computed"] for of in result["per_worker"])
            assert result["strategy"] == name and computed == 3 * 2 * 16, (name, script, result)
            assert math.isfinite(result["test_loss"]), (name, script, result["test_loss"])
    print(f"PROMISE {len(names)} strategies with mnist.py and tiny_gpt.py: {len(names) - len(REFUSED)} train, {len(REFUSED)} refuses")


# ---- what takes how long ----

def timed():
    for n in 2, 3:
        out = new_folder(f"async-{n}")
        ended = entrain_run(*own("program", "is-slow"), n=n, strategy="ps-async", steps=600 // n, out=out, quiet="on")
        assert ended.returncode == 0, ended.stderr
        result = result_in(out)
        steady, slow = result["staleness_steady"], result["per_worker"][1]["steps"]
        assert abs(steady["mean"] - (n - 1)) <= 0.05 * (n - 1) and steady["count"] >= 400, steady
        assert slow < 0.75 * 600 / n, (slow, result["per_worker"])
        print(f"PROMISE ps-async with loader processes, W = {n}, one rank 4x slower: mean staleness {steady['mean']:.3f} (5 %)")
    for bound in 0, 2:
        out = new_folder(f"ssp-{bound}")
        ended = entrain_run(*own("program", "is-slow"), strategy=f"ssp:bound={bound}", assign="fixed", steps=60, out=out, quiet="on")
        assert ended.returncode == 0, ended.stderr
        result = result_in(out)
        assert result["holds"] > 0 and result["max_clocks_ahead"] == bound, result
        print(f"PROMISE ssp:bound={bound} with loader processes, one rank 4x slower: {result['holds']} holds, at most "
              f"{result['max_clocks_ahead']} clocks ahead")
    for how, command in ("by itself", own("program", "dies")), ("behind sh -c", behind_shell("program", "dies")):
        out = new_folder(f"dies {how}")
        run = subprocess.Popen(line_of(*command, strategy="ring", steps=1000000, out=out), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
        named = next(time.monotonic() for line in run.stderr if "rank 1" in line and "died" in line)
        run.communicate(timeout=WAIT)
        took = named - float(re.search(r"^at (.*)", (out / "rank-1.log").read_text(), re.M)[1])
        assert run.returncode == 1 and took <= 2, (how, run.returncode, took)
        print(f"PROMISE a PyTorch rank with 4 loader processes is killed {how}: named in {took:.2f} s")


# ---- ends ----

def check_ends():
    for what, *words in (("raises", "rank 1", "KeyError", "no such layer"), ("dies", "rank 1", "SIGKILL"), ("exits", "rank 1", "exit code 0"),
                         ("leaves", "rank 1", "ended without rank.end()"), ("stays-away", "rank 1", "exit code 0"),
                         ("joins-twice", "rank 1", "this process has a Rank already")):
        for is_behind_shell in (False, True) if what == "dies" else (False,):
            os.environ["ENTRAIN_TEST_MARK"] = f"{os.getpid()}-{what}-{is_behind_shell}"
            command = behind_shell("program", what) if is_behind_shell else own("program", what)
            ended = entrain_run(*command, steps=1000000, strategy="ring")
            found = ["rank 1", "died"] if is_behind_shell else words
            code = 2 if what == "joins-twice" else 1  # a call that is refused, or a rank that failed
            assert ended.returncode == code and says(ended.stderr, *found), (what, ended.returncode, ended.stderr)
            assert what != "raises" or "RunError" in ended.stderr + ended.stdout, ended.stderr
            expect_nothing_left()


def pending(process, number):
    """Whether the signal was sent and not yet taken."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return any(int(mask, 16) >> (number - 1) & 1 for mask in re.findall(r"^S\w*Pnd:\s*(\w+)", status, re.M))


def check_interrupts():
    for what, times in ("loads", 1), ("hangs", 2):
        out, os.environ["ENTRAIN_TEST_MARK"] = new_folder(f"interrupted-{times}"), f"{os.getpid()}-{what}"
        run = subprocess.Popen(line_of(*own("program", what), steps=1000000, strategy="ring", out=out, quiet="on"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert run.stdout.readline() == "trains\n", run.communicate()
        begun = time.monotonic()
        for _ in range(times):
            run.send_signal(signal.SIGINT)
            while run.poll() is None and pending(run, signal.SIGINT) and time.monotonic() < begun + WAIT:
                time.sleep(0.01)
        said = run.communicate(timeout=WAIT)
        took = time.monotonic() - begun
        assert run.returncode == 128 + signal.SIGINT, (what, run.returncode, said)
        assert times == 2 or result_in(out)["exit"] == "interrupted", said
        assert times == 1 or took < 8, took  # a step has 10 s after the first
        expect_nothing_left()
        print(f"PROMISE {'Ctrl-C' if times == 1 else 'a second Ctrl-C while a rank hangs'}: a PyTorch run ends in {took:.2f} s")


def check_interrupted_group():
    """A terminal's Ctrl-C goes to all processes of the group, and the ranks wait for their loaders."""
    ranks = []
    for rank in "01":
        place = dict(os.environ, RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        place = dict(place, MASTER_PORT=ranks[0][1]) if ranks else place
        ranks.append((subprocess.Popen(own("program", "reads-slowly", "strategy=ring", "steps=1000000", f"out={new_folder('group')}"),
                                       env=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=lambda: os.setpgid(0, ranks[0][0].pid if ranks else 0)), place["MASTER_PORT"]))
    assert ranks[0][0].stdout.readline() == "trains\n"
    os.killpg(ranks[0][0].pid, signal.SIGINT)
    said = [(run.communicate(timeout=WAIT), run.returncode) for run, _ in ranks]
    assert [code for _, code in said] == [0, 0] and result_in(new_folder("group"))["exit"] == "interrupted", said


def ends():
    check_ends()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would its children
    check_interrupts()
    check_interrupted_group()


# ---- examples ----

def run_example(name, **settings):
    out = new_folder(f"{name}-{settings['strategy'][:4]}")
    ended = entrain_run(sys.executable, SOURCE / f"examples/torch/{name}.py", out=out, **settings)
    assert ended.returncode == 0 and "loss " in ended.stdout, ended.stderr
    return result_in(out)


def examples():
    by_us = entrain_run(*own("program", "trains"), strategy="ring", out=new_folder("ours"), epochs=2)
    by_torch = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2",
                               *own("program", "trains", "strategy=ring", f"out={new_folder('torchrun')}", "epochs=2")[1:]],
                              capture_output=True, text=True, timeout=2 * WAIT)
    assert by_us.returncode == by_torch.returncode == 0, (by_us.stderr, by_torch.stderr)
    ours, theirs = (result_in(new_folder(name))["params_sha256"] for name in ("ours", "torchrun"))
    assert ours == theirs, (ours, theirs)
    os.environ.update(PYTHONPATH=str(SOURCE / "python"), FASHION_MNIST="/none", CIFAR10="/none")
    for name, settings in (("mnist", {"strategy": "ring", "max_samples": 5120}), ("tiny_gpt", {"strategy": "ssp:bound=2"})):
        result = run_example(name, **settings)
        assert result["test_loss"] < (0.5 if name == "mnist" else 2.9), result["test_loss"]
        print(f"PROMISE {name}.py under {settings['strategy']}: loss {result['test_loss']:.3f}, staleness {result.get('staleness')}")
    few = {"steps": 6, "batch_size": 16, "set.width": 8}
    found = [run_example("resnet", strategy=strategy, **{"set.loaders": loaders}, **few) for strategy, loaders in (("ring", 2), ("ps-sync", 0))]
    assert all(math.isfinite(result["test_loss"]) for result in found), found
    assert len({result["params_sha256"] for result in found}) == 1, found
    print("PROMISE resnet.py: ring with 2 loader processes ends with the bytes of ps-sync without")


if __name__ == "__main__":
    if sys.argv[2] in ("program", "convnet_program"):
        globals()[sys.argv[2]](*sys.argv[3:])
        sys.exit()
    checks(convnet, ends, timed, strategies, examples)
