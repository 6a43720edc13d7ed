#!/usr/bin/env python3
"""gpu.py - training on a GPU compared with PyTorch on the same one, interleaved.

    bench/gpu.py --build=build                     the convnet at batch 64 and 1024, tf32 and bf16; four ranks on one GPU
    bench/gpu.py --network=resnet32,resnet224      ResNet-18 at 32 pixels (3x3 stem) and at 224, batch 128
    bench/gpu.py --python=VENV/bin/python3         the Python whose torch is the peer [python3]
    bench/gpu.py --json                            a JSON object per line, as tests/gpu/run stores them
    bench/gpu.py --cpu                             both on the CPU, fp32, few steps: checks that all of this runs
    bench/gpu.py --fake                            ours on the simulated GPU: checks that all of this runs; the figures mean nothing

Ours is `entrain run --strategy=solo --device=cuda` as a user starts it: batches come from host memory while the GPU computes,
and losses are read. PyTorch's batches are on the device (bench/peers/torch_gpu.py), which favours it. PyTorch is one process
that keeps its compiled and captured code; every turn asks it for a second of each variant, and runs ours for about as long. A
figure is the median of its turns, a ratio the median of the turns' ratios with the least and the most. --seconds bounds the
total: turns stop in time, but each configuration has at least one.
"""
import argparse
import json
import os
import pathlib
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from report import number
from run import run_program, spread

WAYS = ["eager", "channels_last", "compile", "graph"]
RANKS, SHARE = 4, 64  # ranks on one GPU, and the batch of each


class Network:
    """A network, its names in both programs, and the target ratios: {(batch, precision): (eager, best)}."""

    def __init__(self, title, model, peer, flags, targets):
        self.title, self.model, self.peer, self.flags, self.targets = title, model, peer, flags, targets


SYNTHETIC = ["--data=synthetic"]
CONVNET = Network("convnet", "convnet", "convnet", [],
                  {(b, p): (2, 1.1) for b in (64, 1024) for p in ("tf32", "bf16")})
NETWORKS = {
    "convnet": CONVNET,
    "resnet32": Network("ResNet-18, 32 px, 3x3 stem", "resnet18:stem=cifar", "resnet18-cifar", SYNTHETIC,
                        {(128, "bf16"): (None, 1.1), (128, "fp32"): (None, 1)}),
    "resnet224": Network("ResNet-18, 224 px", "resnet18", "resnet18",
                         SYNTHETIC + ["--resize=224", "--limit-train-samples=2048"], {(128, "bf16"): (None, 1)}),
}


class Torch:
    """The peer's process. ask() returns its answer, or an object with "error"."""

    def __init__(self, python, on_cpu):
        self.child, self.dead_ways = None, {}
        self.command = [python, str(HERE / "peers" / "torch_gpu.py")] + (["--cpu"] if on_cpu else [])
        self.env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")}  # its own libraries
        self.why = None  # why there is no peer
        if not shutil.which(python):
            self.why = f"{python} not found"
        elif subprocess.run([python, "-c", "import torch"], capture_output=True, env=self.env).returncode != 0:
            self.why = f"{python} has no torch"

    def ask(self, way, network, batch, precision, seconds, deadline_s):
        why = self.why or self.dead_ways.get(way)
        if why:
            return {"error": why}
        if self.child is None:
            self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=subprocess.DEVNULL, text=True, env=self.env)
        try:
            self.child.stdin.write(f"{way} {network.peer} {batch} {precision} {seconds}\n")
            self.child.stdin.flush()
            if not select.select([self.child.stdout], [], [], deadline_s)[0]:
                return self.give_up(way, f"torch, {way}: no answer within {deadline_s:.0f} s")
            line = self.child.stdout.readline()
        except OSError:
            line = ""
        return json.loads(line) if line.startswith("{") else self.give_up(way, f"torch, {way}: exit code {self.child.wait()}")

    def give_up(self, way, why):
        """Drops a variant that hung or died; the others get a new process."""
        self.close()
        self.dead_ways[way] = why
        return {"error": why}

    def close(self):
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        self.child = None


class Ours:
    def __init__(self, args):
        self.args = args
        self.program = os.path.join(args.build, "bench", "bench_train")
        self.steps = {}  # the number of steps that takes about args.turn seconds

    def run(self, strategy, workers, network, batch, precision, more=()):
        """The object that bench_train prints, or one with "error"."""
        key = (strategy, workers, network, batch, precision, tuple(more))
        data = [flag for flag in network.flags if flag.startswith("--data=")]
        flags = [flag for flag in network.flags if flag not in data] + list(more)
        flags += {"tf32": ["--tf32"], "bf16": ["--precision=bf16"], "fp16": ["--precision=fp16"]}.get(precision, [])
        if self.args.data_dir and not data:
            flags.append(f"--data-dir={self.args.data_dir}")
        steps = self.steps.get(key, 25 if self.args.few else 400)
        command = [self.program, "--json", *data, f"--model={network.model}", f"--strategy={strategy}", f"--workers={workers}", f"--batch={batch}", "-n", steps,
                   f"--device={'cpu' if self.args.cpu else 'cuda'}"] + ([f"--flags={','.join(flags)}"] if flags else [])
        objects, why = run_program(command, 90)
        if why:
            return {"error": why}
        if key not in self.steps:
            rate = objects[0]["samples_s"] / batch / workers
            self.steps[key] = 25 if self.args.few else max(60, min(int(rate * self.args.turn) + 20, 200000))
            if self.steps[key] > 2 * steps:  # the first run was too short to count
                return self.run(strategy, workers, network, batch, precision, more)
        return objects[0]


class Clock:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


def take_turns(programs, repeat, clock):
    """{name: [samples/s of each turn]}, {name: why it failed}. A program that failed is not run again."""
    rates, failed = {name: [] for name in programs}, {}
    for turn in range(repeat):
        begin = time.monotonic()
        for name, program in programs.items():
            said = {"error": failed[name]} if name in failed else program()
            if "error" in said:
                failed[name] = said["error"]
            rates[name].append(said.get("samples_s"))
        if clock.left() < 2 * (time.monotonic() - begin):
            break
    return rates, failed


def whole(values):
    return [v for v in values if v]


def row(figure, label, rates, failed, ours, theirs, target=None):
    """One line of the result: ours compared with theirs, by the names of their programs."""
    result = {"figure": figure, "beside": label, "unit": "samples/s", "target": target}
    pairs = [(a, b) for a, b in zip(rates[ours], rates[theirs]) if a and b]
    if not pairs:
        why = failed.get(ours) or failed.get(theirs)
        return dict(result, verdict="not measured", why=why, is_our_fault=ours in failed, text=f"not measured: {why}")
    ratio = spread([a / b for a, b in pairs])
    result.update(ours=statistics.median(a for a, _ in pairs), theirs=statistics.median(b for _, b in pairs), ratio=ratio)
    result["verdict"] = "reported" if target is None else "met" if ratio["median"] >= target else "missed"
    text = (f"{number(result['ours'])} beside {number(result['theirs'])} samples/s, {ratio['median']:.2f} times"
            f" ({ratio['least']:.2f} to {ratio['most']:.2f})")
    return dict(result, text=text + (f", target {target:g}: {result['verdict']}" if target else ""))


def beside_torch(args, ours, torch, network, batch, precision, clock):
    def first_deadline():
        return max(20, min(90, clock.left()))

    programs = {"graph": lambda: ours.run("solo", 1, network, batch, precision),
                "no graph": lambda: ours.run("solo", 1, network, batch, precision, ["--no-graph"])}
    for way in WAYS:
        programs["torch " + way] = lambda way=way: torch.ask(way, network, batch, precision, 0.1 if args.few else args.turn,
                                                             first_deadline())
    rates, failed = take_turns(programs, args.repeat, clock)
    figure = f"{network.title}, batch {batch}, {precision}"
    beside_eager, beside_best = (None, None) if args.few else network.targets.get((batch, precision), (None, None))
    known = {way: statistics.median(whole(rates["torch " + way])) for way in WAYS if whole(rates["torch " + way])}
    best = max(known, key=known.get) if known else WAYS[-1]
    rows = [row(figure, f"PyTorch at its best ({best})", rates, failed, "graph", "torch " + best, beside_best)]
    for way in WAYS:
        rows.append(row(figure, f"PyTorch, {way}", rates, failed, "graph", "torch " + way, beside_eager if way == "eager" else None))
    rows.append(row(figure, "ours without graph", rates, failed, "graph", "no graph"))
    rows[-1]["is_our_fault"] = "graph" in failed or "no graph" in failed
    for r in rows:
        if r.get("ours"):
            r["step_us"] = {"ours": batch / r["ours"] * 1e6, "theirs": batch / r["theirs"] * 1e6}
    return rows


def sharing(args, ours, clock):
    """Ranks that share one GPU compared with one rank that has all their samples."""
    precision = "fp32" if args.cpu else "tf32"
    programs = {"one": lambda: ours.run("solo", 1, CONVNET, RANKS * args.share, precision)}
    for strategy in ("ring", "ps-sync"):
        programs[strategy] = lambda strategy=strategy: ours.run(strategy, RANKS, CONVNET, args.share, precision)
    rates, failed = take_turns(programs, args.repeat, clock)
    where = "CPU" if args.cpu else "GPU"
    rows = [row(f"convnet, {RANKS} ranks of batch {args.share} on one {where}, {s}, {precision}", f"one rank, batch {RANKS * args.share}",
                rates, failed, s, "one") for s in ("ring", "ps-sync")]
    for r in rows:
        r["is_our_fault"] = bool(failed)
    return rows


def layers(args, network, batch, precision):
    """Each pass of each layer, and its share of the device's peak; names those under half."""
    side = 224 if network is NETWORKS["resnet224"] else 32
    command = [os.path.join(args.build, "bench", "bench_layers"), "--json", f"--model={network.model}", f"--input={side}x{side}x3", f"--batch={batch}", "-n", 2 if args.few else 10,
               f"--device={'cpu' if args.cpu else 'cuda'}", f"--precision={precision}"] + (["--peak=64"] if args.few else [])
    objects, why = run_program(command, 60)
    figure = f"kernels of {network.title}, batch {batch}, {precision}"
    if why:
        return [{"figure": figure, "verdict": "not measured", "why": why, "is_our_fault": True, "text": f"not measured: {why}"}]
    passes = [o for o in objects if o["layer"] != "all"]
    slow = [f"{o['layer']} {o['pass']} ({o['how']}) {max(o['share'], o['moved']):.0f} %" for o in passes if max(o["share"], o["moved"]) < 50]
    total = sum(o["us"] for o in passes)
    return [{"figure": figure, "unit": "us", "ours": total, "passes": passes, "verdict": "reported",
             "text": f"{total:.1f} us in total; under half of the peak of arithmetic and of memory: {', '.join(slow) or 'none'}"}]


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--python", default="python3")
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--turn", type=float, default=1.0, help="seconds of one measurement [1]")
    p.add_argument("--seconds", type=float, default=140, help="in total [140]")
    p.add_argument("--network", default="convnet", help=f"some of {','.join(NETWORKS)} [convnet]")
    p.add_argument("--batch", default="", help="[64,1024 for the convnet, 128 for the others]")
    p.add_argument("--precision", default="", help="some of fp32,tf32,bf16,fp16 [tf32,bf16 for the convnet, and fp32 for the others]")
    p.add_argument("--data-dir", default="")
    p.add_argument("--json", action="store_true")
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--fake", action="store_true")
    args = p.parse_args()
    args.build = os.path.abspath(args.build)
    args.network = args.network.split(",")
    for name in args.network:
        if name not in NETWORKS:
            p.error(f"--network={name}: give some of {', '.join(NETWORKS)}")
    args.few = args.cpu or args.fake
    if args.cpu:
        args.precision, args.batch = "fp32", "64" if args.network == ["convnet"] else "4"
    args.share = 4 if args.fake else SHARE
    if args.fake:
        args.batch = "8"
        os.environ["ENTRAIN_PLUGIN_PATH"] = os.path.join(args.build, "fake", "plugins")
    if not os.path.isfile(os.path.join(args.build, "bench", "bench_train")):
        p.error(f"--build={args.build} has no bench/bench_train: run make tests first, or give the build folder")
    return args


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the running program is ended on the way out
    clock, ours = Clock(args.seconds), Ours(args)
    torch = Torch(args.python, args.cpu or args.fake)
    device = "cpu" if args.cpu else "simulated" if args.fake else "cuda:0"
    results = []

    def add(rows):
        for r in rows:
            r["device"] = device
            results.append(r)
            beside = f", beside {r['beside']}" if "beside" in r else ""
            print(json.dumps(r) if args.json else f"{r['figure']}{beside}: {r['text']}", flush=True)

    configurations = []
    for name in args.network:
        batches, precisions = ("64,1024", "tf32,bf16") if name == "convnet" else ("128", "fp32,tf32,bf16")
        configurations += [(NETWORKS[name], int(b), p) for b in (args.batch or batches).split(",")
                           for p in (args.precision or precisions).split(",")]
    try:
        if "convnet" in args.network:
            add(sharing(args, ours, Clock(args.seconds / 5)))
        for i, (network, batch, precision) in enumerate(configurations):
            add(beside_torch(args, ours, torch, network, batch, precision, Clock(clock.left() / (len(configurations) - i) * 0.9)))
            add(layers(args, network, batch, precision))
    finally:
        torch.close()
    return 1 if any(r.get("is_our_fault") for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
