"""rows.py - the measurements of `make bench`: experiments of interleaved programs, and the rows of the table.

A program is a command that prints JSON objects, one per line. An experiment runs all of its programs, then all of
them again, --repeat times; a row takes one number from each repetition of one program and, if it is compared with
something, one from another program of the same repetition. So a ratio is always of two figures that were taken
seconds apart.
"""
import shutil
from dataclasses import dataclass, field
from typing import Optional

MB64, MB1, KB4 = 64 << 20, 1 << 20, 4096
RESNET, CONVNET = 44726568, 1724320  # bytes of the weights of ResNet-18 for ten classes, and of the MNIST convnet
MFLOP_IMAGE = 13.2  # forward and backward of the convnet, without the gradient of its input


@dataclass
class Pick:
    """One number of a program's output: `key` of the lines where all of `where` holds (`how` of several)."""
    program: str
    key: str
    where: dict = field(default_factory=dict)
    scale: float = 1
    minus: Optional[str] = None  # a key to subtract
    how: str = "max"  # or min, sum


@dataclass
class Row:
    """`ours` compared with `beside`. The ratio is ours / beside, or with `is_time` and a target `at_least`, beside / ours:
    how many times as fast. Without a target it is only reported. Without `beside` the target applies to the number."""
    figure: str
    ours: Pick
    unit: str
    label: str = ""
    beside: Optional[Pick] = None
    at_least: Optional[float] = None
    at_most: Optional[float] = None
    is_time: bool = False
    target: str = ""  # as text if the number does not say it


@dataclass
class Experiment:
    name: str
    programs: dict  # key -> command (a list), or a text: the reason to skip it
    rows: list
    deadline_s: int = 60


def allreduce(tools, ranks, targets):
    """On one host: vectors in shared memory and private ones; targets: (bytes, contract, beside, ratio)."""
    iters = {MB64: 10, MB1: 30, KB4: 300} if ranks == 2 else {MB64: 7, MB1: 20, KB4: 100}
    sizes = [size for size in iters if any(size == t[0] for t in targets)]
    programs, rows = {}, []
    for size in sizes:
        for contract in ("arena", "private"):
            programs[f"{contract} {size}"] = [
                tools.bench("allreduce"), "--json", f"--ranks={ranks}", f"--contract={contract}", "-c", 0, "-b", size,
                "-e", size, "-n", iters[size], "-w", 3]
        programs[f"sum {size}"] = [tools.bench("limits"), "--json", "--what=sum", f"--processes={ranks}",
                                   f"--bytes={size}", "-n", iters[size]]
    programs["mpi"] = tools.command("mpi", ranks, [f"{iters[size]}x{size}" for size in sizes])
    programs["gloo"] = tools.command("gloo", ranks, [f"{min(iters[size], 40)}x{size}" for size in sizes])
    names = {"mpi": "Open MPI", "gloo": "Gloo", "sum": "in-place sum (limit)"}
    for size, contract, beside, ratio in targets:
        is_small = size == KB4
        key = "median_us" if is_small else "gb_s" if beside == "sum" else "algbw_gb_s"
        rows.append(Row(f"all-reduce, {ranks} ranks, {human(size)}, {'shared arena' if contract == 'arena' else 'private buffers'}",
                        Pick(f"{contract} {size}", "median_us" if is_small else "algbw_gb_s"),
                        "us" if is_small else "GB/s", names[beside], Pick(f"sum {size}" if beside == "sum" else beside, key, {"bytes": size}),
                        at_least=ratio, is_time=is_small))
    return Experiment(f"allreduce-{ranks}", programs, rows)


def allreduce_tcp(tools, hosts):
    """Between network namespaces, each a host."""
    programs = {"ours": tools.between_hosts(hosts, [tools.bench("tcp_limit"), "--json", f"--ranks={hosts}", "-b", MB64,
                                                    "-e", MB64, "-n", 5, "-w", 1]),
                "gloo": tools.between_hosts(hosts, tools.command("gloo", hosts, [f"5x{MB64}"]))}
    figure = f"all-reduce over TCP, {hosts} namespaces, 64 MB"
    least = (1.4 if hosts == 2 else 1) if tools.has_avx512() else (1.2 if hosts == 2 else 0.95)
    ours = Pick("ours", "median_us", scale=1e-3)
    return Experiment(f"tcp-{hosts}", programs, [
        Row(figure, ours, "ms", "the same flows without arithmetic (limit)", Pick("ours", "limit_us", scale=1e-3),
            at_least=0.9, is_time=True),
        Row(figure, ours, "ms", "Gloo", Pick("gloo", "median_us", scale=1e-3), at_least=least, is_time=True,
            target=f">= {least} {'with' if tools.has_avx512() else 'without'} AVX-512")])


def fused_step(tools):
    """All-reduce, mean and SGD with momentum: in one pass over one copy of the weights, and one after the other."""
    line = [tools.bench("allreduce"), "--json", "--ranks=2", "-c", 0, "-b", RESNET, "-e", RESNET, "-n", 10]
    programs = {then: line + [f"--then-step={then}"] for then in ("fused", "after")}
    return Experiment("step", programs, [
        Row("synchronous step, all-reduce + SGD with momentum, 44.7 MB, 2 ranks, one pass",
            Pick("fused", "median_us", scale=1e-3), "ms", "the all-reduce, then the update",
            Pick("after", "median_us", scale=1e-3), at_least=2, is_time=True)])


def human(size):
    return {MB64: "64 MB", MB1: "1 MB", KB4: "4 KB", RESNET: "44.7 MB", CONVNET: "1.7 MB"}[size]


def pushpull(tools):
    """One psd, two workers: gradients to it, weights back; summed and stepped by SGD with momentum."""
    programs, rows = {}, []
    for size, rounds in ((RESNET, 8), (CONVNET, 60)):
        for transport in ("shm", "tcp"):
            programs[f"{transport} {size}"] = [tools.bench("pushpull"), "--json", f"--bytes={size}", "--workers=2", "--shards=0",
                                               f"--transport={transport}", "-n", rounds, "-w", 3]
        programs[f"pslite {size}"] = tools.command("pslite", 2, [rounds, size])
        programs[f"mxnet {size}"] = tools.command("mxnet", 2, [rounds, size])
        programs[f"copy {size}"] = [tools.bench("limits"), "--json", "--what=copy", "--processes=1", f"--bytes={MB64}"]
        programs[f"echo {size}"] = [tools.bench("limits"), "--json", "--what=echo", "--processes=2", f"--bytes={size}",
                                    "-n", rounds]
        figure = f"push-pull, 2 workers, {human(size)}, "
        shm, tcp = Pick(f"shm {size}", "gb_s"), Pick(f"tcp {size}", "gb_s")
        rows += [
            Row(figure + "shared memory", shm, "GB/s", "copy, one core (limit)", Pick(f"copy {size}", "gb_s"), at_least=0.93,
                target=">= 13 GB/s where a core copies 14"),
            Row(figure + "shared memory", shm, "GB/s", "ps-lite", Pick(f"pslite {size}", "gb_s"), at_least=4),
            Row(figure + "ZeroMQ over TCP", tcp, "GB/s", "ps-lite", Pick(f"pslite {size}", "gb_s"), at_least=1.5),
            Row(figure + "shared memory", shm, "GB/s", "MXNet's KVStore", Pick(f"mxnet {size}", "gb_s")),
            Row(figure + "ZeroMQ over TCP", tcp, "GB/s", "MXNet's KVStore", Pick(f"mxnet {size}", "gb_s")),
            Row(figure + "ZeroMQ over TCP", tcp, "GB/s", "ZeroMQ echo (limit)", Pick(f"echo {size}", "gb_s")),
        ]
    return Experiment("pushpull", programs, rows)


def pushpull_small(tools):
    programs = {
        transport: [tools.bench("pushpull"), "--json", f"--bytes={KB4}", "--workers=2", f"--transport={transport}",
                    "-n", 2000, "-w", 200] for transport in ("shm", "tcp")
    }
    programs["bare"] = [tools.bench("limits"), "--json", "--what=roundtrip,meeting", "--processes=2", f"--bytes={KB4}",
                        "-n", 2000]
    bare, meeting = (Pick("bare", "median_us", {"what": what}) for what in ("roundtrip", "meeting"))
    tcp, shm = "push-pull, 2 workers, 4 KB, ZeroMQ over TCP, ", "push-pull, 2 workers, 4 KB, shared memory, "
    return Experiment("pushpull-small", programs, [
        Row(tcp + "p50", Pick("tcp", "median_us"), "us", "bare round trip", bare, at_most=1.2, is_time=True),
        Row(tcp + "p50", Pick("tcp", "median_us"), "us", "bare meeting of both (limit)", meeting, is_time=True),
        Row(tcp + "p99", Pick("tcp", "p99_us"), "us", "its own p50", Pick("tcp", "median_us"), at_most=5, is_time=True),
        Row(shm + "p50", Pick("shm", "median_us"), "us", "bare round trip", bare, at_most=0.5, is_time=True),
        Row(shm + "p99", Pick("shm", "p99_us"), "us", "its own p50", Pick("shm", "median_us"), at_most=5, is_time=True),
    ])


def async_against_sync(tools):
    programs, rows = {}, []
    for workers in (2, 4):
        for strategy in ("ps-sync", "ps-async"):
            programs[f"{strategy} {workers}"] = [
                tools.bench("pushpull"), "--json", f"--bytes={CONVNET}", f"--workers={workers}", "--transport=shm",
                f"--strategy={strategy}", "--momentum=0", "-n", 100, "-w", 10, "-c", 0]
        pick = [Pick(f"{strategy} {workers}", "gb_s") for strategy in ("ps-async", "ps-sync")]
        whole = [Pick(f"{strategy} {workers}", "round_us") for strategy in ("ps-async", "ps-sync")]
        figure = f"push-pull, async, {workers} workers, 1.7 MB"
        rows += [Row(figure, pick[0], "GB/s", "sync", pick[1], at_least=1),
                 Row(figure + ", whole rounds", whole[0], "us", "sync", whole[1], is_time=True)]
    return Experiment("async", programs, rows)


def sgemm(tools, processes):
    return [tools.bench("limits"), "--json", "--what=sgemm", f"--processes={processes}", "-n", 20]


def convnet_one(tools):
    programs = {"ours": [tools.bench("train"), "--json", "--strategy=solo", "--workers=1", "-n", 200],
                "sgemm": sgemm(tools, 1)}
    ours, rows = Pick("ours", "samples_s"), []
    for name in tools.torches:
        programs[name] = tools.command(name, 1, ["--style=plain,best", "--steps=80"])
        rows += [Row("convnet, 1 worker, 1 thread", ours, "images/s", f"{name}, {words}",
                     Pick(name, "samples_s", {"style": style}), at_least=ratio)
                 for style, words, ratio in (("plain", "as people write it", 2), ("best", "at its best", 1.4))]
    rows.append(Row("convnet, 1 worker, 1 thread", Pick("ours", "samples_s", scale=MFLOP_IMAGE / 1e3), "GFLOP/s",
                    "sgemm (limit)", Pick("sgemm", "gflop_s"), at_least=0.55))
    return Experiment("convnet-1", programs, rows)


def residual_ops(tools):
    """Operations of a ResNet-18 for 32 x 32 images that only move memory: compared with a copy, and with PyTorch's."""
    ops = ["batchnorm:32x32x64", "batchnorm:4x4x512", "maxpool:16x16x64", "avgpool:4x4x512"]
    programs = {"ours": [tools.bench("layers"), "--json", "--batch=128"] + [f"--op={op}" for op in ops],
                "copy": [tools.bench("limits"), "--json", "--what=copy", "--processes=1", f"--bytes={MB64}"]}
    for name in tools.torches:
        programs[name] = tools.command(name, 1, ["--batch=128", "--steps=20", "--ops=" + ",".join(ops)])
    rows = []
    for op in ops:
        kind, shape = op.split(":")
        figure = f"{kind}{' with relu' if kind == 'batchnorm' else ''}, batch 128 of {shape}, "
        for way in ("forward", "backward"):
            ours = Pick("ours", "us", {"layer": op, "way": way}, scale=1e-3, how="sum")  # backward may be two passes
            rows += [Row(figure + way, ours, "ms", name, Pick(name, "us", {"layer": op, "way": way}, scale=1e-3), is_time=True)
                     for name in tools.torches]
        for one in ("forward", "backward weights", "backward data")[:3 if kind == "batchnorm" else 1]:
            rows.append(Row(figure + one, Pick("ours", "gb_s", {"layer": op, "pass": one}), "GB/s", "copy, one core (limit)",
                            Pick("copy", "gb_s")))
    return Experiment("residual-ops", programs, rows, deadline_s=120)


def images(tools):
    """The loader's work on an image, on one core; Pillow's time is that of the resize alone, ours includes the rest."""
    programs = {"ours": [tools.bench("images"), "--json"], "torchvision": tools.commands["torchvision"],
                "Pillow": tools.commands["Pillow"]}
    return Experiment("images", programs, [
        Row("image of 32 x 32: crop, flip, normalise, one core", Pick("ours", "us", {"what": "augment"}), "us",
            "torchvision's transforms", Pick("torchvision", "us", {"what": "augment"}), at_least=20, is_time=True),
        Row("image of 32 x 32 to 224 x 224, normalised, one core", Pick("ours", "us", {"what": "resize"}), "us",
            "Pillow's resize alone", Pick("Pillow", "us", {"what": "resize"}), at_least=1.5, is_time=True)])


def convnet_two(tools):
    train = [tools.bench("train"), "--json", "-n", 300]
    programs = {"solos": train + ["--strategy=solo", "--workers=1", "--at-once=2"],
                "ring": train + ["--strategy=ring", "--workers=2"],
                "ps-sync": train + ["--strategy=ps-sync", "--workers=2"],
                "sgemm": sgemm(tools, 2)}
    ring, rows = Pick("ring", "samples_s"), []
    for name in tools.torches:
        programs[name] = tools.command(name, 2, ["--strategy=ddp", "--style=best", "--steps=80"])
        rows.append(Row("convnet, 2 workers, ring", ring, "images/s", f"{name} DDP, at its best",
                        Pick(name, "samples_s"), at_least=1.5))
    solos = Pick("solos", "samples_s")
    rows += [
        Row("convnet, 2 workers, ring", ring, "images/s", "two solos side by side", solos, at_least=0.97),
        Row("convnet, 2 workers, ps-sync", Pick("ps-sync", "samples_s"), "images/s", "two solos side by side", solos,
            at_least=0.92),
        Row("convnet, 2 workers, ring", Pick("ring", "samples_s", scale=MFLOP_IMAGE / 1e3), "GFLOP/s",
            "sgemm, 2 processes (limit)", Pick("sgemm", "gflop_s")),
        Row("convnet, 2 workers, ring: waiting for data", Pick("ring", "data_share", scale=100), "% of a step", at_most=1),
        Row("convnet, 2 workers, ps-sync: waiting for data", Pick("ps-sync", "data_share", scale=100), "% of a step",
            at_most=1),
    ]
    return Experiment("convnet-2", programs, rows)


RESNETS = {"resnet18:stem=cifar": ("ResNet-18 of 32 x 32, 3x3 stem", "resnet18-cifar", 3.33),
           "resnet18": ("ResNet-18 of 32 x 32, 7x7 stem", "resnet18", 0.217)}  # name, PyTorch's, GFLOP an image


def resnet_one(tools, threads):
    """A step of batch 128; PyTorch at its best is the fastest of plain, channels_last and compiled."""
    programs, rows = {"sgemm": sgemm(tools, 1)} if threads == 1 else {}, []
    for model, (words, torch_model, gflop) in RESNETS.items():
        steps = 3 if "cifar" in model else 12
        programs[model] = [tools.bench("train"), "--json", f"--model={model}", "--strategy=solo", "--workers=1",
                           f"--threads={threads}", "--batch=128", "--data=synthetic", "-n", steps]
        figure = f"{words}, 1 worker, {threads} thread{'s' * (threads > 1)}"
        ours = Pick(model, "samples_s")
        for name in tools.torches:
            peer = f"{name} {model}"
            programs[peer] = tools.command(name, 1, [
                f"--model={torch_model}", f"--threads={threads}", "--data=batch", "--batch=128", "--warmup=1",
                f"--steps={steps}", "--style=plain,best,compiled" if tools.can_compile(name) else "--style=plain,best"])
            at_best = 1.1 if threads > 1 else 1.15 if "cifar" in model else 1.3
            rows += [Row(figure, ours, "images/s", f"{name}, as people write it", Pick(peer, "samples_s", {"style": "plain"}),
                         at_least=1.3), Row(figure, ours, "images/s", f"{name}, at its best", Pick(peer, "samples_s"),
                                            at_least=at_best)]
            if threads == 1:
                rows.append(Row(f"{words}: peak memory of a worker without the data set", Pick(model, "peak_mb", minus="data_mb"),
                                "MB", name, Pick(peer, "peak_mb", {"style": "plain"}), at_most=0.6, is_time=True))
        if threads == 1:
            rows.append(Row(figure, Pick(model, "samples_s", scale=gflop), "GFLOP/s of a plain sum", "sgemm",
                            Pick("sgemm", "gflop_s"), at_least=0.7 if "cifar" in model else None))
    return Experiment(f"resnet-1x{threads}", programs, rows, deadline_s=400)


def bf16(tools, threads):
    """bf16 beside float32 of the same build, and beside PyTorch's autocast, channels_last."""
    programs, rows = {}, []
    if not tools.has_bf16():
        return Experiment(f"bf16-1x{threads}", {"bf16": "bf16 on this CPU (avx512_bf16)"}, [])
    for model, words, torch_model, batch, steps in (
            ("convnet", "convnet", "convnet", 64, 150),
            *((model, words, torch_model, 128, 3 if "cifar" in model else 12)
              for model, (words, torch_model, _) in RESNETS.items())):
        figure = f"{words}, 1 worker, {threads} thread{'s' * (threads > 1)}, bf16"
        line = [tools.bench("train"), "--json", f"--model={model}", "--strategy=solo", "--workers=1", f"--threads={threads}",
                f"--batch={batch}", "--data=synthetic", "-n", steps]
        programs[f"{model} fp32"], programs[model] = line, line + ["--flags=--precision=bf16"]
        ours = Pick(model, "samples_s")
        rows.append(Row(figure, ours, "images/s", "the same in fp32", Pick(f"{model} fp32", "samples_s")))
        for name in filter(tools.can_compile, tools.torches):
            programs[f"{name} {model}"] = tools.command(name, 1, [
                f"--model={torch_model}", f"--threads={threads}", "--data=batch", f"--batch={batch}", "--warmup=1",
                f"--steps={steps}", "--style=bf16"])
            rows.append(Row(figure, ours, "images/s", f"{name}, autocast, channels_last",
                            Pick(f"{name} {model}", "samples_s"), at_least=1.1))
    return Experiment(f"bf16-1x{threads}", programs, rows, deadline_s=400)


def resnet_two(tools):
    """Two workers of one thread, batch 128 each: 44.7 MB of weights a step."""
    train = [tools.bench("train"), "--json", "--model=resnet18", "--batch=128", "--data=synthetic", "-n", 20]
    programs = {"solos": train + ["--strategy=solo", "--workers=1", "--at-once=2"],
                "ring": train + ["--strategy=ring", "--workers=2"],
                "ps-sync": train + ["--strategy=ps-sync", "--workers=2"]}
    figure, rows = RESNETS["resnet18"][0] + ", 2 workers, ", []
    for strategy, ratio in (("ring", 0.97), ("ps-sync", 0.92)):
        ours = Pick(strategy, "samples_s")
        rows.append(Row(figure + strategy, ours, "images/s", "two solos side by side", Pick("solos", "samples_s"), at_least=ratio))
        for name in tools.torches:
            programs[name] = tools.command(name, 2, ["--model=resnet18", "--strategy=ddp", "--style=best", "--data=batch",
                                                     "--batch=128", "--warmup=2", "--steps=12"])
            rows.append(Row(figure + strategy, ours, "images/s", f"{name} DDP, channels_last", Pick(name, "samples_s"), at_least=1.3))
    return Experiment("resnet-2", programs, rows, deadline_s=200)


def pipeline(tools):
    """Two stages of a thread each, batch 128; and other ways to use two cores for that batch."""
    ours = [tools.here("pipeline.py"), f"--build={tools.build}"]
    programs = {s: ours + ["--parallel=pipeline", "--stages=2", "--micro-batches=8", f"--pipeline={s}"] for s in ("1f1b", "gpipe")}
    programs |= {"one": ours, "chunks": ours + ["--micro-batches=8"], "twice": ours + ["--at-once=2"],
                 "data": ours + ["--parallel=data", "--device=cpu:0,cpu:1"], "ring": ours + ["-n", 2, "--strategy=ring"],
                 "threads": ours + ["--threads=2"]}
    words, rows = RESNETS["resnet18:stem=cifar"][0], []
    for s in ("1f1b", "gpipe"):
        figure, rate, core = f"{words}, 2 stages, 8 micro-batches, {s}", Pick(s, "samples_s"), Pick(s, "core_samples_s")
        programs[f"torch {s}"] = tools.command("pipelining", 2, [f"--schedule={s}", "--style=plain,best"])
        rows += [
            Row(figure + ": measured beside predicted bubble", Pick(s, "bubble_off", scale=100), "points", at_most=5),
            Row(figure + ": bubble", Pick(s, "bubble", scale=100), "% of the time"),
            Row(figure + ": a core, bubble and imbalance taken out", core, "images/s", "one core, no stages", Pick("one", "samples_s"),
                at_least=0.9),
            Row(figure + ": a core, bubble and imbalance taken out", core, "images/s", "one core, 8 micro-batches",
                Pick("chunks", "samples_s")),
            Row(figure + ": a core, bubble and imbalance taken out", core, "images/s", "a core of two that are at it alone (limit)",
                Pick("twice", "samples_s", scale=0.5)),
            Row(figure, rate, "images/s", "torch.distributed.pipelining over Gloo, plain",
                Pick(f"torch {s}", "samples_s", {"style": "plain"}), at_least=1.2),
            Row(figure, rate, "images/s", "the same, channels_last", Pick(f"torch {s}", "samples_s", {"style": "best"}), at_least=1.2)]
    rows += [Row(f"{words}, {name}", Pick(key, "samples_s"), "images/s", "two solos of 128 side by side", Pick("twice", "samples_s"))
             for key, name in (("data", "--parallel=data on 2 devices, 64 each"), ("ring", "ring of 2 workers, 64 each"),
                               ("threads", "1 worker, 2 threads"), ("1f1b", "2 stages, 1f1b"), ("gpipe", "2 stages, gpipe"))]
    return Experiment("pipeline", programs, rows, deadline_s=300)


def program(tools, model, words):
    """A PyTorch program as two ranks."""
    return tools.command("program", 2, [f"--build={tools.build}", f"--model={model}", *words.split()])


def program_convnet(tools):
    """The convnet in PyTorch, as people write it and channels_last, batch 64 a rank; the same loop under DDP and alone."""
    name, programs, rows = tools.torch_of("program"), {}, []
    for style, words in (("plain", "as people write it"), ("best", "channels_last")):
        for way in ("ring", "ps-sync", "ps-async", "ddp"):
            alone = " --alone" if way in ("ring", "ddp") else ""
            programs[f"{way} {style}"] = program(tools, "convnet", f"--way={way} --style={style}{alone}")
        figure = f"convnet in PyTorch, {words}, 2 ranks, "
        ring, ddp = (Pick(f"{way} {style}", "samples_s") for way in ("ring", "ddp"))
        rows += [Row(figure + "ring", ring, "images/s", f"{name} DDP", ddp, at_least=1.2),
                 Row(figure + "ring", ring, "images/s", "two processes side by side (limit)",
                     Pick(f"ring {style}", "alone_samples_s"), at_least=0.93)]
        rows += [Row(figure + way, Pick(f"{way} {style}", "samples_s"), "images/s", f"{name} DDP", ddp, at_least=1.15)
                 for way in ("ps-sync", "ps-async")]
    return Experiment("program-convnet", programs, rows, deadline_s=120)


def program_resnet(tools):
    """44.7 MB of gradients a step: what the exchange adds to a step, ours and DDP's."""
    name, programs, rows = tools.torch_of("program"), {}, []
    for way in ("ring", "ddp", "ddp-tuned"):
        programs[way] = program(tools, "resnet18", f"--way={way} --alone --steps=10 --turns=2 --warmup=3")
    figure = f"{RESNETS['resnet18'][0]}, in PyTorch, 2 ranks of batch 64, "
    for way, label in (("ddp", f"{name} DDP"), ("ddp-tuned", f"{name} DDP, gradient_as_bucket_view, no broadcast_buffers")):
        is_default = way == "ddp"
        rows += [Row(figure + label.removeprefix(name + " ") + ": exposed exchange", Pick(way, "exposed_percent"), "% of a step"),
                 Row(figure + "ring: exposed exchange", Pick("ring", "exposed_ms"), "ms", label, Pick(way, "exposed_ms"),
                     at_most=0.333 if is_default else None, is_time=True),
                 Row(figure + "ring", Pick("ring", "samples_s"), "images/s", label, Pick(way, "samples_s"),
                     at_least=1 if is_default else None)]
    return Experiment("program-resnet", programs, rows, deadline_s=150)


def program_costs(tools):
    """Hooks and calls, memory, joining, importing."""
    steps = "--way=solo -n 1 --alone --steps=150"
    programs = {"native": program(tools, "chain", steps), "torch": program(tools, "chain", steps + " --step=torch"),
                "memory": program(tools, "resnet18", "--way=ring --memory --turns=1 --steps=8 --warmup=2"),
                "ddp memory": program(tools, "resnet18", "--way=ddp --memory --turns=1 --steps=8 --warmup=2"),
                "join": program(tools, "convnet", "--way=ring --turns=1 --steps=2 --warmup=1"),
                "import": program(tools, "convnet", "--import")}
    figure = "hooks and calls of 62 tensors, 1 rank: a step less PyTorch's own, "
    peak = "ResNet-18 in PyTorch, ring: peak of a rank beyond a process alone, "
    return Experiment("program-costs", programs, [
        Row(figure + "step='torch'", Pick("torch", "exposed_ms"), "ms", at_most=0.3),
        Row(figure + "the library steps", Pick("native", "exposed_ms"), "ms", at_most=0.3),
        Row(peak + "pages that ranks share counted once", Pick("memory", "beyond_once_mb"), "MB",
            at_most=2 * RESNET / 1e6 + 10, target="<= 2 x weights + 10 MB"),
        Row(peak + "all pages of each", Pick("memory", "beyond_mb"), "MB", "DDP", Pick("ddp memory", "beyond_mb"), is_time=True),
        Row("convnet in PyTorch, 2 ranks: from the last call of Rank() to the first batch", Pick("join", "join_ms"), "ms", at_most=50),
        Row("import entrain, numpy loaded", Pick("import", "import_ms"), "ms", at_most=50)], deadline_s=120)


def overlap(tools):
    """On a wire of 200 MB/s: the share of the hideable communication that a step hides behind its backward."""
    programs = {s: [tools.here("overlap.py"), f"--build={tools.build}", f"--strategy={s}", "--net=rate:200MB",
                    "--repeat=1", "--steps=60", "--json"] for s in ("ring", "ps-sync")}
    return Experiment("overlap", programs, [
        Row(f"convnet, 2 workers, {s}, wire of 200 MB/s: communication hidden", Pick(s, "hidden", scale=100),
            "% of what can be", at_least=80) for s in programs], deadline_s=120)


def start_and_memory(tools):
    programs = {"ours": [tools.bench("train"), "--json", "--strategy=ring", "--workers=2", "-n", 21]}
    rows = [Row("start of a run of 2 workers to the end of its first step", Pick("ours", "startup_s"), "s", at_most=0.35,
                target="aim: 0.35 s")]
    for name in tools.torches:
        ddp = ["--strategy=ddp", "--style=plain"]
        programs[f"{name} start"] = tools.command(name, 2, ddp + ["--steps=1"])
        programs[f"{name} memory"] = tools.command(name, 2, ddp + ["--steps=25", "--data=batch"])
        rows += [Row("start of a run of 2 workers to the end of its first step", Pick("ours", "startup_s"), "s",
                     f"{name}, spawn of 2 DDP workers", Pick(f"{name} start", "first_step_s"), is_time=True),
                 Row("peak memory of a worker without the data set", Pick("ours", "peak_mb", minus="data_mb"), "MB", name,
                     Pick(f"{name} memory", "peak_mb"), at_most=0.25, is_time=True, target="aim: a quarter")]
    return Experiment("start", programs, rows)


def idle(tools):
    programs = {s: [tools.here("idle.py"), f"--build={tools.build}", f"--strategy={s}"] for s in ("ring", "ps-sync")}
    return Experiment("idle", programs, [
        Row("waiting worker, ring", Pick("ring", "core_percent", {"role": "worker"}), "% of a core", at_most=1),
        Row("waiting worker, ps-sync", Pick("ps-sync", "core_percent", {"role": "worker"}), "% of a core", at_most=1),
        Row("waiting psd", Pick("ps-sync", "core_percent", {"role": "psd"}), "% of a core", at_most=1)])


def restart(tools):
    """A synchronous run that loses one of its two workers continues with the other; or with two, as PyTorch's."""
    ours = [tools.here("restart.py"), f"--build={tools.build}"]
    programs = {s: ours + [f"--strategy={s}"] for s in ("ring", "ps-sync")}
    rows = [Row(f"a worker dies: from the loss to training again, convnet, {s}", Pick(s, "seconds"), "s", at_most=1)
            for s in programs]
    programs |= {"again": ours + ["--strategy=ring", "--elastic=2..2"]}
    for style, label in (("torchrun", "torchrun, 2 DDP workers"), ("fork", "PyTorch's agent, workers forked")):
        programs[style] = tools.command("torchrun", 2, [f"--style={style}"])
        rows.append(Row("a worker is killed: until 2 workers train again, convnet, ring", Pick("again", "since_kill_s"), "s", label,
                        Pick(style, "seconds"), is_time=True))
    return Experiment("restart", programs, rows, deadline_s=150)


def join(tools):
    """A worker joins while others train, from one to two (a core each) and from two to three."""
    ours = [tools.here("join.py"), f"--build={tools.build}"]
    programs = {s: ours + [f"--strategy={s}"] for s in ("ps-async", "ssp:bound=3")}
    programs["three"] = ours + ["--strategy=ssp:bound=3", "-n", 2]
    words = {"ps-async": "ps-async, 1 worker", "ssp:bound=3": "ssp:bound=3, 1 worker", "three": "ssp:bound=3, 2 workers on 2 cores"}
    rows = []
    for s in programs:
        is_crowded = s == "three"
        figure = f"a worker joins, convnet, {words[s]}"
        rows += [Row(f"{figure}: start to the end of its first step", Pick(s, "seconds"), "s", at_most=None if is_crowded else 0.5),
                 Row(f"{figure}: longest step of the others, over the longest before", Pick(s, "pause_ms"), "ms",
                     at_most=None if is_crowded else 20)]
    return Experiment("join", programs, rows, deadline_s=150)


def fetch(tools):
    """Downloads an object from an S3 bucket, from a service on this host."""
    ours = [tools.here("fetch.py"), f"--build={tools.build}"]
    return Experiment("fetch", {"both": ours if shutil.which("curl") else "no curl (apt-get install curl)"}, [
        Row("1 GiB from a bucket on loopback, with signature and hash", Pick("both", "transfer_mb_s"), "MiB/s", "curl",
            Pick("both", "curl_mb_s"), at_least=0.8)], deadline_s=300)


def virtual(tools):
    """Many ranks in virtual time. Seconds are of one core, so that a machine that others use does not count."""
    def ours(*flags):
        return [tools.bench("virtual"), "--json", "--compute=exp:10ms"] + list(flags)

    one_bucket = "--bucket-cap=67108864"
    programs = {"begun": ours("--strategy=ps-async", "-n", 10000, "--elements=48", "--steps=1"),
                "async": ours("--strategy=ps-async", "-n", 6174, "--elements=1729", "--steps=17", one_bucket),
                "ssp": ours("--strategy=ssp:bound=3", "-n", 10000, "--elements=10000", "--steps=50", "--lr=1e-6", one_bucket),
                "ring": ours("--strategy=ring", "-n", 4000, "--elements=1729", "--steps=20", one_bucket),
                "sync": ours("--strategy=ps-sync", "-n", 200000, "--elements=48", "--steps=1"),
                "pairs": ours("--strategy=d-psgd", "-n", 20000, "--elements=48", "--steps=2"),
                "mlp": ours("--strategy=ps-async", "-n", 64, "--model=mlp", "--steps=60")}
    return Experiment("virtual", programs, [
        Row("virtual: a rank that has not written, 48 elements", Pick("begun", "rank_kb"), "KB", at_most=24),
        Row("virtual: 6,174 ranks, 1,729 floats, 105,000 gradients, ps-async", Pick("async", "seconds"), "s", at_most=20),
        Row("virtual: memory of these 6,174 ranks", Pick("async", "mb"), "MB", at_most=1024),
        Row("virtual: 10,000 ranks x 50 steps of ssp, 10,000 floats", Pick("ssp", "seconds"), "s", at_most=60),
        Row("virtual: memory of these 10,000 ranks", Pick("ssp", "mb"), "MB"),
        Row("virtual: 4,000 ranks x 20 steps of ring, 1,729 floats", Pick("ring", "seconds"), "s"),
        Row("virtual: 200,000 ranks x 1 step of ps-sync, 48 floats", Pick("sync", "seconds"), "s"),
        Row("virtual: 20,000 ranks x 2 steps of d-psgd, 48 floats", Pick("pairs", "seconds"), "s"),
        Row("virtual: mlp, 64 ranks, ps-async, beside gradients, means and steps", Pick("mlp", "overhead"), "x", at_most=1.1),
        Row("virtual: mlp, 64 ranks, ps-async, beside gradients", Pick("mlp", "beside_gradients"), "x")], deadline_s=200)


def predict(tools):
    """The test set over two processes compared with one: they share only memory bandwidth and a counter."""
    models = {"convnet": "convnet", "resnet18": "resnet18 (7x7 stem)"}
    programs = {f"{m} {n}": [tools.here("predict.py"), f"--build={tools.build}", f"--model={m}", "-n", n]
                for m in models for n in (1, 2)}
    programs |= {f"{m} twice": programs[f"{m} 1"] + ["--at-once=2"] for m in models}
    return Experiment("predict", programs, [
        Row(f"predict, 10,000 images, {words}, -n 2", Pick(f"{m} 2", "samples_s"), "images/s", label, Pick(f"{m} {other}", "samples_s"),
            at_least=least) for m, words in models.items()
        for label, other, least in (("-n 1", "1", 1.9), ("two with -n 1 side by side (limit)", "twice", 0.95))], deadline_s=120)


def recipe(tools):
    """The loader's work on an image (images) is hidden behind the previous step."""
    programs = {"ours": [tools.here("recipe.py"), f"--build={tools.build}", "--recipe=resnet18-cifar10-32"]}
    return Experiment("recipe", programs, [
        Row("resnet18-cifar10-32.yaml, 2 workers: wait for data", Pick("ours", "percent"), "% of a step", at_most=1,
            target="< 1 %"),
        Row("resnet18-cifar10-32.yaml, 2 workers: a step", Pick("ours", "step_ms"), "ms")], deadline_s=120)


def machine(tools):
    """The machine's limits: rows without targets, but the first to look at."""
    programs = {"copy": [tools.bench("limits"), "--json", "--what=copy", f"--bytes={CONVNET},{RESNET},{MB64}"],
                "checksum": [tools.bench("limits"), "--json", "--what=checksum", "--processes=1", f"--bytes={MB1},{MB64}"],
                "one-way": [tools.bench("limits"), "--json", "--what=one-way", f"--bytes={MB1}", "-n", 5]}
    rows = [Row(f"limit: copy, {human(size)}, {cores} core{'s' * (cores > 1)}, load + store",
                Pick("copy", "gb_s", {"processes": cores, "bytes": size}), "GB/s")
            for size in (CONVNET, RESNET, MB64) for cores in (1, 2)]
    rows += [Row(f"CRC-32C of {human(size)}, one core", Pick("checksum", "gb_s", {"bytes": size}), "GB/s") for size in (MB1, MB64)]
    rows.append(Row("limit: ZeroMQ over TCP, 1 MB frames, one way", Pick("one-way", "gb_s"), "GB/s"))
    return Experiment("machine", programs, rows)


def experiments(tools):
    return [
        machine(tools),
        allreduce(tools, 2, [(MB64, "arena", "mpi", 5), (MB64, "arena", "gloo", 10), (MB64, "arena", "sum", 0.7),
                             (MB64, "private", "mpi", 2), (MB64, "private", "gloo", None),
                             (MB1, "arena", "mpi", 2), (MB1, "arena", "gloo", 10), (MB1, "arena", "sum", None),
                             (MB1, "private", "mpi", 2), (MB1, "private", "gloo", 10),
                             (KB4, "arena", "mpi", 1), (KB4, "arena", "gloo", None),
                             (KB4, "private", "mpi", 1)]),
        allreduce(tools, 4, [(MB64, "arena", "mpi", 5), (MB64, "arena", "gloo", None), (MB64, "arena", "sum", None),
                             (MB64, "private", "mpi", None), (KB4, "arena", "mpi", 1), (KB4, "private", "mpi", 1),
                             (KB4, "arena", "gloo", None)]),
        allreduce_tcp(tools, 2), allreduce_tcp(tools, 4),
        fused_step(tools), pushpull(tools), pushpull_small(tools), async_against_sync(tools),
        residual_ops(tools), images(tools), resnet_one(tools, 1), resnet_one(tools, 2), bf16(tools, 1), bf16(tools, 2), resnet_two(tools),
        pipeline(tools),
        convnet_one(tools), convnet_two(tools), overlap(tools), start_and_memory(tools), predict(tools), recipe(tools), idle(tools),
        program_convnet(tools), program_resnet(tools), program_costs(tools),
        restart(tools), join(tools), fetch(tools), virtual(tools),
    ]
