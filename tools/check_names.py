#!/usr/bin/env python3
"""check_names.py [TREE]: one name, one thing, over all sources of the product.

An object of the run consists of a few named parts, not of a long list of members; no two types have one name, so that
ctags and gdb find the right one; and two files have the same name only if they are the same thing twice. A file has a
test of its name, or is listed in tests/mirror.txt with the tests that cover it.
Exit 1 and a line per offence.
"""
import collections
import fnmatch
import pathlib
import re
import sys

# Promise: No two types and no two files share a name, an object of the run has at most 25 members, and a/b.c has
# tests/a/test_b.c or a line in tests/mirror.txt.

OWN_MEMBERS = 25  # members that an object of the run may have; a named part counts as one
OBJECTS = {  # tables of calls and flat records (configurations, messages, results, facts) may have more
    "eni_client", "eni_host", "eni_launcher", "eni_leader", "eni_leader_member", "eni_member", "eni_partition", "eni_psd",
    "eni_rank", "eni_shard", "eni_sim", "eni_sim_rank", "eni_store", "eni_trainer", "eni_worker",
}
TREES = ("cli", "config", "core", "data", "include", "job", "models", "ops", "plugin", "rank", "remote", "report", "run", "runtime",
         "server", "strategies", "virtual", "worker")
ROOMS = ("cli/launcher/", "worker/gpu/", "worker/parallel/")  # tested in their parent's folder
DEVICES = ("ops/cpu", "ops/cuda", "ops/ref")  # one interface, a folder for each implementation
SAME_FILES = [  # folders in which the same file name is the same thing
    {"ops", *DEVICES},
    {"strategies", "runtime/collective"},  # a strategy, and the collective that it is named after
    {"include/entrain", "models"}, {"include/entrain", "ops"}, {"include/entrain", "runtime/client"},  # and its implementation
    {"include/entrain", "runtime/sim"}, {"include/entrain", "rank"},  # and its subject
]


def bare(text):
    """Without comments, texts and the preprocessor; as many lines as before."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    text = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    return re.sub(r"^[ \t]*#.*(\\\n.*)*", "", text, flags=re.M)


def end_of(text, at):
    """The position after the brace that closes the one before `at`."""
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def members(body):
    """The number of direct members of a struct's body."""
    while "{" in body:  # a part: its members do not count
        at = body.index("{")
        body = body[:at] + " " + body[end_of(body, at + 1):]
    n = 0
    for statement in body.split(";"):
        flat = re.sub(r"\[[^\]]*\]", "", statement)
        is_call = re.search(r"\(\s*\*", flat) is not None
        n += bool(flat.strip()) and (1 if is_call else 1 + re.sub(r"\([^()]*\)", "", flat).count(","))
    return n


def types(text):
    """(name, members) of all types that a bare text defines, without mere declarations."""
    for m in re.finditer(r"\b(?:struct|union|enum)\s+(\w+)?\s*\{", text):
        end = end_of(text, m.end())
        alias = re.match(r"\s*(\w+)\s*;", text[end:]) if re.search(r"typedef\s+$", text[:m.start()]) else None
        for name in {m.group(1), alias and alias.group(1)} - {None}:
            yield name, members(text[m.end():end - 1])
    for m in re.finditer(r"\btypedef\s+([^;{}]*);", text):
        flat = re.sub(r"__attribute__.*|\[[^\]]*\]", "", m.group(1))
        call = re.search(r"\(\s*\*\s*(\w+)\s*\)", flat)
        words = re.findall(r"\w+", re.sub(r"\([^()]*\)", "", flat))
        if call or words[0] not in ("struct", "union", "enum") or len(words) != 3 or words[1] != words[2]:
            yield call.group(1) if call else words[-1], 0


def may_be_same(name, names):
    folders = {str(pathlib.PurePath(other).parent) for other in names}
    return name == "main.c" or len(folders) == len(names) and any(folders <= same for same in SAME_FILES)


def listed(tree):
    """(patterns, tests) of each entry of tests/mirror.txt; an indented line continues an entry."""
    file = tree / "tests/mirror.txt"
    text = re.sub(r"^#.*\n|^\n", "", file.read_text(), flags=re.M) if file.exists() else ""
    for entry in re.sub(r"\n[ \t]+", " ", text).splitlines():
        patterns, _, tests = entry.partition(":")
        yield patterns.split(), tests.split()


def untested(tree, files):
    """Errors in the product files' tests, by name and by tests/mirror.txt."""
    lone = set()
    for name in files:
        room = next((room for room in ROOMS if name.startswith(room)), "")
        path = pathlib.PurePath(name.removeprefix("runtime/"))
        path = pathlib.PurePath(room).parent / path.name if room else path
        if path.suffix in (".c", ".cu") and not list((tree / "tests" / path.parent).glob(f"test_{path.stem}.*")):
            lone.add(name)
    found = set()
    for patterns, tests in listed(tree):
        for pattern in patterns:
            these = set(fnmatch.filter(lone, pattern))
            found |= these
            if not these:
                yield f"{pattern} in tests/mirror.txt is not a file without a test of its own: remove it"
        for test in tests:
            if not (tree / test).exists():
                yield f"{test} in tests/mirror.txt is not a file"
        if not tests:
            yield f"{' '.join(patterns)} in tests/mirror.txt: name the tests that cover it"
    for name in sorted(lone - found):
        yield f"{name} has no test of its name, and is not in tests/mirror.txt: add either"


def offences(tree):
    files = [f for top in TREES for f in sorted((tree / top).rglob("*")) if f.suffix in (".c", ".h", ".cu", ".cuh")]
    homes, same = collections.defaultdict(list), collections.defaultdict(list)
    for file in files:
        name = str(file.relative_to(tree))
        same[file.name].append(name)
        for kind, n in types(bare(file.read_text())):
            homes[kind].append(name)
            if kind in OBJECTS and n > OWN_MEMBERS:
                yield f"{name}: {kind} has {n} members; at most {OWN_MEMBERS}: group related ones in named parts"
    for kind, names in sorted(homes.items()):
        if len(names) > 1 and not all(name.startswith(DEVICES) for name in names):
            yield f"{kind} is a type in {', '.join(names)}: rename all but one"
    for name, names in sorted(same.items()):
        if len(names) > 1 and not may_be_same(name, names):
            yield f"{name} is {', '.join(names)}: rename all but one"
    yield from untested(tree, [str(file.relative_to(tree)) for file in files])


def main():
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    found = list(offences(tree))
    print("\n".join(found) or "names: types and files have unique names, and every file a test; objects consist of parts")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
