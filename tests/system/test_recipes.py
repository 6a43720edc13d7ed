#!/usr/bin/env python3
"""The recipes of examples/recipes: each value is that of its source, and 20 steps of each run.

    test_recipes.py BUILD

The images are random bytes in CIFAR-10's files, all 60,000 of them. Two cores do not take 20 steps of 512 images of 224 x 224
pixels in a test's time, so flags cut what a step costs (--batch-size, the width of the network, the number of test images)
and nothing else of the recipe.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

# Promise: A recipe of examples/recipes has the values of its source, and runs.

BUILD = pathlib.Path(sys.argv[1]).resolve()
RECIPES = pathlib.Path(__file__).resolve().parents[2] / "examples/recipes"

# What the sources of the recipes have, in their own terms; and in ours.
A = {"input": "Resize(224), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))", "classes": 10, "lr": 0.02, "momentum": 0.9,
     "nesterov": True, "weight_decay": 1e-4, "batch": 256, "epochs": 5, "set_epoch": True, "num_workers": 4}
B = {"input": "RandomCrop(32, padding=4), RandomHorizontalFlip(), Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))",
     "classes": 10, "lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 1e-5, "batch": 256, "epochs": 10000,
     "set_epoch": True, "test_input": "Normalize", "test_batch": 128, "test_every": 10, "num_workers": 8, "seed": 0,
     "deterministic": True}
PRINTED = dict(B, classes=1000, set_epoch=False, test_input=B["input"])
SGD = {"strategy": "ring", "workers": "2", "optimizer": "sgd", "nesterov": "off", "weight-decay": 0, "lr-schedule": "constant"}
MNIST = dict(SGD, data="fashion-mnist", model="convnet", normalize="0.1307:0.3081", lr=0.01, momentum=0.5, epochs=9, shuffle="on",
             reshuffle="on", seed=1) | {"batch-size": 64, "eval-batch-size": 1000, "eval-first": "off", "eval-every": "1epochs"}
TOY = dict(SGD, data="synthetic", model="toy", lr=0.001, momentum=0, steps=1) | {"batch-size": 20}
IN_OUR_WORDS = {"mnist": MNIST, "toy": TOY}
SOURCES = {"resnet18-cifar10-224": A, "resnet18-cifar10-32": B, "resnet18-cifar10-32-as-printed": PRINTED}
CUTS = {"resnet18-cifar10-224": ["--model=resnet18:stem=imagenet,classes=10,width=8", "--batch-size=4"],
        "resnet18-cifar10-32": ["--batch-size=16"],
        "resnet18-cifar10-32-as-printed": ["--batch-size=16"]}


def switch(on):
    return "on" if on else "off"


def expected(source):
    """The recipe that this source asks for, key by key."""
    keys = {"strategy": "ring", "workers": "2", "data": "cifar10", "data-dir": "cifar-10-batches-bin", "optimizer": "sgd",
            "model": f"resnet18:stem=imagenet,classes={source['classes']}", "lr": source["lr"], "momentum": source["momentum"],
            "nesterov": switch(source["nesterov"]), "weight-decay": source["weight_decay"], "lr-schedule": "constant",
            "batch-size": source["batch"], "epochs": source["epochs"], "shuffle": "on", "reshuffle": switch(source["set_epoch"])}
    numbers = source["input"].split("Normalize(")[1].replace(" ", "").strip("()").split("),(")
    keys["normalize"] = ":".join(numbers)
    if "Resize(224)" in source["input"]:
        keys["resize"] = 224
    if "RandomCrop(32, padding=4), RandomHorizontalFlip()" in source["input"]:
        keys["augment"] = "crop:32:4,flip"
    if "test_every" in source:
        keys |= {"augment-test": switch("RandomCrop" in source["test_input"]), "eval-batch-size": source["test_batch"],
                 "eval-first": "on", "eval-every": f"{source['test_every']}epochs",
                 "checkpoint-every": f"{source['test_every']}epochs"}
    if "num_workers" in source:
        keys["loader-threads"] = source["num_workers"]
    if "seed" in source:
        keys |= {"seed": source["seed"], "deterministic": switch(source["deterministic"])}
    return keys


def read(name):
    lines = [line for line in (RECIPES / f"{name}.yaml").read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.split(": ", 1) for line in lines]
    assert len(dict(pairs)) == len(pairs), f"{name}: a key stands there twice"
    return dict(pairs)


def compare(name, due):
    found = read(name)
    assert found.pop("out", name) == name
    assert found.keys() == due.keys(), f"{name}: {found.keys() ^ due.keys()}"
    for key, value in due.items():
        same = float(found[key]) == value if isinstance(value, float) else found[key] == str(value)
        assert same, f"{name}: {key} is {found[key]}, in its source {value}"
    return len(due)


def train_small(name, here):
    """On made-up images: a point of the curve after each epoch."""
    out = here / name
    command = [BUILD / "entrain", "run", f"--config={RECIPES / name}.yaml", f"--out={out}", "--data=synthetic", "--quiet",
               "--limit-train-samples=256", "--limit-test-samples=64"]
    p = subprocess.run([str(word) for word in command], cwd=here, capture_output=True, text=True, timeout=600)
    assert p.returncode == 0, f"{name}: {p.stdout}{p.stderr}"
    points = len((out / "eval.jsonl").read_text().splitlines())
    assert points == IN_OUR_WORDS[name].get("epochs", 1), f"{name}: {points} points"


def make_set(folder):
    """Ten labels and random pixels; named for what they are."""
    dice = random.Random(1)
    folder.mkdir()
    (folder / "set-name.txt").write_text("random-bytes\n")
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        records = bytearray(dice.randbytes(3073 * 10000))
        records[::3073] = bytes(dice.randrange(10) for _ in range(10000))
        (folder / name).write_bytes(records)


def train(name, here):
    out = here / name
    command = [BUILD / "entrain", "run", f"--config={RECIPES / name}.yaml", f"--out={out}", "--steps=20", "--quiet", f"--save={out / 'weights'}",
               "--limit-test-samples=64"] + CUTS[name]
    p = subprocess.run([str(word) for word in command], cwd=here, capture_output=True, text=True, timeout=600)
    assert p.returncode == 0, f"{name}: {p.stdout}{p.stderr}"
    result = json.loads((out / "result.json").read_text())
    points = [json.loads(line) for line in (out / "eval.jsonl").read_text().splitlines()]
    assert result["steps"] == 20 and result["data"] == "random-bytes", result["data"]
    if "test_every" in SOURCES[name]:
        assert points[0]["samples"] == 0 and len(points) == 2, points # before the first epoch, and the end
    predict(here, name, out)
    return result["train_seconds"]


def predict(here, name, out):
    """The recipe is a configuration of predict, too; labels are those of the file."""
    command = [BUILD / "entrain", "predict", f"--config={RECIPES / name}.yaml", f"--init={out / 'weights'}", "-n", "2",
               "--eval-batch-size=16", "--limit-test-samples=64"] + [cut for cut in CUTS[name] if "model" in cut]
    p = subprocess.run([str(word) for word in command], cwd=here, capture_output=True, text=True, timeout=600)
    assert p.returncode == 0, f"{name}: predict: {p.returncode}: {p.stderr}"
    labels = (here / "cifar-10-batches-bin/test_batch.bin").read_bytes()[::3073][:64]
    found = [[int(word) for word in line.split()[:2]] for line in p.stdout.splitlines()]
    assert found == [[i, label] for i, label in enumerate(labels)], f"{name}: {p.stdout}"


with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as scratch:
    here = pathlib.Path(scratch)
    due = {name: expected(source) for name, source in SOURCES.items()} | IN_OUR_WORDS
    assert due.keys() == {path.stem for path in RECIPES.glob("*.yaml")}
    values = sum(compare(name, keys) for name, keys in due.items())
    for name in IN_OUR_WORDS:
        train_small(name, here)
    make_set(here / "cifar-10-batches-bin")
    seconds = {name: train(name, here) for name in SOURCES}
    print(f"PROMISE {values} values of {len(due)} recipes are their sources', and 20 steps of each run: " +
          ", ".join(f"{s:.1f} s" for s in seconds.values()))
