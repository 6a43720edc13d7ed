#!/usr/bin/env python3
"""test_torch.py BUILD equal|resumed|channels_last|ddp|calls: entrain.torch.Rank. PyTorch is imported once: the ranks are children made by fork."""
import copy
import hashlib
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import tempfile
import traceback

from torch_rig import BUILD, WAIT, Net, checks, free_port, optimizer_of, samples, torch, turn
import entrain.torch
from torch import nn
from torch.nn import functional as F

# Promise: A PyTorch module ends with the same bytes under ring, ps-sync, hybrid and `solo --accumulate=W`, W = 1, 2, 3, with dropout,
# Promise: batch norm, tied weights, a frozen layer, groups, a ragged end, ranks without a batch; with and without loader processes
# Promise: and overlap.
# Promise: A PyTorch run that is killed and resumed three times ends with the undisturbed bytes, buffers included.
# Promise: A channels_last module ends with the same bytes under ring, ps-sync and solo, and killed and resumed; its files are row-major;
# Promise: ranks that mix it with row-major ones are refused by the tensor's name.
# Promise: ring with step='torch' ends with the bytes of PyTorch's DistributedDataParallel over Gloo: 2 ranks, 50 steps, SGD and AdamW.
# Promise: A step of the library is within 1e-6 of torch.optim's: SGD, Nesterov, Adam, AdamW, weight decay.


def ranks(n, program, strategy="ring", dies=None, **settings):
    """What program(rank, settings) returns on each of n ranks, or the exception that it raised, as text."""
    context, port = multiprocessing.get_context("fork"), free_port()
    meet = "server" if strategy.startswith(("ps", "ssp", "hybrid")) else "rendezvous"
    settings = dict(settings, strategy=strategy, mute=True, log_level="error", join_timeout="120s", world_size=n)
    if strategy != "solo":
        settings[meet] = f"tcp://127.0.0.1:{port}"
    psd = None
    if meet == "server":
        psd = subprocess.Popen([BUILD / "psd", f"--listen=tcp://127.0.0.1:{port}", f"--strategy={strategy}", f"--world-size={n}",
                                "--shards=3"], stderr=subprocess.DEVNULL)

    def child(rank, mouth):
        try:
            mouth.send(program(rank, dict(settings, rank=rank)))
        except BaseException as error:
            traceback.print_exc()
            mouth.send(f"{type(error).__name__}: {error}")

    started, ears = [], []
    for rank in range(n):
        ear, mouth = context.Pipe(duplex=False)
        started.append(context.Process(target=child, args=(rank, mouth)))
        started[-1].start()
        mouth.close()
        ears.append(ear)
    results = [ear.recv() if rank != dies and ear.poll(WAIT) else "nothing" for rank, ear in enumerate(ears)]
    for rank, process in enumerate(started):
        process.join(WAIT)
        assert process.exitcode == (-signal.SIGKILL if rank == dies else 0), (strategy, results, process.exitcode)
    if psd:
        psd.wait(WAIT)
    return results


def bytes_of(model, buffers=False):
    sha = hashlib.sha256()
    for name, p in model.named_buffers() if buffers else model.named_parameters():
        sha.update(name.encode() + p.detach().numpy().tobytes())
    return sha.hexdigest()


def scheduler_of(optimizer):
    S = torch.optim.lr_scheduler
    return S.SequentialLR(optimizer, [S.LinearLR(optimizer, 0.1, total_iters=5), S.CosineAnnealingLR(optimizer, 20)], [5])


def train(kind, n=103, parts=1, step="native", loader={}, die_at=None, scheduled=None):
    """A rank: hashes of its parameters and buffers, and whether each parameter had a gradient in each step."""
    def program(me, settings):
        torch.manual_seed(7 + me)  # rank 0's weights, buffers and frozen layer count
        model, data = Net(), samples(n)
        optimizer = optimizer_of(kind, model)
        if scheduled:
            settings = dict(settings, schedule=scheduler_of(optimizer), schedule_every=scheduled)
        rank = entrain.torch.Rank(model, optimizer, data=data, step=step, **settings)
        low, high = (at(array.ctypes.data for array in rank.weights.values()) for at in (min, max))
        assert all(low <= p.data_ptr() <= high for p in model.parameters() if p.requires_grad)
        rank.accumulate(parts)
        for i, (x, y) in enumerate(rank.batches(**loader)):
            if i == die_at and me == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            rank.step(loss)
        rank.end()
        assert not any(low <= p.data_ptr() <= high for p in model.parameters())
        return bytes_of(model), bytes_of(model, buffers=True), not rank.unused
    return program


def equal():
    for kind, worlds in ("nesterov", (1, 2, 3)), ("groups", (2,)):
        for n in worlds:
            common = dict(batch_size=12 // n, epochs=2)
            found = {"solo": ranks(1, train(kind), "solo", accumulate=n, **common), "ring": ranks(n, train(kind), **common),
                     "ps-sync": ranks(n, train(kind), "ps-sync", **common)}
            if kind == "groups":
                found["hybrid"] = ranks(n, train(kind), "hybrid", **common)
                found["no overlap"] = ranks(n, train(kind), overlap=False, **common)
                found["small buckets"] = ranks(n, train(kind), bucket_cap_mb=0.001, **common)
                found["loaders"] = ranks(n, train(kind, loader={"num_workers": 2}), **common)
            if kind == "groups":
                found["scheduled"] = ranks(n, train(kind, scheduled="step"), **common)
                other = {"ps-sync": ranks(n, train(kind, scheduled="step"), "ps-sync", **common),
                         "solo": ranks(1, train(kind, scheduled="step"), "solo", accumulate=n, **common)}
                hashes = {result[0] for results in (found.pop("scheduled"), *other.values()) for result in results}
                assert len(hashes) == 1 and hashes != {found["ring"][0][0]}, (kind, hashes)
                print(f"PROMISE {kind}, a scheduler of PyTorch after each step: ring, ps-sync and solo end with the same bytes")
            parameters = {result[0] for results in found.values() for result in results}
            buffers = {tuple(result[1] for result in results) for how, results in found.items() if how != "solo"}
            assert len(parameters) == len(buffers) == 1, (kind, n, found)
            assert all(result[2] is True for results in found.values() for result in results), found
            print(f"PROMISE {kind}, W = {n}: {', '.join(found)} end with the same bytes", flush=True)


def resumed():
    """Killed at some step three times, and resumed from the newest checkpoint each time."""
    common = dict(batch_size=6, epochs=3)
    undisturbed = ranks(2, train("groups", scheduled="epoch"), **common)
    for strategy in "ring", "ps-sync":
        out = pathlib.Path(os.environ["XDG_RUNTIME_DIR"], strategy)
        common.update(out=out, checkpoint_every=24, resume="auto")
        for die_at in 7, 3, 5:
            said = ranks(2, train("groups", die_at=die_at, scheduled="epoch"), strategy, dies=1, **common)
            assert "RunError" in said[0] and "rank 1" in said[0], said
        zero, one = ranks(2, train("groups", scheduled="epoch"), strategy, **common)
        assert zero == undisturbed[0] and one[0] == undisturbed[1][0], strategy  # rank 0's buffers are those of the run
        assert len(json.loads((out / "result.json").read_text())["resumed_from"]) == 3
    print("PROMISE a run that is killed and resumed three times ends with the undisturbed bytes: AdamW, groups, a scheduler, dropout, "
          "buffers")


# ---- channels_last ----

class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.frozen = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.one, self.last = nn.Conv2d(8, 16, 1), nn.Linear(16, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = torch.relu(self.one(self.frozen(torch.relu(self.norm(self.first(x))))))
        return self.last(x.mean((2, 3)))


def images(n):
    drawn = torch.Generator().manual_seed(3)
    return torch.randn(n, 3, 8, 8, generator=drawn), torch.arange(n) % 4


def check_saved(path, model):
    """The file has the state_dict, row-major."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header, state = json.loads(data[8:begin]), model.state_dict()
    assert header.keys() - {"__metadata__"} == state.keys()
    for name, tensor in state.items():
        first, end = header[name]["data_offsets"]
        assert header[name]["shape"] == list(tensor.shape) and data[begin + first:begin + end] == tensor.numpy().tobytes(), name


def train_images(order, die_at=None):
    """A rank, whose module has the order(rank) of dimensions: hashes of its parameters and buffers, taken row-major."""
    def program(me, settings):
        torch.manual_seed(7 + me)
        model, (x, y) = Images().to(memory_format=order(me)), images(16)
        laid = {name: p.stride() for name, p in model.named_parameters()}
        rank = entrain.torch.Rank(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), data=images(103),
                                  evaluate=lambda model: F.cross_entropy(model(x), y).item(), **settings)
        assert all(rank._gradient[name].stride() == laid[name] for name in rank._trained)
        for i, (x, y) in enumerate(rank.batches()):
            if i == die_at and me == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            turn(rank, model, x.contiguous(memory_format=order(me)), y)
            assert {name: p.stride() for name, p in model.named_parameters()} == laid
        rank.end()
        assert {name: p.stride() for name, p in model.named_parameters()} == laid
        me == 0 and "save" in settings and check_saved(settings["save"], model)
        return bytes_of(model), bytes_of(model, buffers=True)
    return program


def channels_last():
    """Weights and gradients lie as the module's; files are row-major."""
    top, last, plain = pathlib.Path(os.environ["XDG_RUNTIME_DIR"]), lambda me: torch.channels_last, lambda me: torch.contiguous_format
    common = dict(batch_size=6, epochs=3)
    found = {"solo": ranks(1, train_images(last), "solo", accumulate=2, **common),
             "ring": ranks(2, train_images(last), save=top / "last.safetensors", **common),
             "ps-sync": ranks(2, train_images(last), "ps-sync", **common),
             "small buckets": ranks(2, train_images(last), bucket_cap_mb=0.001, **common)}
    assert len({result[0] for results in found.values() for result in results}) == 1, found
    saved = dict(common, checkpoint_every=24, resume="auto", out=top / "killed")
    for die_at in 7, 3:
        ranks(2, train_images(last, die_at), dies=1, **saved)
    zero, one = ranks(2, train_images(last), **saved)
    assert zero == found["ring"][0] and one[0] == zero[0], (zero, one, found)
    for before, after in (plain, last), (last, plain):
        saved["out"] = top / f"to {after(0)}"
        ranks(2, train_images(before, 7), dies=1, **saved)
        zero, one = ranks(2, train_images(after), **saved)
        assert zero[0] == one[0] and len(json.loads((saved["out"] / "result.json").read_text())["resumed_from"]) == 1
    said = ranks(2, train_images(lambda me: (torch.contiguous_format, torch.channels_last)[me]), **common)
    assert any("tensor first.weight differs" in text and "in the order (0, 2, 3, 1)" in text for text in said), said
    print("PROMISE channels_last: ring, ps-sync, solo --accumulate=2 and a run that is killed twice end with the same bytes")


# ---- PyTorch's own ----

def train_by_ddp(kind, steps, batch, n):
    def program(me, settings):
        torch.manual_seed(7)
        torch.distributed.init_process_group("gloo", init_method=settings["rendezvous"], rank=me, world_size=settings["world_size"])
        model, (x, y), world = Net(), samples(n), settings["world_size"]
        optimizer, ddp = optimizer_of(kind, model), nn.parallel.DistributedDataParallel(model)
        for step in range(steps):
            at = step * batch * world % n
            mine = slice(at + me, at + batch * world, world)
            torch.manual_seed(entrain.torch._seed(1, step * world + me, 0))
            optimizer.zero_grad()
            F.cross_entropy(ddp(x[mine]), y[mine]).backward()
            optimizer.step()
        torch.distributed.destroy_process_group()
        return bytes_of(model)
    return program


def ddp():
    steps, batch, n = 50, 64, 640
    for kind in "heavy", "adamw":
        ours = ranks(2, train(kind, n, step="torch"), batch_size=batch, steps=steps, shuffle=False)
        theirs = ranks(2, train_by_ddp(kind, steps, batch, n))
        assert {result[0] for result in ours} == set(theirs) and len(set(theirs)) == 1, (kind, ours, theirs)
        alone = ranks(1, train(kind, n, step="torch"), "solo", accumulate=2, batch_size=batch, steps=steps, shuffle=False)
        assert alone[0][0] == theirs[0], (kind, alone, theirs)
        print(f"PROMISE {kind}: {steps} steps of two ranks with step='torch' end with the bytes of DistributedDataParallel over Gloo")


# ---- calls, in one process ----

def alone(model, optimizer, data=None, **settings):
    settings = dict({"strategy": "solo", "batch_size": 16, "steps": 10, "environment": False, "mute": True, "log_level": "error"}, **settings)
    return entrain.torch.Rank(model, optimizer, data=samples(160) if data is None else data, **settings)


def check_optimizers():
    """Each step beside one of torch.optim, from the same weights and gradient."""
    S = torch.optim.lr_scheduler
    makers = {"": None, "step": lambda o: S.StepLR(o, 2, gamma=0.3), "cosine": lambda o: S.CosineAnnealingLR(o, 10),
              "lambda": lambda o: S.LambdaLR(o, lambda n: n / (1 + n)), "two": scheduler_of,
              "one": lambda o: S.OneCycleLR(o, max_lr=0.1, total_steps=11, cycle_momentum=False)}
    plain = [(kind, "", "step", 0) for kind in ("sgd", "heavy", "nesterov", "adam", "adamw", "groups")]
    scheduled = [(kind, name, every, 0) for kind in ("heavy", "groups") for name in ("step", "cosine", "lambda", "two") for every in ("step", "epoch")]
    for kind, name, every, clip_norm in (*plain, *scheduled, ("sgd", "one", "step", 0), ("heavy", "", "step", 0.5), ("adamw", "two", "step", 0.5)):
        torch.manual_seed(2)
        model, worst = Net(), 0
        shadow, seen = copy.deepcopy(model), {}
        pairs = [pair for pair in zip(model.parameters(), shadow.parameters()) if pair[0].requires_grad]
        for ours, theirs in pairs:
            ours.register_post_accumulate_grad_hook(lambda p: seen.update({p: p.grad.clone()}))
        reference, optimizer = optimizer_of(kind, shadow), optimizer_of(kind, model)
        schedulers = [makers[name](o) for o in (reference, optimizer) if name]
        more = dict({"schedule": schedulers[1], "schedule_every": every} if name else {}, clip_norm=clip_norm)
        with alone(model, optimizer, data=samples(48), **more) as rank:  # three steps an epoch
            for count, (x, y) in enumerate(rank.batches(), 1):
                for ours, theirs in pairs:
                    theirs.data.copy_(ours.data)
                turn(rank, model, x, y)
                for ours, theirs in pairs:
                    theirs.grad = seen[ours]
                clip_norm and nn.utils.clip_grad_norm_(shadow.parameters(), clip_norm)
                reference.step()
                if name and (every == "step" or count % 3 == 0):
                    schedulers[0].step()
                worst = max(worst, *(((a - b).abs() / b.abs().clamp(min=0.1)).max().item() for a, b in pairs))
        assert worst <= 1e-6, (kind, name, every, clip_norm, worst)
        what = kind + (f", {type(schedulers[0]).__name__} after each {every}" if name else "") + (", clipped" if clip_norm else "")
        print(f"PROMISE {what}: 10 steps of the library, each within {worst:.1e} of torch.optim's")


def check_own_steps():
    """Any optimizer of PyTorch under a strategy with local steps: with period 1 the ranks agree after each step."""
    def program(me, settings):
        torch.manual_seed(2)
        model = nn.Linear(12, 4)
        first = bytes_of(model)
        with entrain.torch.Rank(model, torch.optim.RMSprop(model.parameters(), lr=0.01), data=samples(96), batch_size=8, step="torch",
                                **settings) as rank:
            for x, y in rank.batches():
                turn(rank, model, x, y)
        return bytes_of(model), bytes_of(model) != first
    zero, one = ranks(2, program, "local-sgd:period=1", epochs=2)
    assert zero == one and zero[1] is True, (zero, one)
    assert ranks(2, program, "local-sgd:period=4", epochs=2)[0][1] is True


def check_parts():
    """accumulate(k) gives the gradient of the whole batch."""
    found = []
    for parts in 1, 3:
        torch.manual_seed(2)
        model = nn.Linear(12, 4)
        with alone(model, torch.optim.SGD(model.parameters(), lr=0.1)) as rank:
            rank.accumulate(parts)
            for x, y in rank.batches():
                turn(rank, model, x, y)
        found.append(model.weight.detach().clone())
    assert torch.allclose(*found, rtol=1e-5, atol=1e-6) and not torch.equal(*found), found


def check_unused():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.steps = nn.Linear(12, 4), nn.Linear(12, 4), 0

        def forward(self, x):
            self.steps += 1
            return self.a(x) if self.steps > 2 else self.b(x)

    def program(me, settings):
        model = Branches()
        model.steps = me  # the ranks change to the other branch in different steps
        with entrain.torch.Rank(model, torch.optim.SGD(model.parameters(), lr=0.1), data=samples(64), batch_size=8, **settings) as rank:
            for x, y in rank.batches():
                turn(rank, model, x, y)
        return bytes_of(model), dict(rank.unused)
    (zero, unused0), (one, unused1) = ranks(2, program)
    assert zero == one and unused0["b.weight"] == 2 and unused1["b.weight"] == 3 and unused0["a.bias"] == 2, (unused0, unused1)


def check_saved_types():
    """A saved file has every buffer's own type and shape: a state_dict takes it as it is."""
    model = nn.Linear(12, 4)
    buffers = {"wide": torch.full((2, 3), 0.1, dtype=torch.float64), "low": torch.full((3, 2), 1.5, dtype=torch.bfloat16),
               "causal": torch.ones(2, 2).tril().bool(), "small": torch.tensor([-3], dtype=torch.int8), "scalar": torch.tensor(2.5).bfloat16()}
    for name, tensor in buffers.items():
        model.register_buffer(name, tensor)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "saved.safetensors"
        with alone(model, torch.optim.SGD(model.parameters(), lr=0.1), save=path) as rank:
            for x, y in rank.batches():
                turn(rank, model, x, y)
        data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    saved = {name: (header[name]["dtype"], header[name]["shape"]) for name in buffers}
    assert saved == {"wide": ("F64", [2, 3]), "low": ("BF16", [3, 2]), "causal": ("BOOL", [2, 2]), "small": ("I8", [1]),
                     "scalar": ("BF16", [])}, saved


def refused(words, call, kind=ValueError):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words) and "\n" not in str(error), f"{error} lacks one of {words}"
    else:
        raise AssertionError(f"nothing was refused that has {words}")


def with_buffer(tensor):
    model = nn.Linear(12, 4)
    model.register_buffer("c", tensor)
    return model


def check_refusals():
    p = lambda model, **more: torch.optim.SGD(model.parameters(), lr=0.1, **more)  # noqa: E731
    good = nn.Linear(12, 4)
    for words, model in ((("weight", "float64", "float()"), good.__class__(12, 4).double()), (("weight", "meta"), nn.Linear(12, 4, device="meta")),
                         (("weight", "(0, 12)"), nn.Linear(12, 0)), (("c is", "sparse"), with_buffer(torch.eye(3).to_sparse())),
                         (("c is", "complex64", "conj"), with_buffer(torch.zeros(3, dtype=torch.complex64).conj())), (("no parameter",), nn.Linear(12, 4).requires_grad_(False))):
        refused(words, lambda: alone(model, p(model)))
    masked = nn.Linear(12, 4)
    masked.register_buffer("mask", torch.eye(4).to_sparse())
    refused(("mask", "sparse", "dense"), lambda: alone(masked, p(masked)))
    stepped = p(good, momentum=0.9)
    F.cross_entropy(good(samples(8)[0]), samples(8)[1]).backward()
    stepped.step()
    other = nn.Linear(3, 3)
    groups = [{"params": [good.weight], "momentum": 0.2}, {"params": [good.bias]}]
    for words, optimizer in ((("RMSprop", "step='torch'"), torch.optim.RMSprop(good.parameters())), (("state",), stepped),
                             (("amsgrad=True",), torch.optim.Adam(good.parameters(), amsgrad=True)),
                             (("dampening=0.5",), p(good, momentum=0.9, dampening=0.5)), (("maximize",), p(good, maximize=True)),
                             (("0 and 1", "momentum=0.2"), torch.optim.SGD(groups, lr=0.1)),
                             (("bias", "not in the optimizer"), torch.optim.SGD([good.weight], lr=0.1)),
                             (("4 parameters", "model 2"), torch.optim.SGD([*good.parameters(), *other.parameters()], lr=0.1))):
        refused(words, lambda: alone(good, optimizer))
    for words, settings in ((("stratgy", "strategy"), {"stratgy": "ring"}), (("lr=0.5", "lr=0.1"), {"lr": 0.5}), (("step=",), {"step": "no"}),
                            (("ps-async", "ring"), {"step": "torch", "strategy": "ps-async", "server": "tcp://127.0.0.1:1"}),
                            (("generator", "map-style"), {"data": (i for i in range(9))})):
        refused(words, lambda: alone(good, p(good), **settings))
    S, second = torch.optim.lr_scheduler, p(good)
    first, third = (torch.optim.SGD([{"params": [t]} for t in good.parameters()], lr=0.1, momentum=0.2) for _ in range(2))
    for words, optimizer, schedule, more in ((("ReduceLROnPlateau", "metric"), second, S.ReduceLROnPlateau(second), {}),
                                             (("StepLR", "this optimizer"), p(good), S.StepLR(second, 1), {}),
                                             (("schedule_every='day'", "'epoch'"), second, S.StepLR(second, 1), {"schedule_every": "day"}),
                                             (("int", "(step, epoch)"), second, 5, {}),
                                             (("LambdaLR", "one function"), first, S.LambdaLR(first, [lambda n: 1, lambda n: 1 + n]),
                                              {"schedule_every": "step"}),
                                             (("OneCycleLR", "cycle_momentum=False"), third, S.OneCycleLR(third, 0.1, total_steps=11),
                                              {"schedule_every": "step"}),
                                             (("step='torch'", "scheduler.step()"), second, S.StepLR(second, 1), {"step": "torch"}),
                                             (("clip-norm=1", "ring or solo"), second, None, {"strategy": "ps-async", "clip_norm": 1,
                                                                                              "server": "tcp://127.0.0.1:1"})):
        refused(words, lambda: alone(good, optimizer, schedule=schedule, **more))
    half = copy.deepcopy(good)
    with alone(half, p(half)) as rank:
        refused(("batch_size", "16"), lambda: next(rank.batches(batch_size=8)))
        refused(("shuffle",), lambda: next(rank.batches(shuffle=True)))
        refused(("100", "160"), lambda: next(rank.batches(range(100))))
        refused(("ahead",), lambda: next(rank.batches(num_workers=31)))
        refused(("without a batch",), lambda: rank.step(1.0))
        refused(("this process", "end()"), lambda: alone(good, p(good)))
        batches = rank.batches()
        x, y = next(batches)
        refused(("before loss.backward()",), lambda: rank.step(1.0))
        loss = F.cross_entropy(half(x), y)
        loss.backward(retain_graph=True)
        refused(("has left", "step='torch'", "clip_norm"), lambda: nn.utils.clip_grad_norm_(half.parameters(), 1.0))
        refused(("has left",), lambda: half.weight.grad.norm())
        refused(("has left",), lambda: rank._optimizer.step())
        refused(("twice",), loss.backward)
        rank.stop()
    with alone(half, p(half), strategy="local-sgd", step="torch") as rank:
        x, y = next(rank.batches())
        F.cross_entropy(half(x), y).backward()
        before = half.weight.clone()
        refused(("has left",), lambda: nn.utils.clip_grad_norm_(half.parameters(), 1.0))
        refused(("has left",), lambda: rank._optimizer.step())
        assert torch.equal(half.weight, before)
        rank.stop()
    with alone(half, p(half)) as rank:
        batches = rank.batches()
        next(batches)
        refused(("not finished", "rank.step(loss)"), lambda: next(batches))
        rank.stop()


def check_changes():
    """What Rank has read and lent is looked at before each step."""
    def rate(model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01
    for words, change in ((("weight", "moved"), lambda model, optimizer: model.half().float()), (("bias", "frozen"), lambda model, optimizer:
                          model.bias.requires_grad_(False)), (("lr ", "0.1", "0.01", "lr_schedule", "step='torch'"), rate)):
        def train_and_change():
            model = nn.Linear(12, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with alone(model, optimizer) as rank:
                for x, y in rank.batches():
                    turn(rank, model, x, y)
                    change(model, optimizer)
        refused(words, train_and_change)

    def assigned():
        model = nn.Linear(12, 4)
        with alone(model, torch.optim.SGD(model.parameters(), lr=0.1)) as rank:
            for x, y in rank.batches():
                model.load_state_dict(nn.Linear(12, 4).state_dict(), assign=True)
                turn(rank, model, x, y)
    refused(("weight", "moved"), assigned)

    def sparse():
        model = nn.Embedding(100, 4, sparse=True)
        with alone(model, torch.optim.SGD(model.parameters(), lr=0.1)) as rank:
            for x, y in rank.batches():
                model(x.abs().long()).sum().backward()
    refused(("weight", "sparse=False"), sparse)


def check_differences():
    """Ranks that differ: the first difference by name, with both values."""
    for words, samples_of, width in ((("93", "100"), lambda me: 93 + 7 * me, lambda me: 4), (("tensor weight", "(4, 12)", "(5, 12)"), lambda me: 93, lambda me: 4 + me)):
        def program(me, settings):
            model = nn.Linear(12, width(me))
            entrain.torch.Rank(model, torch.optim.SGD(model.parameters(), lr=0.1), data=range(samples_of(me)), **settings)
        said = ranks(2, program)
        assert any(all(word in text for word in words) for text in said) and all("Error: " in text for text in said), (words, said)


def check_idle_ranks():
    """Of two samples the third rank has none, in no epoch."""
    def program(step):
        def train_and_count(me, settings):
            torch.manual_seed(me)
            model, count = nn.Linear(12, 4), 0
            with entrain.torch.Rank(model, torch.optim.SGD(model.parameters(), lr=0.1), data=samples(2), batch_size=1, epochs=3,
                                    step=step, **settings) as rank:
                for x, y in rank.batches():
                    turn(rank, model, x, y)
                    count += 1
            return bytes_of(model), count
        return train_and_count
    found = [ranks(3, program("native")), ranks(3, program("native"), "ps-sync"), ranks(3, program("torch"))]
    assert len({sha for sha, _ in found[0] + found[1]}) == len({sha for sha, _ in found[2]}) == 1, found
    assert all([count for _, count in results] == [3, 3, 0] for results in found), found
    claimed = ranks(3, program("native"), "ps-async")
    assert sum(count for _, count in claimed) == 6, claimed


def calls():
    check_optimizers()
    check_own_steps()
    check_parts()
    check_unused()
    check_idle_ranks()
    check_refusals()
    check_changes()
    check_differences()
    check_saved_types()


if __name__ == "__main__":
    checks(equal, resumed, channels_last, ddp, calls)
