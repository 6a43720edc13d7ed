#!/usr/bin/env python3
"""ResNet-18 (He et al. 2016) on CIFAR-10: crops and mirrors in loader processes, batch norm, a cosine schedule, no weight decay of
norms and biases.

    CIFAR10=cifar-10-batches-bin entrain run -n 2 --strategy=ring --out=out -- python3 resnet.py
    CIFAR10=.. entrain compare -n 2 --arm=ring --arm=local-sgd:period=8 --bn-stats=mean --set.width=16 --out=study -- python3 resnet.py

$CIFAR10 is the folder of the archive's binary version. Without it the pictures are fashion.py's, and of one colour.
Settings of its own: width=64, stem=imagenet (7 x 7, stride 2, as for large pictures) or cifar (3 x 3), loaders=2.
"""
import os
import pathlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import entrain.torch
import fashion

FOLDER = pathlib.Path(os.environ.get("CIFAR10", "cifar-10-batches-bin"))


def pictures(pattern):
    """N x 3 x 32 x 32 and labels, from files of records: a label, then the picture."""
    records = np.concatenate([np.fromfile(path, np.uint8) for path in sorted(FOLDER.glob(pattern))]).reshape(-1, 3073)
    x = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    mean, std = (torch.tensor(rgb).view(3, 1, 1) for rgb in ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)))
    return (x - mean) / std, torch.from_numpy(records[:, 0].astype(np.int64))


def train_and_test():
    if FOLDER.exists():
        return pictures("data_batch_*.bin"), pictures("test_batch.bin")
    return ((F.pad(x, (2, 2, 2, 2)).expand(-1, 3, -1, -1), y) for x, y in (split.tensors for split in fashion.train_and_test()))


class Varied(torch.utils.data.Dataset):
    """Each picture is moved by up to 4 pixels, and mirrored or not. Rank seeds the generator for each batch."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        (down, right), is_mirrored = torch.randint(9, (2,)).tolist(), torch.rand(()) < 0.5
        x = F.pad(self.x[i], (4, 4, 4, 4))[:, down:down + 32, right:right + 32]
        return x.flip(2) if is_mirrored else x, self.y[i]


class Block(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential() if channels == width else nn.Sequential(
            nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet18(width, stem):
    large = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    small = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks = [Block(width << max(i - 1, 0) if j == 0 else width << i, width << i, 2 if i > 0 and j == 0 else 1)
              for i in range(4) for j in range(2)]
    return nn.Sequential(*{"imagenet": large, "cifar": small}[stem], *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(width << 3, 10))


def judge(model):
    output = torch.cat([model(part) for part in test[0].split(500)])
    return F.cross_entropy(output, test[1]).item(), (output.argmax(1) == test[1]).float().mean().item()


torch.manual_seed(1)
torch.set_num_threads(1)
train, test = train_and_test()
model = resnet18(entrain.setting("width", 64), entrain.setting("stem", "imagenet"))
optimizer = torch.optim.SGD([{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 5e-4},
                             {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0}], lr=0.05, momentum=0.9)
rank = entrain.torch.Rank(model, optimizer, data=Varied(*train), evaluate=judge, has_accuracy=True, batch_size=64, epochs=10,
                          lr_schedule="cosine")
for x, y in rank.batches(num_workers=entrain.setting("loaders", 2)):
    output = model(x)
    loss = F.cross_entropy(output, y)
    loss.backward()
    rank.step(loss, (output.argmax(1) == y).float().mean())
rank.end()
with torch.no_grad():
    print("loss and accuracy %.3f %.3f" % judge(model.eval()))
