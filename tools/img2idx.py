#!/usr/bin/env python3
"""Writes the pictures of a folder, with a subfolder per class, as IDX files that --data=FOLDER reads.

  img2idx.py PICTURES FOLDER [--size=28] [--test=0.1] [--seed=1]      then: entrain run --data=FOLDER

PICTURES/cat/7.png becomes a picture of class "cat"; classes are numbered in the order of their names, which are in
FOLDER/classes.txt. Every picture is converted to grey and scaled to size x size pixels; a share --test of each class, drawn
by --seed, at least one picture, becomes the test set. Transparent parts become white; 16-bit samples, and floats from 0 to
1, range from black to white. Needs Pillow.
"""
import argparse, os, random, struct
from set_files import read_picture, run, split_pictures, stop, write_lines, written


def write(folder, prefix, pictures, size):
    with written(folder, prefix + "-images-idx3-ubyte") as f:
        f.write(struct.pack(">IIII", 0x803, len(pictures), size, size))
        for path, _ in pictures:
            f.write(read_picture(path, "L", size).tobytes())
    with written(folder, prefix + "-labels-idx1-ubyte") as f:
        f.write(struct.pack(">II", 0x801, len(pictures)) + bytes(label for _, label in pictures))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures")
    parser.add_argument("folder")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--test", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    if not (1 <= a.size <= 1024 and 0 < a.test < 1):
        stop(f"--size={a.size} --test={a.test}: give 1 to 1024 pixels, and a share between 0 and 1")
    draw = random.Random(a.seed)
    train, test, classes = split_pictures(a.pictures, 256, a.test, draw)
    draw.shuffle(train)
    os.makedirs(a.folder, exist_ok=True)
    write(a.folder, "train", train, a.size)
    write(a.folder, "t10k", test, a.size)
    write_lines(a.folder, "classes.txt", classes)
    print(f"{len(classes)} classes, {len(train)} pictures to train, {len(test)} to test: entrain run --data={a.folder}")


if __name__ == "__main__":
    run(main)
