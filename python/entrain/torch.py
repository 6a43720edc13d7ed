"""entrain.torch: a PyTorch module under any strategy, on real ranks (docs/pytorch.md) or in virtual time (docs/virtual-time.md).

    rank = entrain.torch.Rank(model, optimizer, data=train_set, evaluate=test, batch_size=64, epochs=3)   # joins the run
    for x, y in rank.batches(num_workers=2):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()                          # gradients leave meanwhile
        rank.step(loss)                          # now the model has the weights of the next step
    rank.end()

    run = entrain.torch.simulate(model, loss, dataset, workers=64, strategy="ps-async", batch_size=64, steps=100, lr=0.05)
"""
import collections
import functools
import hashlib
import itertools

import numpy as np
import torch

import entrain

_ADAM = ("lr", "betas", "eps", "weight_decay")
_READ = {torch.optim.SGD: ("sgd", ("lr", "momentum", "nesterov", "weight_decay")),
         torch.optim.Adam: ("adam", _ADAM), torch.optim.AdamW: ("adamw", _ADAM)}
_ELSE = "or let PyTorch step: step='torch', with the strategies ring and solo"


def _trained(model, optimizer):
    """{name: parameter}, in the order of forward."""
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise RuntimeError(f"torch {torch.__version__} does not tell when a gradient is complete: install torch 2.1 or newer")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the model has no parameter that needs a gradient")
    for name, p in trained.items():
        if p.dtype != torch.float32 or p.layout != torch.strided or p.device.type != "cpu":
            raise ValueError(f"parameter {name} is {p.dtype}, {p.layout}, on {p.device}: make it dense float32 on the CPU before "
                             "Rank, such as by model.float()")
    given = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    if missing := [name for name, p in trained.items() if p not in given]:
        raise ValueError(f"parameter {missing[0]} is not in the optimizer: add it, or freeze it by requires_grad_(False)")
    if len(given) > len(trained):
        raise ValueError(f"the optimizer has {len(given)} parameters and the model {len(trained)}: give it the model's alone")
    return trained


def _held(model):
    """(name, its place) of all that is not trained: buffers and frozen parameters."""
    for prefix, module in model.named_modules():
        for tensors in module._buffers, module._parameters:
            for key, t in tensors.items():
                if t is not None and not t.requires_grad:
                    yield f"{prefix}.{key}".lstrip("."), tensors, key


def _array(t):
    """Its memory, as the library reads and writes it."""
    t.data = t.data.contiguous()
    return (t.detach().view(torch.int16) if t.dtype == torch.bfloat16 else t.detach()).numpy()


def _rates(optimizer):
    names = _READ[type(optimizer)][1]
    return [{name: group[name] for name in names} for group in optimizer.param_groups]


def _settings_of(optimizer, settings):
    """Those by which the library steps as this optimizer does."""
    kind, groups = type(optimizer), optimizer.param_groups
    if kind not in _READ:
        raise ValueError(f"{kind.__name__} is not among the optimizers that the library steps: give SGD, Adam or AdamW, {_ELSE}")
    if optimizer.state:
        raise ValueError(f"this {kind.__name__} has a state from earlier steps, which the run would lack: create a new one, {_ELSE}")
    only = {"dampening": 0, "amsgrad": False, "maximize": False, "decoupled_weight_decay": kind is torch.optim.AdamW}
    for (name, value), group in itertools.product(only.items(), groups):
        if group.get(name, value) != value:
            raise ValueError(f"the library's {kind.__name__} has no {name}={group[name]}: omit it, {_ELSE}")
    rates = _rates(optimizer)
    decays = {rate["weight_decay"] for rate in rates}
    spares = len(decays) == 2 and 0 in decays and all((p.ndim == 1) == (group["weight_decay"] == 0)
                                                      for group in groups for p in group["params"] if p.requires_grad)
    for i, (name, value) in itertools.product(range(len(rates)), rates[0].items()):
        if rates[i][name] != value and not (name == "weight_decay" and spares):
            raise ValueError(f"parameter groups 0 and {i} have {name}={value} and {rates[i][name]}: make them alike (weight_decay=0 "
                             f"for all tensors of one dimension is fine), {_ELSE}")
    found = dict(rates[0], optimizer=_READ[kind][0], weight_decay=max(decays), decay="weights" if spares else "all")
    if "betas" in found:
        found["beta1"], found["beta2"] = found.pop("betas")
    for name in found.keys() & settings.keys():
        raise ValueError(f"{name}={settings[name]}: the optimizer has {name}={found[name]}; omit one, or use entrain run --{name}=..")
    return {name: value if isinstance(value, (str, bool)) else float(value) for name, value in found.items()}


def _sha256(dataset):
    """Of a TensorDataset; None: not known."""
    tensors = dataset.tensors if isinstance(dataset, torch.utils.data.TensorDataset) else ()
    if not tensors or sum(t.nbytes for t in tensors) > 1 << 30:
        return None
    sha = hashlib.sha256()
    for t in tensors:
        sha.update(f"{t.dtype} {tuple(t.shape)}".encode())
        sha.update(t.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def _seed(*what):
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


class _Seeded(torch.utils.data.Dataset):
    """The first index of a batch is a seed: random augmentation does not depend on the process that loads it."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitems__(self, indices):
        torch.manual_seed(indices[0])
        take = getattr(self.dataset, "__getitems__", None)
        return take(indices[1:]) if take else [self.dataset[i] for i in indices[1:]]


class _Gone(torch.Tensor):
    """Stands for a gradient that has left: whoever reads, clips or steps with it learns so."""

    @classmethod
    def __torch_function__(cls, *call):
        raise ValueError("the gradient has left during backward: call rank.step(loss) alone after backward, "
                         f"{_ELSE}, where optimizer.register_step_pre_hook may clip the mean gradient")


_Part = collections.namedtuple("_Part", "number index count size total")  # of a batch


class Rank(entrain.Rank):
    """One rank of a run that trains a module. Settings are those of `entrain worker`, as for entrain.Rank.

    optimizer      SGD, Adam or AdamW of torch.optim: the library reads it and steps alike, under any strategy. With step="torch"
                   any optimizer, which PyTorch steps with the mean gradient (ring, solo)
    data           the training set: a dataset with len() and items, or a pair of tensors (inputs, targets)
    evaluate       called with the model, in evaluation mode, on rank 0; returns the loss, or with has_accuracy=True
                   (loss, accuracy): step(loss, accuracy) then wants a batch's, too

    Until end() the parameters lie in the run's memory. `unused` counts by name the steps in which a parameter had no gradient,
    which is a zero then.
    """

    def __init__(self, model, optimizer, *, data, evaluate=None, has_accuracy=False, step="native", data_sha256=None, **settings):
        if step not in ("native", "torch"):
            raise ValueError(f"step={step!r}: give 'native' (the library steps) or 'torch'")
        if isinstance(data, (tuple, list)) and len(data) == 2 and torch.is_tensor(data[0]):
            data = torch.utils.data.TensorDataset(*data)
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise ValueError(f"data is a {type(data).__name__} without len() and items, so no run can share it out: give a map-style "
                             "dataset")
        self._hooks, self._optimizer, self._data, self._is_own = [], model, optimizer, data, step == "torch"
        self._trained, self.unused = _trained(model, optimizer), collections.Counter()
        read = {"lr": float(optimizer.param_groups[0]["lr"]), "momentum": 0} if self._is_own else _settings_of(optimizer, settings)
        self._rates = [] if self._is_own else _rates(optimizer)
        self._held = [held for held in _held(model) if held[1][held[2]].numel() > 0]
        super().__init__({name: p.detach().numpy() for name, p in self._trained.items()}, len(data),
                         memories={name: _array(tensors[key]) for name, tensors, key in self._held}, evaluate=evaluate and functools.partial(self._judge_module, evaluate), has_accuracy=has_accuracy,
                         steps_itself=self._is_own, model=type(model).__name__, data=type(data).__name__,
                         data_sha256=data_sha256 or _sha256(data),
                         computes=f"torch {torch.__version__}, cpu, {torch.get_num_threads()} threads", **read, **settings)
        self._has_accuracy, self._nparts, self._part, self._nfinished = has_accuracy, 1, None, 0
        self._gradient = {name: torch.from_numpy(array) for name, array in self.gradients.items()}
        self._gone = {name: gradient.as_subclass(_Gone) for name, gradient in self._gradient.items()}
        for name, p in self._trained.items():
            p.data, p.grad = torch.from_numpy(self.weights[name]), None
            self._hooks.append(p.register_post_accumulate_grad_hook(functools.partial(self._leave, name)))
        self._held += [(name, self._trained, name) for name in self._trained]
        self._was = [(tensors[key].data_ptr(), tensors[key].requires_grad) for _, tensors, key in self._held]

    def _judge_module(self, evaluate, arrays):
        modes, own = [(m, m.training) for m in self._model.modules()], [p.data for p in self._trained.values()]
        try:
            self._put(torch.from_numpy(arrays[name]) for name in self._trained)
            self._model.eval()
            with torch.no_grad():
                return evaluate(self._model)
        finally:
            self._put(own)
            for module, mode in modes:
                module.training = mode

    def _put(self, values):
        for p, value in zip(self._trained.values(), values):
            p.data = value

    def _check_module(self):
        """Between steps, what Rank has read and lent must be as it was."""
        for (name, tensors, key), was in zip(self._held, self._was):
            if (tensors[key].data_ptr(), tensors[key].requires_grad) != was:
                raise ValueError(f"{name} of the model was moved, frozen or thawed after Rank had joined: call .to(), .half() and "
                                 "requires_grad_() before, and change buffers in place")
        for i, (was, now) in enumerate(zip(self._rates, _rates(self._optimizer) if self._rates else ())):
            if changed := [name for name in was if was[name] != now[name]]:
                raise ValueError(f"{changed[0]} of the optimizer's group {i} has changed from {was[changed[0]]} to {now[changed[0]]}, but the "
                                 f"library steps: omit that (Rank has lr_schedule=..), {_ELSE}")

    def accumulate(self, parts):
        """Batches come in so many parts, each with a backward and a step(): less memory, the same gradient."""
        if self._part is not None or parts < 1:
            raise ValueError(f"accumulate({parts}): give 1 or more parts, before batches()")
        self._nparts = parts

    def batches(self, dataset=None, **loader):
        """The batches of this rank until the run ends, by a DataLoader with these arguments: each is a step, to be finished by
        step(). dataset: `data` with another view of its samples."""
        dataset, batch, ahead = self._data if dataset is None else dataset, self.about["batch"], collections.deque()
        if len(dataset) != len(self._data):
            raise ValueError(f"batches() has a dataset of {len(dataset)} samples, and Rank's data has {len(self._data)}: give the same")
        if loader.pop("batch_size", batch) != batch:
            raise ValueError(f"batches() has another batch_size than the run, whose is {batch}: give it to Rank alone")
        if wrong := {"sampler", "batch_sampler", "shuffle", "drop_last"} & loader.keys():
            raise ValueError(f"batches({wrong.pop()}=..): the run chooses the samples: omit it; shuffle and drop_last are settings of "
                             "Rank")
        if loader.get("num_workers", 0) > 0 and loader.get("prefetch_factor") is None:
            loader["prefetch_factor"] = 1 if self.about["is_claiming"] else 2
        if loader.get("num_workers", 0) * loader.get("prefetch_factor", 0) > 60:
            raise ValueError(f"batches() would load {loader['num_workers']} x {loader['prefetch_factor']} batches ahead, and a rank takes "
                             "60 at most: give fewer num_workers, or a smaller prefetch_factor")
        seed = self.about["seed"]

        def chosen():
            while (batch := self._next()) is not None:
                number, samples = batch
                parts = np.array_split(samples, max(1, min(self._nparts, len(samples))))
                for i, part in enumerate(parts):
                    ahead.append(_Part(number, i, len(parts), len(part), len(samples)))
                    if len(part):
                        yield [_seed(seed, number, i, "data"), *part.tolist()]

        for data in itertools.chain(torch.utils.data.DataLoader(_Seeded(dataset), batch_sampler=chosen(), **loader), [None]):
            while ahead and ahead[0].total == 0:
                if not self._begin_part(ahead.popleft()):
                    return
            if not ahead or not self._begin_part(ahead.popleft()):
                return
            torch.manual_seed(_seed(seed, self._part.number, self._part.index))
            yield data
            if self._part is not None:
                raise ValueError("the last batch was not finished: call rank.step(loss) after loss.backward()")

    def _begin_part(self, part):
        self._check_module()
        if part.index == 0:
            self._touched, self._sums = set(), np.zeros(2)
            if not self._begin(part.total):
                return False
        self._part, self._here = part if part.total else None, set()
        for p in self._trained.values():
            p.grad = None
        return True

    def _leave(self, name, p):
        """The gradient of a parameter is complete: it leaves while backward goes on."""
        part, gradient = self._part, self._gradient[name]
        if part is None or name in self._here:
            raise ValueError(f"backward() {'without' if part is None else 'twice in'} a batch, at parameter {name}: call it once for each "
                             "that batches() gives")
        if p.grad.layout != torch.strided:
            raise ValueError(f"the gradient of {name} is {p.grad.layout}: give its module sparse=False")
        if part.count == 1:
            gradient.copy_(p.grad)
        elif name in self._touched:
            gradient.add_(p.grad, alpha=part.size / part.total)
        else:
            torch.mul(p.grad, part.size / part.total, out=gradient)
        self._touched.add(name)
        self._here.add(name)
        p.grad = self._gone[name]
        if part.index + 1 == part.count:
            self.ready(name)

    def step(self, loss, accuracy=None):
        """After loss.backward(), in place of optimizer.step(): ends the step, once all parts of the batch are there."""
        part = self._part
        if part is None:
            raise ValueError("step() without a batch: call it once for each that batches() gives")
        if not self._here:
            raise ValueError("step() before loss.backward(): no gradient has come")
        if self._has_accuracy and accuracy is None:
            raise ValueError("step(loss) lacks the accuracy that has_accuracy=True promises: call step(loss, accuracy)")
        self._sums += np.array([float(value.detach() if torch.is_tensor(value) else value) for value in (loss, accuracy or 0)]) \
            * (part.size / part.total)
        self._part = None
        if part.index + 1 < part.count:
            return
        for name in self._names.keys() - self._touched:
            self.unused[name] += 1
        for name in self._touched & self._waiting:  # by an earlier part alone
            self.ready(name)
        self._finish(*self._sums)

    def _finish(self, *score):
        super()._finish(*score)
        self._nfinished += 1
        if self._is_own and self._nfinished % max(1, self.about["global_batch"] // (self.about["batch"] * self.about["nranks"])) == 0:
            for name, p in self._trained.items():
                p.grad = self._gradient[name]
            self._optimizer.step()
        for p in self._trained.values():
            p.grad = None

    def end(self):
        """After batches() has ended: the last evaluation, the report, the goodbye. The module has memory of its own again."""
        super().end()
        self.close()

    def close(self):
        for hook in self._hooks:
            hook.remove()
        if self._hooks:
            self._put([p.data.clone() for p in self._trained.values()])
            self._gradient = self._gone = None
        self._hooks = []
        for p in self._trained.values():
            p.grad = None
        super().close()


def _numbers(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors]).to(torch.float32).cpu().numpy()


def simulate(model, loss, dataset, *, batch_size=64, seed=1, evaluate=None, **settings):
    """As entrain.simulate, with the parameters of `model` as weights; afterwards they hold the final ones.

    loss(output, target)    the mean loss of a batch, such as torch.nn.functional.cross_entropy
    dataset                 a pair of tensors (inputs, targets), or anything with len() whose items are such pairs
    evaluate(model)         what Simulation.curve gets, if it is given

    Micro-batch m has samples m * batch_size .. of an order that is drawn anew for each epoch from (seed, epoch); a last batch
    that is not full is left out. Parameters that need no gradient, and buffers, stay as they are on every worker.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter that needs a gradient")
    pair = dataset if isinstance(dataset, (tuple, list)) and len(dataset) == 2 and torch.is_tensor(dataset[0]) else None
    n = len(pair[0]) if pair else len(dataset)
    per_epoch = n // batch_size
    if per_epoch == 0:
        raise ValueError(f"batch_size={batch_size} is more than the {n} samples of the data set")
    orders = {}

    def batch_of(micro_batch):
        epoch, at = divmod(micro_batch, per_epoch)
        if epoch not in orders:
            orders.pop(min(orders), None) if len(orders) > 1 else None  # a slow worker may still be in the last one
            orders[epoch] = np.random.default_rng((seed, epoch)).permutation(n)
        index = torch.from_numpy(orders[epoch][at * batch_size:(at + 1) * batch_size])
        if pair:
            return pair[0][index], pair[1][index]
        items = [dataset[int(i)] for i in index]
        return torch.stack([torch.as_tensor(x) for x, _ in items]), torch.stack([torch.as_tensor(y) for _, y in items])

    def put(param):
        with torch.no_grad():
            at = 0
            for p in parameters:
                p.copy_(torch.from_numpy(np.array(param[at:at + p.numel()])).reshape(p.shape))
                at += p.numel()

    def grad(param, micro_batch, rank):
        put(param)
        x, y = batch_of(micro_batch)
        model.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        return _numbers([p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters])

    def score(param):
        put(param)
        return evaluate(model)

    run = entrain.simulate(grad, _numbers(parameters), batch_size=batch_size, seed=seed, tensors=[p.numel() for p in parameters],
                           eval=score if evaluate else None, **settings)
    put(run.weights)
    return run
