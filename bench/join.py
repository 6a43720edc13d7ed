#!/usr/bin/env python3
"""The time to join a run, and the pause of the other ranks: `entrain join` while a run of ps-async or ssp trains.

    join.py --build=build --strategy=ssp:bound=3

One JSON object. `seconds`: from the start of `entrain join` to the end of the newcomer's first step. `pause_ms`: the longest step
of the others from that start to 0.1 s after that end, less the longest step in a period of the same length before. A step lasts
from the end of the previous one, so that the time between two steps counts. The run begins with one worker (-n), so that each has
a core on a machine with two.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

BEHIND_S = 0.1


def wait_for(what, processes, found, deadline_s=30):
    deadline = time.monotonic() + deadline_s
    while not found():
        if any(p.poll() is not None for p in processes) or time.monotonic() > deadline:
            raise SystemExit(f"join.py: {what} did not appear in time")
        time.sleep(0.01)


def steps(folder, rank):
    """The end of each step of a rank, on the training clock."""
    return [json.loads(line)["t"] for line in pathlib.Path(folder, f"metrics-{rank}.jsonl").read_text().splitlines()]


def longest(ends, begin, end):
    """The longest of the steps that overlap this period."""
    return max((b - a for a, b in zip(ends, ends[1:]) if b > begin and a < end), default=0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--strategy", default="ssp:bound=3")
    p.add_argument("-n", type=int, default=1)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen([f"{a.build}/entrain", "run", "-n", str(a.n), "--max-workers=4", f"--strategy={a.strategy}",
                                "--threads=1", "--epochs=1", "--limit-test-samples=100", "--quiet", "--log-level=error", f"--out={folder}"],
                               stdout=subprocess.DEVNULL)
        join = None
        try:
            wait_for("the first step", [run], pathlib.Path(folder, "metrics-0.jsonl").exists)
            time.sleep(2)
            start = time.monotonic()
            join = subprocess.Popen([f"{a.build}/entrain", "join", str(run.pid)])
            wait_for("the newcomer", [run, join], pathlib.Path(folder, f"metrics-{a.n}.jsonl").exists)
            run.wait(timeout=90), join.wait(timeout=10)
            result = json.loads(pathlib.Path(folder, "result.json").read_text())
            came = next(p["from_s"] for p in result["presence"] if p["rank"] == a.n)  # on rank 0's clock; its own may lag by a second
            with open(pathlib.Path(folder, f"metrics-{a.n}.jsonl")) as f:
                end = came + json.loads(f.readline())["step_ns"] * 1e-9
            start -= result["clock"]["begin_ns"] * 1e-9
            until = end + BEHIND_S
            if start < until - start:
                raise SystemExit("join.py: the run had not trained long enough before")
            near = max(longest(steps(folder, rank), start, until) for rank in range(a.n))
            before = max(longest(steps(folder, rank), 2 * start - until, start) for rank in range(a.n))
            print(json.dumps(dict(bench="join", strategy=a.strategy, workers=a.n, seconds=round(end - start, 3),
                                  step_ms=round(near * 1e3, 2), before_ms=round(before * 1e3, 2),
                                  pause_ms=round((near - before) * 1e3, 2))))
        finally:
            for child in (run, join):
                if child and child.poll() is None:
                    child.kill()
                    child.wait()


if __name__ == "__main__":
    main()
