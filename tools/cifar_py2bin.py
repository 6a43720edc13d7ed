#!/usr/bin/env python3
"""Writes CIFAR's binary files, which --data=cifar10 or cifar100 reads, from its pickled ones.

  cifar_py2bin.py cifar-10-batches-py FOLDER        then: entrain run --data=cifar10 --data-dir=FOLDER
  cifar_py2bin.py cifar-100-python FOLDER           then: entrain run --data=cifar100 --data-dir=FOLDER

A pickle can run code when it is read. This reader looks up only the names that such files use, for arrays of bytes, and
reads an array as its shape, type and bytes, without numpy: everything else is refused. Needs only Python.
"""
import os, pickle, sys
from set_files import run, stop, written

FILES = {10: [(f"data_batch_{i}", f"data_batch_{i}.bin") for i in range(1, 6)] + [("test_batch", "test_batch.bin")],
         100: [("train", "train.bin"), ("test", "test.bin")]}


class Type:
    def __init__(self, name="", *_):
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state):
        pass


class Array:
    def __setstate__(self, state):
        _, self.shape, self.type, self.is_fortran, self.bytes = state


def encode(text, coding):
    if coding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError("it encodes something other than bytes")
    return text.encode("latin1")


class Reader(pickle.Unpickler):
    ALLOWED = {("numpy", "ndarray"): Array, ("numpy", "dtype"): Type, ("_codecs", "encode"): encode}
    for core in ("numpy.core.multiarray", "numpy._core.multiarray"):
        ALLOWED[core, "_reconstruct"] = lambda *_: Array()

    def find_class(self, module, name):
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR's files never do") from None


def text(key):
    return key.decode("latin1") if isinstance(key, bytes) else key


def read(path, classes):
    """Labels, coarse labels or None, and the images' bytes."""
    with open(path, "rb") as f:
        batch = Reader(f, encoding="bytes").load()
    if not isinstance(batch, dict):
        raise pickle.UnpicklingError("it holds no dictionary")
    batch = {text(key): value for key, value in batch.items()}
    array, labels = batch.get("data"), batch.get("labels" if classes == 10 else "fine_labels")
    coarse = batch.get("coarse_labels") if classes == 100 else None
    if not isinstance(labels, list) or not all(isinstance(n, int) and 0 <= n < classes for n in labels):
        raise pickle.UnpicklingError(f"it has no labels from 0 to {classes - 1}")
    if classes == 100 and not (isinstance(coarse, list) and len(coarse) == len(labels) and
                               all(isinstance(n, int) and 0 <= n < 20 for n in coarse)):
        raise pickle.UnpicklingError("it has no coarse labels from 0 to 19 for its images")
    is_whole = (isinstance(array, Array) and getattr(array, "shape", None) == (len(labels), 3072) and
                isinstance(array.type, Type) and array.type.name == "u1" and not array.is_fortran and
                isinstance(array.bytes, bytes) and len(array.bytes) == len(labels) * 3072)
    if not is_whole:
        raise pickle.UnpicklingError(f"it has no array of {len(labels)} x 3072 bytes for its labels")
    return labels, coarse, array.bytes


def main():
    if len(sys.argv) != 3:
        stop(__doc__)
    source, folder = sys.argv[1:]
    found = [n for n, files in FILES.items() if all(os.path.exists(os.path.join(source, f)) for f, _ in files)]
    if not found:
        stop(f"{source} holds neither data_batch_1 to data_batch_5 and test_batch nor train and test; unpack the archive "
             "(tar -xzf) and give the folder in it")
    os.makedirs(folder, exist_ok=True)
    for name, binary in FILES[found[0]]:
        path = os.path.join(source, name)
        try:
            labels, coarse, images = read(path, found[0])
        except (pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as e:
            stop(f"{path}: {e or 'truncated'}; download it again")
        with written(folder, binary) as f:
            for i, label in enumerate(labels):
                head = bytes([label]) if coarse is None else bytes([coarse[i], label])
                f.write(head + images[3072 * i:3072 * (i + 1)])
    print(f"entrain run --data=cifar{found[0]} --data-dir={folder}")


if __name__ == "__main__":
    run(main)
