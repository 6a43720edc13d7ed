#!/usr/bin/env python3
"""The peer of restart.py: PyTorch's elastic agent starts two DDP workers over Gloo again when one of them is killed.

    torch_elastic.py --style=torchrun,fork

The MNIST convnet on made-up images of Fashion-MNIST's size, 64 a worker and step, saved every 25 steps. Rank 1 is killed once
it has saved; `seconds` is from there until rank 0 is about to take its first step in the next life. PyTorch has its best settings: the
agent looks at its workers ten times a second (--monitor_interval=0.1), has a store of its own
(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; a shared one at times never starts the second life), workers have one thread, channels_last, and
images that are made in memory, so that no data set is read. torchrun: as users start it; each life imports torch. fork: by the
library's elastic_launch, whose workers are forked from an agent that has imported it. One JSON object a style. A life that does not
begin within 60 s is ended with all that belongs to it, and the try has failed.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from idle import children

DEADLINE_S, EVERY, IMAGES, BATCH = 60, 25, 60000, 64


def note(folder, what, rank):
    """A line of a life, which the parent reads; short enough to be written whole."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open(folder / "notes", "a") as f:
        f.write(json.dumps(dict(what=what, life=life, rank=rank, pid=os.getpid(), at=time.monotonic())) + "\n")


def work(folder):
    """A worker: goes on from the checkpoint, until it is killed."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch_train import Net

    folder = pathlib.Path(folder)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, saved = dist.get_rank(), folder / "saved.pt"
    x = torch.randint(256, (IMAGES, 1, 28, 28), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (IMAGES,))
    net = Net(True).to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    step = 0
    if saved.exists():
        kept = torch.load(saved)
        net.load_state_dict(kept["model"]), opt.load_state_dict(kept["opt"])
        step = kept["step"]
    note(folder, "begins", rank)
    while True:
        i = torch.randint(IMAGES, (BATCH,))
        loss = F.cross_entropy(model(x[i].float() / 255), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % EVERY == 0 and rank == 0:
            torch.save(dict(model=net.state_dict(), opt=opt.state_dict(), step=step), folder / "new.pt")
            os.replace(folder / "new.pt", saved)
            note(folder, "saved", rank)


def fork(folder):
    """An agent that forks its workers."""
    import torch_train  # what they need, once
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=3, monitor_interval=0.1, start_method="fork",
                          run_id="restart", rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    elastic_launch(config, work)(folder)


def command(style, folder):
    me = str(pathlib.Path(__file__).resolve())
    if style == "fork":
        return [sys.executable, me, f"--agent={folder}"]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=2", "--max_restarts=3",
            "--monitor_interval=0.1", me, f"--worker={folder}"]


def wait_for(agent, folder, what, life, rank):
    """The line; None: it did not come in time."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and agent.poll() is None:
        if (folder / "notes").exists():
            for line in (folder / "notes").read_text().splitlines():
                found = json.loads(line)
                if (found["what"], found["life"], found["rank"]) == (what, life, rank):
                    return found
        time.sleep(0.01)
    return None


def descendants(pid):
    found = [child for child, _ in children(pid)]
    return found + [grandchild for child in found for grandchild in descendants(child)]


def end(agent):
    """The agent and all of its workers, which may have groups of their own."""
    for pid in descendants(agent.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        os.killpg(agent.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    agent.wait()


def measure(style):
    env = dict(os.environ, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", OMP_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        agent = subprocess.Popen(command(style, folder), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        try:
            victim, saved = wait_for(agent, folder, "begins", 0, 1), wait_for(agent, folder, "saved", 0, 0)
            if not victim or not saved:
                raise SystemExit(f"torch_elastic.py: {style}: the first life did not save within {DEADLINE_S} s")
            killed = time.monotonic()
            os.kill(victim["pid"], signal.SIGKILL)
            next_life = wait_for(agent, folder, "begins", 1, 0)
            if not next_life:
                raise SystemExit(f"torch_elastic.py: {style}: the next life did not begin within {DEADLINE_S} s")
            print(json.dumps(dict(bench="restart", style=style, workers=2, seconds=round(next_life["at"] - killed, 3))), flush=True)
        finally:
            end(agent)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--style", default="torchrun")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--agent", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker:
        return work(a.worker)
    if a.agent:
        return fork(a.agent)
    for style in a.style.split(","):
        measure(style)


if __name__ == "__main__":
    main()
