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

# Promise: A PyTorch mlp in virtual time has the losses of our mlp, point by point: synchronous, and asynchronous.

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
SEED, WORKERS, BATCH, POINTS, TESTED, LR, MOMENTUM = 1, 8, 16, 100, 1000, 0.01, 0.5
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
    """The curve of `entrain sim --model=mlp`: (samples, seconds, loss)."""
    flags = [f"--{key}={value}" for key, value in COMMON.items()]
    said = subprocess.run([BUILD / "entrain", "sim", "--model=mlp", f"--strategy={strategy}", f"-n{WORKERS}", f"--steps={POINTS}",
                           f"--batch-size={BATCH}", f"--eval-every={WORKERS * BATCH}", f"--limit-test-samples={TESTED}", "--json",
                           *flags], check=True, stdout=subprocess.PIPE).stdout
    return [point[:3] for point in json.loads(said)["curve"]]


def of_torch(strategy, network, train, test):
    """The same, of PyTorch's gradients."""
    parameters = list(network.parameters())
    order = torch.from_numpy(sample_order(SEED, len(train[0])).astype("int64"))

    def put(param):
        torch.nn.utils.vector_to_parameters(torch.from_numpy(numpy.array(param)), parameters)

    def grad(param, micro_batch, rank):
        put(param)
        step, place = divmod(micro_batch, WORKERS)
        index = order[step * WORKERS * BATCH + place:(step + 1) * WORKERS * BATCH:WORKERS]
        network.zero_grad()
        network.loss(train[0][index], train[1][index]).backward()
        return torch.cat([p.grad.reshape(-1) for p in parameters]).numpy()

    def loss(param):
        put(param)
        with torch.no_grad():
            return network.loss(test[0][:TESTED], test[1][:TESTED]).item()

    start = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    run = entrain.simulate(grad, start, workers=WORKERS, strategy=strategy, steps=POINTS, batch_size=BATCH,
                           tensors=[p.numel() for p in parameters], bucket_cap=1 << 20, eval=loss, eval_every=WORKERS * BATCH, **COMMON)
    return list(run.curve)


def main():
    torch.set_num_threads(1)
    train, test = load_split(DATA, "train"), load_split(DATA, "t10k")
    for strategy in "ring", "ps-async":
        network = Mlp()
        network.load_state_dict(initial_weights(BUILD / "entrain", SEED, "mlp", names_of(Mlp)))
        ours, theirs = of_ours(strategy), of_torch(strategy, network, train, test)
        assert len(ours) == len(theirs) > POINTS, (len(ours), len(theirs))
        assert [point[:2] for point in ours] == [list(point[:2]) for point in theirs], "another course in time"
        gap = max(abs(a[2] - b[2]) for a, b in zip(ours, theirs))
        print(f"PROMISE {strategy}, W = {WORKERS}: {len(ours)} losses of PyTorch's mlp and of ours differ by at most {gap:.1e}; "
              f"they fall from {ours[0][2]:.3f} to {ours[-1][2]:.3f}")
        assert gap <= 1e-5 and ours[-1][2] < 0.8 * ours[0][2], (strategy, gap)


main()
