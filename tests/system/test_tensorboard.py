#!/usr/bin/env python3
"""The real TensorBoard reads what --tensorboard wrote, and it is what metrics-RANK.jsonl and eval.jsonl say: loss and
accuracy of a step are the means over all ranks.

    test_tensorboard.py ENTRAIN

Exit 77 where tensorboard is absent.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

# Promise: TensorBoard reads what --tensorboard wrote, and its values are the records'.

try:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
except ImportError as missing:
    print(f"SKIP: {missing.name} is not installed for {sys.executable} (-DEN_PYTHON=VENV/bin/python picks another)")
    sys.exit(77)

BATCH = 8  # of both ranks
JOB = ["-n", "2", "--model=mlp", "--data=synthetic", "--steps=60", "--batch=4", "--eval-every=160", "--log-every=1",
       "--threads=1", "--quiet"]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(label, scalars, expected):
    """Pairs of (samples, value) are the same, to float32."""
    ours = [(e["samples"], e[label]) for e in expected if e[label] is not None]
    theirs = [(s.step, s.value) for s in scalars]
    assert len(ours) == len(theirs) > 0, f"{label}: {len(ours)} lines, {len(theirs)} events"
    for (a, x), (b, y) in zip(ours, theirs):
        assert a == b and math.isclose(x, y, rel_tol=1e-6), f"{label}: {a}: {x} against {b}: {y}"
    return len(ours)


def means(folder):
    """What all ranks' samples of a step have given, by the samples that the run then had (full steps of BATCH)."""
    steps = {}
    for path in folder.glob("metrics-*.jsonl"):
        for line in lines(path):
            end = math.ceil(line["samples"] / BATCH) * BATCH
            n, loss, hits = steps.get(end, (0, 0, 0))
            k = line["nsamples"]
            steps[end] = (n + k, loss + k * line["loss"], hits + k * (line["accuracy"] or 0))
    assert all(n == BATCH for n, _, _ in steps.values()), steps
    return [{"samples": end, "loss": loss / n, "accuracy": hits / n} for end, (n, loss, hits) in sorted(steps.items())]


def check_means(label, scalars, expected):
    """In whatever order the steps became whole."""
    return check(label, sorted(scalars, key=lambda s: s.step), expected)


def main(entrain):
    with tempfile.TemporaryDirectory() as top:
        folder = pathlib.Path(top)
        subprocess.run([entrain, "compare", "--strategies=ring,ps-async", "--settings=even", *JOB, "--tensorboard",
                        f"--out={folder}"], check=True, stdout=subprocess.DEVNULL)
        board = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
        runs = sorted(board.Runs())
        assert [pathlib.Path(r).name for r in runs] == ["even-ps-async-s1", "even-ring-s1"], runs
        events = 0
        for run in runs:
            steps, points = lines(folder / run / "metrics-0.jsonl"), lines(folder / run / "eval.jsonl")
            events += check_means("loss", board.Scalars(run, "train/loss"), means(folder / run))
            events += check_means("accuracy", board.Scalars(run, "train/accuracy"), means(folder / run))
            events += check("lr", board.Scalars(run, "train/lr"), steps)
            events += check("holdout_loss", board.Scalars(run, "holdout/loss"), points)
            clock = [s.wall_time for s in board.Scalars(run, "train/loss")]
            assert clock == sorted(clock) and clock[-1] - clock[0] < 60
    print(f"PROMISE TensorBoard reads {len(runs)} runs, {events} values equal to ours")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
