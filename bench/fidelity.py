#!/usr/bin/env python3
"""How well virtual time foretells real time: the first half of a run's steps gives the times that `entrain sim --compute=from:`
draws from, and the prediction of the second half is on disk before that half is read.

    fidelity.py --build=build --out=FOLDER [--steps=400] [--repeat=5] [--json]

Judged are solo and a ring of two on two cores: the median error is at most 5 %. Reported beside them: ps-async, whose server is
a third process, and rings of 4 and 8 ranks that sleep most of their time. FOLDER/predictions.jsonl has each prediction.
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


def run_real(build, out, case, steps, seed):
    """Trains; the share of the cores that other programs took meanwhile."""
    _, workers, strategy, factor, _ = case
    paced = [f"--straggler={rank}:{factor}" for rank in range(workers)] if factor else []
    before, begin = core_seconds(), time.monotonic()
    subprocess.run([build / "entrain", "run", f"-n{workers}", f"--strategy={strategy}", f"--model={'mlp' if factor else 'convnet'}",
                    "--data=synthetic", f"--steps={steps}", "--threads=1", "--log-level=warn",
                    "--limit-test-samples=64", f"--seed={seed}", "--quiet", "--overwrite", f"--out={out}", *paced], check=True,
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


def predict(build, real, fit, case, steps):
    """Seconds a step, from steps WARMUP .. steps - 1. A rank's own work is drawn from its law; its waits for others are simulated."""
    _, workers, strategy, _, _ = case
    fit.mkdir()
    ranks = [list(lines(real / f"metrics-{rank}.jsonl", WARMUP, steps)) for rank in range(workers)]
    for rank, own in enumerate(ranks):
        with open(fit / f"metrics-{rank}.jsonl", "w") as file:
            for step in [own[0], *own]:  # the first is taken for a warm-up
                print(json.dumps({"compute_ns": step["step_ns"] - step["wait_ns"]}), file=file)
    # The wait of the last to arrive is the exchange itself: so many messages one after the other.
    exchange = statistics.median(min(step["wait_ns"] for step in at_once) for at_once in zip(*ranks))
    hops = 2 * (workers - 1) if strategy == "ring" else 2
    delay = f"--net=delay:{exchange / hops / 1000:.3f}us" if hops else "--net=delay:1us"
    said = subprocess.run([build / "entrain", "sim", f"--strategy={strategy}", f"-n{workers}", "--steps=2000", f"--compute=from:{fit}", delay,
                           "--json"], check=True, stdout=subprocess.PIPE).stdout
    return json.loads(said)["step_seconds"]


def measure(real, case, steps):
    """Seconds a step of the second half: on the clock that all ranks share."""
    spans = []
    for rank in range(case[1]):
        half = list(lines(real / f"metrics-{rank}.jsonl", steps - 1, 1 << 60))
        spans.append((half[-1]["t"] - half[0]["t"]) / (len(half) - 1))
    return statistics.mean(spans)


def judge(args, case, number):
    folder = args.out / f"{case[2]}-{case[1]}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outside = run_real(args.build, folder / "real", case, 2 * args.steps, number + 1)
    foretold = predict(args.build, folder / "real", folder / "fit", case, args.steps)
    with open(args.out / "predictions.jsonl", "a") as file:
        print(json.dumps({"case": case[0], "run": number, "step_seconds": foretold, "written": time.time()}), file=file)
        file.flush()
        os.fsync(file.fileno())
    came = measure(folder / "real", case, args.steps)
    return {"case": case[0], "run": number, "foretold_s": foretold, "came_s": came, "error": foretold / came - 1, "outside": outside}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=pathlib.Path("build").resolve())
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=400, help="of each half")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "predictions.jsonl").unlink(missing_ok=True)
    is_busy, is_wrong = False, False
    for case in CASES:
        runs = [judge(args, case, number) for number in range(args.repeat)]
        error = statistics.median(abs(run["error"]) for run in runs)
        outside = statistics.median(run["outside"] for run in runs)
        is_busy |= outside > BUSY
        is_wrong |= case[4] and error > LIMIT
        if args.json:
            print(json.dumps({"case": case[0], "median_error": error, "outside": outside, "judged": case[4], "runs": runs}), flush=True)
            continue
        foretold, came = (statistics.median(run[key] for run in runs) * 1e3 for key in ("foretold_s", "came_s"))
        print(f"{case[0]:32s} foretold {foretold:8.3f} ms a step, came {came:8.3f} ms; median error {100 * error:5.1f} %"
              f"{'' if case[4] else ' (reported)'}{f'; others took {100 * outside:.0f} % of the cores' if outside > BUSY else ''}", flush=True)
    if is_busy:
        print(f"fidelity.py: other programs took more than {100 * BUSY:.0f} % of the cores: too busy a machine for a conclusion; "
              "measure again when it is idle", file=sys.stderr)
        return 77
    return 1 if is_wrong else 0


sys.exit(main())
