#!/usr/bin/env python3
"""PyTorch's load_state_dict takes our --save file, and counts as many right answers as we do.

    test_torch.py ENTRAIN

Exit 77 where torch, or Fashion-MNIST, is absent.
"""
import pathlib
import json
import subprocess
import sys
import tempfile

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
from make_accuracy_goldens import accuracy, load_split
from make_goldens import Convnet


def main(entrain):
    if subprocess.run([entrain, "data", "fashion-mnist"], capture_output=True).returncode != 0 or not DATA.exists():
        skip("Fashion-MNIST is not installed (Debian: dataset-fashion-mnist)")
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
    return 0 if abs(ours - theirs) <= 0.0002 and ours > 0.5 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
