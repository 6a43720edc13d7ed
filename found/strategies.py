#!/usr/bin/env python3
"""The figures of docs/strategies.md, from the files of `make demo-strategies`: each published strategy beside ring.

    found/strategies.py [STUDY] [FOLDER]          demo-strategies and docs/strategies unless they are given

A line joins the medians over the seeds: of the virtual time and of the accuracy, at each point of the curve.
"""
import collections
import csv
import pathlib
import statistics
import sys

from found import draw

STRATEGIES = "ringmaster delay-adaptive softsync dc-asgd easgd local-sgd slowmo diloco d-psgd".split()
SETTINGS = ("even", "slow")


def medians(study):
    """{(setting, arm): [(seconds, percent)]}"""
    points = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(study / "plots/accuracy.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["bracket"] == "0":
                points[row["setting"], row["arm"]][int(row["samples"])].append((float(row["seconds"]), 100 * float(row["accuracy"])))
    return {key: [tuple(map(statistics.median, zip(*seeds))) for _, seeds in sorted(curve.items())] for key, curve in points.items()}


def main(study="demo-strategies", folder=pathlib.Path(__file__).resolve().parent.parent / "docs/strategies"):
    curves = medians(pathlib.Path(study))
    for name in STRATEGIES:
        draw({"title": name, "x": "virtual seconds", "y": "accuracy, %", "is_paired": True, "more": "set yrange [60:85]",
              "series": [(f"{arm}, {setting}", curves[setting, arm]) for arm in ("ring", name) for setting in SETTINGS]},
             pathlib.Path(folder) / f"{name}.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
