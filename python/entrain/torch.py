"""entrain.torch: a PyTorch module under any strategy in virtual time (docs/virtual-time.md).

    run = entrain.torch.simulate(model, loss, dataset, workers=64, strategy="ps-async", batch_size=64, steps=100, lr=0.05)
"""
import numpy as np
import torch

import entrain


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
