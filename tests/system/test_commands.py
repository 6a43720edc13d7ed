#!/usr/bin/env python3
"""The commands of README.md, docs/*.md, examples/README.md, CONTRIBUTING.md and bench/README.md work, in an installed tree
or beside build/.

    test_commands.py SOURCE BUILD

Installs into a temporary folder, then runs the commands of each page in their order, four pages at a time, on a small
set of made-up images in place of Fashion-MNIST. Studies and measurements train the mlp, and resnet18 is narrow. Each
command ends with 0, and the files that its flags promise are there. A command that is not run stands in NOT_RUN with
the reason; a flag that is another program's, or an alias, stands in FOREIGN. Exit 77 without a compiler.
"""
import concurrent.futures
import gzip
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from free_port import take_port

# Promise: Every command in README and docs runs as written, or is listed with the reason why not, and every flag
# there exists.
# Promise: README's comparison and make demo have the seeds to claim what they show.
# Promise: The examples build from an installed tree.

AT_ONCE = 4  # pages
CUT = 100  # images, and numbers of samples in a command, are divided by this
NOT_RUN = {  # a regular expression of commands: why they are not run here
    r"^make |^bench/(?!run.py --list)|^build/bench/|^bench_|^for p in .*bench_": "minutes: builds, tests or benchmarks of their own",
    r"^tests/gpu/|--device=cuda|^entrain gpus|^build/entrain gpus": "a GPU: tests with the label gpu",
    r"^torchrun|^mpirun|^srun|sbatch |^build/psd --strategy=ps-sync --world-size=2 &$":
        "a launcher: system_torchrun, system_mpirun, system_slurm",
    r"^[ab]\$ |^scp |^\(umask|--nnodes": "another host: system_netns",
    r"^entrain stop RUN": "RUN is a placeholder: system_ps",
    r"entrain (join|leave) RUN": "RUN is a placeholder: system_elastic, system_join",
    r"\.\.\. +\(a port of": "has a placeholder",
    r"^git worktree|^cmake -S|^cd - |test_walk.py": "minutes: the test walk",
    r"--config=\S*resnet18-cifar10": "CIFAR-10 itself: system_recipes runs them on made-up files",
    r"img2idx.py PICTURES": "pictures of the reader's own: system_own_data",
    r"--data=cifar10 |cifar_py2bin.py|make_cifar.py": "CIFAR's files, or pictures of the reader's own: tool_cifar, data_cifar",
    r"s3://|oss://|--clear-cache": "a bucket: system_buckets",
    r"--seeds=1000": "system_storm has more seeds",
    r"entrain conform .*(\./mine\.so|--seeds=10000)": "a plugin of the reader's own, and minutes: conform_command",
    r"^examples/virtual/": "numpy and PyTorch: virtual_examples",
    r" -- python3 ": "numpy and PyTorch: job_torch_examples, job_programs_compared",
}
FOREIGN = set("""--standalone --no_python --nproc_per_node --node_rank --master_addr --master_port --max_restarts --logdir
    --rdzv_backend --rdzv_id --rdzv_endpoint
    --nodes --ntasks-per-node --fake --packed --list --gpus --ps-lite --torch --python --build --source --trace --page --write
    --only --repeat --algorithm --bytes --then-step --hosts --plot --minutes --optimizers --op
    --contract --mxnet --at-once --what --cflags --libs --size --test --nproc-per-node
    --rm --read-only --shm-size --network --platform --install --photos --no-deps --num-workers --batch
    --format --signal --local-world-size""".split())
OURS = ("make cc bench tests tools build entrain psd worker torchrun mpirun srun scp git cmake cd for python3 sudo "
        "examples").split()
CUTS = {"run": "--data-dir={set}", "compare": "--data-dir={set} --model=mlp", "eval": "--data-dir={set}",
        "predict": "--data-dir={set}", "scale": "--data-dir={set} --model=mlp --steps=4 --repeats=1",
        "advise": "--data-dir={set} --model=mlp --repeats=1 --no-validate",
        "worker": "--data-dir={set}"}


def blocks(page):
    """(first line, lines) of each fenced or indented block that is not C or Python."""
    block, fence = [], None
    for number, line in enumerate(page.read_text().splitlines() + [""], 1):
        if line.startswith("```"):
            if fence in (None, "done"):
                fence = line[3:] or "text"
            else:
                if block and fence not in ("c", "python"):
                    yield block[0][0], [text for _, text in block]
                block, fence = [], None
        elif fence:
            block.append((number, line))
        elif line.startswith("    "):
            block.append((number, line[4:]))
        elif block:
            yield block[0][0], [text for _, text in block]
            block = []


def is_command(line):
    word = re.sub(r"^(sudo |[A-Z_]+=\S+ )*", "", line).split(" ")[0]
    return bool(re.match(r"[ab]\$ |\(umask", line)) or \
        (word.split("/")[0] in OURS and not word.endswith("/") and "  |" not in line and not re.match(r"\w+  +\w", line))


def why_not(command):
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, command)), None)


def make_set(folder):
    """Ten classes that a network can tell apart."""
    dice = random.Random(1)
    folder.mkdir()
    for name, count in (("train", 60000 // CUT), ("t10k", 10000 // CUT)):
        labels = bytes(dice.randrange(10) for _ in range(count))
        images = b"".join(bytes(dice.randrange(60) + 19 * label for _ in range(28)) * 28 for label in labels)
        with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb", 1) as file:
            file.write(struct.pack(">II", 0x801, count) + labels)
        with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb", 1) as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + images)


def script(lines, small, port):
    """The block as a program: commands for terminals of their own run at the same time."""
    said = ["set -e", "pids="]
    for line in lines:
        line = re.sub(r"\s+#.*", "", line)
        line = re.sub(r"(--(?:checkpoint-every|max-samples)=)(\d+)", lambda m: f"{m[1]}{int(m[2]) // CUT}", line)
        line = line.replace("--model=resnet18:", "--model=resnet18:width=8,")
        line = re.sub(r"((?:build/)?(?:entrain )?psd)(?= )(?!.*--(listen|leader))",
                      rf"\1 --listen=tcp://127.0.0.1:{port}", line).replace(":5555", f":{port}")
        line = re.sub(r"(\./kv_mean \d)", rf"\1 tcp://127.0.0.1:{port}", line)
        line = re.sub(r"\b(entrain |build/)(run|compare|eval|predict|scale|advise|worker)\b|\bentrain (?=run)",
                      lambda m: m[0] + " " + CUTS[m[2]].format(set=small), line)
        if re.match(r"(build/|entrain )(psd|worker) ", line) and " & " not in line:
            line += " &"
        said.append(re.sub(r" &( |$)", r' & pids="$pids $!"; ', line))
    return "\n".join(said + ["for p in $pids; do wait $p; done"])


def promised(lines, here):
    for line in (re.sub(r"\s+#.*", "", text) for text in lines):
        at = here / "examples" if lines[0].startswith("cd examples") else here
        out = next(iter(re.findall(r"--out=(\S+)", line)), None) or next(iter(re.findall(r"report (\w+)", line)), None)
        wanted = [f for f in re.findall(r"(?:--save=| -o )(\S+)", line)]
        if "--seeds" in line and out and not can_claim(at / out):
            yield f"{line.strip()}: it can claim nothing"
        wanted += [f"{out}/report.html"] if " report " in line else [f"{out}/*e*.json"] if out else []
        wanted += [f"{out}/checkpoints/*.safetensors"] if "--checkpoint-every" in line else []
        wanted += [f"{out}/**/*tfevents*"] if "--tensorboard" in line else []
        wanted += [f"{out}/*.csv", f"{out}/report.json"] if "--csv" in line else []
        wanted += [f"{out}/*.tex"] if "--latex" in line else []
        wanted += [f"{out}/**/*.{kind}" for kind in re.findall(r"--figures=(\w+)", line)]
        for pattern in wanted:
            if not list(at.glob(pattern)):
                yield f"{line.strip()}: there is no {pattern}"


def can_claim(folder):
    """Whether a study has enough seeds to claim a difference, as an example should."""
    claims = json.loads((folder / "compare.json").read_text())["plan"]
    return claims["comparisons"] and min(claims["seeds"].values()) >= claims["seeds_needed"]


def check_demo(source, build, top):
    """The plans of `make demo`, as far as its first run, and of `make demo-strategies`, whose first line has the seeds."""
    out = top / "demo"
    env = {**os.environ, "OUT": str(out), "DEMO_FLAGS": f"--data-dir={top / 'set'} --holdout=50 --limit-test-samples=50 --quiet"}
    demo = subprocess.Popen([source / "tools/demo.sh", build], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ends = time.monotonic() + 120
    while not (out / "compare.json").exists() and demo.poll() is None and time.monotonic() < ends:
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    said = demo.communicate(timeout=60)[1]
    bad = [] if (out / "compare.json").exists() and can_claim(out) else [f"make demo can claim nothing: {said}"]

    demo = subprocess.Popen([source / "tools/demo.sh", build, "strategies"], env={**env, "OUT": str(top / "strategies")},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = demo.stdout.readline()
    demo.send_signal(signal.SIGINT)
    said = demo.communicate(timeout=60)[1]
    needed, *seeds = map(int, re.findall(r"(?:need|has) (\d+)", first) or [1])
    return bad if seeds and min(seeds) >= needed else bad + [f"make demo-strategies can claim nothing: {first}{said}"]


def installed(prefix):
    """The environment of a user who has installed into a prefix of their own."""
    pc = next(prefix.glob("lib/**/entrain.pc")).parent
    return {**os.environ, "PATH": f"{prefix}/bin:{os.environ['PATH']}", "PKG_CONFIG_PATH": str(pc),
            "LD_LIBRARY_PATH": str(pc.parent)}


def run_block(lines, here, small, where):
    port, hold = take_port()
    done = subprocess.run(["bash", "-c", script(lines, small, port)], cwd=here, stdout=subprocess.PIPE, timeout=300,
                          stderr=subprocess.STDOUT, text=True, errors="replace", env=installed(small.parent / "prefix"))
    hold.close()
    if done.returncode:
        return ["\n".join([f"{where}: exit {done.returncode}", *lines, done.stdout[-2000:]])]
    return [f"{where}: {what}" for what in promised(lines, here)]


def run_page(page, source, build, top, seen):
    bad, ran, here = [], 0, top / f"{page.parent.name}-{page.stem}"
    here.mkdir()
    (here / "build").symlink_to(build)
    (here / "include").symlink_to(source / "include")
    (here / "bench").symlink_to(source / "bench")
    (here / "FOLDER").symlink_to(top / "set")  # as pages call a data set of the reader's own
    shutil.copytree(source / "examples", here / "examples", ignore=shutil.ignore_patterns("*.so"))
    for name, code in re.findall(r"^`(\w+\.c)`:\n\n```c\n(.*?)```", page.read_text(), re.S | re.M):
        (here / name).write_text(code)  # a file that the page gives as a whole
    for number, lines in blocks(page):
        if not any(is_command(line) for line in lines):
            continue
        for line in lines:
            for pattern in NOT_RUN:
                if is_command(line) and re.search(pattern, line):
                    seen.add(pattern)
        lines = [line for line in lines if line.strip() and not (is_command(line) and why_not(line)) and
                 not (line.startswith("  ") and line.split()[0] != "#")]
        if not any(is_command(line) for line in lines):
            continue
        ran += sum(map(is_command, lines))
        at = here / "examples" if page.parent.name == "examples" else here
        bad += run_block(lines, at, top / "set", f"{page.relative_to(source)}:{number}")
    return bad, ran


def flags_of_help(build):
    text = ""
    for words in [[c] for c in "run compare check advise scale report eval predict strategies models data gpus ps stop sim conform psd "
                  "worker".split()]:
        for help_flag in ("--help=all", "--help"):
            done = subprocess.run([build / "entrain", *words, help_flag], capture_output=True, text=True)
            text += done.stdout
            if done.returncode == 0:
                break
    found = set(re.findall(r"--(?:\[no-\])?([a-z][a-z-]*)", text))
    return found | {"no-" + flag for flag in found}


def check_flags(pages, build):
    known, bad = flags_of_help(build), []
    targets = re.search(r"\.PHONY: (.*)", (pages[0].parent / "Makefile").read_text())[1].split()
    for page in pages:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for flag in re.findall(r"(?<![\w-])--([a-z][a-z_-]*[a-z])", re.sub(r"--\w+-->", "", line)):
                if flag.replace("_", "-") not in known and "--" + flag not in FOREIGN:
                    bad.append(f"{page.parent.name}/{page.name}:{number}: --{flag} is in no --help")
            bad += [f"{page.name}:{number}: make {target}: the Makefile has no such target"
                    for target in re.findall(r"(?:^|`)make ([a-z]+)", line) if target not in targets]
    return bad


def check_installed(source, top):
    """The installed files are enough for both examples, by pkg-config and by make."""
    prefix, work = top / "prefix", top / "outside"
    shutil.copytree(prefix / "share/doc/entrain/examples", work)
    for part in ("README.md", "docs/write-a-strategy.md", "examples/Makefile", "strategies/ps.c", "tools/img2idx.py"):
        assert (prefix / "share/doc/entrain" / part).exists(), f"{part} is not installed"
    env = installed(prefix)
    for line in ("cc $(pkg-config --cflags --libs entrain) kv_mean.c -o kv_mean && rm kv_mean", "make all",
                 "entrain sim --strategy=./localsgd.so:period=8 --steps=8", "entrain --help | grep -q worker",
                 "entrain worker --help", "entrain psd --help"):
        done = subprocess.run(["bash", "-ec", line], cwd=work, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stdout[-500:]}{done.stderr}"


def check_plugins(source, top):
    """The C of a page is a plugin: README's as it stands, the pieces of write-a-strategy one after the other, which
    are the example."""
    prefix, said = top / "prefix", {}
    for name, ends_at, options in (("README.md", "## Then", ""), ("docs/write-a-strategy.md", "## The other half", ":period=8"),
                                   ("examples/localsgd.c", None, ":period=8")):
        text = (source / name).read_text()
        if ends_at:
            text = "".join(re.findall(r"```c\n(.*?)```", text.split(ends_at)[0], re.S))
        (top / "piece.c").write_text('#include "entrain/strategy.h"\n' + text)
        subprocess.run(["cc", "-shared", "-fPIC", f"-I{prefix}/include", "piece.c", "-o", "piece.so"], cwd=top, check=True)
        said[name] = subprocess.run(["entrain", "sim", f"--strategy=./piece.so{options}", "--steps=20"], cwd=top, check=True,
                                    env=installed(prefix), stdout=subprocess.PIPE, text=True).stdout
    assert said["docs/write-a-strategy.md"] == said["examples/localsgd.c"], said


def main(source, build):
    if not shutil.which("cc"):
        print("SKIP: there is no C compiler to build the examples with")
        return 77
    pages = [source / name for name in ("README.md", "examples/README.md", "CONTRIBUTING.md", "bench/README.md")]
    pages += sorted((source / "docs").glob("*.md"))
    with tempfile.TemporaryDirectory() as folder:
        top = pathlib.Path(folder)
        subprocess.run(["cmake", "--install", build, "--prefix", top / "prefix"], check=True, stdout=subprocess.DEVNULL)
        if shutil.which("pkg-config"):
            check_installed(source, top)
        check_plugins(source, top)
        make_set(top / "set")
        bad, ran, seen = check_flags(pages, build) + check_demo(source, build, top), 0, set()

        def run(page):  # in a folder of its own
            return run_page(page, source, build, top, seen)

        alone = [page for page in pages if "--retry-busy" in page.read_text()]  # makes runs twice beside others
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for told, count in [*map(run, alone), *pool.map(run, [page for page in pages if page not in alone])]:
                bad += told
                ran += count
        bad += [f"NOT_RUN: no page has {pattern}" for pattern in NOT_RUN if pattern not in seen]
    if bad:
        print("\n".join(bad))
        return 1
    print(f"PROMISE {ran} commands of README and docs run as written, and every flag there exists")
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()))
