"""entrain.torch: a PyTorch module under any strategy, on real ranks (docs/pytorch.md) or in virtual time (docs/virtual-time.md)."""
import collections
import functools
import hashlib
import itertools
import signal
import warnings

import numpy as np
import torch

import entrain
from entrain import RefusedError, _need

_ADAM = ("lr", "betas", "eps", "weight_decay")
_READ = {torch.optim.SGD: ("sgd", ("lr", "momentum", "nesterov", "weight_decay")),
         torch.optim.Adam: ("adam", _ADAM), torch.optim.AdamW: ("adamw", _ADAM)}
_ELSE = "or let PyTorch step: step='torch', with the strategies ring, solo and local-sgd"
_BF16 = np.dtype(np.int16, metadata={"type": "bfloat16"})  # a type that numpy lacks
_Part = collections.namedtuple("_Part", "number index count size total")  # of a batch


def _trained(model, optimizer):
    """{name: parameter}, in the order of forward."""
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise RuntimeError(f"torch {torch.__version__} does not tell when a gradient is complete: install torch 2.1 or newer")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    given = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    _need(trained, "the model has no parameter that needs a gradient")
    for name, p in trained.items():
        _need(p.dtype == torch.float32 and p.layout == torch.strided and p.device.type == "cpu", f"parameter {name} is {p.dtype}, "
              f"{p.layout}, on {p.device}: make it dense float32 on the CPU before Rank, such as by model.float()")
        _need(p in given, f"parameter {name} is not in the optimizer: add it, or freeze it by requires_grad_(False)")
    _need(len(given) == len(trained), f"the optimizer has {len(given)} parameters, the model {len(trained)}: give it the model's")
    return trained


def _memory_of(name, t):
    try:
        t.data = t.data if t.stride() == torch.empty_like(t).stride() else t.data.clone()  # dense, in an order of its own
        return t.detach().view(torch.int16).numpy().view(_BF16) if t.dtype == torch.bfloat16 else t.detach().numpy()
    except (RuntimeError, TypeError) as cause:
        raise RefusedError(f"{name} is {t.dtype}, {t.layout}, on {t.device} ({cause}): make it dense, on the CPU") from None


def _rates(optimizer, lr="lr"):
    names = _READ[type(optimizer)][1]
    return [dict({name: group[name] for name in names}, lr=group.get(lr, group["lr"])) for group in optimizer.param_groups]


def _factors(scheduler, optimizer, every):
    """A scheduler of PyTorch as a function of (step, epoch), the factor of the rates that it began with: it is stepped here."""
    _need(not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau), "ReduceLROnPlateau follows a metric, and a "
          "schedule is read before the run, when there is none: give one that needs none, or a function (step, epoch) -> factor of lr")
    _need(isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler) and every in ("epoch", "step")
          and scheduler.optimizer is optimizer, f"schedule={type(scheduler).__name__}, schedule_every={every!r}: give a scheduler "
          "of this optimizer, with 'epoch' or 'step', or a function (step, epoch) -> factor of lr")
    factors, first, groups = [], _rates(optimizer), optimizer.param_groups

    def factor(step, epoch):
        while len(factors) <= (epoch if every == "epoch" else step):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about an optimizer that does not step
                scheduler.step() if factors else None
            shares = [group["lr"] / group["initial_lr"] for group in groups if group["initial_lr"] > 0] or [1]
            is_lr = all(dict(was, lr=now["lr"]) == now for was, now in zip(first, _rates(optimizer)))
            _need(is_lr and max(shares) - min(shares) <= 1e-9 * max(shares), f"{type(scheduler).__name__} changes more than all "
                  f"rates alike: give it one function, and cycle_momentum=False, {_ELSE}")
            factors.append(shares[0])
        return factors[epoch if every == "epoch" else step]
    return factor


def _settings_of(optimizer, lr):
    """Those by which the library steps alike, and (factor of lr, weight_decay) of parameters that have their own."""
    kind, groups = type(optimizer), optimizer.param_groups
    _need(kind in _READ, f"{kind.__name__} is not among the optimizers that the library steps: give SGD, Adam or AdamW, {_ELSE}")
    _need(not optimizer.state, f"this {kind.__name__} has a state of earlier steps, which a run lacks: create a new one, {_ELSE}")
    only = {"dampening": 0, "amsgrad": False, "maximize": False, "decoupled_weight_decay": kind is torch.optim.AdamW}
    for (name, value), group in itertools.product(only.items(), groups):
        _need(group.get(name, value) == value, f"the library's {kind.__name__} has no {name}={group.get(name)}: omit it, {_ELSE}")
    rates = _rates(optimizer, lr)
    for i, name in itertools.product(range(len(rates)), rates[0]):
        _need(rates[i][name] == rates[0][name] or name in ("lr", "weight_decay"), f"parameter groups 0 and {i} have "
              f"{name}={rates[0][name]} and {rates[i][name]}, but only lr and weight_decay may differ: make them alike, {_ELSE}")
    lr = max(rate["lr"] for rate in rates)
    found = dict(rates[0], lr=lr, optimizer=_READ[kind][0])
    found.update(zip(("beta1", "beta2"), found.pop("betas", ())))
    own = {p: (rate["lr"] / (lr or 1), rate["weight_decay"]) for rate, group in zip(rates, groups) for p in group["params"]}
    return found, {p: pair for p, pair in own.items() if pair != (1, found["weight_decay"]) and lr > 0}


def _as_dataset(data):
    is_pair = isinstance(data, (tuple, list)) and len(data) == 2 and torch.is_tensor(data[0])
    return torch.utils.data.TensorDataset(*data) if is_pair else data


def _sha256(dataset):
    """Of a TensorDataset; None: not known."""
    tensors = dataset.tensors if isinstance(dataset, torch.utils.data.TensorDataset) else ()
    if not tensors or sum(t.nbytes for t in tensors) > 1 << 30:
        return None
    sha = hashlib.sha256(str([(t.dtype, t.shape) for t in tensors]).encode())
    for t in tensors:
        sha.update(t.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def _seed(*what):
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


class _Seeded(torch.utils.data.Dataset):
    """The first index of a batch is a seed: random augmentation does not depend on the process that loads it."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitems__(self, indices):
        torch.default_generator.manual_seed(indices[0])
        take = getattr(self.dataset, "__getitems__", None)
        return take(indices[1:]) if take else [self.dataset[i] for i in indices[1:]]


def _begin_loader(then, number):
    """A terminal's Ctrl-C goes to loader processes, too. The rank ends the run in good order, and needs them until then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    then(number) if then else None


class _Gone(torch.Tensor):
    """Stands for a gradient that has left: whoever reads, clips or steps with it learns so."""

    @classmethod
    def __torch_function__(cls, *call):
        raise RefusedError("the gradient has left during backward: call rank.step(loss) alone after it (Rank has clip_norm=.. for "
                           f"ring and solo, whose ranks have the whole mean gradient), {_ELSE}")


class Rank(entrain.Rank):
    """One rank of a run that trains a module, as docs/pytorch.md explains. Settings are those of `entrain worker`.

    optimizer    SGD, Adam or AdamW of torch.optim: the library reads it and steps alike, under any strategy. With step="torch"
                 any optimizer, which PyTorch steps (ring, solo, and strategies with local steps)
    data         the training set: a dataset with len() and items, or a pair of tensors (inputs, targets)
    evaluate     called with the model on rank 0; returns the loss, or with has_accuracy=True (loss, accuracy): step(loss, accuracy)
    schedule     a scheduler, stepped after each epoch (schedule_every="step": step), or a function (step, epoch) -> factor of lr

    Until end() the parameters lie in the run's memory. `unused` counts by name the steps without a gradient, which is zero then.
    """

    def __init__(self, model, optimizer, *, data, evaluate=None, has_accuracy=False, step="native", schedule=None,
                 schedule_every="epoch", data_sha256=None, **settings):
        _need(step in ("native", "torch"), f"step={step!r}: give 'native' (the library steps) or 'torch'")
        _need(step == "native" or schedule is None, "step='torch' leaves schedules to PyTorch: call scheduler.step() in the loop")
        data = _as_dataset(data)
        _need(hasattr(data, "__len__") and hasattr(data, "__getitem__"), f"data is a {type(data).__name__}: give a map-style one")
        self._model, self._optimizer, self._data, self._hooks, own_step = model, optimizer, data, [], step == "torch" or None
        self._trained, self.unused = _trained(model, optimizer), collections.Counter()
        lr = "lr" if schedule is None or callable(schedule) else "initial_lr"
        read, own = ({"lr": optimizer.param_groups[0]["lr"], "momentum": 0.0}, {}) if own_step else _settings_of(optimizer, lr)
        schedule = schedule if lr == "lr" else _factors(schedule, optimizer, schedule_every)
        read = {name: value if isinstance(value, (str, bool)) else float(value) for name, value in read.items()}
        for name in read.keys() & settings.keys():
            raise RefusedError(f"{name}={settings[name]}: the optimizer has {name}={read[name]}; omit one, or tell entrain run")
        self._places = [(f"{prefix}.{key}".lstrip("."), of, key) for prefix, module in model.named_modules()
                        for of in (module._parameters, module._buffers) for key, t in of.items() if t is not None and t.numel() > 0]
        super().__init__({name: p.detach().numpy() for name, p in self._trained.items()}, len(data),
                         memories={name: _memory_of(name, of[key]) for name, of, key in self._places if not of[key].requires_grad},
                         rates={name: own[p] for name, p in self._trained.items() if p in own},
                         evaluate=evaluate and functools.partial(self._judge_module, evaluate), has_accuracy=has_accuracy,
                         schedule=schedule, step=own_step and self._step_own, model=type(model).__name__, data=type(data).__name__,
                         data_sha256=data_sha256 or _sha256(data),
                         computes=f"torch {torch.__version__}, cpu, {torch.get_num_threads()} threads", **read, **settings)
        for group in optimizer.param_groups if own_step else ():  # a launcher's lr wins
            group["lr"] *= self.about["lr"] / (read["lr"] or 1)
        self._has_accuracy, self._nparts, self._part = has_accuracy, 1, None
        self._gradient = {name: torch.from_numpy(array) for name, array in self.gradients.items()}
        self._put(map(torch.from_numpy, self.weights.values()))
        for i, (name, p) in enumerate(self._trained.items()):
            leave = functools.partial(self._leave, name, self._gradient[name], self._gradient[name].as_subclass(_Gone),
                                      functools.partial(self._library.en_rank_ready, self._handle, i))
            self._hooks.append(p.register_post_accumulate_grad_hook(leave))
        self._forget()
        self._rates = [] if own_step else _rates(optimizer)
        self._was = [(of[key].data_ptr(), of[key].requires_grad) for _, of, key in self._places]

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

    def _forget(self):
        for p in self._trained.values():
            p.grad = None

    def accumulate(self, parts):
        """Batches come in so many parts, each with a backward and a step(): less memory, the same gradient."""
        _need(self._part is None and parts >= 1, f"accumulate({parts}): give 1 or more parts, before batches()")
        self._nparts = parts

    def batches(self, dataset=None, **loader):
        """The batches of this rank until the run ends, by a DataLoader with these arguments; each wants a step()."""
        dataset, ahead = self._data if dataset is None else dataset, collections.deque()
        batch, seed = self.about["batch"], self.about["seed"]
        _need(len(dataset) == len(self._data), f"batches() has {len(dataset)} samples, Rank {len(self._data)}: give the same ones")
        _need(loader.pop("batch_size", batch) == batch, f"batches() has another batch_size than Rank's {batch}: omit it")
        for name in {"sampler", "batch_sampler", "shuffle", "drop_last"} & loader.keys():
            raise RefusedError(f"batches({name}=..): the run chooses the samples: omit it (Rank has shuffle and drop_last)")
        workers = loader.get("num_workers", 0)
        if workers > 0:
            loader["prefetch_factor"] = loader.get("prefetch_factor") or (1 if self.about["is_claiming"] else 2)
            loader["worker_init_fn"] = functools.partial(_begin_loader, loader.get("worker_init_fn"))
        _need(workers * (loader.get("prefetch_factor") or 0) <= 60, f"batches() would load {workers} x "
              f"{loader.get('prefetch_factor')} batches ahead, and a rank takes 60: give fewer num_workers, or prefetch_factor")

        def chosen():
            for number, samples in iter(self._next, None):
                parts = np.array_split(samples, max(1, min(self._nparts, len(samples))))
                for i, part in enumerate(parts):
                    ahead.append(_Part(number, i, len(parts), len(part), len(samples)))
                    if len(part):
                        yield [_seed(seed, number, i, "data"), *part.tolist()]

        for data in itertools.chain(torch.utils.data.DataLoader(_Seeded(dataset), batch_sampler=chosen(), **loader), [None]):
            self._part = None
            while self._part is None:  # empty batches lie before it
                if not ahead or not self._begin_part(ahead.popleft()):
                    return
            torch.default_generator.manual_seed(_seed(seed, self._part.number, self._part.index))  # alone: GPUs' cost half a ms
            yield data
            _need(self._part is None, "the last batch was not finished: call rank.step(loss) after loss.backward()")

    def _look(self):
        """All that Rank has lent is where it was."""
        for (name, of, key), was in zip(self._places, self._was):
            if (of[key].data_ptr(), of[key].requires_grad) != was:
                raise RefusedError(f"{name} of the model was moved, frozen or thawed after it joined: call .to(), .half() and "
                                 "requires_grad_() before, and change buffers in place")

    def _begin_part(self, part):
        self._look()
        for was, now in zip(self._rates, _rates(self._optimizer) if self._rates else ()):
            for name in [name for name in was if was[name] != now[name]]:
                raise RefusedError(f"{name} of the optimizer has changed from {was[name]} to {now[name]}, but the library steps: "
                                 f"omit that (Rank has schedule=.. and lr_schedule=..), {_ELSE}")
        if part.index == 0:
            self._touched, self._sums = {}, np.zeros(2)
            if not self._begin(part.total):
                return False
            self._waiting.clear()  # those without a gradient are zero
        self._part = part if part.total else None
        return True

    def _leave(self, name, gradient, gone, ready, p):
        """The gradient of a parameter is complete: it leaves while backward goes on. Each microsecond counts."""
        part, grad = self._part, p.grad
        if part is None or self._touched.get(name) == part.index:
            raise RefusedError(f"backward() {'without' if part is None else 'twice in'} a batch, at parameter {name}: call it once "
                             "for each that batches() gives")
        if grad.layout != torch.strided:
            raise RefusedError(f"the gradient of {name} is {grad.layout}: give its module sparse=False")
        if part.count == 1:
            gradient.copy_(grad)
        elif name in self._touched:
            gradient.add_(grad, alpha=part.size / part.total)
        else:
            torch.mul(grad, part.size / part.total, out=gradient)
        self._touched[name] = part.index
        p.grad = gone
        if part.index + 1 == part.count and (status := ready()):
            self._check(status)

    def step(self, loss, accuracy=None):
        """After loss.backward(), in place of optimizer.step(): ends the step, once all parts of the batch are there."""
        part = self._part
        _need(part is not None, "step() without a batch: call it once for each that batches() gives")
        if part.index not in self._touched.values():
            self._look()  # perhaps the parameters are others by now
            raise RefusedError("step() before loss.backward(): no gradient has come")
        _need(accuracy is not None or not self._has_accuracy, "step() lacks what has_accuracy=True promises: step(loss, accuracy)")
        self._sums += [part.size / part.total * float(torch.as_tensor(value).detach()) for value in (loss, accuracy or 0)]
        self._part = None
        if part.index + 1 < part.count:
            return self._forget()
        self.unused.update(self._tensors.keys() - self._touched.keys())
        for name in [name for name, index in self._touched.items() if index < part.index]:  # by an earlier part alone
            self.ready(name)
        self.finish(*self._sums)
        self._forget()

    def _step_own(self, names):
        was = {p: p.grad for p in self._trained.values()}  # backward may go on, and what has left must not be used again
        for name, p in self._trained.items():
            p.grad = self._gradient[name] if name in names else None
        self._optimizer.step()
        for p, grad in was.items():
            p.grad = grad

    def end(self):
        """After batches() has ended: the last evaluation, the report, the goodbye. The module has memory of its own again."""
        super().end()
        self.close()

    def close(self):
        if self._handle is None:
            return
        super().close()
        while self._hooks:
            self._hooks.pop().remove()
        self._put(map(torch.from_numpy, self.weights.values()))
        self._forget()
        self._gradient = None


def simulate(model, loss, dataset, *, batch_size=64, seed=1, evaluate=None, **settings):
    """As entrain.simulate, with the parameters of `model` as weights; afterwards they hold the final ones.

    loss(output, target)    the mean loss of a batch; dataset: a pair of tensors (inputs, targets), or has len() and such pairs
    evaluate(model)         what Simulation.curve gets, if it is given
    Each epoch has an order of its own, from (seed, epoch), and only full batches. Buffers have seen the batches of all workers.
    """
    parameters, dataset = [p for p in model.parameters() if p.requires_grad], _as_dataset(dataset)
    _need(parameters, "the model has no parameter that needs a gradient")
    per_epoch = len(dataset) // batch_size
    _need(per_epoch, f"batch_size={batch_size} is more than the {len(dataset)} samples of the data set")

    @functools.lru_cache(2)  # a slow worker may still be in the last one
    def order(epoch):
        return np.random.default_rng((seed, epoch)).permutation(len(dataset))

    def batch_of(micro_batch):
        epoch, at = divmod(micro_batch, per_epoch)
        index = order(epoch)[at * batch_size:(at + 1) * batch_size]
        if isinstance(dataset, torch.utils.data.TensorDataset):
            return dataset[torch.from_numpy(index)]
        return torch.utils.data.default_collate([dataset[i] for i in index.tolist()])

    def flat(tensors):
        return torch.cat([t.detach().reshape(-1) for t in tensors]).to(torch.float32).cpu().numpy()

    def put(param):
        for p, part in zip(parameters, torch.from_numpy(np.array(param)).split([p.numel() for p in parameters])):
            p.data.copy_(part.view_as(p))

    def grad(param, micro_batch, rank):
        put(param)
        torch.manual_seed(_seed(seed, micro_batch))  # augmentation and dropout are the same in every run
        x, y = batch_of(micro_batch)
        model.zero_grad(set_to_none=True)
        loss(model(x), y).backward()
        return flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters])

    run = entrain.simulate(grad, flat(parameters), batch_size=batch_size, seed=seed, tensors=[p.numel() for p in parameters],
                           eval=(lambda param: put(param) or evaluate(model)) if evaluate else None, **settings)
    put(run.weights)
    return run
