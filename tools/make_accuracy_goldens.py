#!/usr/bin/env python3
"""Makes tests/goldens/accuracy.json: PyTorch's accuracy on the jobs of tests/system/test_accuracy.c.

    tools/make_accuracy_goldens.py --entrain build/entrain --out tests/goldens/accuracy.json
    tools/make_accuracy_goldens.py --entrain build/entrain --check tests/goldens/accuracy.json

The first writes a new one (some minutes), with --only=JOB that job; the second trains again and exits with 1 on drift.
Needs torch, numpy and safetensors, and Fashion-MNIST's IDX files (Debian: dataset-fashion-mnist); --only=photographs needs
--photographs=FOLDER of `make_cifar.py --photos FOLDER` instead.

Two jobs are one epoch of the convnet over Fashion-MNIST, then the accuracy on all 10,000 test images:
  sync     one process, the global batch of two workers: 128 samples, lr 0.02, momentum 0.5, as ring and ps-sync
           with W = 2.
  delayed  one process, the micro-batches of two workers one after the other (64 samples), lr 0.01, momentum
           0.5, every gradient computed on the weights of W-1 = 1 updates ago: ps-async with two even workers,
           without its randomness.
Two more, for `make soak`:
  resnet18 one process, resnet18:width=8, two epochs of the first 20,000 images in batches of 64, the rate from 0.05
           along a cosine to 0, momentum 0.9; evaluated with the running statistics.
  photographs  the same with resnet18:width=8,stem=cifar on patches of ten photographs: which one is it from?
After one epoch the accuracy differs by two points from one initialisation to the next, so both sides start
from the same weights (entrain --lr=0 --save) and take the samples in the same order (data/plan.c, written
once more below). Their hashes are in the file, and the test asserts that it ran from the same.
"""
import argparse
import collections
import hashlib
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy
import safetensors
import torch

from make_goldens import Convnet, MEAN, Resnet18, Resnet18Cifar, STD, read_idx

SEEDS, WORKERS = tuple(range(1, 10)), 2
JOBS = {"sync": {"batch": 128, "lr": 0.02, "momentum": 0.5, "delay": 0},
        "delayed": {"batch": 64, "lr": 0.01, "momentum": 0.5, "delay": 1}}
RESNET = {"model": "resnet18:width=8", "seeds": [1, 2, 3, 4, 5], "samples": 20000, "epochs": 2, "batch": 64,
          "lr": 0.05, "momentum": 0.9}
PHOTOGRAPHS = RESNET | {"model": "resnet18:width=8,stem=cifar", "seeds": [1, 2, 3], "samples": 15000}
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
TOLERANCE = 0.005  # of --check, on the medians
U32, U64 = 2**32 - 1, 2**64 - 1
RNG_ORDER = 2  # core/rng.h


def fold(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & U64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & U64
    return x ^ x >> 31


def philox(seed, epoch, index, lane):
    """Philox 4x32-10 (Salmon et al. 2011), as core/rng.c keys it."""
    key = fold((seed + 0x9E3779B97F4A7C15 * RNG_ORDER) & U64) ^ lane << 32
    c, k0, k1 = [index & U32, index >> 32, epoch & U32, epoch >> 32], key & U32, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & U32, a >> 32 ^ c[3] ^ k1, a & U32]
        k0, k1 = k0 + 0x9E3779B9 & U32, k1 + 0xBB67AE85 & U32
    return c[1] << 32 | c[0]


def below(seed, epoch, index, bound):
    lane = 1
    while True:
        product = philox(seed, epoch, index, lane) * bound
        if product & U64 >= bound or product & U64 >= (2**64 - bound) % bound:
            return product >> 64
        lane += 1


def sample_order(seed, count, epoch=0):
    order = numpy.arange(count, dtype="<u4")
    for i in range(count - 1, 0, -1):
        j = below(seed, epoch, i, i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def initial_weights(entrain, seed, model, names, data="fashion-mnist"):
    """The initial weights, kept by a rate of zero, without running statistics. In the file's order, which is also that
    of the hash."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/init.safetensors"
        subprocess.run([entrain, "run", "-n", "1", "--strategy=solo", "--lr=0", "--steps=1", f"--seed={seed}",
                        f"--model={model}", f"--data={data}", "--limit-train-samples=64", "--limit-test-samples=1",
                        "--quiet", f"--save={path}"], check=True)
        with safetensors.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.offset_keys() if name in names}


def weights_sha256(state):
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest()


def names_of(network):
    return [name for name, _ in network().named_parameters()]


def load_split(folder, prefix):
    pixels = torch.from_numpy(read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 16).copy())
    labels = torch.from_numpy(read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 8).copy())
    return (pixels.reshape(-1, 1, 28, 28).float() / 255 - MEAN) / STD, labels.long()


def load_cifar(folder, names):
    """Records of a label and three planes of 32 x 32."""
    records = numpy.concatenate([numpy.fromfile(folder / name, numpy.uint8) for name in names]).reshape(-1, 3073)
    pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()).float() / 255
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (CIFAR_MEAN, CIFAR_STD))
    return (pixels - mean) / std, torch.from_numpy(records[:, 0].copy()).long()


def accuracy(model, x, target):
    right = 0
    model.eval()
    with torch.no_grad():
        for begin in range(0, len(x), 1000):
            outputs = model.outputs(x[begin:begin + 1000])
            right += int((outputs.argmax(1) == target[begin:begin + 1000]).sum())
    return right / len(x)


def train(start, batches, train_set, lr, momentum, delay):
    """`model` has the newest weights; `stale` has those of an older version, for its gradient."""
    model, stale = Convnet(), Convnet()
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    history = collections.deque(maxlen=delay + 1)  # history[0]: the version of `delay` updates ago
    for picked in batches:
        history.append([p.detach().clone() for p in model.parameters()])
        with torch.no_grad():
            for p, old in zip(stale.parameters(), history[0]):
                p.copy_(old)
        loss = stale.loss(train_set[0][picked], train_set[1][picked])
        for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(stale.parameters()))):
            p.grad = gradient
        optimizer.step()
    return model


def cut(order, batch):
    """Steps of WORKERS * 64 samples; worker r has every WORKERS-th, and the micro-batches follow each other."""
    order = torch.from_numpy(order.astype(numpy.int64))
    if batch == 128:
        return order.split(128)
    return [step[r::WORKERS] for step in order.split(batch * WORKERS) for r in range(WORKERS)]


def train_resnet(job, model, start, order, train_set):
    """`order`: positions of all epochs, each (samples)."""
    total, done = job["samples"] * job["epochs"], 0
    model.load_state_dict(model.state_dict() | start)
    optimizer = torch.optim.SGD(model.parameters(), lr=job["lr"], momentum=job["momentum"])
    for epoch in order:
        for picked in torch.from_numpy(epoch.astype(numpy.int64)).split(job["batch"]):
            optimizer.param_groups[0]["lr"] = job["lr"] * 0.5 * (1 + math.cos(math.pi * done / total))
            optimizer.zero_grad()
            model.loss(train_set[0][picked], train_set[1][picked]).backward()
            optimizer.step()
            done += len(picked)
    return model


def compute_resnet(entrain, job, network, data, train_set, test_set):
    result = dict(job, torch=torch.__version__, init_sha256=[], order_sha256=[], accuracy=[])
    for seed in job["seeds"]:
        start = initial_weights(entrain, seed, job["model"], names_of(network), data)
        order = [sample_order(seed, job["samples"], epoch) for epoch in range(job["epochs"])]
        result["init_sha256"].append(weights_sha256(start))
        result["order_sha256"].append(hashlib.sha256(b"".join(epoch.tobytes() for epoch in order)).hexdigest())
        result["accuracy"].append(accuracy(train_resnet(job, network(), start, order, train_set), *test_set))
        print(f"{job['model']} seed {seed}: {result['accuracy'][-1]:.4f}", file=sys.stderr, flush=True)
    return result


def compute_photographs(entrain, folder):
    train_set = load_cifar(folder, [f"data_batch_{i}.bin" for i in range(1, 6)])
    with tempfile.TemporaryDirectory() as out:  # the program's hash of these pixels
        subprocess.run([entrain, "run", "-n", "1", "--strategy=solo", "--steps=1", f"--data={folder}",
                        "--model=resnet18:width=8", f"--limit-train-samples={PHOTOGRAPHS['samples']}", "--quiet", f"--out={out}/run"], check=True)
        pixels = json.loads(pathlib.Path(f"{out}/run/result.json").read_text())["data_sha256"]
    return {"photographs": {"data_sha256": pixels, **compute_resnet(
        entrain, PHOTOGRAPHS, Resnet18Cifar, folder, train_set, load_cifar(folder, ["test_batch.bin"]))}}


def compute(entrain, folder, only):
    train_set, test_set = load_split(folder, "train"), load_split(folder, "t10k")
    resnet = {}
    if only != "convnet":
        resnet = {"resnet18": compute_resnet(entrain, RESNET, Resnet18, "fashion-mnist", train_set, test_set)}
    return resnet | (compute_convnet(entrain, train_set, test_set) if only != "resnet18" else {})


def compute_convnet(entrain, train_set, test_set):
    starts = {seed: initial_weights(entrain, seed, "convnet", names_of(Convnet)) for seed in SEEDS}
    orders = {seed: sample_order(seed, len(train_set[0])) for seed in SEEDS}
    jobs = {}
    for name, job in JOBS.items():
        scores = []
        for seed in SEEDS:
            rest = {key: value for key, value in job.items() if key != "batch"}
            model = train(starts[seed], cut(orders[seed], job["batch"]), train_set, **rest)
            scores.append(accuracy(model, *test_set))
            print(f"{name} seed {seed}: {scores[-1]:.4f}", file=sys.stderr, flush=True)
        jobs[name] = {**job, "accuracy": scores, "median": statistics.median(scores),
                      "spread": round(max(scores) - min(scores), 4)}
    return {"torch": torch.__version__, "data": "fashion-mnist", "epochs": 1, "seeds": list(SEEDS),
            "init_sha256": [weights_sha256(starts[seed]) for seed in SEEDS],
            "order_sha256": [hashlib.sha256(orders[seed].tobytes()).hexdigest() for seed in SEEDS], **jobs}


def check(path, new):
    old, worst = json.loads(path.read_text()), 0
    for name in (*JOBS, "resnet18", "photographs"):
        if name not in new:
            continue
        then, now = (statistics.median(facts[name]["accuracy"]) for facts in (old, new))
        gap = abs(then - now)
        print(f"{name}: median {then:.4f} in the file, {now:.4f} now")
        worst = max(worst, gap)
    return 0 if worst <= TOLERANCE else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    parser.add_argument("--only", choices=("convnet", "resnet18", "photographs"), help="the others stay")
    parser.add_argument("--photographs", type=pathlib.Path, help="the folder of make_cifar.py --photos")
    parser.add_argument("--entrain", required=True, help="the program, which provides the initial weights")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    arguments = parser.parse_args()
    if (arguments.out is None) == (arguments.check is None):
        parser.error("give --out FILE or --check FILE")
    if arguments.only == "photographs":
        result = compute_photographs(arguments.entrain, arguments.photographs)
    else:
        result = compute(arguments.entrain, arguments.data, arguments.only)
    if arguments.check:
        return check(arguments.check, result)
    if arguments.only or "photographs" not in result:
        result = json.loads(arguments.out.read_text()) | result
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
