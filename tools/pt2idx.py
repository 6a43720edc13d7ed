#!/usr/bin/env python3
"""Writes a pickled MNIST-like set (training.pt, test.pt of torchvision: a pair of images and labels) as IDX files.

  pt2idx.py training.pt test.pt FOLDER          then: entrain run --data=FOLDER

A pickle can run code when it is read, so Entrain itself never reads one; here weights_only refuses such code.
"""
import os, struct, sys
import torch


def write(path, tensor):
    tensor = tensor.to(torch.uint8).contiguous()
    with open(path, "wb") as f:
        f.write(struct.pack(">BBBB", 0, 0, 8, tensor.dim()))
        f.write(struct.pack(">" + "I" * tensor.dim(), *tensor.shape))
        f.write(tensor.numpy().tobytes())


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    os.makedirs(sys.argv[3], exist_ok=True)
    for path, prefix in ((sys.argv[1], "train"), (sys.argv[2], "t10k")):
        images, labels = torch.load(path, weights_only=True)[:2]
        write(os.path.join(sys.argv[3], prefix + "-images-idx3-ubyte"), images)
        write(os.path.join(sys.argv[3], prefix + "-labels-idx1-ubyte"), labels)


if __name__ == "__main__":
    main()
