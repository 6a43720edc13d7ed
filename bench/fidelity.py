#!/usr/bin/env python3
"""How well virtual time foretells real time: the first half of a run's steps gives the times that `entrain sim --compute=from:`
draws from. Its predictions of the second half, and of the time to a target accuracy, are on disk before either is read.

    fidelity.py --build=build --out=FOLDER [--steps=400] [--seeds=8] [--target=76] [--json]

Judged are solo and a ring of two on two cores: the median error of the step time is at most 5 %, and the median time to the target
lies within the real ones of all seeds. Reported beside them: ps-async, whose server is a third process, and apart from both rings of
4 and 8 paced ranks, which sleep most of their time. FOLDER/predictions.jsonl has each prediction.
Exit 0: within that; 1: not; 77: other programs took more than 5 % of the cores, so nothing is concluded.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

LIMIT, BUSY = 0.05, 0.05
WARMUP = 20  # steps in front of the first half

CASES = [  # name, workers, strategy, sleeps that many times its compute, judged
    ("solo", 1, "solo", 0, True),
    ("ring, 2 ranks", 2, "ring", 0, True),
    ("ps-async, 2 ranks and a server", 2, "ps-async", 0, False),
    ("ring, 4 paced ranks", 4, "ring", 40, False),
    ("ring, 8 paced ranks", 8, "ring", 40, False),
]


def core_seconds():
    """Seconds that all cores together have worked, and those of our children that have ended."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK"), ours.ru_utime + ours.ru_stime


def job(args, case, seed):
    """The flags that the real run and its prediction share."""
    _, workers, strategy, factor, _ = case
    return [f"-n{workers}", f"--strategy={strategy}", f"--model={'mlp' if factor else 'convnet'}", f"--data={args.data}", f"--seed={seed}",
            f"--steps={2 * args.steps}", "--threads=1", "--limit-test-samples=2000", f"--target={args.target}", "--log-level=warn"]


def run_real(args, folder, case, seed):
    """Trains; the share of the cores that other programs took meanwhile."""
    paced = [f"--straggler={rank}:{case[3]}" for rank in range(case[1])] if case[3] else []
    before, begin = core_seconds(), time.monotonic()
    subprocess.run([args.build / "entrain", "run", *job(args, case, seed), "--quiet", f"--out={folder / 'real'}", *paced], check=True,
                   stdout=subprocess.DEVNULL)
    after, seconds = core_seconds(), time.monotonic() - begin
    others = (after[0] - before[0]) - (after[1] - before[1])
    return max(0.0, others / (seconds * len(os.sched_getaffinity(0))))


def lines(path, first, end):
    """Steps first .. end - 1 of a rank; the rest of the file is not read."""
    with open(path) as file:
        for number, line in enumerate(file):
            if number == end:
                return
            if number >= first:
                yield json.loads(line)


def time_to_target(out, target):
    """Interpolated as the report does; None: not reached (three points in a row, all before or at the end)."""
    points = [json.loads(line) for line in open(out / "eval.jsonl")]
    curve = [(p["t"], 100 * p["test_accuracy"], p.get("bracket", False)) for p in points]
    grid = [p for p in curve if not p[2]]
    reached = next((i for i in range(len(grid) - 2) if all(p[1] >= target for p in grid[i:i + 3])), None)
    if reached is None:
        return None
    near = [p for p in curve if grid[max(reached - 1, 0)][0] <= p[0] <= grid[reached][0]]
    at = next(i for i, p in enumerate(near) if p[1] >= target)
    (t, accuracy, _), (later, higher, _) = near[max(at - 1, 0)], near[at]
    return later if at == 0 else t + (later - t) * (target - accuracy) / (higher - accuracy)


def predict(args, folder, case, seed):
    """Seconds of a step and to the target, from steps WARMUP .. args.steps - 1. A rank's own work is drawn from its law; its waits for
    others are simulated."""
    _, workers, strategy, _, _ = case
    (folder / "fit").mkdir()
    ranks = [list(lines(folder / "real" / f"metrics-{rank}.jsonl", WARMUP, args.steps)) for rank in range(workers)]
    for rank, own in enumerate(ranks):
        with open(folder / "fit" / f"metrics-{rank}.jsonl", "w") as file:
            for step in [own[0], *own]:  # the first is taken for a warm-up
                print(json.dumps({"compute_ns": step["step_ns"] - step["wait_ns"]}), file=file)
    # The wait of the last to arrive is the exchange itself: so many messages one after the other.
    exchange = statistics.median(min(step["wait_ns"] for step in at_once) for at_once in zip(*ranks))
    hops = 2 * (workers - 1) if strategy == "ring" else 2
    delay = f"--net=delay:{exchange / hops / 1000:.3f}us" if hops else "--net=delay:1us"
    said = subprocess.run([args.build / "entrain", "sim", *job(args, case, seed), f"--compute=from:{folder / 'fit'}", delay, "--json",
                           f"--out={folder / 'foretold'}"], check=True, stdout=subprocess.PIPE).stdout
    foretold = {"case": case[0], "seed": seed, "step_s": json.loads(said)["step_seconds"],
                "target_s": time_to_target(folder / "foretold", args.target), "written": time.time()}
    with open(args.out / "predictions.jsonl", "a") as file:
        print(json.dumps(foretold), file=file)
        file.flush()
        os.fsync(file.fileno())
    return foretold


def measure(args, folder, case):
    """Seconds of a step of the second half, on the clock that all ranks share, and to the target."""
    spans = []
    for rank in range(case[1]):
        half = list(lines(folder / "real" / f"metrics-{rank}.jsonl", args.steps - 1, 1 << 60))
        spans.append((half[-1]["t"] - half[0]["t"]) / (len(half) - 1))
    return {"step_s": statistics.mean(spans), "target_s": time_to_target(folder / "real", args.target)}


def judge(args, case):
    """All runs, then all predictions, then what came."""
    folders = {seed: args.out / f"{case[2]}-{case[1]}-{seed}" for seed in range(1, args.seeds + 1)}
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    outside = [run_real(args, folder, case, seed) for seed, folder in folders.items()]
    foretold = [predict(args, folder, case, seed) for seed, folder in folders.items()]
    came = [measure(args, folder, case) for folder in folders.values()]
    times = [[run["target_s"] for run in runs if run["target_s"] is not None] for runs in (foretold, came)]
    is_complete = all(len(reached) == args.seeds for reached in times)
    target_s = statistics.median(times[0]) if is_complete else None
    return {"case": case[0], "judged": case[4], "outside": statistics.median(outside), "foretold": foretold, "came": came,
            "median_error": statistics.median(abs(f["step_s"] / c["step_s"] - 1) for f, c in zip(foretold, came)),
            "target_s": target_s, "interval_s": [min(times[1]), max(times[1])] if is_complete else None,
            "is_inside": is_complete and min(times[1]) <= target_s <= max(times[1])}


def show(said, target):
    foretold, came = (statistics.median(run["step_s"] for run in said[key]) * 1e3 for key in ("foretold", "came"))
    reach = f"{target:g} % not reached by all"
    if said["interval_s"]:
        first, last = said["interval_s"]
        reach = f"{target:g} % foretold after {said['target_s']:.2f} s, came after {first:.2f} to {last:.2f} s"
    note = "" if said["judged"] else " (reported)"
    if said["outside"] > BUSY:
        note += f"; others took {100 * said['outside']:.0f} % of the cores"
    print(f"{said['case']:32s} foretold {foretold:8.3f} ms a step, came {came:8.3f} ms; median error "
          f"{100 * said['median_error']:5.1f} %; {reach}{note}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=pathlib.Path("build").resolve())
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--steps", type=int, default=400, help="of each half")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--target", type=float, default=76, help="percent")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "predictions.jsonl").unlink(missing_ok=True)
    is_busy, is_wrong = False, False
    for case in CASES:
        said = judge(args, case)
        is_busy |= said["outside"] > BUSY
        is_wrong |= said["judged"] and (said["median_error"] > LIMIT or not said["is_inside"])
        print(json.dumps(said), flush=True) if args.json else show(said, args.target)
    if is_busy:
        print(f"fidelity.py: other programs took more than {100 * BUSY:.0f} % of the cores: too busy a machine for a conclusion; "
              "measure again when it is idle", file=sys.stderr)
        return 77
    return 1 if is_wrong else 0


sys.exit(main())
