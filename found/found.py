#!/usr/bin/env python3
"""found.py - published results on distributed training, found again with this program, or not:

    found/found.py                     every result: writes docs/found.json, docs/found.md and the figures in docs/found
    found/found.py --quick             those that are a number or a closed form (half a minute of CPU; in CI); writes nothing
    found/found.py --only=R1,R4        some of them; the page keeps what it says of the others

Each result of results.py states, before it runs, what agreement counts; the page shows a hash of that sentence. Everything
happens in virtual time, so the numbers are the same on every machine. Exit 1: one that was found before is not found now.
"""
import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import textwrap
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#555555")

HEAD = """# Published results, found again

`make found` runs what these papers say in virtual time,
with the strategies that `entrain run` uses.
The criterion of each was written before the run; its hash stands beside it.
"exact" means a number or a closed form, "shape" an order or a sign with a margin.
A result that was not found is shown like the others.
The data is what Debian has (Fashion-MNIST), so tables of CIFAR-10 and ImageNet are not here.

"""


def hash_of(result):
    return hashlib.sha256(" ".join(result.criterion.split()).encode()).hexdigest()[:12]


def draw(figure, path):
    """figure: title, x, y (labels), log ("", "x", "y", "xy"), more (gnuplot's commands), is_apart (points with bars are not joined),
    is_paired (two lines each have a colour, the second one dashed), series: [(label, [(x, y) or (x, y, least, most)])]."""
    blocks, plots = [], []
    for i, (label, points) in enumerate(figure["series"]):
        colour, bars = COLOURS[(i // 2 if figure.get("is_paired") else i) % len(COLOURS)], len(points[0]) == 4
        blocks.append(f"$s{i} << EOD\n" + "\n".join(" ".join(f"{value:g}" for value in point) for point in points) + "\nEOD\n")
        if bars:
            plots.append(f"$s{i} using 1:2:3:4 with yerrorbars lc rgb '{colour}' pt 7 ps 0.4 notitle")
        style = "lines" if len(points) > 30 else "points pt 7 ps 0.5" if bars and figure.get("is_apart") else "linespoints pt 7 ps 0.5"
        dash = 2 if figure.get("is_paired") and i % 2 else 1
        plots.append(f"$s{i} using 1:2 with {style} lc rgb '{colour}' lw 1.5 dt {dash} title '{label}'")
    script = "".join(blocks) + f"""set terminal svg size 560,340 font 'sans,11' background 'white'
set title '{figure["title"]}'
set xlabel '{figure["x"]}'
set ylabel '{figure["y"]}'
{"set logscale " + figure["log"] if figure.get("log") else ""}
set autoscale xfix
set offsets graph 0.04, graph 0.04, 0, 0
set key outside bottom center horizontal samplen 2
set grid lc rgb '#dddddd'
set border 3
set tics nomirror
{figure.get("more", "")}
plot {", ".join(plots)}
"""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(subprocess.run(["gnuplot"], input=script.encode(), stdout=subprocess.PIPE, check=True).stdout)


def wrap(text):
    return textwrap.fill(" ".join(text.split()), 100)


def page(results, known):
    """docs/found.md from what is known of each result."""
    lines = [HEAD, "| | paper | result | verdict |", "|---|---|---|---|"]
    for r in results:
        told = known.get(r.name, {})
        told = told if told.get("criterion") == hash_of(r) else {}
        lines.append(f"| [{r.name}](#{r.name.lower()}) | {r.paper} | {r.title} | {told.get('verdict', 'not run')} |")
    for r in results:
        told = known.get(r.name)
        if told is not None and told["criterion"] != hash_of(r):
            told = None  # of another criterion
        lines += ["", f"## {r.name}", "", wrap(f"**{r.paper}: {r.title}**"), "", wrap(r.claim), "",
                  wrap(f"Counts as found ({r.kind}; criterion {hash_of(r)}): {r.criterion}."), ""]
        if told is None:
            lines.append("Not run yet.")
            continue
        lines += [f"**{told['verdict']}** (n = {told['n']})", "", *told["rows"]]
        if told.get("remark"):
            lines += ["", wrap(told["remark"])]
        if told.get("figure"):
            lines += ["", f"![{r.title}](found/{r.name}.svg)"]
    return "\n".join(lines) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--build", default="build", help="the build folder [build]")
    p.add_argument("--only", default="", help="names of results, with commas")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--jobs", type=int, default=2, help="simulations at a time [2]")
    o = p.parse_args()
    try:
        import results
    except ModuleNotFoundError as missing:
        print(f"SKIP: found.py needs {missing.name}: apt-get install python3-{missing.name}")
        sys.exit(77)  # a test that is skipped
    lab = results.Lab(pathlib.Path(o.build).resolve(), o.jobs)
    names = {r.name for r in results.RESULTS}
    only = set(filter(None, o.only.split(",")))
    if only - names:
        sys.exit(f"found.py: --only={o.only}: there is no {sorted(only - names)[0]}; there are {', '.join(sorted(names))}")
    docs = HERE.parent / "docs"
    record = docs / "found.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    lost = []
    for r in results.RESULTS:
        if (only and r.name not in only) or (o.quick and not r.is_quick):
            continue
        begin = time.monotonic()
        told = r.run(lab)
        told["criterion"] = hash_of(r)
        print(f"{r.name:4} {told['verdict']:12} {time.monotonic() - begin:7.1f} s  {r.paper}: {r.title}", flush=True)
        for row in told["rows"]:
            print(f"       {row}")
        if told["verdict"] == "not found" and known.get(r.name, {}).get("verdict", "found") != "not found":
            lost.append(r.name)
        known[r.name] = told
        if not o.quick:
            if told.get("figure"):
                draw(told["figure"], docs / "found" / f"{r.name}.svg")
            record.write_text(json.dumps(known, indent=1) + "\n")
            (docs / "found.md").write_text(page(results.RESULTS, known))
    if lost:
        sys.exit(f"found.py: not found: {', '.join(lost)}")


if __name__ == "__main__":
    main()
