#!/usr/bin/env python3
"""The rate of `entrain predict` on the test set of Fashion-MNIST, 10,000 images, from the start of its processes to the end of
the last: N processes with a thread each. With --at-once=2 two such programs run side by side; samples per second are added.

    predict.py --build=build --model=resnet18 -n 2

One JSON object. The weights are those after one step; their values do not matter.
"""
import argparse
import json
import re
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--build", default="build")
parser.add_argument("--model", default="convnet")
parser.add_argument("-n", type=int, default=1)
parser.add_argument("--at-once", type=int, default=1)
args = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    saved, model = f"{folder}/weights.safetensors", f"--model={args.model}"
    subprocess.run([f"{args.build}/entrain", "run", "--strategy=solo", model, "--steps=1", "--limit-test-samples=1",
                    f"--save={saved}", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    programs = [subprocess.Popen([f"{args.build}/entrain", "predict", f"--init={saved}", model, "-n", str(args.n)],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(args.at_once)]
    said = [program.communicate()[1] for program in programs]
per_second = sum(int(re.search(r"Time elapsed: [\d.]+ s, (\d+) samples/s", text)[1]) for text in said)
print(json.dumps({"model": args.model, "processes": args.n, "samples_s": per_second}))
