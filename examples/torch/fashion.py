"""fashion.py - Fashion-MNIST from Debian's package dataset-fashion-mnist, or from $FASHION_MNIST; without it, noisy patterns."""
import gzip
import os
import pathlib

import torch

FOLDER = pathlib.Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))


def split(name, count):
    images, labels = FOLDER / f"{name}-images-idx3-ubyte.gz", FOLDER / f"{name}-labels-idx1-ubyte.gz"
    if images.exists() and labels.exists():
        pixels = torch.frombuffer(bytearray(gzip.open(images).read()[16:]), dtype=torch.uint8).reshape(-1, 1, 28, 28)
        y = torch.frombuffer(bytearray(gzip.open(labels).read()[8:]), dtype=torch.uint8).long()
        return torch.utils.data.TensorDataset(pixels.float() / 255, y)
    drawn, kinds = torch.Generator().manual_seed(count), torch.Generator().manual_seed(0)
    y = torch.randint(10, (count,), generator=drawn)
    return torch.utils.data.TensorDataset(torch.randn(10, 1, 28, 28, generator=kinds)[y]
                                          + torch.randn(count, 1, 28, 28, generator=drawn), y)


def train_and_test():
    return split("train", 10000), split("t10k", 2000)
