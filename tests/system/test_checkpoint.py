#!/usr/bin/env python3
"""PyTorch opens a checkpoint: weights load into the network, the optimizer's state is there, the digest is right.

    test_checkpoint.py ENTRAIN

Exit 77 where torch is absent.
"""
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

# Promise: PyTorch opens a checkpoint, with its weights, optimizer state and digest.

try:
    import safetensors
    import safetensors.torch
    import torch
except ImportError as missing:
    print(f"SKIP: {missing.name} is not installed for {sys.executable} (-DEN_PYTHON=VENV/bin/python picks another)")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
from make_goldens import Convnet


def main(entrain):
    with tempfile.TemporaryDirectory() as folder:
        saved = f"{folder}/saved.safetensors"
        subprocess.run([entrain, "run", "-n", "2", "--strategy=ring", "--data=synthetic", "--limit-train-samples=64",
                        "--limit-test-samples=8", "--batch-size=8", "--momentum=0.9", "--threads=1", "--quiet",
                        "--checkpoint-every=64", f"--save={saved}", f"--out={folder}/run"], check=True)
        path = pathlib.Path(folder, "run", "checkpoints", "checkpoint-000000000064.safetensors")
        tensors, end = safetensors.torch.load_file(path), safetensors.torch.load_file(saved)
        with safetensors.safe_open(path, "pt") as opened:
            meta = opened.metadata()
        raw = path.read_bytes()
    weights = {name: t for name, t in tensors.items() if "/" not in name}
    momentum = {name.split("/")[1]: t for name, t in tensors.items() if name.startswith("optimizer.momentum_buffer/")}
    model = Convnet()
    model.load_state_dict(weights, strict=True)
    assert all(torch.equal(weights[name], end[name]) for name in end), "the last checkpoint is the saved model"
    assert set(momentum) == set(weights) and all(t.abs().sum() > 0 for t in momentum.values())
    assert all(momentum[name].shape == weights[name].shape for name in weights)
    facts = json.loads(meta["entrain"])
    assert meta["format"] == "pt" and facts["samples"] == 64 and facts["world"] == 2 and facts["strategy"] == "ring"
    prefix = b'{"__metadata__":{"digest":"'
    assert raw[8:8 + len(prefix)] == prefix
    at = 8 + len(prefix)
    zeroed = raw[:at] + b"0" * 64 + raw[at + 64:]
    assert hashlib.sha256(zeroed).hexdigest() == meta["digest"] == raw[at:at + 64].decode()
    print(f"PROMISE PyTorch opens a checkpoint: {len(weights)} weights, {len(momentum)} momentum buffers, digest right")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
