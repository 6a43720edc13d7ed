"""report.py - RESULTS.json as RESULTS.md."""

HEAD = """# Results

One run of `make bench`, written by it and not edited. `{command}`
on {date}; it took {minutes:.0f} minutes. Every program was run {repeat} times in turn with those beside it; a figure is
the median of its runs, a ratio the median of the pairs with the least and the most.

| | |
|---|---|
{machine}

A ratio is ours to theirs: at least 1 is as fast. Where the target is *at most*, it is the time or share that ours takes
of theirs. `bench/README.md` says how each figure is taken, `docs/performance.md` what bounds it.

"""


def number(value):
    """Three significant digits."""
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if magnitude >= 100 else f"{value:.1f}" if magnitude >= 10 else f"{value:.3g}"


def target(row):
    if row["target"]:
        return row["target"]
    if row["at_least"] is not None:
        return f">= {row['at_least']:g}" + ("x" if row.get("beside") else "")
    if row["at_most"] is not None:
        return f"<= {row['at_most']:g}" + ("x" if row.get("beside") else "")
    return ""


def ratio(row):
    r = row.get("ratio")
    return f"{number(r['median'])} ({number(r['least'])} to {number(r['most'])})" if r else ""


def cells(row):
    figure = row["figure"]
    if "ours" not in row:
        return [figure, "", row["beside"], "", "", target(row), f"{row['verdict']}: {row['why']}"]
    other = row.get("other")
    verdict = {"met": "met", "missed": "**missed**", "reported": ""}[row["verdict"]]
    return [figure, f"{number(row['ours']['median'])} {row['unit']}", row["beside"],
            f"{number(other['median'])} {row['unit']}" if other else "", ratio(row), target(row), verdict]


def table(rows):
    lines = ["| figure | ours | beside | theirs | ratio | target | |", "|---|---|---|---|---|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in rows])


def machine_lines(run):
    m = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(m["packages"].items()))
    lines = [("machine", f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB"),
             ("system", f"{m['system']}, Linux {m['kernel']}, {m['compiler']}"), ("Entrain", m["program"]),
             ("packages", versions), ("load before", str(m["load_before"])),
             ("skipped", "; ".join(run["skipped"]) or "nothing")]
    return "\n".join(f"| {name} | {text} |" for name, text in lines)


def commands(run):
    return "\n\n".join("\n".join([f"# {name}"] + list(lines.values())) for name, lines in run["commands"].items())


def markdown(run):
    met = sum(row["verdict"] == "met" for row in run["rows"])
    missed = sum(row["verdict"] == "missed" for row in run["rows"])
    rest = sum(row["verdict"] in ("failed", "skipped") for row in run["rows"])
    head = HEAD.format(command=run["command"], date=run["date"], minutes=run["seconds"] / 60, repeat=run["repeat"],
                       machine=machine_lines(run))
    tail = f"\n\nTargets met: {met}; missed: {missed}; not measured: {rest}.\n\n## Commands\n\n```\n{commands(run)}\n```\n"
    return head + table(run["rows"]) + tail
