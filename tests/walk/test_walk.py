#!/usr/bin/env python3
"""test_walk.py - which files one bucket passes between submit and the end of finish, and how often through a pointer.

It runs the programs of a build with -finstrument-functions (EN_TRACE_CALLS) with trace.c preloaded, reads what that
wrote, and compares with the lists in docs/walk.md, which says what is counted; how many there are is not judged. Without
--page it prints what it found; so it also reads a build of an older commit (see docs/walk.md).
"""
import argparse
import bisect
import functools
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

# Promise: A push to psd, a bucket through ring and the rest of a step pass the files and pointer calls that
# docs/walk.md lists, and no others.

EVENT = struct.Struct("<QQQ")  # function (LEFT: left), call site, time; as in trace.c
LEFT = 1 << 63
SKIP, END = 10, 2  # steps that are not counted: the first ones, and those in which ranks say goodbye
LIBRARIES = ("msgpack_",)  # whose headers have functions of their own
JOB = ["-n", "2", "--model=toy", "--data=synthetic", "--device=ref", "--batch-size=64", "--steps=40", "--quiet",
       "--limit-train-samples=2000", "--limit-test-samples=16", "--straggler=1:20"]
PUSH, BUCKET, STEP = "One push to psd and back", "One bucket through `ring`, direct", "One training step"
WALKS = {"push": "--strategy=ps-sync", "bucket": "--strategy=ring"}


class Object:
    """A program or plugin: where its functions are, and which of its calls go through a pointer."""

    def __init__(self, path, source):
        self.path, self.source, self.known = path, source, {}
        self.symbols = {}
        for line in self.tool("nm").splitlines():
            parts = line.split()
            if len(parts) == 3 and parts[1] in "tT":
                self.symbols.setdefault(parts[2], int(parts[0], 16))
        self.indirect = None
        self.addr2line = subprocess.Popen(["addr2line", "-f", "-e", path], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, text=True)

    def tool(self, *words):
        return subprocess.run([*words, self.path], capture_output=True, text=True, check=True).stdout

    def place(self, address):
        """(function, file): the file relative to the source, or absolute; None where the compiler made the function."""
        if address not in self.known:
            self.addr2line.stdin.write(f"{address:#x}\n")
            self.addr2line.stdin.flush()
            name, where = (self.addr2line.stdout.readline().strip() for _ in range(2))
            path = os.path.normpath(where.rpartition(":")[0])
            parts = path.split("/")  # a compiler's cache may have compiled it in another folder: the end counts
            inside = ("/".join(parts[i:]) for i in range(1, len(parts)))
            path = next((p for p in inside if os.path.isfile(f"{self.source}/{p}")), path)
            self.known[address] = None if path == "??" else (name, path)
        return self.known[address]

    def is_indirect(self, site):
        """Whether the call that returns to `site` names a register or memory."""
        if self.indirect is None:
            self.indirect, was_indirect = set(), False
            for line in self.tool("objdump", "-d", "--no-show-raw-insn").splitlines():
                m = re.match(r"\s*([0-9a-f]+):\s+(\S+)\s*(\S*)", line)
                if m is None:
                    continue
                if was_indirect:
                    self.indirect.add(int(m[1], 16))
                was_indirect = m[2] == "blr" or (m[2].startswith("call") and m[3].startswith("*"))
        return site in self.indirect


@functools.cache
def object_at(path, source):
    return Object(path, source)


class Process:
    """What lay where in one process, by trace.c's copies of /proc/PID/maps."""

    def __init__(self, maps, args):
        base, self.regions = {}, {}
        for line in maps.read_text(errors="replace").splitlines():
            parts = line.split()
            if len(parts) != 6 or not parts[5].startswith(f"{args.build}/") or "-" not in parts[0]:
                continue
            lo, hi = (int(x, 16) for x in parts[0].split("-"))
            if int(parts[2], 16) == 0:
                base[parts[5]] = lo
            if parts[5] in base:
                self.regions[lo] = (hi, object_at(parts[5], args.source), base[parts[5]])
        self.starts, self.cache = sorted(self.regions), {}

    def find(self, address):
        """(object, address in its file), or None for what is not ours."""
        if address not in self.cache:
            i = bisect.bisect_right(self.starts, address) - 1
            hit = self.regions[self.starts[i]] if i >= 0 else (0, None, 0)
            self.cache[address] = (hit[1], address - hit[2]) if address < hit[0] else None
        return self.cache[address]

    def function(self, name):
        """Where the functions of this name lie."""
        return {obj.symbols[name] + base for _, obj, base in self.regions.values() if name in obj.symbols}


class Thread:
    def __init__(self, process, path):
        self.process, self.events = process, []
        data = path.read_bytes()
        for at in range(0, len(data), EVENT.size):
            event = EVENT.unpack_from(data, at)
            if event[2] == 0:
                break
            self.events.append(event)
        self.times = [e[2] for e in self.events]
        self.entered = {e[0] for e in self.events}

    def between(self, begin_ns, end_ns):
        return self.events[bisect.bisect_left(self.times, begin_ns):bisect.bisect_right(self.times, end_ns)]

    def calls(self, functions):
        """[(first, last)]: the events from entering one of these functions to leaving it."""
        found, first = [], None
        for i, event in enumerate(self.events):
            if event[0] in functions and first is None:
                first = i
            elif event[0] & LEFT and event[0] ^ LEFT in functions and first is not None:
                found.append((first, i))
                first = None
        return found


class Walk:
    """What was entered: files by first entry, and calls through pointers."""

    def __init__(self):
        self.files, self.pointers, self.meanwhile = {}, {}, {}

    def add(self, thread, events, meanwhile=False):
        for function, site, _ in events:
            at = None if function & LEFT else thread.process.find(function)
            place = at and at[0].place(at[1])
            if not place or place[1].startswith("/"):
                continue
            files = self.meanwhile if meanwhile else self.files
            if not place[1].endswith(".h"):
                files.setdefault(place[1], []).append(place[0])
            caller = thread.process.find(site)
            if not meanwhile and caller and caller[0].is_indirect(caller[1]):
                here = caller[0].place(caller[1] - 1)
                library = here[0].split("_")[0] if here[0].startswith(LIBRARIES) else None
                key = (library, place) if library else caller  # the calls in a library's header count as one
                self.pointers.setdefault(key, (library or here[0], []))[1].append(place[0])

    def calls(self):
        """[(from, to)]"""
        return list(dict.fromkeys((caller, name) for caller, to in self.pointers.values() for name in to))

    def print(self, title):
        print(f"{title}: {len(self.files)} files, {len(self.pointers)} calls through pointers")
        for file, names in self.files.items():
            print(f"    {file}: {' '.join(dict.fromkeys(names))}")
        for caller, to in self.pointers.values():
            print(f"    {caller} -> {', '.join(dict.fromkeys(to))}")
        more = [f for f in self.meanwhile if f not in self.files]
        if more:
            print(f"    not counted, between submit and finish: {' '.join(more)}")
        print()


def read(folder, args):
    """(the walk of a bucket, that of a step), both the union over ranks and over the steps that count."""
    ranks, servers, walk, step, nsteps = [], [], Walk(), Walk(), 0
    for maps in sorted(folder.glob("*.maps")):
        process = Process(maps, args)
        for path in sorted(folder.glob(f"{maps.stem}.[0-9]*")):
            thread = Thread(process, path)
            if thread.entered & process.function(args.submit):
                ranks.append(thread)
            elif thread.entered & process.function(args.server):
                servers.append(thread)
    assert len(ranks) == 2, f"{len(ranks)} threads entered {args.submit}, not 2: has it another name?"
    for thread in ranks:
        submits, finishes = (thread.calls(thread.process.function(n)) for n in (args.submit, args.finish))
        for before, submit, finish in list(zip(finishes, submits[1:], finishes[1:]))[SKIP:-END]:
            assert submit[1] < finish[0], "one bucket: submit, then finish"
            nsteps += 1
            walk.add(thread, thread.events[submit[0]:submit[1]])
            walk.add(thread, thread.events[submit[1] + 1:finish[0]], meanwhile=True)
            for server in servers:
                events = server.between(thread.times[submit[0]], thread.times[finish[1]])
                if any(e[0] in server.process.function(args.server) for e in events):
                    walk.add(server, events)
            walk.add(thread, thread.events[finish[0]:finish[1]])
            step.add(thread, thread.events[before[1]:finish[1]])
    assert nsteps >= 30, f"{nsteps} steps were traced"
    return walk, step


def run(name, args):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"walk-{name}-"))
    try:
        (folder / "trace").mkdir()
        env = {**os.environ, "EN_WALK": str(folder / "trace"), "LD_PRELOAD": str(args.trace)}
        subprocess.run([f"{args.build}/entrain", "run", *JOB, WALKS[name], f"--out={folder}/out"], env=env, check=True,
                       stdout=subprocess.DEVNULL)
        return read(folder / "trace", args)
    finally:
        shutil.rmtree(folder)


def section_of(page, title):
    """Of docs/walk.md."""
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.M | re.S)


def check_page(walk, title, page):
    """Files and calls of the section of docs/walk.md whose title this is."""
    section = section_of(page, title)[1]
    files = set(re.findall(r"^\d+\. `([^`]+)`", section, re.M))
    calls = set(re.findall(r"^\| `(\w+)` \| `(\w+)`", section, re.M))
    traced = walk.calls()
    wrong = [f"{f} is on the way, and not in the list" for f in walk.files if f not in files]
    wrong += [f"{f} is in the list, and not on the way" for f in sorted(files - walk.files.keys())]
    wrong += [f"{a} calls {b} through a pointer, which is not in the table" for a, b in traced if (a, b) not in calls]
    wrong += [f"{a} does not call {b} through a pointer, as the table says" for a, b in sorted(calls - set(traced))]
    return [f"{title}: {w}" for w in wrong]


def written(walk, title, page):
    """The page with this walk's files and calls in the section, each with what the page said of it before."""
    begin, end = section_of(page, title).span(1)
    said = dict(re.findall(r"^\d+\. (`[^`]+`): (.*)$", page[:begin], re.M))
    said.update(re.findall(r"^\d+\. (`[^`]+`): (.*)$", page, re.M))
    said.update(re.findall(r"^\d+\. (`[^`]+`): (.*)$", page[begin:end], re.M))
    why = {(a, b): c for a, b, c in re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*) \|$", page, re.M)}
    intro = re.split(r"^(?:\d+\. `|\| from \|)", page[begin:end], maxsplit=1, flags=re.M)[0].strip()
    files = [f"{i + 1}. `{f}`: {said.get(f'`{f}`', 'TODO')}" for i, f in enumerate(walk.files)]
    calls = [f"| `{a}` | `{b}` | {why.get((a, b), 'TODO')} |" for a, b in walk.calls()]
    table = ["| from | to | why through a pointer |", "|---|---|---|", *calls]
    return page[:begin] + "\n" + "\n\n".join([intro, "\n".join(files), "\n".join(table)]) + "\n\n" + page[end:].lstrip("\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--build", type=os.path.realpath, required=True, help="with -O0 -g -finstrument-functions")
    ap.add_argument("--source", type=os.path.realpath, required=True)
    ap.add_argument("--trace", type=os.path.realpath, required=True, help="trace.c as a library")
    ap.add_argument("--page", type=pathlib.Path, help="docs/walk.md: compared with what is found")
    ap.add_argument("--write", action="store_true", help="writes the lists into the page; what is new says TODO")
    ap.add_argument("--submit", default="eni_host_submit")
    ap.add_argument("--finish", default="eni_host_finish")
    ap.add_argument("--server", default="eni_store_step", help="psd's threads that enter it are on the way")
    args = ap.parse_args()
    push, _ = run("push", args)
    bucket, step = run("bucket", args)
    for each in bucket.files:
        step.files.pop(each, None)
    for each in bucket.pointers:
        step.pointers.pop(each, None)
    wrong = []
    for title, walk in ((PUSH, push), (BUCKET, bucket), (STEP, step)):
        walk.print(title)
        if args.write:
            args.page.write_text(written(walk, title, args.page.read_text()))
        if args.page:
            wrong += check_page(walk, title, args.page.read_text())
    for line in wrong:
        print(f"docs/walk.md: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
