#!/usr/bin/env python3
"""What `entrain predict` takes for the test set of Fashion-MNIST, 10,000 images, from the start of its processes to the end of
the last: a program of N processes with a thread each.

    predict.py --build=build --model=resnet18 -n 2

One JSON object. The weights are those after one step; which they are makes no difference.
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
args = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    saved, model = f"{folder}/weights.safetensors", f"--model={args.model}"
    subprocess.run([f"{args.build}/entrain", "run", "--strategy=solo", model, "--steps=1", "--limit-test-samples=1",
                    f"--save={saved}", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    said = subprocess.run([f"{args.build}/entrain", "predict", f"--init={saved}", model, "-n", str(args.n)], check=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True).stderr
seconds, per_second = re.search(r"Time elapsed: ([\d.]+) s, (\d+) samples/s", said).groups()
print(json.dumps({"model": args.model, "processes": args.n, "seconds": float(seconds), "samples_s": int(per_second)}))
