#!/usr/bin/env python3
"""Starts the program of pushpull_pslite.cc in every role (one scheduler, one server, the workers), as ps-lite's own
launchers do, and adds up the workers' figures.

    pushpull_pslite.py --program=PATH --workers=2 -- ROUNDS BYTES..

One JSON object a size, of the faster of the two layouts.
"""
import argparse
import json
import os
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(a, role, env):
    return subprocess.Popen([a.program] + a.words, env=dict(env, DMLC_ROLE=role), stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--program", required=True)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("words", nargs="+", metavar="ROUNDS BYTES")
    a = p.parse_args()
    env = dict(os.environ, DMLC_NUM_SERVER="1", DMLC_NUM_WORKER=str(a.workers), DMLC_PS_ROOT_URI="127.0.0.1",
               DMLC_PS_ROOT_PORT=str(free_port()), DMLC_INTERFACE="lo")
    programs = [start(a, role, env) for role in ["scheduler", "server"] + ["worker"] * a.workers]
    said = [program.communicate()[0] for program in programs]
    if any(program.returncode != 0 for program in programs):
        sys.exit("pushpull_pslite.py: a role failed")
    sums = {}
    for line in "".join(said).splitlines():
        o = json.loads(line)
        sums.setdefault((o["bytes"], o["buckets"]), []).append(o)
    best = {}
    for (size, buckets), workers in sums.items():
        row = dict(bench="pushpull", peer="ps-lite", workers=len(workers), bytes=size, buckets=buckets,
                   median_us=max(o["median_us"] for o in workers), p99_us=max(o["p99_us"] for o in workers),
                   gb_s=round(sum(o["gb_s"] for o in workers), 4))
        if size not in best or row["gb_s"] > best[size]["gb_s"]:
            best[size] = row
    for row in best.values():
        print(json.dumps(row))


if __name__ == "__main__":
    main()
