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

# Promise: A folder of pictures becomes a data set by tools/img2idx.py, and a network learns it.

try:
    from PIL import Image
except ImportError:
    print("skipped: there is no Pillow (pip install pillow, or apt-get install python3-pil)")
    sys.exit(77)


def many_classes(entrain, tool, top):
    """Classes come from the labels: 26 letters."""
    for c in range(26):
        (top / "pictures" / chr(ord("a") + c)).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (28, 28), 9 * c).save(top / "pictures" / chr(ord("a") + c) / f"{i}.png")
    subprocess.run([sys.executable, tool, top / "pictures", top / "set"], check=True, timeout=60)
    said = subprocess.run([entrain, "data", top / "set"], check=True, timeout=60, capture_output=True, text=True).stdout
    assert ", 26 classes" in said, said
    common = [f"--data={top / 'set'}", "--model=mlp"]
    subprocess.run([entrain, "run", "-q", "-n", "2", "--strategy=ring", *common, "--steps=3", "--batch-size=8", "--threads=1",
                    f"--save={top / 'w.safetensors'}"], check=True, timeout=60)
    said = subprocess.run([entrain, "predict", *common, f"--init={top / 'w.safetensors'}"], check=True, timeout=60,
                          capture_output=True, text=True).stdout
    assert sorted(int(line.split()[1]) for line in said.splitlines()[-26:]) == list(range(26)), said


def other_pictures(tool, top):
    """What Pillow's convert() makes white, black or nothing of: each becomes the ramp that it shows."""
    ramp = Image.frombytes("L", (256, 4), bytes(range(256)) * 4)
    ink = Image.new("RGBA", (256, 4), (0, 0, 0, 0))
    ink.putalpha(ramp.point(lambda v: 255 - v))  # black ink, thinner and thinner
    wide = Image.frombytes("I;16", (256, 4), b"".join(bytes((v, v)) for v in range(256)) * 4)
    pictures = {"16.png": wide, "16.tiff": wide, "float.tiff": ramp.convert("F").point(lambda v: v * (1 / 255) + 0),
                "ink.png": ink, "plain.png": ramp}
    for name, picture in pictures.items():
        for c in "ab":
            folder = top / name / c
            folder.mkdir(parents=True)
            for i in "01":
                picture.save(folder / (i + name))
        subprocess.run([sys.executable, tool, top / name, top / "set", "--size=256"], check=True, timeout=60)
        made = (top / "set" / "train-images-idx3-ubyte").read_bytes()[16:16 + 256]
        assert max(abs(v - made[v]) for v in range(256)) <= 1, (name, list(made))
    for name, picture, sentence in (
            ("white.png", Image.merge("LA", (Image.new("L", (256, 4), 255), ramp)), "is white on nothing"),
            ("far.tiff", ramp.convert("F"), "has samples from 0 to 255, where 0 to 1 are read")):
        (top / "plain.png" / "a" / "0plain.png").unlink(missing_ok=True)
        picture.save(top / "plain.png" / "a" / name)
        refused = subprocess.run([sys.executable, tool, top / "plain.png", top / "bad"], timeout=60, capture_output=True, text=True)
        assert refused.returncode == 2 and sentence in refused.stderr, refused.stderr
        (top / "plain.png" / "a" / name).unlink()


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
        many_classes(entrain, tool, top / "many")
        other_pictures(tool, top / "other")
        print(f"PROMISE a folder of pictures: the same files twice, and {right} of 12 recognised after training")


if __name__ == "__main__":
    main()
