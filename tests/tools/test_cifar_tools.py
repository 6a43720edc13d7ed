#!/usr/bin/env python3
"""tools/make_cifar.py and tools/cifar_py2bin.py: Entrain reads their files, and they refuse a pickle that would run code.

    test_cifar_tools.py BUILD            exit 77 without numpy and Pillow
"""
import os, pickle, re, subprocess, sys, tempfile

try:
    import numpy
    from PIL import Image
except ImportError:
    print("skipped: numpy and Pillow are not installed")
    sys.exit(77)

build, tools = sys.argv[1], os.path.join(os.path.dirname(__file__), "../../tools")
draw = numpy.random.default_rng(1)


def run(*command, expect=0, says=()):
    """The output of the command: it ends with `expect`, and has all words of `says` (values, flags, names)."""
    p = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if p.returncode != expect or not all(re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", p.stdout) for word in says):
        sys.exit(f"{command}: exit {p.returncode}, expected {expect} and {says}; it said:\n{p.stdout}")
    return p.stdout


def tool(name, *words, **more):
    return run(sys.executable, os.path.join(tools, name), *words, **more)


class Evil:
    def __reduce__(self):
        return os.system, ("touch " + os.path.join(folder, "ran"),)


def batch(n, classes, **other):
    labels = [int(x) for x in draw.integers(0, classes, n)]
    found = {b"data": draw.integers(0, 256, (n, 3072)).astype(numpy.uint8)}
    if classes == 10:
        found[b"labels"] = labels
    else:
        found[b"fine_labels"], found[b"coarse_labels"] = labels, [x // 5 for x in labels]
    found.update(other)
    return found


def dump(path, what, protocol=2):
    with open(path, "wb") as f:
        pickle.dump(what, f, protocol)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    # From pickles: the same bytes; anything but an array of bytes with its labels is refused and never run.
    os.makedirs("py")
    batches = {f"data_batch_{i}": batch(4 + i, 10) for i in range(1, 6)}
    batches["test_batch"] = batch(3, 10)
    for name, what in batches.items():
        dump("py/" + name, what)
    tool("cifar_py2bin.py", "py", "bin", says=["--data=cifar10", "--data-dir=bin"])
    for name, what in batches.items():
        expected = b"".join(bytes([l]) + row.tobytes() for l, row in zip(what[b"labels"], what[b"data"]))
        with open(f"bin/{name}.bin", "rb") as f:
            assert f.read() == expected, name
    run(f"{build}/entrain", "data", "bin", says=["35", "3", "32 x 32 x 3", "10"])
    for what, says in ((Evil(), ["posix.system"]), (batch(4, 10, **{"labels": Evil()}), ["posix.system"]),
                       ([1], ["data_batch_2"]), (batch(4, 10, **{"labels": [1, 2]}), ["2 x 3072"]),
                       (batch(4, 10, **{"labels": [1, 2, 3, 10]}), ["0", "9"]),
                       (batch(4, 10, **{"data": numpy.zeros((4, 3072))}), ["4 x 3072"])):
        dump("py/data_batch_2", what)
        tool("cifar_py2bin.py", "py", "bad", expect=2, says=says)
    with open("py/data_batch_2", "wb") as f:
        f.write(pickle.dumps(batches["data_batch_2"], 2)[:5000])
    tool("cifar_py2bin.py", "py", "bad", expect=2, says=["py/data_batch_2"])
    assert not os.path.exists("ran")
    os.makedirs("py100")
    dump("py100/train", batch(12, 100))
    dump("py100/test", batch(2, 100))
    dump("py100/meta", {})
    run(f"{build}/entrain", "data", "py100", expect=2, says=["tools/cifar_py2bin.py py100 FOLDER"])
    tool("cifar_py2bin.py", "py100", "bin100", says=["--data=cifar100"])
    run(f"{build}/entrain", "data", "bin100", says=["12", "2", "32 x 32 x 3", "100"])
    tool("cifar_py2bin.py", folder, "bad", expect=2, says=["tar -xzf"])

    # From pictures.
    for c in range(3):
        os.makedirs(f"pictures/class{c}")
        for i in range(10):
            image = draw.integers(0, 60, (40, 40, 3)) + numpy.array([c == 0, c == 1, c == 2]) * 150
            Image.fromarray(image.astype(numpy.uint8)).save(f"pictures/class{c}/{i}.png")
    tool("make_cifar.py", "pictures", "made", says=["3", "27"])
    run(f"{build}/entrain", "data", "made", says=["27", "3", "32 x 32 x 3", "10"])
    with open("made/test_batch.bin", "rb") as f:
        for record in iter(lambda: f.read(3073), b""):
            planes = [sum(record[1 + 1024 * c:1025 + 1024 * c]) for c in range(3)]
            assert planes.index(max(planes)) == record[0], "channels are not red, green, blue"
    tool("make_cifar.py", "pictures", "again")
    for name in os.listdir("made"):
        with open("made/" + name, "rb") as a, open("again/" + name, "rb") as b:
            assert a.read() == b.read(), name
    tool("make_cifar.py", "pictures", "other", "--name=CIFAR-10", expect=2, says=["CIFAR-10"])
    tool("make_cifar.py", "made", "other", expect=2, says=["made", "0"])

    # One sentence where something is wrong, and no half a file: the one before stays.
    for name in ("make_cifar.py", "img2idx.py", "cifar_py2bin.py"):
        said = tool(name, "nowhere", "other", expect=2, says=["nowhere"])
        assert said.count("\n") == 1 and said.startswith(name[:-3] + ": "), said
        source = "py100" if name == "cifar_py2bin.py" else "pictures"
        said = tool(name, source, "pictures/class0/0.png", expect=2, says=["pictures/class0/0.png", "File exists"])
        assert said.count("\n") == 1, said
    before = os.listdir("again")
    with open("pictures/class1/3.png", "wb") as f:
        f.write(b"no picture")
    for name, into in (("make_cifar.py", "again"), ("img2idx.py", "idx")):
        tool(name, "pictures", into, expect=2, says=["class1/3.png"])
    assert os.listdir("again") == before and not any(n.endswith(".new") for n in os.listdir("idx")), os.listdir("idx")

    # Which photograph? No pixel is in both sets: here each has a colour of its own.
    sys.path.insert(0, tools)
    sys.dont_write_bytecode = True
    import make_cifar
    y, x = numpy.mgrid[0:300, 0:451]
    picture = Image.fromarray(numpy.stack([x % 256, y % 256, x // 256 + 2 * (y // 256)], 2).astype(numpy.uint8))
    seen = [{tuple(p) for patch in make_cifar.patches(picture, 300, is_test, make_cifar.random.Random(1))
             for p in numpy.asarray(patch).reshape(-1, 3).tolist()} for is_test in (False, True)]
    assert len(seen[0]) > 10000 and len(seen[1]) > 2000 and not seen[0] & seen[1], "train and test share pixels"

    # Where the wheels are:
    p = subprocess.run([sys.executable, os.path.join(tools, "make_cifar.py"), "--photos", "photos", "--train=100",
                        "--test=20"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if p.returncode == 0:
        run(f"{build}/entrain", "data", "photos", says=["100", "20"])
    elif "pip install --no-deps scikit-image scikit-learn" not in p.stdout:
        sys.exit(p.stdout)
print("pickles become the same bytes, and run nothing; pictures become a set" +
      ("; and photographs" if p.returncode == 0 else "; the photographs' packages are not here"))
