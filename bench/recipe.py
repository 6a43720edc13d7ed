#!/usr/bin/env python3
"""The time that the workers of a recipe wait for their next batch, as a share of their steps: `entrain run --config=..` for
--steps steps, on random bytes in files of CIFAR-10's size.

    recipe.py --build=build --recipe=resnet18-cifar10-32 --steps=20

One JSON object.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--build", default="build")
parser.add_argument("--recipe", default="resnet18-cifar10-32")
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()

with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top)
    (folder / "set-name.txt").write_text("random-bytes\n")
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        records = bytearray(os.urandom(3073 * 10000))
        records[::3073] = bytes(i % 10 for i in range(10000))
        (folder / name).write_bytes(records)
    recipe = pathlib.Path(__file__).parents[1] / f"examples/recipes/{args.recipe}.yaml"
    subprocess.run([f"{args.build}/entrain", "run", f"--config={recipe}", f"--data-dir={folder}", f"--out={folder}/out", "--quiet",
                    f"--steps={args.steps}", "--no-eval-first", "--limit-test-samples=64"], check=True, stdout=subprocess.DEVNULL)
    result = json.loads((folder / "out/result.json").read_text())
waited, steps = (sum(role.get(key, 0) for role in result["roles"]) for key in ("data_ns", "step_ns"))
print(json.dumps({"recipe": args.recipe, "percent": 100 * waited / steps, "step_ms": steps * 1e-6 / args.steps / result["workers"]}))
