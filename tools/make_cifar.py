#!/usr/bin/env python3
"""Writes a set of colour images in CIFAR's binary files, which --data=FOLDER reads.

  make_cifar.py PICTURES FOLDER [--test=0.1]                  a subfolder per class: PICTURES/cat/7.png is of class "cat"
  make_cifar.py --photos FOLDER [--train=15000 --test=2000]   which of ten photographs is a patch of 32 x 32 from?

Then: entrain run --data=FOLDER --model=resnet18:width=8,stem=cifar --augment=crop:32:4,flip. Pictures are scaled to
32 x 32 pixels; up to ten classes make files of CIFAR-10's form, up to a hundred of CIFAR-100's. The photographs are
those in the wheels of scikit-image and scikit-learn (pip install --no-deps scikit-image scikit-learn), which are not
run. They are divided into tiles, and every fifth tile is for the test set, so that no pixel is in both sets. --seed=1
selects pictures and patches; the same seed gives the same files.

FOLDER/set-name.txt has the name that runs and reports show (--name), as a set of this form is not CIFAR.
FOLDER/batches.meta.txt has the classes. Needs Pillow.
"""
import argparse, importlib.util, os, random, re
from set_files import read_picture, run, split_pictures, stop, write_lines, written

SIDE, TILE = 32, 96
PHOTOS = {"skimage": ("data", ["astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png",
                               "motorcycle_left.png", "retina.jpg", "rocket.jpg"]),
          "sklearn": ("datasets/images", ["china.jpg", "flower.jpg"])}


def photographs():
    """The path of each, without running the packages' code."""
    for package, (folder, names) in PHOTOS.items():
        spec = importlib.util.find_spec(package)
        found = [os.path.join(p, folder) for p in spec.submodule_search_locations] if spec else []
        for name in names:
            paths = [p for p in (os.path.join(f, name) for f in found) if os.path.exists(p)]
            if not paths:
                stop(f"{package} or its {name} was not found: pip install --no-deps scikit-image scikit-learn")
            yield paths[0]


def patches(picture, count, is_test, draw):
    """`count` patches, each within a tile of its half; avoids those of nearly one colour, which tell nothing."""
    columns, rows = picture.width // TILE, picture.height // TILE
    tiles = [(t % columns, t // columns) for t in range(columns * rows) if (t % 5 == 2) == is_test]
    found, tries = [], 0
    while len(found) < count:
        column, row = draw.choice(tiles)
        x, y = column * TILE + draw.randrange(TILE - SIDE + 1), row * TILE + draw.randrange(TILE - SIDE + 1)
        patch = picture.crop((x, y, x + SIDE, y + SIDE))
        tries += 1
        if max(high - low for low, high in patch.getextrema()) >= 24 or tries > 50 * count:
            found.append(patch)
    return found


def from_photos(a, draw):
    train, test, classes = [], [], []
    for label, path in enumerate(photographs()):
        picture = read_picture(path, "RGB")
        classes.append(re.sub(r"_.*|\..*", "", os.path.basename(path)))
        for images, count, is_test in ((train, a.train, False), (test, int(a.test), True)):
            images += [(p, label) for p in patches(picture, count // 10, is_test, draw)]
    return train, test, classes


def from_folder(a, draw):
    train, test, classes = split_pictures(a.pictures, 100, a.test, draw)
    return *([(read_picture(path, "RGB", SIDE), label) for path, label in half] for half in (train, test)), classes


def write(folder, name, images, is_100):
    with written(folder, name) as f:
        for image, label in images:
            planes = b"".join(channel.tobytes() for channel in image.split())
            f.write((b"\0" if is_100 else b"") + bytes([label]) + planes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="?")
    parser.add_argument("folder")
    parser.add_argument("--photos", action="store_true")
    parser.add_argument("--train", type=int, default=15000)
    parser.add_argument("--test", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name")
    a = parser.parse_args()
    if a.photos == (a.pictures is not None):
        stop("give a folder of pictures or --photos, then the folder to write")
    a.test = a.test if a.test is not None else 2000 if a.photos else 0.1
    if a.photos and not (a.train >= 50 and a.test >= 10):
        stop(f"--train={a.train} --test={a.test:g}: give at least 50 and 10 patches")
    if not a.photos and not 0 < a.test < 1:
        stop(f"--test={a.test:g}: give a share between 0 and 1")
    own = "photographs" if a.photos else os.path.basename(os.path.abspath(a.pictures))
    name = a.name or re.sub(r"[^A-Za-z0-9_.-]", "-", own)[:60]
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name) or re.match("(?i)cifar", name):
        stop(f"--name={name}: give up to 60 letters, digits, '-', '_' and '.', but not the name of CIFAR")
    draw = random.Random(a.seed)
    train, test, classes = from_photos(a, draw) if a.photos else from_folder(a, draw)
    draw.shuffle(train)
    draw.shuffle(test)
    is_100 = len(classes) > 10
    if not is_100 and len(train) < 5:
        stop(f"{len(train)} pictures to train do not fill the five files of a set; give more")
    os.makedirs(a.folder, exist_ok=True)
    if is_100:
        write(a.folder, "train.bin", train, True)
        write(a.folder, "test.bin", test, True)
    else:
        for i in range(5):
            write(a.folder, f"data_batch_{i + 1}.bin", train[i * len(train) // 5:(i + 1) * len(train) // 5], False)
        write(a.folder, "test_batch.bin", test, False)
    write_lines(a.folder, "fine_label_names.txt" if is_100 else "batches.meta.txt", classes)
    write_lines(a.folder, "set-name.txt", [name])
    print(f"{name}: {len(classes)} classes, {len(train)} images to train, {len(test)} to test: entrain run --data={a.folder}")


if __name__ == "__main__":
    run(main)
