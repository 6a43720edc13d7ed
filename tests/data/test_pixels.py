#!/usr/bin/env python3
"""Images as Pillow scales them, byte for byte; and the draws of augmentation by a Philox of its own.

    test_pixels.py PIXELS_TOOL                       compares with Pillow; exit 77 without Pillow and numpy
    test_pixels.py --golden GOLDENS/pixels.json      whether the golden is what is made here; needs Python only
    test_pixels.py --write GOLDENS/pixels.json       writes it anew

The golden, for tests/data/test_cifar.c: 64 samples of files made by the formula `pixel`, whose channels differ, with
--augment=crop:32:4,flip and --seed=7: epoch, sample, top, left, mirrored, and some (channel, y, x, value).
"""
import json, os, struct, subprocess, sys, tempfile

# Promise: Images are scaled as Pillow scales them, byte for byte.

try:
    import numpy, PIL
    from PIL import Image
except ImportError:
    if not sys.argv[1].startswith("--"):
        print("skipped: Pillow and numpy are not installed")
        sys.exit(77)

SEED, AUGMENT, MASK = 7, 8, 2**64 - 1
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def philox(seed, purpose, rank, step, index, lane):
    """Philox4x32-10 (Salmon et al. 2011), keyed as core/rng.h says; its first 64 bits."""
    k = (seed + 0x9E3779B97F4A7C15 * purpose) & MASK
    k = ((k ^ k >> 30) * 0xBF58476D1CE4E5B9) & MASK
    k = ((k ^ k >> 27) * 0x94D049BB133111EB) & MASK
    k = k ^ k >> 31 ^ lane << 32 ^ rank
    low = 0xFFFFFFFF
    key = [k & low, k >> 32]
    c = [index & low, index >> 32, step & low, step >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ key[0], b & low, a >> 32 ^ c[3] ^ key[1], a & low]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return c[1] << 32 | c[0]


def below(epoch, index, bound):
    """Lemire 2019."""
    for lane in range(1, 100):
        product = philox(SEED, AUGMENT, 0, epoch, index, lane) * bound
        if product & MASK >= 2**64 % bound:
            return product >> 64


def pixel(i, c, y, x):
    return (i * 37 + c * 85 + y * 7 + x * 3 + i * c * y % 11) % 256


def float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def normalised(byte, c):
    """Each quotient and difference of floats is the double's, rounded."""
    return float32(float32(float32(byte / 255) - float32(MEAN[c])) / float32(DEVIATION[c]))


def golden():
    samples = []
    for k in range(64):
        epoch, i = k % 5, k
        top, left, flip = below(epoch, 4 * i, 9), below(epoch, 4 * i + 1, 9), below(epoch, 4 * i + 2, 2)

        def cut(c, y, x):
            y, x = top + y - 4, left + (31 - x if flip else x) - 4
            return pixel(i, c, y, x) if 0 <= y < 32 and 0 <= x < 32 else 0  # black around it

        points = [(n % 3, (n * 11 + k) % 32, (n * 7 + 3 * k) % 32) for n in range(6)] + [(0, 0, 0), (2, 31, 31)]
        samples.append([epoch, i, top, left, flip, [[c, y, x, normalised(cut(c, y, x), c)] for c, y, x in points]])
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
    if sys.argv[1] == "--golden":
        with open(sys.argv[2]) as f:
            sys.exit(None if json.load(f) == golden() else f"{sys.argv[2]} is not what this script makes")
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
    print(f"{sizes} scalings are Pillow {PIL.__version__}'s, byte for byte")


main()
