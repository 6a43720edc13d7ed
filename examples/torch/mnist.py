#!/usr/bin/env python3
"""single.py as the ranks of a run: `entrain run -n 2 --strategy=ring -- python3 mnist.py`, or torchrun (docs/pytorch.md)."""
import torch
from torch.nn import functional as F

import entrain.torch
import fashion


def judge(model):
    x, y = test.tensors
    output = torch.cat([model(part) for part in x.split(1000)])
    return F.cross_entropy(output, y).item(), (output.argmax(1) == y).float().mean().item()


torch.manual_seed(1)
torch.set_num_threads(1)
train, test = fashion.train_and_test()
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 5), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, 32, 5), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Dropout(0.25), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
rank = entrain.torch.Rank(model, optimizer, data=train, evaluate=judge, has_accuracy=True, batch_size=64)
for x, y in rank.batches():
    optimizer.zero_grad()
    output = model(x)
    loss = F.cross_entropy(output, y)
    loss.backward()
    rank.step(loss, (output.argmax(1) == y).float().mean())
rank.end()
with torch.no_grad():
    print("loss and accuracy %.3f %.3f" % judge(model.eval()))
