#!/usr/bin/env python3
"""check_circles.py BUILD [NM]: no two source files of the product need each other's symbols, over however many files.

Read from the objects in BUILD (nm), so what is called through a pointer is no arrow. Exit 1 and a line per arrow of
each circle that is not on the list. Each circle on the list has a reason; at most 4, none over 3 files.
"""
import collections
import json
import pathlib
import shlex
import subprocess
import sys

# Promise: The product's files do not call in circles, except where the script's head says so.

TOP = pathlib.Path(__file__).resolve().parent.parent

ALLOWED = {  # files of the circle -> why one cannot stand below the other
}


def objects(build):
    """{source: object}, of the product only; what an earlier layout left in BUILD is not in its list."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        words = shlex.split(entry["command"])
        if not source.is_relative_to(TOP):
            continue
        name = str(source.relative_to(TOP))
        if name.split("/")[0] not in ("tests", "bench", "examples", build.name):
            found.setdefault(name, pathlib.Path(entry["directory"]) / words[words.index("-o") + 1])
    return {name: path for name, path in found.items() if path.exists()}


def symbols(nm, found):
    """{source: (what its object defines, what it needs)}"""
    sources = {str(path): source for source, path in found.items()}
    read = {source: (set(), set()) for source in found}
    defined, needed = set(), set()
    for line in subprocess.run([nm, "-g", *sources], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(":"):
            defined, needed = read[sources[line[:-1]]]
        elif line:
            *_, kind, name = line.split()
            (needed if kind in "Uw" else defined).add(name)
    return read


def circles(arrows):
    """The strongly connected components of more than one file (Tarjan, SIAM J. Comput. 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in arrows[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def read_arrows(build, nm):
    """{source: {source that it needs: symbols}}; a symbol with several homes (a main, a plugin's entry) is nobody's."""
    read = symbols(nm, objects(build))
    homes = collections.defaultdict(list)
    for source, (defined, _) in read.items():
        for name in defined:
            homes[name].append(source)
    arrows = {source: {} for source in read}
    for source, (_, needed) in read.items():
        for name in needed:
            if len(homes.get(name, ())) == 1 and homes[name][0] != source:
                arrows[source].setdefault(homes[name][0], []).append(name)
    return arrows


def main(build, nm="nm"):
    sys.setrecursionlimit(10000)
    arrows = read_arrows(pathlib.Path(build).resolve(), nm)
    if len(arrows) < 200:
        print(f"circles: {build} has {len(arrows)} objects of the product: run make first")
        return 2
    found = circles(arrows)
    bad = [c for c in found if " ".join(c) not in ALLOWED]
    for circle in bad:
        print(f"a circle of {len(circle)} files:")
        for source in circle:
            for other, names in sorted(arrows[source].items()):
                if other in circle:
                    print(f"  {source} -> {other}: {', '.join(sorted(names))}")
    stale = [key for key in ALLOWED if key.split() not in found]
    for key in stale:
        print(f"no circle any more, take it off the list: {key}")
    if len(ALLOWED) > 4 or any(len(key.split()) > 3 for key in ALLOWED):
        print("the list has more than 4 circles, or one of more than 3 files")
        return 1
    if not bad and not stale:
        print(f"circles: none in {len(arrows)} files but {len(ALLOWED)} with a reason")
    return 1 if bad or stale else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
