#!/usr/bin/env python3
"""PyTorch's load_state_dict takes our --save file, and counts as many right answers as we do; and a pipeline of two stages
has the losses of PyTorch's unsplit network.

    test_torch.py ENTRAIN

Exit 77 where torch, or Fashion-MNIST, is absent.
"""
import pathlib
import json
import subprocess
import sys
import tempfile

# Promise: PyTorch's load_state_dict takes our --save file, and a pipeline has the losses of PyTorch's unsplit
# network.

DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


try:
    import safetensors.torch
    import torch
except ImportError as missing:
    skip(f"{missing.name} is not installed for {sys.executable} (-DEN_PYTHON=VENV/bin/python picks another)")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
from make_accuracy_goldens import accuracy, initial_weights, load_split, names_of, sample_order
from make_goldens import Convnet, Resnet18

BATCH, CHUNKS, LR, MOMENTUM = 64, 4, 0.01, 0.5


def takes_our_file(entrain):
    with tempfile.TemporaryDirectory() as folder:
        saved = f"{folder}/saved.safetensors"
        subprocess.run([entrain, "run", "-n", "2", "--strategy=ring", "--steps=150", "--threads=1", "--quiet",
                        f"--out={folder}", f"--save={saved}"], check=True)
        ours = json.loads(pathlib.Path(folder, "result.json").read_text())["test_accuracy"]
        model = Convnet()
        model.load_state_dict(safetensors.torch.load_file(saved), strict=True)
    theirs = accuracy(model, *load_split(DATA, "t10k"))
    print(f"PROMISE PyTorch's load_state_dict takes our file: test accuracy {theirs:.4f}, ours {ours:.4f}")
    # A rounding may tip one image in 10,000 that stands on the edge.
    return abs(ours - theirs) <= 0.0002 and ours > 0.5


def losses_of_pipeline(entrain, model, schedule, steps):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([entrain, "run", "--strategy=solo", f"--model={model}", "--parallel=pipeline", "--stages=2",
                        f"--pipeline={schedule}", f"--micro-batches={CHUNKS}", f"--batch-size={BATCH}", f"--steps={steps}",
                        f"--lr={LR}", f"--momentum={MOMENTUM}", "--seed=1", "--threads=1", "--limit-test-samples=64", "--quiet",
                        f"--out={folder}"], check=True)
        lines = pathlib.Path(folder, "metrics-0.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def losses_of_torch(entrain, model, network, chunks, steps):
    """The whole network on the same samples, in as many chunks: sample k in chunk k mod `chunks`, as a pipeline has them, which
    batch normalisation can tell."""
    x, target = load_split(DATA, "train")
    net, losses = network().double(), []
    net.load_state_dict(net.state_dict() | initial_weights(entrain, 1, model, names_of(network)))
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    for batch in torch.from_numpy(sample_order(1, len(x)).astype("int64")).split(BATCH)[:steps]:
        optimizer.zero_grad()
        parts = [net.loss(x[batch[c::chunks]].double(), target[batch[c::chunks]]) for c in range(chunks)]
        loss = sum(parts) / chunks
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def has_losses_of_pytorch(entrain):
    """Of the ResNet four steps: later ones part from float64 by a hundredth in PyTorch's own float32 too, since the side of a
    relu on which a rounding falls decides."""
    is_equal = True
    for model, network, chunks, schedule, steps in (("convnet", Convnet, 1, "1f1b", 12),
                                                    ("resnet18:width=8", Resnet18, CHUNKS, "gpipe", 4)):
        theirs = losses_of_torch(entrain, model, network, chunks, steps)
        ours = losses_of_pipeline(entrain, model, schedule, steps)
        gap = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        print(f"PROMISE two stages of {model}, {schedule}, have the losses of PyTorch's unsplit network: {steps} steps, at most "
              f"{gap:.1e} apart")
        is_equal = is_equal and gap < 1e-4
    return is_equal


def main(entrain):
    if subprocess.run([entrain, "data", "fashion-mnist"], capture_output=True).returncode != 0 or not DATA.exists():
        skip("Fashion-MNIST is not installed (Debian: dataset-fashion-mnist)")
    return 0 if all([takes_our_file(entrain), has_losses_of_pytorch(entrain)]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
