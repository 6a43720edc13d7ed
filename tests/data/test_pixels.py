#!/usr/bin/env python3
"""Images as Pillow scales them, byte for byte; and the draws of augmentation by a Philox of its own.

    test_pixels.py PIXELS_TOOL GOLDENS/pixels.json       compares; exit 77 without numpy
    test_pixels.py --write GOLDENS/pixels.json           writes the golden anew

The golden, for tests/data/test_cifar.c: 64 samples of files made by the formula `pixel`, whose channels differ, with
--augment=crop:32:4,flip and --seed=7: epoch, sample, top, left, mirrored, and some (channel, y, x, value).
"""
import json, os, struct, subprocess, sys, tempfile

try:
    import numpy
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

SEED, AUGMENT, MASK = 7, 8, 2**64 - 1
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def philox(seed, purpose, rank, step, index, lane):
    """Philox4x32-10 (Salmon et al. 2011), keyed as core/rng.h says; its first 64 bits."""
    k = (seed + 0x9E3779B97F4A7C15 * purpose) & MASK
    k = ((k ^ k >> 30) * 0xBF58476D1CE4E5B9) & MASK
    k = ((k ^ k >> 27) * 0x94D049BB133111EB) & MASK
    k = k ^ k >> 31 ^ lane << 32 ^ rank
    key = numpy.array([k & 0xFFFFFFFF, k >> 32], numpy.uint64)
    c = numpy.array([index & 0xFFFFFFFF, index >> 32, step & 0xFFFFFFFF, step >> 32], numpy.uint64)
    low = numpy.uint64(0xFFFFFFFF)
    for _ in range(10):
        products = c[[0, 2]] * numpy.array([0xD2511F53, 0xCD9E8D57], numpy.uint64)
        high = products >> numpy.uint64(32)
        c = numpy.array([high[1] ^ c[1] ^ key[0], products[1] & low, high[0] ^ c[3] ^ key[1], products[0] & low])
        key = (key + numpy.array([0x9E3779B9, 0xBB67AE85], numpy.uint64)) & low
    return int(c[1]) << 32 | int(c[0])


def below(epoch, index, bound):
    """Lemire 2019."""
    for lane in range(1, 100):
        product = philox(SEED, AUGMENT, 0, epoch, index, lane) * bound
        if product & MASK >= 2**64 % bound:
            return product >> 64


def pixel(i, c, y, x):
    return (i * 37 + c * 85 + y * 7 + x * 3 + i * c * y % 11) % 256


def normalised(byte, c):
    unit = numpy.float32(byte) / numpy.float32(255)
    return float((unit - numpy.float32(MEAN[c])) / numpy.float32(DEVIATION[c]))


def golden():
    samples = []
    for k in range(64):
        epoch, i = k % 5, k
        top, left, flip = below(epoch, 4 * i, 9), below(epoch, 4 * i + 1, 9), below(epoch, 4 * i + 2, 2)
        image = numpy.zeros((3, 40, 40), int)  # black around it
        for c in range(3):
            for y in range(32):
                image[c, 4 + y, 4:36] = [pixel(i, c, y, x) for x in range(32)]
        image = image[:, top:top + 32, left:left + 32]
        if flip:
            image = image[:, :, ::-1]
        points = [(n % 3, (n * 11 + k) % 32, (n * 7 + 3 * k) % 32) for n in range(6)] + [(0, 0, 0), (2, 31, 31)]
        samples.append([epoch, i, top, left, flip, [[c, y, x, normalised(image[c, y, x], c)] for c, y, x in points]])
    return {"seed": SEED, "samples": samples}


def write_cifar(folder, images):
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        with open(os.path.join(folder, name), "wb") as f:
            for image in images:  # (32, 32, 3)
                f.write(bytes([1]) + image.transpose(2, 0, 1).tobytes())


def write_idx(folder, images):
    for prefix in ("train", "t10k"):
        with open(os.path.join(folder, prefix + "-images-idx3-ubyte"), "wb") as f:
            f.write(struct.pack(">IIII", 0x803, *images.shape) + images.tobytes())
        with open(os.path.join(folder, prefix + "-labels-idx1-ubyte"), "wb") as f:
            f.write(struct.pack(">II", 0x801, len(images)) + bytes(len(images)))


def compare(tool, folder, images, side, augment="none", cut=lambda image: image):
    from PIL import Image
    got = subprocess.run([tool, folder, str(side), augment], check=True, stdout=subprocess.PIPE).stdout
    scaled = [numpy.asarray(Image.fromarray(image).resize((side, side), Image.BILINEAR)) for image in images]
    expected = numpy.stack([cut(image).astype(numpy.float32) / numpy.float32(255) for image in scaled])
    got = numpy.frombuffer(got, numpy.float32).reshape(expected.shape)
    differ = int((got != expected).sum())
    if differ:
        sys.exit(f"{images.shape[1:]} -> {side}, {augment}: {differ} of {got.size} values are not Pillow's")


def main():
    if sys.argv[1] == "--write":
        with open(sys.argv[2], "w") as f:
            json.dump(golden(), f, separators=(",", ":"))
        return
    with open(sys.argv[2]) as f:
        if json.load(f) != golden():
            sys.exit(f"{sys.argv[2]} is not what this script makes")
    try:
        import PIL
    except ImportError:
        print("skipped in part: Pillow is not installed")
        sys.exit(77)
    draw, sizes = numpy.random.default_rng(1), 0
    with tempfile.TemporaryDirectory() as folder:
        smooth = numpy.add.outer(numpy.arange(32) * 5, numpy.arange(32) * 3)[None, :, :, None] + numpy.array([0, 40, 90])
        images = numpy.concatenate([draw.integers(0, 256, (3, 32, 32, 3)), smooth]).astype(numpy.uint8)
        write_cifar(folder, images)
        for side in (1, 2, 7, 16, 31, 32, 33, 48, 64, 100, 224, 225, 256):
            compare(sys.argv[1], folder, images, side)
            sizes += 1
        compare(sys.argv[1], folder, images, 64, "crop:40:0", lambda image: image[12:52, 12:52])
        compare(sys.argv[1], folder, images, 20, "crop:24:4", lambda image: numpy.pad(image, ((2, 2), (2, 2), (0, 0))))
    # None higher than wide: of those Pillow 13 scales some down first and then across, older ones do not.
    for shape in ((4, 28, 28), (2, 37, 53), (2, 7, 300), (1, 1, 1), (2, 900, 1000)):
        with tempfile.TemporaryDirectory() as folder:
            images = draw.integers(0, 256, shape).astype(numpy.uint8)
            if shape[1] == 900:
                images[0] = 255  # weights that are rounded must not lead beyond
            write_idx(folder, images)
            for side in (1, 8, 28, 45, 224):
                compare(sys.argv[1], folder, images, side)
                sizes += 1
    print(f"64 samples by another Philox; {sizes} scalings are Pillow {PIL.__version__}'s, byte for byte")


main()
