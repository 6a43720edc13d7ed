#!/usr/bin/env python3
"""run.py - `make bench`: every figure compared with its peer and its limit, in one run.

    bench/run.py --build=build                      all, about ten minutes; bench/RESULTS.md and bench/RESULTS.json
    bench/run.py --list                             the experiments, their programs and rows
    bench/run.py --only=convnet --repeat=1          some experiments (a regular expression), once
    bench/run.py --torch=VENV/bin/python3           a second column: the PyTorch of another Python
    bench/run.py --ps-lite=PROGRAM                  built by you from bench/peers/pushpull_pslite.cc
    bench/run.py --mxnet=VENV/bin/python3           the Python of an environment with MXNet

rows.py has the measurements; bench/README.md explains the figures. A peer that is not installed is skipped, and its row
says why. A program that fails or exceeds its deadline fails its rows; the others go on, and the exit code is 1.
Only Python's standard library is needed.
"""
import argparse
import collections
import datetime
import functools
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import report
import rows

HERE = pathlib.Path(__file__).resolve().parent


class Tools:
    """The paths of programs, and the installed peers. A command is a list; a text says why it is missing."""

    def __init__(self, args, scratch):
        self.build, self.scratch, self.args = args.build, scratch, args
        self.names = {scratch: "SCRATCH", args.ps_lite: "PSLITE"}
        self.names.update({python: "PYTHON" for python in args.torch + [args.mxnet]})
        self.commands = {"mpi": self.find_mpi(), "gloo": self.find_gloo(args.python),
                         "pslite": self.find_pslite(args.ps_lite), "mxnet": self.find_mxnet(args.mxnet),
                         "torchvision": self.find_images(args.python, "torchvision", "augment"),
                         "Pillow": self.find_images(args.python, "PIL", "resize")}
        for name, script in (("pipelining", "peers/torch_pipeline.py"), ("program", "program.py")):
            self.commands[name] = self.find_torch(
                [args.python] + args.torch, "torch.distributed.pipelining, torchvision", script,
                "torch.distributed.pipelining: torch 2.4 or later and torchvision (--torch=VENV/bin/python3)")
        self.commands["torchrun"] = self.find_torch(args.torch + [args.python], "torch.distributed.launcher.api",
                                                    "peers/torch_elastic.py", "torchrun: torch 1.9 or later (--torch=VENV/bin/python3)")
        self.torches = []
        for i, python in enumerate([args.python] + args.torch):
            self.add_torch(python, i > 0)

    def bench(self, name):
        return f"{self.build}/bench/bench_{name}"

    def here(self, name):
        return f"bench/{name}"

    def command(self, name, processes, words):
        """The command of a peer for this number of processes; or why it is missing."""
        command = self.commands[name]
        if isinstance(command, str):
            return command
        if name == "mpi":
            return command[:-1] + ["-n", processes, command[-1]] + words
        if name == "gloo":
            return command + [f"--ranks={processes}"] + words
        if name in ("pipelining", "program", "torchrun"):  # two, unless the words say otherwise
            return command + words
        return command + [f"--workers={processes}"] + words

    def can_compile(self, name):
        """Whether a PyTorch has a torch.compile worth waiting for: 2 and later, with a C++ compiler beside it."""
        return re.match(r"PyTorch ([2-9]|\d\d)", name) and shutil.which("c++")

    def between_hosts(self, hosts, command):
        """The command with its ranks in network namespaces; or why that is not possible."""
        if isinstance(command, str):
            return command
        if os.geteuid() != 0 or not shutil.which("ip"):
            return "network namespaces as hosts (they need root and iproute2)"
        line = " ".join(shlex.quote(str(word)) for word in command) + " --hosts=$HOSTS"
        return ["bench/namespaces.sh", str(hosts), "sh", "-c", line]

    def has_avx512(self):
        """Whether checksums use AVX-512 (core/crc32c.c)."""
        found = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
        return bool(found) and {"avx512f", "vpclmulqdq"} <= set(found.group(1).split())

    def has_bf16(self):
        """Whether the CPU has --precision=bf16."""
        return " avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text()

    def find_mpi(self):
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            return "Open MPI (Debian: libopenmpi-dev openmpi-bin)"
        program = f"{self.scratch}/allreduce_mpi"
        made = subprocess.run(["mpicc", "-O2", "-o", program, "bench/peers/allreduce_mpi.c"], capture_output=True)
        if made.returncode != 0:
            return "Open MPI: mpicc cannot compile bench/peers/allreduce_mpi.c"
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun"] + as_root + ["--oversubscribe", program]

    def public(self, text):
        """Replaces this machine's paths: RESULTS.md is public."""
        for path, name in self.names.items():
            text = text.replace(path, name) if path else text
        return text

    @functools.cache
    def has(self, python, module):
        try:
            return subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=60).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def find_gloo(self, python):
        if not self.has(python, "torch.distributed"):
            return f"Gloo: {python} has no torch (Debian: python3-torch; --python=PATH picks another)"
        return [python, "bench/peers/allreduce_gloo.py"]

    def find_pslite(self, program):
        if not program:
            return "ps-lite (give --ps-lite=PATH; bench/README.md says which program)"
        if not os.access(program, os.X_OK):
            return f"ps-lite: {program} is not a program"
        return ["bench/peers/pushpull_pslite.py", f"--program={program}"]

    def find_mxnet(self, python):
        if not python:
            return "MXNet (give --mxnet=PYTHON; bench/README.md says which)"
        if not self.has(python, "mxnet"):
            return f"MXNet: {python} has no mxnet (bench/README.md says how to get it)"
        return [python, "bench/peers/pushpull_mxnet.py"]

    def find_images(self, python, module, what):
        if not self.has(python, module):
            return f"{module}: {python} lacks it (--python=PATH picks another)"
        return [python, "bench/peers/torch_images.py", f"--what={what}"]

    def find_torch(self, pythons, modules, script, why):
        for python in pythons:
            if self.has(python, modules):
                return [python, f"bench/{script}"]
        return why

    def torch_of(self, name):
        """The PyTorch by which this peer runs, as the rows name it."""
        python = self.commands[name][0]
        return next((torch for torch in self.torches if self.commands[torch][0] == python), "PyTorch")

    def add_torch(self, python, is_second):
        script = "import torch; print(torch.__version__)"
        name, command = "PyTorch", f"PyTorch: {python} lacks it (Debian: python3-torch; --python=PATH picks another)"
        try:
            said = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60)
            if said.returncode == 0:
                name = "PyTorch " + said.stdout.strip().split("+")[0]
                command = [python, "bench/peers/torch_train.py"]
        except (OSError, subprocess.TimeoutExpired):
            pass
        if name in self.commands:
            name += f" of {python}"
        self.commands[name] = command
        self.torches.append(name)


# ---- programs ----


def end_group(child):
    """Ends the remaining processes of the program: first with SIGTERM, so that it can remove its files."""
    for how, timeout_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(child.pid, how)
            child.wait(timeout=timeout_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            pass


def run_program(command, deadline_s):
    """(objects, why it failed). The program and its children have ended when this returns."""
    env = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                     text=True, env=env, start_new_session=True)
        except OSError as error:
            return [], str(error)
        try:
            code = child.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return [], f"did not end within {deadline_s} s"
        finally:
            end_group(child)
        out.seek(0), err.seek(0)
        if code != 0:
            return [], f"exit code {code}: {last_line(err.read())}"
        objects = [json.loads(line) for line in out if line.startswith("{")]
    return objects, None if objects else "it printed no figures"


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no message"


def take(pick, objects):
    """The number that `pick` selects; None: no line has it."""
    found = [o[pick.key] - (o.get(pick.minus, 0) if pick.minus else 0) for o in objects
             if pick.key in o and all(o.get(k) == v for k, v in pick.where.items())]
    return {"max": max, "min": min, "sum": sum}[pick.how](found) * pick.scale if found else None


# ---- one experiment ----


def used_programs(experiment):
    """The programs that rows need, in the experiment's order."""
    picks = [p for row in experiment.rows for p in (row.ours, row.beside) if p]
    return {key: c for key, c in experiment.programs.items() if any(p.program == key for p in picks)}


def run_experiment(experiment, repeat, say):
    """Runs all programs, interleaved. (outputs of each repetition by program, failures, reasons for skipping)"""
    programs = used_programs(experiment)
    skipped = {key: c for key, c in programs.items() if isinstance(c, str)}
    failed, outputs = {}, collections.defaultdict(list)
    for turn in range(repeat):
        for key, command in programs.items():
            if key in skipped or key in failed:
                continue
            objects, why = run_program(command, experiment.deadline_s)
            if why:
                failed[key] = why
                say(f"  {key} failed: {why}")
            outputs[key].append(objects)
    return outputs, failed, skipped


def ratio_of(row, ours, beside):
    over, under = (beside, ours) if row.is_time and row.at_most is None else (ours, beside)
    return over / under if under else float("inf")


def verdict_of(row, value):
    if row.at_least is not None:
        return "met" if value >= row.at_least else "missed"
    if row.at_most is not None:
        return "met" if value <= row.at_most else "missed"
    return "reported"


def figure(pick, values):
    return {"program": pick.program, "key": pick.key, "where": pick.where, "values": values, "median": statistics.median(values)}


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "values": values}


def finish_row(row, experiment, outputs, failed, skipped):
    """A row of RESULTS.json."""
    result = {"experiment": experiment.name, "figure": row.figure, "unit": row.unit, "beside": row.label,
              "target": row.target, "at_least": row.at_least, "at_most": row.at_most}
    picks = [p for p in (row.ours, row.beside) if p]
    for p in picks:
        if p.program in skipped:
            return dict(result, verdict="skipped", why=skipped[p.program])
        if p.program in failed:
            return dict(result, verdict="failed", why=f"{p.program}: {failed[p.program]}")
    taken = [[take(p, objects) for objects in outputs[p.program]] for p in picks]
    if any(value is None for values in taken for value in values):
        return dict(result, verdict="failed", why="the program's output lacks this figure")
    result["ours"] = figure(row.ours, taken[0])
    if row.beside:
        result["other"] = figure(row.beside, taken[1])
        result["ratio"] = spread([ratio_of(row, a, b) for a, b in zip(*taken)])
    return dict(result, verdict=verdict_of(row, result["ratio"]["median"] if row.beside else result["ours"]["median"]))


# ---- the machine ----


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def describe_machine(args):
    cache = pathlib.Path(args.build, "CMakeCache.txt")
    compiler = re.search(r"^CMAKE_C_COMPILER:[^=]*=(.*)$", cache.read_text(), re.M) if cache.exists() else None
    packages = ["libzmq5", "libdnnl2", "libdnnl3", "libopenmpi3", "python3-torch", "libgloo0"]
    return {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "kernel": platform.release(), "system": (output_of("lsb_release", "-ds") or os_release()),
            "compiler": output_of(compiler.group(1), "--version").split("\n")[0] if compiler else "unknown",
            "load_before": round(os.getloadavg()[0], 2), "program": output_of(f"{args.build}/entrain", "--version"),
            "packages": dict(line.split(" ", 1) for line in
                             output_of("dpkg-query", "-W", "-f=${Package} ${Version}\n", *packages).splitlines() if " " in line)}


def os_release():
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', pathlib.Path("/etc/os-release").read_text(), re.M)
    return found.group(1) if found else "Linux"


# ---- the whole run ----


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build", help="the build folder [build]")
    p.add_argument("--repeat", type=int, default=5, help="turns of every experiment [5]")
    p.add_argument("--quick", action="store_true", help="one turn, to check that everything runs")
    p.add_argument("--only", default="", metavar="PATTERN", help="experiments whose name matches")
    p.add_argument("--list", action="store_true", help="list the experiments without measuring")
    p.add_argument("--python", default="/usr/bin/python3", help="the Python whose torch is the peer [/usr/bin/python3]")
    p.add_argument("--torch", action="append", default=[], metavar="PYTHON", help="another one, in addition")
    p.add_argument("--ps-lite", default="", metavar="PROGRAM", help="see bench/README.md")
    p.add_argument("--mxnet", default="", metavar="PYTHON", help="the Python whose mxnet is the peer; see bench/README.md")
    p.add_argument("--out", help="folder of RESULTS.md and RESULTS.json [bench; none with --only or --quick]")
    args = p.parse_args()
    if args.repeat < 1:
        p.error("--repeat must be at least 1")
    if args.quick:
        args.repeat = 1
    try:
        re.compile(args.only)
    except re.error as wrong:
        p.error(f"--only={args.only} is not a pattern: {wrong}")
    if not os.path.isfile(os.path.join(args.build, "bench", "bench_limits")):
        p.error(f"--build={args.build} has no bench/bench_limits: run make first, or give the build folder")
    if not args.out and not args.only and not args.quick:  # a part must not replace the whole
        args.out = str(HERE)
    args.out, args.build = args.out and os.path.abspath(args.out), os.path.relpath(args.build, HERE.parent)
    args.python, args.torch = shutil.which(args.python) or args.python, [shutil.which(t) or t for t in args.torch]
    args.ps_lite = os.path.abspath(args.ps_lite) if args.ps_lite else ""
    args.mxnet = args.mxnet and os.path.abspath(shutil.which(args.mxnet) or args.mxnet)
    os.chdir(HERE.parent)
    return args


def show_list(experiments):
    for e in experiments:
        print(f"{e.name}")
        for key, command in used_programs(e).items():
            print(f"    {key}: {'skipped: ' + command if isinstance(command, str) else ' '.join(map(str, command))}")
        for row in e.rows:
            print(f"  - {row.figure}" + (f", beside {row.label}" if row.beside else ""))


def measure(args, experiments, say):
    results, skipped = [], set()
    for e in experiments:
        begin = time.monotonic()
        say(f"{e.name} ..")
        outputs, failed, missing = run_experiment(e, args.repeat, say)
        results += [finish_row(row, e, outputs, failed, missing) for row in e.rows]
        skipped |= set(missing.values())
        say(f"  {time.monotonic() - begin:.0f} s")
    for why in sorted(skipped):
        say(f"skipped: {why}")
    return results, sorted(skipped)


def commands_of(experiments, tools):
    return {e.name: {key: tools.public(" ".join(shlex.quote(str(word)) for word in command))
                     for key, command in used_programs(e).items() if not isinstance(command, str)} for e in experiments}


def write_results(args, run):
    if not args.out:
        return
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "RESULTS.json").write_text(json.dumps(run, indent=1) + "\n")
    (out / "RESULTS.md").write_text(report.markdown(run))


def main():
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the running program is ended on the way out

    def say(text):
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="entrain-bench-") as scratch:
        tools = Tools(args, scratch)
        experiments = [e for e in rows.experiments(tools) if re.search(args.only, e.name)]
        if not experiments:
            say(f"--only={args.only}: no such experiment; --list shows all")
            return 2
        if args.list:
            show_list(experiments)
            return 0
        begin, date = time.monotonic(), datetime.datetime.now(datetime.timezone.utc)
        machine = describe_machine(args)
        results, skipped = measure(args, experiments, say)
    write_results(args, {
        "schema": 1, "command": tools.public(" ".join(["bench/run.py"] + sys.argv[1:])),
        "date": date.strftime("%Y-%m-%d %H:%M UTC"), "seconds": round(time.monotonic() - begin), "repeat": args.repeat,
        "machine": machine, "skipped": skipped, "commands": commands_of(experiments, tools), "rows": results})
    print(report.table(results))
    failed = [r for r in results if r["verdict"] == "failed"]
    for r in failed:
        say(f"failed: {r['figure']}, {r['beside']}: {r['why']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
