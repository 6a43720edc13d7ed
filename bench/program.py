#!/usr/bin/env python3
"""A PyTorch program as the ranks of a run (docs/pytorch.md): beside DistributedDataParallel over Gloo, and beside itself alone.

    program.py --build=build --way=ps-async --model=convnet                 by `entrain run -n 2 --strategy=ps-async`
    program.py --build=build --way=ring --model=resnet18 --alone            and what the exchange adds to a step
    program.py --way=ddp --model=resnet18 --alone                           DDP's; ddp-tuned: views of its buckets, no buffers sent
    program.py --build=build --way=solo -n 1 --model=chain --alone          what the adapter adds to a step of 62 small tensors
    program.py --build=build --way=ring --model=resnet18 --memory           the peak of a rank, beyond that of a process alone
    program.py --build=build --import                                       `import entrain`, once numpy is there

With --alone, a rank trains two copies of the network in turns: one in the run, one by itself. So that is as fast as N processes
side by side which exchange nothing, seconds apart and under the same load. All have one thread a rank, the same loop, and a
DataLoader that indexes the same tensors. The first turn, and the first step of each turn, is not timed.

One JSON object. `samples_s`: of all ranks, each by its median step; `exposed_ms`: the median step in the run less that alone;
`join_ms`: from the last rank's call of Rank() until all have a batch; `peak_mb`: of the largest process.
"""
import argparse
import itertools
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = HERE.parent / "python"
SAMPLES = 2048


# ---- a rank ----


def network_of(a):
    torch.manual_seed(0)
    if a.model == "chain":
        return torch.nn.Sequential(*(torch.nn.Linear(10, 10) for _ in range(31)))
    net = torch_train.network(a.model, a.style)
    return net if a.style == "plain" else net.to(memory_format=torch.channels_last)


def data_of(a):
    """A batch is one indexing, so that the loader costs next to nothing."""
    class InMemory(torch.utils.data.Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, i):
            return x[i], y[i]

        def __getitems__(self, indices):
            chosen = x[indices]
            return (chosen if a.style == "plain" else chosen.contiguous(memory_format=torch.channels_last)), y[indices]

    shape = {"convnet": (1, 28, 28), "resnet18": (3, 32, 32), "chain": (10,)}[a.model]
    x, y = torch.randn(SAMPLES, *shape), torch.randint(10, (SAMPLES,))
    return InMemory()


def take(batch):
    """What the data set returns is a batch."""
    return batch


def batches_of(data, a, **loader):
    loader = torch.utils.data.DataLoader(data, a.batch, drop_last=True, collate_fn=take, **loader)
    while True:
        yield from loader


def steps_of(model, optimizer, batches, end_step):
    """Makes a step each time that it is asked for the next."""
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        end_step(loss)
        yield


def by_torch(model, optimizer, batches):
    return steps_of(model, optimizer, batches, lambda loss: optimizer.step())


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)


def steps_of_ddp(a, data):
    import torch.distributed as dist
    dist.init_process_group("gloo")
    tuned = {"gradient_as_bucket_view": True, "broadcast_buffers": False} if a.way == "ddp-tuned" else {}
    model = torch.nn.parallel.DistributedDataParallel(network_of(a), **tuned)
    return by_torch(model, sgd(model), batches_of(data, a, sampler=torch.utils.data.distributed.DistributedSampler(data)))


def measure(a, steps):
    """Milliseconds of the timed steps, by kind."""
    times = {kind: [] for kind in steps}
    for turn, (kind, one) in itertools.product(range(-1, a.turns), steps.items()):
        for i in range(a.warmup if turn < 0 else a.steps + 1):
            begin = time.perf_counter()
            if next(one, "over") == "over":  # in a run without turns, another rank was faster
                break
            if turn >= 0 and i > 0:
                times[kind].append((time.perf_counter() - begin) * 1e3)
    return times


def counted_twice_mb():
    """Of the resident memory: what other ranks have mapped, too, beyond this rank's share of it."""
    fields = dict(line.split(":") for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return (int(status["RssShmem"].split()[0]) - int(fields["Pss_Shmem"].split()[0])) * 1024 / 1e6


def be_rank(a):
    global F, torch, torch_train
    sys.path[:0] = [str(HERE / "peers"), str(PYTHON)]
    import torch
    import torch_train
    from torch.nn import functional as F
    torch.set_num_threads(1)
    data, rank, note, steps = data_of(a), None, {}, {}
    if a.way.startswith("ddp"):
        steps["run"] = steps_of_ddp(a, data)
    elif a.way != "alone":
        import entrain.torch
        model = network_of(a)
        optimizer = sgd(model)
        note["called_s"] = time.monotonic()
        rank = entrain.torch.Rank(model, optimizer, data=data, batch_size=a.batch, steps=2000, step=a.step)
        batches = rank.batches(collate_fn=take)
        first = next(batches)
        note["joined_s"] = time.monotonic()
        steps["run"] = steps_of(model, optimizer, itertools.chain([first], batches), rank.step)
    if a.alone or a.way == "alone":
        model = network_of(a)
        steps["alone"] = by_torch(model, sgd(model), batches_of(data, a, shuffle=True))
    times = measure(a, steps)
    note["twice_mb"] = counted_twice_mb()
    if rank is not None:
        rank.stop()
        for _ in steps["run"]:
            pass
        rank.end()
    elif a.way != "alone":
        torch.distributed.destroy_process_group()
    note.update({kind + "_ms": statistics.median(some) for kind, some in times.items()}, peer="torch " + torch.__version__,
                peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
    pathlib.Path(a.notes, f"{os.environ['RANK']}.json").write_text(json.dumps(note))


# ---- all of them ----


def fail(job, text):
    sys.exit(f"program.py: {' '.join(map(str, job))} failed: {text.strip().splitlines()[-1] if text.strip() else 'without a word'}")


def start_by_hand(a, command):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    where = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(a.n))
    jobs = [subprocess.Popen(command, env=dict(where, RANK=str(rank)), stderr=subprocess.PIPE, text=True) for rank in range(a.n)]
    for job in jobs:
        said = job.communicate()[1]
        if job.returncode != 0:
            fail(command, said)


def notes_of(a, way):
    """What the ranks have noted."""
    with tempfile.TemporaryDirectory(prefix="entrain-program-") as folder:
        command = [sys.executable, str(HERE / "program.py"), *sys.argv[1:], f"--way={way}", f"--notes={folder}"]
        if way == "alone" or way.startswith("ddp"):
            start_by_hand(a, command)
        else:
            command = [f"{a.build}/entrain", "run", "-n", str(a.n), f"--strategy={way}", "--quiet", "--log-level=error",
                       f"--out={folder}/out", "--", *command]
            ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if ended.returncode != 0:
                fail(command, ended.stderr)
        return [json.loads(pathlib.Path(folder, f"{rank}.json").read_text()) for rank in range(a.n)]


def memory(a):
    """Also with each page that ranks share counted once."""
    alone, ours = (max(notes_of(a, way), key=lambda note: note["peak_mb"]) for way in ("alone", a.way))
    beyond = ours["peak_mb"] - alone["peak_mb"]
    return dict(alone_peak_mb=round(alone["peak_mb"], 1), peak_mb=round(ours["peak_mb"], 1), beyond_mb=round(beyond, 1),
                beyond_once_mb=round(beyond - ours["twice_mb"], 1))


def speed(a):
    notes = notes_of(a, a.way)
    figures = dict(peer=notes[0]["peer"], peak_mb=round(max(note["peak_mb"] for note in notes), 1))
    for kind, name in (("run", ""), ("alone", "alone_")):
        if kind + "_ms" in notes[0]:
            figures[name + "samples_s"] = round(sum(a.batch / note[kind + "_ms"] for note in notes) * 1e3, 1)
            figures[name + "step_ms"] = round(statistics.mean(note[kind + "_ms"] for note in notes), 3)
    if "alone_step_ms" in figures:
        figures["exposed_ms"] = round(figures["step_ms"] - figures["alone_step_ms"], 3)
        figures["exposed_percent"] = round(100 * figures["exposed_ms"] / figures["step_ms"], 2)
    if "joined_s" in notes[0]:
        figures["join_ms"] = round((max(note["joined_s"] for note in notes) - max(note["called_s"] for note in notes)) * 1e3, 2)
    return figures


def time_import():
    """With the package compiled, as pip leaves it."""
    code = "import numpy, time; begin = time.perf_counter(); import entrain; print((time.perf_counter() - begin) * 1e3)"
    with tempfile.TemporaryDirectory() as cache:
        env = dict(os.environ, PYTHONPATH=str(PYTHON), PYTHONPYCACHEPREFIX=cache)
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        took = [float(subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, check=True).stdout) for _ in range(6)]
    return dict(import_ms=round(statistics.median(took[1:]), 2), first_ms=round(took[0], 2))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--way", default="ring", help="a strategy, ddp, ddp-tuned, or alone [ring]")
    p.add_argument("-n", type=int, default=2, help="ranks [2]")
    p.add_argument("--model", default="convnet", choices=["convnet", "resnet18", "chain"])
    p.add_argument("--style", default="plain", choices=["plain", "best"], help="as in peers/torch_train.py")
    p.add_argument("--step", default="native", choices=["native", "torch"], help="who steps under Rank [native]")
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--steps", type=int, default=25, help="timed ones of a turn [25]")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--warmup", type=int, default=5, help="steps of the first turn [5]")
    p.add_argument("--alone", action="store_true", help="a second copy of the network, alone, in turns with the first")
    p.add_argument("--memory", action="store_true")
    p.add_argument("--import", action="store_true", dest="imports")
    p.add_argument("--notes", help=argparse.SUPPRESS)  # a rank, and the folder of its figures
    a = p.parse_args()
    a.build = os.path.abspath(a.build)
    os.environ.update(ENTRAIN_LIBRARY=f"{a.build}/libentrain.so", OMP_NUM_THREADS="1")
    if a.notes:
        be_rank(a)
    else:
        about = dict(bench="program", way=a.way, model=a.model, style=a.style, step=a.step, ranks=a.n, batch=a.batch)
        print(json.dumps({**about, **(time_import() if a.imports else memory(a) if a.memory else speed(a))}), flush=True)


if __name__ == "__main__":
    main()
