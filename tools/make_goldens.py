#!/usr/bin/env python3
"""Makes tests/goldens: PyTorch's results, for tests/models/test_goldens.c to compare with.

    tools/make_goldens.py --out tests/goldens       writes new ones
    tools/make_goldens.py --check tests/goldens     recomputes them and compares; exit 1 on drift

Needs torch, numpy and safetensors, and Fashion-MNIST's IDX files (Debian: dataset-fashion-mnist).

The definition, so that only the weights have to be stored:
  data      Fashion-MNIST's training file in file order; step t takes samples [64 t, 64 t + 64);
            (byte / 255 - 0.1307) / 0.3081, each operation rounded to float32, as torchvision does it
  networks  convnet and mlp, as models/registry.c has them
  training  torch.optim.SGD, lr 0.01, momentum 0.5, mean loss over the batch
  numbers   everything is computed in float64 from float32 starting weights, so that thread counts and library
            versions make no difference. Gradients at step t are those at the weights of step t *rounded to
            float32*, as in the file.

  operations  batch normalisation (forward, running statistics, backward), max and mean pooling: in float64 on
            float32 numbers, (N, H, W, C), many of them equal so that a pooling has ties

Files: NETWORK-weights-STEP.safetensors, NETWORK-grads-STEP.safetensors, goldens.json with the losses, ops.json
with the operations, for tests/ops/test_gradients.c, and optimizers.json: weights of torch.optim after each of 50 steps
on gradients that are a formula (`gradient`), for tests/ops/test_optimizer.c. --optimizers writes only that one.
projections.json has the ResNet-18 of full width: weights and images are a formula (`made_up`), and each gradient and
running statistic is stored as its norm and four projections. --projections writes only that one.
--check takes the starting weights and the operations' inputs from the folder: other versions of torch may draw others.
"""
import argparse
import gzip
import json
import pathlib
import sys
import unittest.mock

import numpy
import safetensors.torch
import torch
import torch.nn.functional as F

BATCH, LR, MOMENTUM, SEED = 64, 0.01, 0.5, 1
MEAN, STD = 0.1307, 0.3081
TOLERANCE = 1e-6  # of --check, relative; the tests' own is 1e-5


class Block(torch.nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.conv2 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or channels != width:
            self.downsample = torch.nn.Sequential(torch.nn.Conv2d(channels, width, 1, stride, bias=False),
                                                  torch.nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Resnet18(torch.nn.Module):
    """torchvision's, with another width, and with the stem for small images; first values as torchvision's."""
    losses, snapshots, batch, width, is_cifar = 12, (0,), 64, 8, False

    def __init__(self):
        super().__init__()
        w, kernel = self.width, 3 if self.is_cifar else 7
        self.conv1 = torch.nn.Conv2d(3, w, kernel, 1 if self.is_cifar else 2, kernel // 2, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(w)
        self.maxpool = torch.nn.Identity() if self.is_cifar else torch.nn.MaxPool2d(3, 2, 1)
        for i in range(4):
            first = Block(w << max(i - 1, 0), w << i, 2 if i else 1)
            setattr(self, f"layer{i + 1}", torch.nn.Sequential(first, Block(w << i, w << i, 1)))
        self.fc = torch.nn.Linear(w << 3, 10)
        for module in self.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def outputs(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x.expand(-1, 3, -1, -1)))))
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))

    def loss(self, x, target):
        return F.cross_entropy(self.outputs(x), target)


class Resnet18Cifar(Resnet18):
    batch, is_cifar = 16, True  # takes the reference loops two seconds


class Convnet(torch.nn.Module):
    losses, snapshots, batch = 12, (0, 50, 500), BATCH

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 20, 5)
        self.conv2 = torch.nn.Conv2d(20, 50, 5)
        self.fc1 = torch.nn.Linear(800, 500)
        self.fc2 = torch.nn.Linear(500, 10)

    def outputs(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))

    def loss(self, x, target):
        return F.nll_loss(F.log_softmax(self.outputs(x), dim=1), target)


class Mlp(torch.nn.Module):
    losses, snapshots, batch = 50, (0,), BATCH

    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(784, 256)
        self.fc2 = torch.nn.Linear(256, 10)

    def loss(self, x, target):
        return F.cross_entropy(self.fc2(F.relu(self.fc1(x.flatten(1)))), target)


MAXPOOL, BATCHNORM, AVGPOOL = 4, 12, 14  # kinds, and flags: include/entrain/op.h
FUSE_RELU = 2
OPS = {
    "batchnorm": dict(kind=BATCHNORM, flags=0, n=3, h=4, w=3, c=5),
    "batchnorm of two values": dict(kind=BATCHNORM, flags=0, n=2, h=1, w=1, c=4),
    "batchnorm and relu": dict(kind=BATCHNORM, flags=FUSE_RELU, n=2, h=3, w=4, c=3),
    "maxpool 3x3": dict(kind=MAXPOOL, n=2, h=7, w=6, c=3, kernel=3, stride=2, pad=1),
    "avgpool 3x3": dict(kind=AVGPOOL, n=2, h=7, w=6, c=3, kernel=3, stride=2, pad=1),
    "avgpool 2x2": dict(kind=AVGPOOL, n=1, h=4, w=5, c=2, kernel=2, stride=2, pad=0),
    "mean of the image": dict(kind=AVGPOOL, n=3, h=4, w=5, c=3, kernel=0, stride=0, pad=0),
}


NETWORKS = {"convnet": Convnet, "mlp": Mlp, "resnet18-imagenet": Resnet18, "resnet18-cifar": Resnet18Cifar}


def read_idx(path, header):
    with gzip.open(path) as file:
        return numpy.frombuffer(file.read(), numpy.uint8, offset=header)


def load_data(folder):
    pixels = read_idx(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    labels = read_idx(folder / "train-labels-idx1-ubyte.gz", 8)
    f32 = numpy.float32
    x = (pixels.astype(f32) / f32(255) - f32(MEAN)) / f32(STD)
    return torch.from_numpy(x).double(), torch.from_numpy(labels.astype(numpy.int64))


def gradients_at(network, weights, x, target):
    """Loss, gradients, and buffers after this one step, in float64 at float32 weights."""
    model = network().double()
    model.load_state_dict(weights)
    loss = model.loss(x, target)
    loss.backward()
    there = {name: p.grad.float().contiguous() for name, p in model.named_parameters()}
    return loss.item(), there | {name: stored(b) for name, b in model.named_buffers()}


def stored(tensor):
    """float32 but for counts."""
    return (tensor.detach().float() if tensor.is_floating_point() else tensor.detach()).clone()


def train(network, start, data):
    """Returns (losses of the first steps, {step: weights}, {step: gradients}, {step: loss there})."""
    model = network().double()
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    losses, weights, grads, loss_at = [], {}, {}, {}
    for step in range(max(network.losses, network.snapshots[-1] + 1)):
        x, target = (part[step * network.batch:(step + 1) * network.batch] for part in data)
        if step in network.snapshots:
            weights[step] = {name: stored(t) for name, t in model.state_dict().items()}
            loss_at[step], grads[step] = gradients_at(network, weights[step], x, target)
        optimizer.zero_grad()
        loss = model.loss(x, target)
        loss.backward()
        optimizer.step()
        if step < network.losses:
            losses.append(loss.item())
    return losses, weights, grads, loss_at


def drift(network, start, data, losses):
    """The error of PyTorch's own float32, by step: rounding decides which side of a relu a value is on."""
    model = network()
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    gaps = []
    for step, loss64 in enumerate(losses):
        x, target = (part[step * network.batch:(step + 1) * network.batch] for part in data)
        optimizer.zero_grad()
        loss = model.loss(x.float(), target)
        loss.backward()
        optimizer.step()
        gaps.append(abs(loss.item() - loss64) / loss64)
    return gaps


def numbers(tensor):
    """As a list that converts back to float32 exactly; images as (N, H, W, C)."""
    tensor = tensor.detach().permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor.detach()
    return [float(f"{value:.9g}") for value in tensor.flatten().float().tolist()]


def of_op(facts, key, shape=None):
    """A tensor of an operation in float64, as PyTorch orders it."""
    values = torch.tensor(facts[key], dtype=torch.float32).double()
    return values if shape is None else values.reshape(shape).permute(0, 3, 1, 2).contiguous()


def inputs_of(facts):
    """Random inputs of the operation."""
    n, h, w, c = (facts[side] for side in "nhwc")
    drawn = dict(facts, x=numbers(torch.randn(n * h * w * c)))
    if facts["kind"] == MAXPOOL:
        drawn["x"] = [round(value * 2) / 2 for value in drawn["x"]]
    if facts["kind"] == BATCHNORM:
        for key in ("weight", "bias", "mean"):
            drawn[key] = numbers(torch.randn(c))
        drawn.update(var=numbers(torch.rand(c) + 0.5), batches=7)
    return drawn


def op_goldens(facts):
    """The inputs with PyTorch's results; draws dy if it is missing."""
    n, h, w, c = (facts[side] for side in "nhwc")
    x = of_op(facts, "x", (n, h, w, c)).requires_grad_()
    result, norm = dict(facts), None
    if facts["kind"] == BATCHNORM:
        norm = torch.nn.BatchNorm2d(c).double()
        norm.load_state_dict({"weight": of_op(facts, "weight"), "bias": of_op(facts, "bias"),
                              "running_mean": of_op(facts, "mean"), "running_var": of_op(facts, "var"),
                              "num_batches_tracked": torch.tensor(facts["batches"])})
        y = norm(x)
        y = F.relu(y) if facts["flags"] & FUSE_RELU else y
    elif facts["kind"] == MAXPOOL:
        y = F.max_pool2d(x, facts["kernel"], facts["stride"], facts["pad"])
    elif facts["kernel"]:
        y = F.avg_pool2d(x, facts["kernel"], facts["stride"], facts["pad"])
    else:
        y = F.adaptive_avg_pool2d(x, 1)
    shape = [y.shape[i] for i in (0, 2, 3, 1)]
    result.setdefault("dy", numbers(torch.randn(y.numel())))
    y.backward(of_op(result, "dy", shape))
    result.update(y=numbers(y), dx=numbers(x.grad))
    if norm:
        result.update(dw=numbers(norm.weight.grad), db=numbers(norm.bias.grad), mean_then=numbers(norm.running_mean),
                      var_then=numbers(norm.running_var), batches_then=int(norm.num_batches_tracked))
    return result


OPTIMIZERS = [("adam", torch.optim.Adam, {"lr": 0.001, "weight_decay": 0}),
              ("adam", torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}),
              ("adamw", torch.optim.AdamW, {"lr": 0.001, "weight_decay": 0.01}),
              ("adamw", torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-4}),
              ("sgd", torch.optim.SGD, {"lr": 0.02, "weight_decay": 0.05, "momentum": 0.9, "nesterov": True}),
              ("adamw", torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1})]
GROUPS = {4: 5, 5: 5}  # of these cases the weights from the fifth on are a param_group: a tenth of the rate, no decay
NWEIGHTS, NSTEPS = 8, 50


def gradient(step):
    """Exact in float32, of four sizes."""
    return torch.tensor([((i * 37 + step * 101 + 11) % 199 - 99) / 64 / 4**(i % 4) for i in range(NWEIGHTS)],
                        dtype=torch.float64)


def optimizers():
    cases = []
    for i, (name, optimizer, arguments) in enumerate(OPTIMIZERS):
        start, split = [((i * 53 + 7) % 97 - 48) / 32 for i in range(NWEIGHTS)], GROUPS.get(i, NWEIGHTS)
        whole = torch.tensor(start, dtype=torch.float64)
        parts = [torch.nn.Parameter(whole[:split]), torch.nn.Parameter(whole[split:])]
        groups = [{"params": [parts[0]]}, {"params": [parts[1]], "weight_decay": 0, "lr": arguments["lr"] / 10}]
        stepper, weights = optimizer(groups, **arguments), []
        for step in range(NSTEPS):
            parts[0].grad, parts[1].grad = gradient(step)[:split], gradient(step)[split:]
            stepper.step()
            weights.append([float(f"{x:.10g}") for x in torch.cat([p.detach() for p in parts]).tolist()])
        group = stepper.param_groups[0]
        betas = group.get("betas", (0, 0))
        cases.append({"optimizer": name, "lr": group["lr"], "weight_decay": group["weight_decay"], "split": split,
                      "momentum": group.get("momentum", 0), "nesterov": int(group.get("nesterov", False)),
                      "beta1": betas[0], "beta2": betas[1], "eps": group.get("eps", 0),
                      "start": start, "weights": weights})
    return {"torch": torch.__version__, "schedules": schedules(), "cases": cases}


EPOCHS = 12
SCHEDULES = {"step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
             "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, EPOCHS),
             "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 9], 0.1),
             "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, EPOCHS)}


def schedules():
    """The rate at the beginning of each epoch, from 0.1 on."""
    rates = {}
    for name, schedule in SCHEDULES.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        scheduler, rates[name] = schedule(optimizer), []
        for _ in range(EPOCHS + 1):
            rates[name].append(float(f"{optimizer.param_groups[0]['lr']:.12g}"))
            optimizer.step()
            scheduler.step()
    return rates


SIDES, FULL_BATCH, NPROJECTIONS = {"imagenet": 32, "cifar": 8}, 8, 4  # pixels


class Full(Resnet18):
    width = 64


class FullCifar(Full):
    is_cifar = True


def made_up(seed, name, count):
    """Numbers in [-1, 1) that are exact in float32: FNV-1a of the name, then the end of MurmurHash3."""
    key, u32 = 0x811C9DC5, numpy.uint32
    for byte in f"{name}:{seed}".encode():
        key = (key ^ byte) * 0x01000193 & 0xFFFFFFFF
    x = numpy.arange(count, dtype=u32) * u32(0x9E3779B1) + u32(key)
    x = (x ^ x >> u32(16)) * u32(0x85EBCA6B)
    x = (x ^ x >> u32(13)) * u32(0xC2B2AE35)
    return ((x ^ x >> u32(16)) >> u32(8)).astype(numpy.float32) / numpy.float32(1 << 23) - numpy.float32(1)


def made_up_tensor(seed, name, shape):
    """Distributed like initial values; per-channel scales and offsets are near 1, so that most values are far from a
    relu's threshold."""
    fan = {4: lambda: 6 / (shape[0] * shape[2] * shape[3]), 2: lambda: 1 / shape[1], 1: lambda: 1 / 16}[len(shape)]()
    middle = 1 if len(shape) == 1 and not name.endswith(".running_mean") else 0
    values = made_up(seed, name, int(numpy.prod(shape))) * numpy.float32(numpy.sqrt(fan)) + numpy.float32(middle)
    return torch.from_numpy(values.reshape(shape))


def full_step(stem, seed, dtype):
    """Loss, gradients and statistics of one step; and the margins of its decisions: a relu's inputs, a pooling's lead."""
    model, side, decided = (FullCifar if stem == "cifar" else Full)(), SIDES[stem], []
    model.load_state_dict({name: made_up_tensor(seed, name, tuple(t.shape)) if t.dim() else t
                           for name, t in model.state_dict().items()})
    x = torch.from_numpy(made_up(seed, "x", FULL_BATCH * side * side * 3) * numpy.float32(2))
    relu = F.relu

    def seen(y):
        decided.append(y.detach())
        return relu(y)

    def pooled(module, inputs):
        windows = F.unfold(inputs[0].detach(), 3, padding=1, stride=2).reshape(FULL_BATCH, model.width, 9, -1)
        first, second = windows.topk(2, 2).values.unbind(2)
        decided.append(torch.where(first > 0, first - second, 1))

    if stem != "cifar":
        model.maxpool.register_forward_pre_hook(pooled)
    with unittest.mock.patch.object(F, "relu", seen):
        loss = model.to(dtype).loss(x.reshape(-1, side, side, 3).permute(0, 3, 1, 2).to(dtype),
                                    torch.arange(FULL_BATCH) % 10)
    loss.backward()
    tensors = {name: p.grad for name, p in model.named_parameters()}
    tensors |= {name: b for name, b in model.named_buffers() if b.dim()}
    return loss.item(), tensors, decided


def steady_seed(stem):
    """The first at which float32 makes the same decisions, even with three times the rounding: one value on the other
    side of a relu moves a gradient by 1e-3."""
    seed = 1
    while True:
        pairs = zip(full_step(stem, seed, torch.float64)[2], full_step(stem, seed, torch.float32)[2], strict=True)
        if all(a.abs().min() > 3 * (a - b).abs().max() for a, b in pairs):
            return seed
        seed += 1


def projections(seeds):
    facts = {}
    for stem, seed in seeds.items():
        loss, tensors, _ = full_step(stem, seed, torch.float64)
        facts[stem] = {"seed": seed, "batch": FULL_BATCH, "side": SIDES[stem], "loss": loss, "tensors": {}}
        for name, tensor in tensors.items():
            flat = tensor.detach().flatten().numpy()
            along = [flat @ made_up(seed, f"{name}/{k}", flat.size).astype(float) for k in range(NPROJECTIONS)]
            facts[stem]["tensors"][name] = [float(f"{x:.10g}") for x in (numpy.linalg.norm(flat), *along)]
    return facts


def write_projections(folder):
    parts = []
    for stem, facts in projections({stem: steady_seed(stem) for stem in SIDES}).items():
        tensors = ",\n".join(f" {json.dumps(name)}: {values}" for name, values in facts.pop("tensors").items())
        parts.append(f'"{stem}": {json.dumps(facts)[:-1]}, "tensors": {{\n{tensors}}}}}')
    (folder / "projections.json").write_text("{" + ",\n".join(parts) + "}\n")


def write_optimizers(folder):
    folder.mkdir(parents=True, exist_ok=True)
    facts = optimizers()
    lines = ",\n".join(json.dumps(case) for case in facts["cases"])
    rates = json.dumps(facts["schedules"])
    (folder / "optimizers.json").write_text(
        f'{{"torch": "{facts["torch"]}",\n"schedules": {rates},\n"cases": [\n{lines}\n]}}\n')


def compute(data, starts):
    """All goldens as ({file name: tensors}, json)."""
    files = {}
    facts = {"torch": torch.__version__, "dtype": "float64", "batch": BATCH, "lr": LR, "momentum": MOMENTUM,
             "mean": MEAN, "std": STD, "networks": {}}
    for name, network in NETWORKS.items():
        losses, weights, grads, loss_at = train(network, starts[name], data)
        for step in network.snapshots:
            files[f"{name}-weights-{step}.safetensors"] = weights[step]
            files[f"{name}-grads-{step}.safetensors"] = grads[step]
        facts["networks"][name] = {"losses": losses, "loss_at": {str(step): loss for step, loss in loss_at.items()}}
        if issubclass(network, Resnet18):
            facts["networks"][name]["float32_is_off_by"] = drift(network, starts[name], data, losses)
    return files, facts


def fresh_starts():
    starts = {}
    for name, network in NETWORKS.items():
        torch.manual_seed(SEED)
        starts[name] = network().state_dict()
    return starts


def stored_starts(folder):
    return {name: safetensors.torch.load_file(folder / f"{name}-weights-0.safetensors") for name in NETWORKS}


def fresh_ops():
    torch.manual_seed(SEED)
    return {name: inputs_of(facts) for name, facts in OPS.items()}


def stored_ops(folder):
    return json.loads((folder / "ops.json").read_text())


def write(folder, files, facts, ops):
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        safetensors.torch.save_file(tensors, folder / name, metadata={"format": "pt"})
    (folder / "goldens.json").write_text(json.dumps(facts, indent=1) + "\n")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(op)}" for name, op in ops.items())
    (folder / "ops.json").write_text("{" + lines + "}\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {len(files) + 2} files, {size / 1e6:.1f} MB, torch {facts['torch']}")


def gap(new, old):
    """Largest difference over the largest value; infinite where shapes differ."""
    new, old = torch.as_tensor(new).double(), torch.as_tensor(old).double()
    if new.shape != old.shape:
        return float("inf")
    largest = old.abs().max().item()
    return (new - old).abs().max().item() / (largest or 1)  # a bias may begin with zeros alone


def check(folder, files, facts, ops):
    """Prints the worst gap; returns the number of things that drifted."""
    stored = json.loads((folder / "goldens.json").read_text())
    gaps = {}
    for name, tensors in files.items():
        old = safetensors.torch.load_file(folder / name)
        if tensors.keys() != old.keys():
            gaps[name] = float("inf")
            continue
        for tensor in tensors:
            gaps[f"{name}:{tensor}"] = gap(tensors[tensor], old[tensor])
    for name, new in facts["networks"].items():
        old = stored["networks"][name]
        gaps[f"{name} losses"] = gap(new["losses"], old["losses"])
        gaps[f"{name} loss_at"] = gap(list(new["loss_at"].values()), list(old["loss_at"].values()))
    for name, op in stored_ops(folder).items():
        for key in op:
            if isinstance(op[key], list):
                gaps[f"{name}: {key}"] = gap(ops[name][key], op[key])
    for new, old in zip(optimizers()["cases"], json.loads((folder / "optimizers.json").read_text())["cases"],
                        strict=True):
        gaps[f"{new['optimizer']}, lr {new['lr']}"] = gap(new["weights"], old["weights"])
    for name, rates in json.loads((folder / "optimizers.json").read_text())["schedules"].items():
        gaps[f"schedule {name}"] = gap(schedules()[name], rates)
    full = json.loads((folder / "projections.json").read_text())
    for stem, new in projections({stem: old["seed"] for stem, old in full.items()}).items():
        gaps[f"resnet18 of full width, {stem}: loss"] = gap([new["loss"]], [full[stem]["loss"]])
        for name, values in full[stem]["tensors"].items():
            gaps[f"resnet18 of full width, {stem}: {name}"] = gap(new["tensors"][name], values)
    drifted = {what: size for what, size in gaps.items() if not size <= TOLERANCE}
    for what, size in drifted.items():
        print(f"drift: {what}: {size:.2g}, at most {TOLERANCE:g} is allowed")
    worst = max(gaps, key=gaps.get)
    print(f"{len(gaps)} goldens recomputed with torch {facts['torch']} (stored: {stored['torch']}); "
          f"worst gap {gaps[worst]:.2g} ({worst}), {len(drifted)} drifted")
    return len(drifted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=pathlib.Path, help="folder to write")
    what.add_argument("--optimizers", type=pathlib.Path, help="folder to write optimizers.json to")
    what.add_argument("--projections", type=pathlib.Path, help="folder to write projections.json to")
    what.add_argument("--check", type=pathlib.Path, help="folder to compare with")
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"),
                        help="folder of the IDX files (default %(default)s)")
    options = parser.parse_args()
    if options.optimizers or options.out:
        write_optimizers(options.optimizers or options.out)
    if options.projections or options.out:
        write_projections(options.projections or options.out)
    if options.optimizers or options.projections:
        return 0
    data = load_data(options.data)
    if options.out:
        ops = {name: op_goldens(facts) for name, facts in fresh_ops().items()}
        write(options.out, *compute(data, fresh_starts()), ops)
        return 0
    ops = {name: op_goldens(facts) for name, facts in stored_ops(options.check).items()}
    return 1 if check(options.check, *compute(data, stored_starts(options.check)), ops) else 0


if __name__ == "__main__":
    sys.exit(main())
