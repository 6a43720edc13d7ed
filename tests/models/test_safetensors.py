#!/usr/bin/env python3
"""The real safetensors package reads our file, and what it writes back is read by us.

    test_safetensors.py WEIGHTS_TOOL

Exit 77 where the package is absent. With torch, load_state_dict takes the file as well; with torchvision, its
resnet18 takes ours and we take its, and both say the same of two images in eval mode.
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

# Promise: The safetensors package reads our file, and we read the file that it writes.
# Promise: torchvision's load_state_dict(strict=True) takes our resnet18, we take torchvision's, and both agree in
# eval mode to 1e-5 of the largest output.

SHAPES = {"conv1.weight": (20, 1, 5, 5), "conv1.bias": (20,), "conv2.weight": (50, 20, 5, 5), "conv2.bias": (50,),
          "fc1.weight": (500, 800), "fc1.bias": (500,), "fc2.weight": (10, 500), "fc2.bias": (10,)}


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as missing:
    skip(f"{missing.name} is not installed for {sys.executable} (pip install numpy safetensors)")


def tool(program, verb, path, *model):
    command = [program, verb, path, *model]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def sha256(tensors):
    return hashlib.sha256(b"".join(tensors[name].tobytes() for name in SHAPES)).hexdigest()


def load_into_torch(path):
    try:
        import safetensors.torch
        import torch
    except ImportError:
        return "torch is absent: load_state_dict not tried"
    model = torch.nn.Module()
    model.conv1, model.conv2 = torch.nn.Conv2d(1, 20, 5), torch.nn.Conv2d(20, 50, 5)
    model.fc1, model.fc2 = torch.nn.Linear(800, 500), torch.nn.Linear(500, 10)
    model.load_state_dict(safetensors.torch.load_file(path), strict=True)
    return f"load_state_dict of torch {torch.__version__} takes it"


def statistics_travel(program, folder):
    """int64 and running statistics, through the package's numpy side: the file is mapped by type."""
    ours, theirs = pathlib.Path(folder, "normed.safetensors"), pathlib.Path(folder, "back.safetensors")
    printed = tool(program, "save", ours, "resnet18:width=2")
    tensors = safetensors.numpy.load_file(ours)
    counts = {name: t for name, t in tensors.items() if name.endswith("num_batches_tracked")}
    assert len(tensors) == 122 and len(counts) == 20, (len(tensors), len(counts))
    assert all(t.dtype == numpy.int64 and t.shape == () for t in counts.values())
    assert int(counts["layer4.1.bn2.num_batches_tracked"]) == 59
    safetensors.numpy.save_file(tensors, theirs)
    assert tool(program, "load", theirs, "resnet18:width=2") == printed
    for name in counts:
        del tensors[name]
    safetensors.numpy.save_file(tensors, theirs)
    assert tool(program, "load", theirs, "resnet18:width=2").split()[0] == printed.split()[0]


def agrees_with_torchvision(program, folder):
    try:
        import safetensors.torch
        import torch
        import torchvision
    except ImportError:
        return "torchvision is absent: its resnet18 not tried"
    ours, theirs = pathlib.Path(folder, "resnet.safetensors"), pathlib.Path(folder, "torchvision.safetensors")
    torch.manual_seed(1)
    model = torchvision.models.resnet18(num_classes=10)
    x = (torch.arange(2 * 32 * 32 * 3) % 251).float().reshape(2, 32, 32, 3) / 125 - 1

    def agree(path):
        lines = tool(program, "outputs", path, "resnet18").splitlines()[-2:]
        got = -torch.tensor([[float(word) for word in line.split()] for line in lines])
        with torch.no_grad():
            want = torch.log_softmax(model.eval()(x.permute(0, 3, 1, 2)), 1)
        assert got.shape == want.shape == (2, 10), got.shape
        assert (got - want).abs().max() <= 1e-5 * want.abs().max(), (path.name, got, want)

    tool(program, "save", ours, "resnet18")
    model.load_state_dict(safetensors.torch.load_file(ours), strict=True)
    agree(ours)
    with torch.no_grad():
        model.train()(torch.randn(8, 3, 32, 32))
    safetensors.torch.save_file(model.state_dict(), theirs)
    agree(theirs)
    return f"torchvision {torchvision.__version__}: load_state_dict(strict=True) takes our resnet18, we take its; equal outputs"


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = pathlib.Path(folder, "ours.safetensors"), pathlib.Path(folder, "theirs.safetensors")
        printed = tool(program, "save", ours)
        with safetensors.safe_open(ours, "numpy") as file:
            assert file.metadata() == {"format": "pt"}, file.metadata()
        tensors = safetensors.numpy.load_file(ours)
        assert {name: t.shape for name, t in tensors.items()} == SHAPES
        assert all(t.dtype == numpy.float32 for t in tensors.values())
        assert sha256(tensors) == printed, "params_sha256 is not the hash of the tensors"

        changed = {name: t * numpy.float32(-0.5) for name, t in tensors.items()}
        safetensors.numpy.save_file(changed, theirs, metadata={"format": "np", "by": "test"})
        assert tool(program, "load", theirs) == sha256(changed)
        print(f"PROMISE safetensors: {safetensors.__version__} reads our file and writes one that we read; "
              f"{load_into_torch(ours)}")
        statistics_travel(program, folder)
        print(f"PROMISE int64 and running statistics, 122 tensors, both ways; {agrees_with_torchvision(program, folder)}")


if __name__ == "__main__":
    main()
