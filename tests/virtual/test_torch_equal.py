#!/usr/bin/env python3
"""A PyTorch network in virtual time has the losses of our own: the same initial weights, micro-batches and order of calls.

    test_torch_equal.py BUILD

Exit 77 where torch, or Fashion-MNIST, is absent.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Promise: A PyTorch mlp in virtual time has the losses of our mlp, step by step: synchronous, and asynchronous.

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
SEED, WORKERS, BATCH, STEPS, LR, MOMENTUM = 1, 8, 16, 100, 0.01, 0.5
# Messages take the same time whatever their size, since ours are padded.
COMMON = {"seed": str(SEED), "lr": str(LR), "momentum": str(MOMENTUM), "compute": "lognormal:10ms,0.7", "net": "delay:50us"}


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


try:
    import numpy
    import safetensors.torch  # noqa: F401
    import torch
except ImportError as missing:
    skip(f"{missing.name} is not installed for {sys.executable} (-DEN_PYTHON=VENV/bin/python picks another)")
if not (DATA / "train-images-idx3-ubyte.gz").exists():
    skip(f"{DATA} has no Fashion-MNIST")

os.environ["ENTRAIN_LIBRARY"] = str(BUILD / "libentrain.so")
sys.path[:0] = [str(TOP / "python"), str(TOP / "tools")]
sys.dont_write_bytecode = True
import entrain  # noqa: E402
from make_accuracy_goldens import initial_weights, load_split, names_of, sample_order  # noqa: E402
from make_goldens import Mlp  # noqa: E402


def of_ours(strategy):
    """The loss of each micro-batch, as `entrain sim --model=mlp` writes them, and the virtual seconds of the run."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([BUILD / "entrain", "sim", "--model=mlp", f"--strategy={strategy}", f"-n{WORKERS}", f"--steps={STEPS}",
                        f"--batch-size={BATCH}", "--limit-test-samples=64", f"--out={folder}/run",
                        *(f"--{key}={value}" for key, value in COMMON.items())], check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for file in pathlib.Path(folder, "run").glob("metrics-*.jsonl") for line in open(file)]
    return {line["micro_batch"]: line["loss"] for line in lines}, max(line["t"] for line in lines)


def of_torch(strategy, network, x, target):
    """The same, of PyTorch's gradients."""
    parameters, losses = list(network.parameters()), {}
    order = torch.from_numpy(sample_order(SEED, len(x)).astype("int64"))

    def grad(param, micro_batch, rank):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(numpy.array(param)), parameters)
        step, place = divmod(micro_batch, WORKERS)
        index = order[step * WORKERS * BATCH + place:(step + 1) * WORKERS * BATCH:WORKERS]
        network.zero_grad()
        loss = network.loss(x[index], target[index])
        loss.backward()
        losses[micro_batch] = loss.item()
        return torch.cat([p.grad.reshape(-1) for p in parameters]).numpy()

    start = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    run = entrain.simulate(grad, start, workers=WORKERS, strategy=strategy, steps=STEPS, batch_size=BATCH,
                           tensors=[p.numel() for p in parameters], bucket_cap=1 << 20, **COMMON)
    return losses, run.seconds


def main():
    torch.set_num_threads(1)
    x, target = load_split(DATA, "train")
    for strategy in "ring", "ps-async":
        network = Mlp()
        network.load_state_dict(initial_weights(BUILD / "entrain", SEED, "mlp", names_of(Mlp)))
        (ours, seconds), (theirs, theirs_seconds) = of_ours(strategy), of_torch(strategy, network, x, target)
        assert sorted(ours) == sorted(theirs) == list(range(STEPS * WORKERS)), "other micro-batches"
        assert abs(seconds - theirs_seconds) < 0.001, f"another course in time: {seconds} s, {theirs_seconds} s"
        steps = [[sum(losses[step * WORKERS + rank] for rank in range(WORKERS)) / WORKERS for step in range(STEPS)]
                 for losses in (ours, theirs)]
        gap = max(abs(a - b) for a, b in zip(*steps))
        print(f"PROMISE {strategy}, W = {WORKERS}: {STEPS} losses of PyTorch's mlp and of ours differ by at most {gap:.1e}; "
              f"they fall from {steps[0][0]:.3f} to {steps[0][-1]:.3f}")
        assert gap <= 1e-5 and steps[0][-1] < 0.8 * steps[0][0], (strategy, gap)


main()
