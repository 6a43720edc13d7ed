#!/usr/bin/env python3
"""The cost of waiting: in a run of two workers one is stopped (SIGSTOP) during training, so that the other, and psd, wait for
it. Their CPU time is read 100 ms later, and again after --seconds.

    idle.py --build=build --strategy=ps-sync

One JSON object per waiting process. The run is ended afterwards. Linux only (/proc).
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")


def stat(pid):
    """The fields of /proc/PID/stat after the name."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_ns(pid):
    """CPU time of all threads, from schedstat, which is finer than a tick."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


def children(parent):
    """(pid, name of the program) of every process that `parent` started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if int(stat(entry.name)[1]) == parent:
                found.append((int(entry.name), os.path.basename(os.readlink(entry / "exe"))))
        except OSError:
            pass  # it has ended
    return found


def wait_until_training(parent, folder, deadline):
    """The processes of the run and its two workers, when both have trained for about 0.3 s."""
    records = [pathlib.Path(folder, f"metrics-{rank}.jsonl") for rank in (0, 1)]
    begin = None  # CPU time of the workers when both were about to train
    while time.monotonic() < deadline:
        found = children(parent)
        workers = [pid for pid, name in found if name == "worker"]
        try:
            if begin is None and len(workers) == 2 and all(record.exists() for record in records):
                begin = {pid: cpu_ns(pid) for pid in workers}
            if begin and all(cpu_ns(pid) > begin[pid] + 3e8 for pid in workers):
                return found, workers
        except OSError:
            pass
        time.sleep(0.02)
    raise SystemExit("idle.py: the run did not begin to train in time")


def measure(a, parent, folder):
    found, workers = wait_until_training(parent, folder, time.monotonic() + 30)
    os.kill(workers[1], signal.SIGSTOP)
    try:
        time.sleep(0.1)
        waiting = [(pid, name) for pid, name in found if pid != workers[1]]
        begin, before = time.monotonic(), [cpu_ns(pid) for pid, _ in waiting]
        time.sleep(a.seconds)
        after, took = [cpu_ns(pid) for pid, _ in waiting], time.monotonic() - begin
    finally:
        os.kill(workers[1], signal.SIGCONT)
    for (pid, name), b, e in zip(waiting, before, after):
        print(json.dumps(dict(bench="idle", strategy=a.strategy, role=name, core_percent=round((e - b) / took / 1e7, 3))))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--strategy", default="ring")
    p.add_argument("--seconds", type=float, default=1.5)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen([f"{a.build}/entrain", "run", "-n", "2", f"--strategy={a.strategy}", "--threads=1",
                                "--data=synthetic", "--steps=1000000", "--quiet", "--log-level=error", f"--out={folder}"])
        try:
            measure(a, run.pid, folder)
        finally:
            run.terminate()
            try:
                run.wait(timeout=10)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()


if __name__ == "__main__":
    main()
