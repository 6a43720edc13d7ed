#!/usr/bin/env python3
"""A transformer that learns to write licences, letter by letter: a loss alone, AdamW, biases and norms without weight decay,
and the embedding tied to the output.

    entrain run -n 2 --strategy=ssp:bound=2 --out=out -- python3 tiny_gpt.py
"""
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

import entrain.torch

LONG, WIDE = 64, 64  # letters of a sample, floats of a letter


class Text(torch.utils.data.Dataset):
    """Sample i: LONG letters, and the same one letter later."""

    def __init__(self, letters):
        self.letters = letters

    def __len__(self):
        return (len(self.letters) - 1) // LONG

    def __getitem__(self, i):
        at = i * LONG
        return self.letters[at:at + LONG], self.letters[at + 1:at + LONG + 1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        self.look, self.join = nn.Linear(WIDE, 3 * WIDE), nn.Linear(WIDE, WIDE)
        self.think = nn.Sequential(nn.Linear(WIDE, 4 * WIDE), nn.GELU(), nn.Linear(4 * WIDE, WIDE), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.look(self.norm1(x)).chunk(3, dim=2))
        x = x + self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.think(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(128, WIDE), nn.Embedding(LONG, WIDE)
        self.blocks, self.norm, self.output = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDE), nn.Linear(WIDE, 128, bias=False)
        self.output.weight = self.letter.weight
        for embedding in self.letter, self.place:
            nn.init.normal_(embedding.weight, std=0.1)

    def forward(self, x):
        return self.output(self.norm(self.blocks(self.letter(x) + self.place.weight[:x.shape[1]])))


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


torch.manual_seed(1)
torch.set_num_threads(1)
folder = pathlib.Path("/usr/share/common-licenses")  # of Debian and Ubuntu
files = sorted({file.resolve() for file in folder.glob("*")}) or [pathlib.Path(__file__)] * 20
letters = torch.tensor([min(byte, 127) for file in files for byte in file.read_bytes()])
split = len(letters) * 9 // 10
train, test = Text(letters[:split]), Text(letters[split:])
x, y = (torch.stack(part) for part in zip(*(test[i] for i in range(min(len(test), 200)))))
model = Gpt()
optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
                               {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0}], lr=3e-3)
rank = entrain.torch.Rank(model, optimizer, data=train, evaluate=lambda model: loss_of(model, x, y), batch_size=16, epochs=2)
for inputs, targets in rank.batches():
    loss = loss_of(model, inputs, targets)
    loss.backward()
    rank.step(loss)
rank.end()
print("loss %.3f" % loss_of(model.eval(), x, y))
