#!/usr/bin/env python3
"""Writes the pictures of a folder, a class a subfolder, as IDX files that --data=FOLDER reads.

  img2idx.py PICTURES FOLDER [--size=28] [--test=0.1] [--seed=1]      then: entrain run --data=FOLDER

PICTURES/cat/7.png becomes a picture of class "cat"; classes are numbered in the order of their names, which
FOLDER/classes.txt keeps. Every picture is made grey and scaled to size x size pixels; of each class a share of
--test, drawn by --seed, becomes the test set, and at least one. Needs Pillow.
"""
import argparse, os, random, struct, sys
from PIL import Image, UnidentifiedImageError


def write(folder, prefix, pictures, size):
    with open(os.path.join(folder, prefix + "-images-idx3-ubyte"), "wb") as f:
        f.write(struct.pack(">IIII", 0x803, len(pictures), size, size))
        for path, _ in pictures:
            try:
                f.write(Image.open(path).convert("L").resize((size, size), Image.BILINEAR).tobytes())
            except (UnidentifiedImageError, OSError) as e:
                sys.exit(f"img2idx: {path}: {e}; take it out, or save it again")
    with open(os.path.join(folder, prefix + "-labels-idx1-ubyte"), "wb") as f:
        f.write(struct.pack(">II", 0x801, len(pictures)) + bytes(label for _, label in pictures))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures")
    parser.add_argument("folder")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--test", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    classes = sorted(e.name for e in os.scandir(a.pictures) if e.is_dir() and not e.name.startswith("."))
    if not 2 <= len(classes) <= 256:
        sys.exit(f"img2idx: {a.pictures} has {len(classes)} subfolders; give a folder with one for each class, 2 to 256")
    if not (1 <= a.size <= 1024 and 0 < a.test < 1):
        sys.exit(f"img2idx: --size={a.size} --test={a.test}: give 1 to 1024 pixels, and a share between 0 and 1")
    draw, train, test = random.Random(a.seed), [], []
    for label, name in enumerate(classes):
        files = sorted(os.scandir(os.path.join(a.pictures, name)), key=lambda e: e.name)
        of_class = [(e.path, label) for e in files if e.is_file() and not e.name.startswith(".")]
        if len(of_class) < 2:
            sys.exit(f"img2idx: class {name} has {len(of_class)} pictures; give 2 at least, one to train and one to test")
        draw.shuffle(of_class)
        n = max(1, round(a.test * len(of_class)))
        test += of_class[:n]
        train += of_class[n:]
    draw.shuffle(train)
    os.makedirs(a.folder, exist_ok=True)
    write(a.folder, "train", train, a.size)
    write(a.folder, "t10k", test, a.size)
    with open(os.path.join(a.folder, "classes.txt"), "w") as f:
        f.writelines(name + "\n" for name in classes)
    print(f"{len(classes)} classes, {len(train)} pictures to train, {len(test)} to test: entrain run --data={a.folder}")


if __name__ == "__main__":
    main()
