#!/usr/bin/env python3
"""What a lost worker costs: an elastic run of two workers of which one is killed once the run has saved, and which goes on
with the other. result.json says how long it took from the loss to the beginning of training, which the launcher's wait
of 0.1 s is part of.

    restart.py --build=build --strategy=ring

One JSON object. The run is ended afterwards. Linux only (/proc).
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from idle import children


def newest(folder):
    return max((path.name for path in pathlib.Path(folder, "checkpoints").glob("checkpoint-*.safetensors")), default="")


def wait_for_newer(run, folder, name):
    deadline = time.monotonic() + 60
    while newest(folder) <= name:
        if run.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("restart.py: the run did not save in time")
        time.sleep(0.01)


def is_rank(pid, rank):
    return f"--rank={rank}".encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--strategy", default="ring")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen([f"{a.build}/entrain", "run", "-n", "2", "--elastic=1..2", f"--strategy={a.strategy}",
                                "--global-batch-size=128", "--threads=1", "--epochs=100", "--checkpoint-every=3200",
                                "--quiet", "--log-level=error", f"--out={folder}"], stdout=subprocess.DEVNULL)
        try:
            wait_for_newer(run, folder, "")
            os.kill(next(pid for pid, name in children(run.pid) if name == "worker" and is_rank(pid, 1)), signal.SIGKILL)
            before = newest(folder)
            time.sleep(0.05)  # a checkpoint may be under way
            wait_for_newer(run, folder, max(before, newest(folder)))
            run.terminate()
            run.wait(timeout=10)
            restart = json.loads(pathlib.Path(folder, "result.json").read_text())["restarts"][0]
            print(json.dumps(dict(bench="restart", strategy=a.strategy, workers=restart["workers"], seconds=restart["seconds"])))
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()


if __name__ == "__main__":
    main()
