#!/usr/bin/env python3
"""The cost of a lost worker: in an elastic run of two workers one is killed once the run has saved, and the run continues
with the other. result.json has the time from the loss to the start of training, including the launcher's wait of 0.1 s;
`since_kill_s` is the time from the kill. With --elastic=2..2 the run continues with two.

    restart.py --build=build --strategy=ring

One JSON object. Linux only (/proc).
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


def wait_for_checkpoint(run, folder):
    deadline = time.monotonic() + 60
    while not any(pathlib.Path(folder, "checkpoints").glob("checkpoint-*.safetensors")):
        if run.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("restart.py: the run did not save in time")
        time.sleep(0.01)


def is_rank(pid, rank):
    return f"--rank={rank}".encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--strategy", default="ring")
    p.add_argument("--elastic", default="1..2")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen([f"{a.build}/entrain", "run", "-n", "2", f"--elastic={a.elastic}", f"--strategy={a.strategy}",
                                "--global-batch-size=128", "--threads=1", "--max-samples=25600", "--checkpoint-every=3200",
                                "--limit-test-samples=100", "--quiet", "--log-level=error", f"--out={folder}"], stdout=subprocess.DEVNULL)
        try:
            wait_for_checkpoint(run, folder)
            victim = next(pid for pid, name in children(run.pid) if name == "worker" and is_rank(pid, 1))
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            run.wait(timeout=60)
            result = json.loads(pathlib.Path(folder, "result.json").read_text())
            restart = result["restarts"][0]
            print(json.dumps(dict(bench="restart", strategy=a.strategy, workers=restart["workers"], seconds=restart["seconds"],
                                  since_kill_s=round(result["clock"]["begin_ns"] * 1e-9 - killed, 3))))
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()


if __name__ == "__main__":
    main()
