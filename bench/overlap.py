#!/usr/bin/env python3
"""overlap.py - the share of its communication that a step hides behind its own backward.

    bench/overlap.py --build=build --net=rate:200MB --strategy=ring,ps-sync

Trains the convnet with two workers on an emulated wire in four interleaved variants: no communication (solo workers, as
many at once), gradients in buckets while backward runs, in one bucket, after backward (--no-overlap), and prints the
median step of each. From the trace of the second it computes, step by step and over all ranks:

    ready(b)   when the last rank has submitted bucket b; B: when the last backward ends
    ideal end  of a wire that is never idle: end(b) = max(ready(b), end(b-1)) + bytes(b) / rate.
               ring: bytes(b) = 2 (p-1)/p of the bucket. ps-sync: p buckets into psd, then p out of it, one behind the
               other, the ways in and out at once
    total      the same if everything were ready only at B: end - B
    hideable   total - (ideal end - B): the rest, such as the last bucket, does not fit beside backward
    hidden     total - (the last rank has its last mean - B)

`hidden` is the median of hidden / hideable. Everything is in milliseconds."""
import argparse, json, pathlib, re, statistics, subprocess, sys, tempfile

WARMUP = 20


def run(o, out, words):
    command = [f"{o.build}/entrain", "run", f"--model={o.model}", "--data=synthetic", "--limit-test-samples=8",
               f"--batch-size={o.batch_size}", f"--steps={o.steps}", "--threads=1", f"--device={o.device}",
               "--quiet", "--log-level=warn", f"--out={out}", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def steps_of(out, rank=0):
    lines = [json.loads(line) for line in open(f"{out}/metrics-{rank}.jsonl")]
    return [line["step_ns"] / 1e6 for line in lines if "step_ns" in line][WARMUP:]


def end(jobs):
    for job in jobs:
        if job.wait() != 0:
            sys.exit(f"overlap.py: {' '.join(job.args)} failed")


def wire_end(strategy, p, rate, buckets):
    """The time when the last bucket arrives; buckets: (ready ms, bytes) in the order of submit."""
    into = out = 0.0
    for ready, size in buckets:
        ms = size / rate * 1e3
        if strategy.startswith("ps"):
            into = max(ready, into) + p * ms
            out = max(into, out) + p * ms
        else:
            out = max(ready, out) + 2 * (p - 1) / p * ms
    return out


def hidden_of(trace, strategy, p, rate):
    """(hidden, hideable) of every step."""
    ready, ends, backward, sizes = {}, {}, {}, {}
    begin = ("push",) if strategy.startswith("ps") else ("all-reduce",)
    lane = 0 if strategy.startswith("ps") else 1
    for e in json.load(open(trace))["traceEvents"]:
        if e.get("ph") != "X" or not 0 <= e["pid"] < p:
            continue
        step, bucket = e["args"].get("step", -1), e["args"].get("bucket", -1)
        first, last = e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3
        if e["name"] == "backward":
            backward[step] = max(backward.get(step, 0), last)
        elif e["tid"] == lane and e["name"] in begin:
            ready[step, bucket] = max(ready.get((step, bucket), 0), first)
            sizes[step, bucket] = e["args"]["bytes"]
        if e["tid"] == 0 and e["name"] in ("wait", "pull"):
            ends[step] = max(ends.get(step, 0), last)
    pairs = []
    for step in sorted(backward):
        buckets = sorted(b for s, b in ready if s == step)
        if step < WARMUP or step not in ends or not buckets:
            continue
        b_end = backward[step]
        work = [(ready[step, b], sizes[step, b]) for b in buckets]
        ideal = wire_end(strategy, p, rate, work) - b_end
        total = wire_end(strategy, p, rate, [(b_end, size) for _, size in work]) - b_end
        exposed = max(0.0, ends[step] - b_end)
        pairs.append((total - exposed, total - max(0.0, ideal)))
    return pairs


def main():
    q = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    q.add_argument("--build", default="build")
    q.add_argument("--strategy", default="ring,ps-sync")
    q.add_argument("--net", default="rate:200MB")
    q.add_argument("--model", default="convnet")
    q.add_argument("--device", default="cpu")
    q.add_argument("--workers", type=int, default=2)
    q.add_argument("--batch-size", type=int, default=64)
    q.add_argument("--steps", type=int, default=80)
    q.add_argument("--repeat", type=int, default=3)
    q.add_argument("--json", action="store_true")
    o = q.parse_args()
    p = o.workers
    number, unit = re.search(r"rate:([0-9.]+)([KMG]B)", o.net).groups()
    rate = float(number) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    for strategy in o.strategy.split(","):
        ms, shares, pairs = {"alone": [], "buckets": [], "one": [], "after": []}, [], []
        base = [f"--workers={p}", f"--strategy={strategy}", f"--net={o.net}"]
        if strategy.startswith("ring"):
            base.append("--allreduce=ring")
        for _ in range(o.repeat):
            with tempfile.TemporaryDirectory(prefix="entrain-overlap-") as tmp:
                folder = pathlib.Path(tmp)
                end([run(o, folder / f"alone{i}", ["--workers=1", "--strategy=solo"]) for i in range(p)])
                for name, words in (("buckets", [f"--trace={folder}/trace.json"]), ("one", ["--bucket-cap-mb=1000"]),
                                    ("after", ["--no-overlap"])):
                    end([run(o, folder / name, base + words)])
                    ms[name].append(statistics.median(steps_of(folder / name)))
                ms["alone"].append(statistics.median(steps_of(folder / "alone0")))
                pairs = [x for x in hidden_of(folder / "trace.json", strategy, p, rate) if x[1] > 0.1]
                shares.append(statistics.median(a / b for a, b in pairs))
        row = {k: round(statistics.median(v), 2) for k, v in ms.items()}
        row.update(bench="overlap", strategy=strategy, net=o.net, workers=p, batch=o.batch_size, runs=o.repeat,
                   hideable_ms=round(statistics.median(b for _, b in pairs), 2),
                   hidden_ms=round(statistics.median(a for a, _ in pairs), 2),
                   hidden=round(statistics.median(shares), 3), least=round(min(shares), 3), most=round(max(shares), 3))
        if o.json:
            print(json.dumps(row), flush=True)
        else:
            print("{strategy:8} step: alone {alone} ms, buckets {buckets}, one bucket {one}, after backward {after}; "
                  "hidden {hidden_ms} of {hideable_ms} hideable ms: {hidden:.0%} ({least:.0%} to {most:.0%})"
                  .format(**row), flush=True)


main()
