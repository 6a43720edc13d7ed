#!/usr/bin/env python3
"""A folder of pictures becomes a data set by tools/img2idx.py, and a network learns it (docs/data.md).

    test_own_data.py ENTRAIN IMG2IDX
"""
import pathlib
import random
import re
import subprocess
import sys
import tempfile

try:
    from PIL import Image
except ImportError:
    print("skipped: there is no Pillow (pip install pillow, or apt-get install python3-pil)")
    sys.exit(77)


def main():
    entrain, tool = sys.argv[1:3]
    draw = random.Random(3)
    with tempfile.TemporaryDirectory(prefix="entrain-test-") as top:
        top = pathlib.Path(top)
        for shade, name in enumerate(("cat", "dog", "fish")):
            (top / "pictures" / name).mkdir(parents=True)
            for i in range(40):
                grey = 100 * shade + draw.randrange(40)
                Image.new("RGB", (40, 30), (grey, grey, grey)).save(top / "pictures" / name / f"{i}.png")
        for folder in ("a", "b"):
            subprocess.run([sys.executable, tool, top / "pictures", top / folder], check=True, timeout=60)
        files = sorted(f.name for f in (top / "a").iterdir())
        assert files == ["classes.txt", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "train-images-idx3-ubyte",
                         "train-labels-idx1-ubyte"], files
        assert all((top / "a" / f).read_bytes() == (top / "b" / f).read_bytes() for f in files), "the seed decides all"
        said = subprocess.run([entrain, "data", top / "a"], check=True, timeout=60, capture_output=True, text=True).stdout
        assert "108 training and 12 test samples of 28 x 28 x 1" in said, said
        said = subprocess.run([entrain, "run", "-q", "-n", "2", "--strategy=ring", f"--data={top / 'a'}", "--model=mlp",
                               "--threads=1", "--batch-size=8", "--lr=0.02", "--epochs=40"],
                              check=True, timeout=120, capture_output=True, text=True).stdout
        right = int(re.search(r"Accuracy: (\d+)/12", said)[1])
        assert right >= 8, said
        refused = subprocess.run([sys.executable, tool, top / "pictures" / "cat", top / "c"], timeout=60,
                                 capture_output=True, text=True)
        assert refused.returncode == 2 and "has 0 subfolders; give a folder with one for each class" in refused.stderr
        print(f"PROMISE a folder of pictures: the same files twice, and {right} of 12 recognised after training")


if __name__ == "__main__":
    main()
