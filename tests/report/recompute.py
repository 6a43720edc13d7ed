#!/usr/bin/env python3
"""Recomputes every number of a comparison's tables, verdict and CSV files from what its runs recorded, and compares.

    recompute.py ENTRAIN              makes a small study in a temporary folder first (what ctest runs)
    recompute.py ENTRAIN FOLDER       checks a study that is there

From metrics-RANK.jsonl and eval.jsonl; from result.json only what these do not hold (times of the clock, bytes by
formula and in shared memory, memory, the configuration, and the final test figures of a run with a holdout). Written
from docs/measurement.md, sharing no code with the report: all p values are counted over all signs here, intervals come
from binomial coefficients, the least effect from averages of pairs (Walsh). Standard library only.

# Promise: Every number in tables, verdict and CSV files is what the runs recorded, as another program computes it.
"""
import csv
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

wrong = []
compared = 0


def same(what, shown, value):
    """A number of a CSV file: nine digits; an empty field is None."""
    global compared
    compared += 1
    found = None if shown == "" else float(shown)
    if found is None or value is None:
        if found is not value:
            wrong.append(f"{what}: {shown!r} instead of {value}")
    elif found != value and not abs(found - value) <= 1e-6 * abs(value) + 1e-12:
        wrong.append(f"{what}: {shown} instead of {value!r}")


def printed(what, shown, value, significant=False):
    """A number as people read it: right to half a unit of its last digit ("14,900" has three)."""
    global compared
    compared += 1
    text = re.sub(r"[^0-9.e+-]", "", shown)
    if value is None or text in ("", "-"):
        if not (value is None and text in ("", "-")):
            wrong.append(f"{what}: {shown!r} instead of {value}")
        return
    unit = 10.0 ** -len(text.partition(".")[2])
    if significant and abs(value) >= 1:
        unit = max(1.0, 10.0 ** (math.floor(math.log10(abs(value))) - 2))
    if not abs(float(text) - value) <= 0.5 * unit * (1 + 1e-6):
        wrong.append(f"{what}: {shown!r} instead of {value!r}")


# ---- one run ----------------------------------------------------------------------------------------------------


def lines_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def quantile(values, q):
    """Hyndman & Fan, type 7."""
    values = sorted(values)
    place = q * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def least_with_share(values, q):
    """The least value that at least the share q of all does not exceed."""
    return sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]


def time_to(target, evals):
    """Seconds, samples and the bracket; infinite for a miss, None without an accuracy."""
    def accuracy(line):
        return line.get("holdout_accuracy", line.get("test_accuracy"))

    if not evals or all(accuracy(line) is None for line in evals):
        return None, None, None, None
    grid = [i for i, line in enumerate(evals) if not line.get("bracket")]
    for a, b, c in zip(grid, grid[1:], grid[2:]):
        if min(accuracy(evals[i]) for i in (a, b, c)) >= target:
            break
    else:
        return math.inf, math.inf, math.inf, math.inf
    before = max((i for i in grid if i < a), default=None)
    if before is None:
        return evals[a]["t"], evals[a]["samples"], 0, evals[a]["t"]  # any time before it
    high = next(i for i in range(before + 1, a + 1) if accuracy(evals[i]) >= target)
    p, q = evals[high - 1], evals[high]
    share = (target - accuracy(p)) / (accuracy(q) - accuracy(p))
    return (p["t"] + share * (q["t"] - p["t"]), p["samples"] + share * (q["samples"] - p["samples"]), p["t"], q["t"])


class Run:
    def __init__(self, folder, entry, target):
        self.entry = entry
        self.complete = entry["exit"] == 0
        self.number = {}
        if not self.complete:
            return
        where = os.path.join(folder, entry["dir"])
        with open(os.path.join(where, "result.json")) as file:
            result = json.load(file)
        evals = lines_of(os.path.join(where, "eval.jsonl"))
        ranks, steps = 0, []
        while os.path.exists(os.path.join(where, f"metrics-{ranks}.jsonl")):
            steps.append(lines_of(os.path.join(where, f"metrics-{ranks}.jsonl")))
            ranks += 1
        every = [line for rank in steps for line in rank]

        def total(key):
            return sum(line.get(key, 0) for line in every)

        phases = {key: total(key + "_ns") for key in ("data", "compute", "send", "wait", "update")}
        wait_of_rank = {f"wait {i}": sum(line["wait_ns"] for line in rank) /
                        sum(line[key + "_ns"] for line in rank for key in phases)
                        for i, rank in enumerate(steps) if rank}  # who claims its work may have come to none
        staleness = [line["staleness"] for line in every]
        clock = result.get("clock")
        seconds = result["train_seconds"]
        if clock and "begin_ns" in clock and not result.get("resumed_from"):
            seconds = (clock["end_ns"] - clock["begin_ns"]) / 1e9 - sum(b - a for a, b in clock["paused"])
        reach, samples, low, high = time_to(target, evals)
        last = evals[-1]["t"]
        held = any("holdout_accuracy" in line for line in evals)
        final = result if held else evals[-1]
        step_ms = [line["step_ns"] / 1e6 for line in every]
        self.number = {
            "order": entry["order"], "exit": entry["exit"], "workers": ranks,
            "updates": max(line["update"] for line in every), "steps": len(steps[0]),
            "samples_computed": total("nsamples"), "samples_applied": result["samples_applied"],
            "samples_dropped": result["samples_dropped"],
            "samples_per_s": (total("nsamples") - result.get("warmup_samples", 0)) / seconds,
            "train_s": seconds, "target_s": reach, "target_s_low": low, "target_s_high": high,
            "target_s_censored": last if reach == math.inf else None, "target_samples": samples,
            "test_accuracy": final.get("test_accuracy"), "test_loss": final.get("test_loss"), "lr": result["lr"],
            "global_batch_size": result["global_batch_size"], "payload_bytes": total("payload_bytes"),
            "wire_bytes": total("wire_bytes"), "shm_bytes": result["shm_bytes"],
            "theory_bytes": result["theory_bytes"], "max_rss": result["max_rss"],
            "staleness_mean": sum(staleness) / len(staleness), "staleness_max": max(staleness),
            "step_ms_p50": quantile(step_ms, 0.5), "step_ms_p95": quantile(step_ms, 0.95),
            "step_ms_p99": quantile(step_ms, 0.99),
            # not in runs.csv
            "wait": phases["wait"] / sum(phases.values()), **wait_of_rank, "payload_ratio": total("payload_bytes") / result["theory_bytes"],
            "wire_mb": total("wire_bytes") / 1e6, "staleness_p50": least_with_share(staleness, 0.5),
            "staleness_p95": least_with_share(staleness, 0.95), "censored": last,
        }

    def get(self, key):
        return self.number.get(key)


# ---- what may be claimed ----------------------------------------------------------------------------------------


def lead(a, b):
    return 0.0 if a == b else math.inf if b == math.inf or a == 0 else -math.inf if a == math.inf or b == 0 else \
        math.log(b) - math.log(a)


def signed_ranks(leads):
    """The p value by all signs, and the sum of signed ranks. Ranks are means of ties; zeros keep theirs (Pratt)."""
    sizes = sorted(abs(x) for x in leads)
    ranks = [(sizes.index(abs(x)) + 1 + len(sizes) - sizes[::-1].index(abs(x))) / 2 for x in leads]
    used = [(r, x) for r, x in zip(ranks, leads) if x != 0]
    observed = sum(math.copysign(r, x) for r, x in used)
    hits = sum(abs(sum(s * r for s, (r, _) in zip(signs, used))) >= abs(observed) - 1e-9
               for signs in itertools.product((-1, 1), repeat=len(used)))
    return hits / 2 ** len(used), observed


def least_effect(pairs, level):
    """From the averages of pairs: between two of them the p value of shifted pairs does not change."""
    leads = [lead(x, y) for x, y in pairs]
    if 2 ** (1 - len(leads)) > level or any(math.isinf(x) for x in leads) or math.inf in (x for x, _ in pairs):
        return None
    middle = statistics.median(leads)
    rest = [x - middle for x in leads]
    worst = 0.0
    for side in (-1, 1):
        walsh = [(side * x + side * y) / 2 for x, y in itertools.combinations_with_replacement(rest, 2)]
        for shift in sorted(max(0.0, -w) for w in walsh):
            p, total = signed_ranks([side * x + shift + 1e-11 for x in rest])
            if p <= level and total > 0:
                worst = max(worst, shift)
                break
    return math.exp(worst)


def coverage(n):
    """How many values to leave out at each end of n for an interval of the median, and its confidence."""
    below, k = 0, 1
    best = 1 - 2 * math.comb(n, 0) / 2 ** n if n > 1 else 0
    while k < n // 2:
        below = sum(math.comb(n, i) for i in range(k + 1)) / 2 ** n
        if 1 - 2 * below < 0.95:
            break
        best, k = 1 - 2 * below, k + 1
    return k, best


# ---- the study --------------------------------------------------------------------------------------------------


class Study:
    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "compare.json")) as file:
            self.index = json.load(file)
        self.target = self.index["target"]
        self.runs = [Run(folder, entry, self.target) for entry in self.index["runs"]
                     if not entry.get("replaced")]
        self.runs.sort(key=lambda run: run.entry["order"])
        self.settings = [setting["name"] for setting in self.index["settings"]]
        self.arms = [arm["name"] for arm in self.index["arms"]]

    def of(self, setting, arm):
        return [run for run in self.runs if (run.entry["setting"], run.entry["arm"]) == (setting, arm)]

    def values(self, setting, arm, key):
        return sorted(v for run in self.of(setting, arm) if (v := run.get(key)) is not None)

    def median(self, setting, arm, key):
        values = self.values(setting, arm, key)
        return statistics.median(values) if values else None

    def interval(self, setting, arm, key):
        values = self.values(setting, arm, key)
        k, _ = coverage(len(values))
        return values[k - 1], values[-k]

    def censored(self, setting, arm):
        return min((run.get("censored") for run in self.of(setting, arm) if run.get("target_s") == math.inf), default=None)

    def ranking(self, setting):
        def standing(arm):
            time = self.median(setting, arm, "target_s")
            accuracy = self.median(setting, arm, "test_accuracy")
            return (time is None, time, sum(v == math.inf for v in self.values(setting, arm, "target_s")),
                    accuracy is None, -(accuracy or 0), self.arms.index(arm))
        return sorted((arm for arm in self.arms if self.of(setting, arm)), key=standing)

    def is_busy(self, setting, arm):
        return any((run.entry.get("outside") or 0) > 0.05 for run in self.of(setting, arm))

    def claims(self, is_fair):
        """One row per pair of arms and setting, and which are clear."""
        plan = self.index["plan"]
        planned = [(c["setting"], *c["arms"]) for c in plan["comparisons"]]
        primary = plan["primary"] and (plan["primary"]["setting"], *plan["primary"]["arms"])
        among = [key for key in planned if key != primary]
        rows = {}
        for setting in self.settings:
            for a, b in itertools.combinations(self.arms, 2):
                pairs = []
                for seed in self.index["seeds"]:
                    x, y = (next((r.get("target_s") for r in self.of(setting, arm) if r.entry["seed"] == seed), None)
                            for arm in (a, b))
                    if x is not None and y is not None:
                        pairs.append((x, y))
                p, total = signed_ranks([lead(x, y) for x, y in pairs]) if pairs else (1.0, 0)
                complete = min(sum(r.complete for r in self.of(setting, arm)) for arm in (a, b))
                key = (setting, a, b)
                level = 0.05 / (1 if key == primary else len(among) or 1)
                rows[key] = {"pairs": len(pairs), "sooner": sum(x < y for x, y in pairs),
                             "later": sum(x > y for x, y in pairs), "p": p, "total": total,
                             "bar": "not shown: runs failed" if complete < plan["seeds"][setting] else
                                    "not shown: the fairness box has a FAIL" if not is_fair else
                                    "not shown: other processes used the machine" if self.is_busy(setting, a) or self.is_busy(setting, b) else None,
                             "least": least_effect(pairs, level) if key in planned else None}
        most = max((plan["seeds"][key[0]] for key in among), default=0)
        running = 0.0
        for place, key in enumerate(sorted(among, key=lambda k: rows[k]["p"])):
            running = max(running, min(1.0, (len(among) - place) * rows[key]["p"]))
            rows[key]["adjusted"] = running
        if primary:
            rows[primary]["adjusted"] = rows[primary]["p"]

        def found(key):
            row = rows[key]
            if key not in planned and plan.get("baseline") and plan["baseline"] not in key[1:]:
                return row["bar"] or "exploratory"
            if key not in planned:
                return "too few seeds"
            if key == primary and plan["seeds"][key[0]] < 6:
                return "too few seeds"
            if key != primary and 2.0 ** (1 - most) * len(among) > 0.05:
                return "too few seeds"
            if row["bar"]:
                return row["bar"]
            if primary and key != primary and rows[primary]["verdict"] != "yes":
                return "exploratory"
            return "yes" if row["adjusted"] <= 0.05 and row["total"] != 0 else "not shown"

        for key in ([primary] if primary else []) + list(rows):
            rows[key]["verdict"] = found(key)
        for row in rows.values():
            if row["pairs"] == 0:
                row["verdict"] = row["bar"] if row["bar"] == "not shown: runs failed" else "-"
        return rows


# ---- the comparison ---------------------------------------------------------------------------------------------


def rows_of(folder, name):
    with open(os.path.join(folder, name), newline="") as file:
        return list(csv.DictReader(file))


def check_csv(study, claims):
    # Names in CSV files hold no comma: the order of rows says which they are.
    runs = [row for row in rows_of(study.folder, "runs.csv") if row["replaced"] == "0"]
    assert len(runs) == len(study.runs)
    keys = [key for key in study.runs[0].number if key in runs[0]]
    assert len(keys) >= 29, keys
    for row, run in zip(runs, study.runs):
        for key in keys:
            value = run.entry.get(key) if key in ("order", "exit") else run.get(key)
            same(f"runs.csv {run.entry['dir']} {key}", row[key], value)
    table = iter(rows_of(study.folder, "table.csv"))
    for setting in study.settings:
        for arm in study.arms:
            row, where = next(table), f"table.csv {setting} {arm}"
            same(f"{where} runs", row["runs"], len(study.of(setting, arm)))
            same(f"{where} missed", row["missed"], sum(v == math.inf for v in study.values(setting, arm, "target_s")))
            same(f"{where} censored", row["target_s_censored"], study.censored(setting, arm))
            for key in ("updates", "samples_per_s", "target_s", "test_accuracy", "wait", "payload_ratio", "wire_mb"):
                values = study.values(setting, arm, key)
                same(f"{where} {key}", row[key], study.median(setting, arm, key))
                same(f"{where} {key}_min", row[key + "_min"], values[0] if values else None)
                same(f"{where} {key}_max", row[key + "_max"], values[-1] if values else None)
            for key in ("staleness_mean", "staleness_p50", "staleness_p95"):
                same(f"{where} {key}", row[key], study.median(setting, arm, key))
            same(f"{where} staleness_max", row["staleness_max"], max(study.values(setting, arm, "staleness_max"), default=None))
    for row, (key, claim) in zip(rows_of(study.folder, "comparisons.csv"), claims.items()):
        where = "comparisons.csv " + " ".join(key)
        for name, field in (("pairs", "pairs"), ("sooner", "sooner"), ("later", "later"), ("p", "p"),
                            ("p_holm", "adjusted"), ("least_effect", "least")):
            same(f"{where} {name}", row[name], claim.get(field))
        if row["verdict"] != claim["verdict"]:
            wrong.append(f"{where}: claim {row['claim']!r} instead of {claim['claim']!r}")


def check_time(what, shown, study, setting, arm, value):
    if value == math.inf:
        if not shown.startswith("> "):
            wrong.append(f"{what}: {shown!r} is no bound")
        value = study.censored(setting, arm)
        if value is not None and value < 9.995:  # two digits
            shown, unit = shown.split()[1], 10.0 ** (math.floor(math.log10(value)) - 1)
            if not abs(float(shown) - value) <= 0.5 * unit * (1 + 1e-6):
                wrong.append(f"{what}: {shown} instead of {value}")
            return
    printed(what, shown, value)


def check_ranking(study, text, claims):
    for setting in study.settings:
        block = re.search(rf"^{re.escape(setting)} +to [0-9.]+ %.*\n((?:.*\n)+?){re.escape(setting)}: ", text, re.M)
        if len(study.arms) < 2:
            continue
        if block is None:
            wrong.append(f"there is no ranking of {setting}")
            continue
        order = study.ranking(setting)
        lines = block.group(1).splitlines()
        assert len(lines) == len(order), lines
        for line, arm in zip(lines, order):
            name, time, accuracy, speed, differs = re.split(r"\s{2,}", line.strip())
            where = f"ranking {setting} {arm}"
            if name != arm:
                wrong.append(f"{where}: {name} stands there")
            for key, field, scale in (("target_s", time, 1), ("test_accuracy", accuracy, 100), ("samples_per_s", speed, 1)):
                middle, _, range_text = field.partition(" [")
                value = study.median(setting, arm, key)
                if key == "target_s":
                    check_time(where, middle.replace("≈ ", ""), study, setting, arm, value)
                    is_wide = any(r.get("target_s") not in (None, math.inf) and
                                  r.get("target_s_high") - r.get("target_s_low") > 0.1 * r.get("target_s")
                                  for r in study.of(setting, arm))
                    if middle.startswith("≈") != (is_wide and value not in (None, math.inf)):
                        wrong.append(f"{where}: {middle!r}, and wide is {is_wide}")
                else:
                    printed(f"{where} {key}", middle, None if value is None else scale * value, key == "samples_per_s")
                if range_text:
                    low, high = study.interval(setting, arm, key)
                    for side, shown, end in zip(("low", "high"), range_text.rstrip("]").split(" to "), (low, high)):
                        if key == "target_s":
                            check_time(f"{where} {side}", shown, study, setting, arm, end)
                        else:
                            printed(f"{where} {key} {side}", shown, scale * end, key == "samples_per_s")
            baseline = study.index["plan"].get("baseline")
            other = baseline or order[0]
            claim = claims.get((setting, other, arm)) or claims.get((setting, arm, other))
            if differs != (claim["verdict"] if claim else "baseline" if baseline else "-"):
                wrong.append(f"{where}: {differs!r} instead of {claim}")


def check_sentence(study, text, claims):
    for setting in study.settings:
        sentence = re.search(rf"^{re.escape(setting)}: (.*)\.$", text, re.M).group(1)
        if len(sentence.split()) > 25:
            wrong.append(f"{setting}: {len(sentence.split())} words: {sentence}")
        clear = {(c[1], c[2]) if row["total"] > 0 else (c[2], c[1]) for c, row in claims.items()
                 if c[0] == setting and row["verdict"] == "yes"}
        said = re.match(r"(\S+) reached \S+ % in (\S+) s instead of (\S+) s for (\S+)(?: \((\S+)x\))?", sentence)
        if said:
            winner, a, b, loser, ratio = said.groups()
            if (winner, loser) not in clear:
                wrong.append(f"{setting}: nothing shows that {sentence}")
            printed(f"{setting}: {sentence}", a, study.median(setting, winner, "target_s"))
            printed(f"{setting}: {sentence}", b, study.median(setting, loser, "target_s"))
            if ratio:
                printed(f"{setting}: {sentence}", ratio, float(b) / float(a))
            continue
        if clear and " in " not in sentence:
            wrong.append(f"{setting}: what is clear is not said: {sentence}")
        for arm, shown in re.findall(r"(\S+) (?:reached \S+ % )?in ([0-9.]+) s", sentence):
            printed(f"{setting}: {sentence}", shown, study.median(setting, arm, "target_s"))


def check_wait(what, shown, study, setting, arm):
    """Of each rank; of many the least and the most; of ranks that are alike one number."""
    workers = int(study.median(setting, arm, "workers") or 0)
    ranks = [study.median(setting, arm, f"wait {i}") for i in range(workers)]
    ranks = [100 * share for share in itertools.takewhile(lambda share: share is not None, ranks)]
    if "-" in shown:
        ranks = [min(ranks), max(ranks)]
    numbers = re.split("[/-]", shown)
    numbers = numbers * len(ranks) if len(numbers) == 1 else numbers
    if len(numbers) != len(ranks):
        wrong.append(f"{what}: {shown!r} of {len(ranks)} ranks")
    for number, value in zip(numbers, ranks):
        printed(what, number, value)


def check_table(study, text):
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("setting "))
    rows = iter(lines[head + 1:])
    for setting in study.settings:
        for arm in study.arms:
            fields = re.split(r"\s{2,}", next(rows).strip())
            where = f"table {setting} {arm}"
            if len(fields) != 10 or fields[0] != setting or not fields[1].startswith(arm):
                wrong.append(f"{where}: {fields}")
                continue
            printed(f"{where} updates", fields[2], study.median(setting, arm, "updates"))
            printed(f"{where} speed", fields[3], study.median(setting, arm, "samples_per_s"), True)
            check_time(f"{where} time", fields[4].replace("≈ ", ""), study, setting, arm, study.median(setting, arm, "target_s"))
            accuracy = study.values(setting, arm, "test_accuracy")
            for shown, value in zip(re.findall(r"[0-9.]+", fields[5]),
                                    (statistics.median(accuracy), accuracy[0], accuracy[-1])):
                printed(f"{where} accuracy", shown, 100 * value)
            stale = [study.median(setting, arm, "staleness_" + key) for key in ("mean", "p50", "p95")]
            for shown, value in zip(fields[6].split("/"), stale + [max(study.values(setting, arm, "staleness_max"))]):
                printed(f"{where} staleness", shown, value)
            check_wait(f"{where} wait", fields[7].rstrip(" %"), study, setting, arm)
            printed(f"{where} payload", fields[8], study.median(setting, arm, "payload_ratio"))
            printed(f"{where} wire", fields[9], study.median(setting, arm, "wire_mb"))


def check_caveat(study, text, claims):
    needed = study.index["plan"]["seeds_needed"]
    among = [c for c in study.index["plan"]["comparisons"] if c != study.index["plan"]["primary"]]
    if among and needed != math.ceil(1 + math.log2(len(among) / 0.05)):
        wrong.append(f"{needed} seeds needed for {len(among)} comparisons")
    effects = re.search(r"Least effect that could have been seen: (.*?)x\. ", text)
    for setting, shown in re.findall(r"(\S+) ([0-9.]+)(?:x|$)", effects.group(1)) if effects else []:
        most = max(row["least"] for key, row in claims.items() if key[0] == setting and row["least"])
        printed(f"least effect {setting}", shown, math.ceil(100 * most - 1e-9) / 100)
    for share, setting in re.findall(r"([0-9]+) % \((\S+)\)", text):
        printed(f"coverage {setting}", share, 100 * coverage(study.index["plan"]["seeds"][setting])[1])


def make_study(entrain, folder):
    subprocess.run([entrain, "compare", "-n", "2", "--arm=ring", "--arm=ps-async", "--model=mlp", "--data=synthetic",
                    "--device=ref", "--limit-train-samples=2000", "--limit-test-samples=200", "--seeds=1,2,3,4,5,6",
                    "--settings=even,slow@2", "--straggler=1:1.5", "--baseline=ring", "--lr=0.002",
                    "--target=80", "--quiet",
                    "--out=" + folder], check=True, stdout=subprocess.DEVNULL, timeout=500)
    # Whether others used this machine meanwhile is another test's matter: here something is to be claimed.
    path = os.path.join(folder, "compare.json")
    with open(path) as file:
        index = json.load(file)
    for run in index["runs"]:
        run["outside"] = 0.0
    with open(path, "w") as file:
        json.dump(index, file)


def main():
    entrain = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as parent:
        folder = sys.argv[2] if len(sys.argv) > 2 else os.path.join(parent, "study")
        if len(sys.argv) < 3:
            make_study(entrain, folder)
        text = subprocess.run([entrain, "report", folder, "--csv"], check=True, stdout=subprocess.PIPE,
                              timeout=300).stdout.decode()
        study = Study(folder)
        claims = study.claims("fairness: FAIL" not in text)
        check_csv(study, claims)
        check_table(study, text)
        check_ranking(study, text, claims)
        check_sentence(study, text, claims)
        check_caveat(study, text, claims)
    for line in wrong:
        print(line)
    if wrong:
        print(text)
        return 1
    print(f"PROMISE tables, verdict and CSV are what the runs recorded, by another program: {compared} numbers equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
