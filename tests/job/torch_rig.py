"""torch_rig.py - what the tests of entrain.torch share: a module, its data and optimizers. Exit 77 where PyTorch is missing."""
import os
import pathlib
import socket
import sys
import tempfile

try:
    import torch
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise ImportError(f"torch {torch.__version__} is older than 2.1")
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)
from torch import nn
from torch.nn import functional as F

BUILD, WAIT = pathlib.Path(sys.argv[1]).resolve(), 120
SOURCE = pathlib.Path(__file__).resolve().parents[2]
os.environ.update(ENTRAIN_LIBRARY=str(BUILD / "libentrain.so"), OMP_NUM_THREADS="1")
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "python"))
torch.set_num_threads(1)
# A process's first optimizer imports a second's worth of PyTorch: here, once, and not in each of the ranks that are forked.
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.frozen, self.one, self.two, self.last = (nn.Linear(16, n) for n in (16, 16, 16, 4))
        self.two.weight = self.one.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(torch.tanh(self.two(torch.tanh(self.one(self.frozen(x))))))


def samples(n):
    drawn = torch.Generator().manual_seed(3)
    x = torch.randn(n, 12, generator=drawn)
    return x, (x[:, :4] ** 2).argmax(1)


def optimizer_of(kind, model):
    """Of each kind that is tested, with rates that matter."""
    p = list(model.parameters())
    vectors = [{"params": [t for t in p if t.ndim > 1]}, {"params": [t for t in p if t.ndim == 1], "weight_decay": 0.0}]
    return {"sgd": lambda: torch.optim.SGD(p, lr=0.05), "heavy": lambda: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
            "nesterov": lambda: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
            "adam": lambda: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.02),
            "adamw": lambda: torch.optim.AdamW(p, lr=0.01, eps=1e-6),
            "groups": lambda: torch.optim.AdamW([dict(vectors[0], lr=0.02), vectors[1]], lr=0.01, weight_decay=0.1)}[kind]()


def turn(rank, model, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    rank.step(loss)


def checks(*known):
    """Runs the one that is the second argument, in a runtime folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        {check.__name__: check for check in known}[sys.argv[2]]()
