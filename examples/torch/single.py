#!/usr/bin/env python3
"""A convolutional network on Fashion-MNIST in one process; mnist.py differs in five lines."""
import torch
from torch.nn import functional as F

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
for x, y in torch.utils.data.DataLoader(train, batch_size=64, shuffle=True):
    optimizer.zero_grad()
    output = model(x)
    loss = F.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print("loss and accuracy %.3f %.3f" % judge(model.eval()))
