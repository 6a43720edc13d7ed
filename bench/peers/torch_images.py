#!/usr/bin/env python3
"""The peer: what PyTorch's users do to an image of CIFAR, on one core, as bench_images measures it.

    torch_images.py --what=augment,resize --steps=30

augment: torchvision's RandomCrop(32, padding=4), RandomHorizontalFlip, ToTensor, Normalize on a Pillow image, as the
recipes compose them. resize: Pillow's own resize to 224 x 224, BILINEAR, without what follows it. Images are decoded
before the clock starts. The median of --steps passes over 256 images; one JSON object each.
"""
import argparse
import json
import statistics
import time

import numpy
import PIL
from PIL import Image


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="augment,resize")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    draw = numpy.random.default_rng(1)
    images = [Image.fromarray(draw.integers(0, 256, (32, 32, 3)).astype(numpy.uint8)) for _ in range(256)]
    for what in options.what.split(","):
        if what == "augment":
            import torch
            from torchvision import transforms
            torch.set_num_threads(1)
            change = transforms.Compose([
                transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))])
        else:
            def change(image):
                return image.resize((224, 224), Image.BILINEAR)
        took = []
        for _ in range(options.steps + 1):
            begin = time.perf_counter()
            for image in images:
                change(image)
            took.append((time.perf_counter() - begin) * 1e6 / len(images))
        print(json.dumps({"what": what, "us": round(statistics.median(took[1:]), 3)}))


if __name__ == "__main__":
    main()
