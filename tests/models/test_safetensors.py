#!/usr/bin/env python3
"""The real safetensors package reads our file, and what it writes back is read by us.

    test_safetensors.py WEIGHTS_TOOL

Exit 77 where the package is absent. With torch, load_state_dict takes the file as well.
"""
import hashlib
import pathlib
import subprocess
import sys
import tempfile

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


def tool(program, verb, path):
    return subprocess.run([program, verb, path], check=True, capture_output=True, text=True).stdout.strip()


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


if __name__ == "__main__":
    main()
