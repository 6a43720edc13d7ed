#!/usr/bin/env python3
"""pipeline.py - training of one network on several devices of this host: samples per second, and the waiting of stages.

    bench/pipeline.py --parallel=pipeline --stages=2 --micro-batches=8 --pipeline=gpipe
    bench/pipeline.py --threads=2                                    any flags of `entrain run`; the default is one thread
    bench/pipeline.py -n 2 --strategy=ring                           two ranks with half of the batch each
    bench/pipeline.py --at-once=2                                    two runs side by side, their samples/s added
    bench/pipeline.py --plot=docs/bubble.svg --repeat=3              the bubble by micro-batches: a table, and a picture

samples_s is --batch / the median step after the first one. For stages also: their means per chunk, `balance` (their mean
/ the slowest one's), `bubble_off` (measured less predicted), and `core_samples_s`: a core's rate without bubble and
imbalance, samples_s / (S x M / (M + S - 1) x balance). One JSON object; with --plot both schedules are interleaved, and
the table has medians (least .. most).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

CHUNKS, SCHEDULES = (1, 2, 4, 8), {"1f1b": "#0072b2", "gpipe": "#d55e00"}


def start(o, flags, out):
    command = [f"{o.build}/entrain", "run", f"--workers={o.n}", f"--model={o.model}", f"--batch-size={o.batch // o.n}",
               f"--steps={o.steps + 1}", "--data=synthetic", "--limit-test-samples=8", "--threads=1", "--mute", "--log-level=warn",
               f"--out={out}", *([] if o.n > 1 else ["--strategy=solo"]), *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def samples_per_s(out, ranks):
    """The rate of all ranks together."""
    total = 0
    for rank in range(ranks):
        steps = [s for s in map(json.loads, open(f"{out}/metrics-{rank}.jsonl")) if "step_ns" in s][1:]
        total += steps[0]["nsamples"] / statistics.median(s["step_ns"] for s in steps) * 1e9
    return total


def of_stages(pipeline, samples_s):
    """The stages' figures from result.json; replicas have some of them."""
    stages, chunks = pipeline["stage"], pipeline["micro_batches"]
    row = dict(parallel=pipeline["parallel"], schedule=pipeline["schedule"], stages=len(stages), micro_batches=chunks,
               cuts=pipeline["cuts"], **{key: round(pipeline[key], 4) for key in pipeline if key.startswith("bubble")})
    for way in ("forward", "backward"):
        row[f"{way}_ms"] = [round(stage[f"{way}_ns"] / 1e6, 2) for stage in stages]
    if "bubble_ideal" in pipeline:
        own = [stage["forward_ns"] + stage["backward_ns"] for stage in stages]
        balance = statistics.mean(own) / max(own)
        row |= dict(balance=round(balance, 4), bubble_off=round(abs(row["bubble"] - row["bubble_predicted"]), 4),
                    core_samples_s=round(samples_s / (len(own) * chunks / (chunks + len(own) - 1) * balance), 2))
    return row


def measure(o, flags):
    with tempfile.TemporaryDirectory(prefix="entrain-pipeline-") as top:
        folders = [pathlib.Path(top, str(i)) for i in range(o.at_once)]
        jobs = [start(o, flags, folder) for folder in folders]
        if any([job.wait() for job in jobs]):
            sys.exit(f"pipeline.py: {' '.join(jobs[0].args)} failed")
        result = json.loads((folders[0] / "result.json").read_text())
        samples_s = sum(samples_per_s(folder, o.n) for folder in folders)
    return dict(bench="pipeline", model=o.model, workers=o.n, at_once=o.at_once, batch=o.batch, flags=" ".join(flags),
                samples_s=round(samples_s, 2), peak_mb=round(result["max_rss"] / 1e6, 1),
                **(of_stages(result["pipeline"], samples_s) if "pipeline" in result else {}))


# ---- the bubble by micro-batches ----


def curve(rows, key):
    """(median, least, most) in percent."""
    values = [100 * row[key] for row in rows]
    return statistics.median(values), min(values), max(values)


def draw(found, path):
    """`found`: (schedule, chunks) -> rows."""
    blocks, ideal = [], "\n".join(f"{m} {100 / (m + 1):g}" for m in CHUNKS)
    for schedule in SCHEDULES:
        lines = ["%d %g %g %g %g" % (m, *curve(found[schedule, m], "bubble"), curve(found[schedule, m], "bubble_predicted")[0])
                 for m in CHUNKS]
        blocks.append(f"$s{schedule} << EOD\n" + "\n".join(lines) + "\nEOD\n")
    panels = "".join(f"""set title '{s}'
plot $s{s} using 1:2:3:4 with yerrorbars lc rgb '{c}' pt 7 ps 0.5 notitle, \\
    $s{s} using 1:2 with lines lc rgb '{c}' lw 1.5 title 'measured', \\
    $s{s} using 1:5 with linespoints lc rgb '{c}' pt 6 ps 0.9 lw 0.6 title 'predicted', \\
    $ideal using 1:2 with lines lc rgb '#555555' dt 2 title '1 / (M + 1)'
""" for s, c in SCHEDULES.items())
    script = "".join(blocks) + f"""$ideal << EOD
{ideal}
EOD
set terminal svg size 760,320 font 'sans,11' background 'white'
set multiplot layout 1,2
set logscale x 2
set xtics (1,2,4,8)
set xrange [0.9:9]
set yrange [0:*]
set xlabel 'micro-batches'
set ylabel 'bubble, % of the time of two stages'
set key top right reverse Left samplen 2
set grid lc rgb '#dddddd'
set border 3
set tics nomirror
{panels}"""
    pathlib.Path(path).write_bytes(subprocess.run(["gnuplot"], input=script.encode(), stdout=subprocess.PIPE, check=True).stdout)


def sweep(o, flags):
    found = {(schedule, m): [] for m in CHUNKS for schedule in SCHEDULES}
    for _ in range(o.repeat):
        for (schedule, m), rows in found.items():
            rows.append(measure(o, [*flags, "--parallel=pipeline", "--stages=2", f"--micro-batches={m}", f"--pipeline={schedule}"]))
    print("| micro-batches | schedule | measured, % | predicted | ideal | images/s | stage 0, forward + backward, ms | stage 1 |\n"
          "|---|---|---|---|---|---|---|---|")
    for (schedule, m), rows in found.items():
        stages = [" + ".join(f"{statistics.median(row[f'{way}_ms'][s] for row in rows):.0f}" for way in ("forward", "backward"))
                  for s in (0, 1)]
        print(f"| {m} | {schedule} | %.1f (%.1f .. %.1f) | %.1f (%.1f .. %.1f) | {100 / (m + 1):.1f} | %.1f | {' | '.join(stages)} |"
              % (*curve(rows, "bubble"), *curve(rows, "bubble_predicted"), statistics.median(row["samples_s"] for row in rows)))
    draw(found, o.plot)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--build", default="build")
    p.add_argument("--model", default="resnet18:stem=cifar")
    p.add_argument("-n", type=int, default=1, help="worker processes [1]")
    p.add_argument("--batch", type=int, default=128, help="samples of a step, of all workers together [128]")
    p.add_argument("--steps", type=int, default=4, help="timed steps, after an untimed one [4]")
    p.add_argument("--at-once", type=int, default=1)
    p.add_argument("--plot", metavar="FILE", help="an SVG, by gnuplot")
    p.add_argument("--repeat", type=int, default=3, help="turns of --plot [3]")
    o, flags = p.parse_known_args()
    if o.plot:
        sweep(o, flags)
    else:
        print(json.dumps(measure(o, flags)), flush=True)


main()
