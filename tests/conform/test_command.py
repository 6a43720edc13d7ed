#!/usr/bin/env python3
"""entrain conform: exit codes, the report for people and the one for programs. usage: test_command.py BUILD"""
import json
import re
import subprocess
import sys

# Promise: `entrain conform` ends with 0, 1 or 2, and names the first event that differs from the paper. `entrain strategies` says
# of exactly those that it can check that they are checked.

build = sys.argv[1]


def conform(*words, code):
    done = subprocess.run([f"{build}/entrain", "conform", *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


said, _ = conform("--seeds=2", code=0)
for name in ["ring", "ps-sync", "ps-async", "ssp", "grouped", "hierarchical"]:
    assert f"{name}: 2 schedules" in said, said
said, _ = conform("ssp:bound=1", "--as=ssp:bound=2", "--seeds=20", code=1)
assert "is not ssp, Ho'13" in said and "> event " in said and "the paper answers" in said, said
good, bad = (json.loads(conform("ring", "--seeds=3", "--json", code=0)[0])[0],
             json.loads(conform("ps-async", "--as=ringmaster:threshold=1", "--seeds=20", "--json", code=1)[0])[0])
assert good["agrees"] and good["schedules"] == 3 and good["decisions"] > 0 and good["largest_difference"] < 1e-6, good
assert not bad["agrees"] and "the paper drops it, delay 1 >= 1" in bad["finding"] and bad["before"] and bad["event"] > 0, bad
first, again = conform("ssp", "--seed=9", "--seeds=3", "--json", code=0), conform("ssp", "--seed=9", "--seeds=3", "--json", code=0)
assert first == again
checked = json.loads(conform("--seeds=1", "--json", code=0)[0])
listed = subprocess.run([f"{build}/entrain", "strategies"], stdout=subprocess.PIPE, text=True, check=True, timeout=100).stdout
proof = " entrain conform checks it against "
sources = {block.split()[0]: block.partition(proof)[2].strip() for block in re.split(r"\n\n(?:---- .* ----\n\n)?", listed) if proof in block}
assert sources == {of["strategy"]: of["source"] for of in checked} and len(sources) >= 15, (sources, checked)
_, said = conform("solo", code=2)
assert "solo" in said and "ringmaster" in said and "--as" in said, said
print("PROMISE entrain conform: exit 0, 1 and 2, and the event that differs")
