"""Shared by the tools that write data sets: reads pictures, writes files in one step, and reports an error in one sentence."""
import contextlib, os, sys


def stop(text):
    sys.stderr.write(f"{os.path.basename(sys.argv[0])[:-3]}: {text}\n")
    sys.exit(2)


def run(main):
    try:
        main()
    except OSError as e:
        stop(f"{e.filename}: {e.strerror}; give existing folders, and a writable one for the output")


@contextlib.contextmanager
def written(folder, name):
    """A file that gets its name when it is complete: a process that has mapped the previous one keeps it."""
    path = os.path.join(folder, name)
    try:
        with open(path + ".new", "wb") as f:
            yield f
        os.replace(path + ".new", path)
    finally:
        if os.path.exists(path + ".new"):
            os.unlink(path + ".new")


def write_lines(folder, name, lines):
    with written(folder, name) as f:
        f.writelines(line.encode() + b"\n" for line in lines)


def eight_bits(path, picture):
    """Its samples scaled to 0 .. 255: Pillow's convert() would clip those of 16 bits, and round 0 to 1 to black."""
    if picture.mode not in ("F", "I") and not picture.mode.startswith("I;16"):
        return picture
    most = 1.0 if picture.mode == "F" else 65535
    picture = picture if picture.mode == "F" else picture.convert("I")
    low, high = picture.getextrema()
    if not (0 <= low and high <= most) or (most > 1 and 0 < high < 256):  # also rejects NaN, and 8-bit samples stored in 16
        stop(f"{path} has samples from {low:g} to {high:g}, but 0 to {most:g} mean black to white; save it with 8 bits")
    return picture.convert("F").point(lambda v: v * (255 / most) + 0.5).convert("L")


def on_paper(path, picture):
    """Transparent parts become white, as in a viewer; convert() would show the colour below, mostly black."""
    from PIL import Image
    if not picture.mode.endswith(("A", "a")) and "transparency" not in picture.info:
        return picture
    picture = picture.convert("RGBA")
    paper = Image.new("RGBA", picture.size, "white")
    paper.alpha_composite(picture)
    alpha = picture.getchannel("A").getextrema()
    if alpha[0] != alpha[1] and all(low == high for low, high in paper.getextrema()[:3]):
        stop(f"{path} is white on a transparent background, so it would be all white; save it on another background")
    return paper


def read_picture(path, mode, side=None):
    """An image of this mode ("L", "RGB"), scaled to side x side pixels."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        stop("Pillow is not installed: apt-get install python3-pil, or pip install pillow")
    try:
        picture = on_paper(path, eight_bits(path, Image.open(path))).convert(mode)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as e:
        stop(f"{path}: {e}; remove it, or save it again")
    return picture if side is None else picture.resize((side, side), Image.BILINEAR)


def split_pictures(pictures, most, share, draw):
    """(path, label) of the training and the test pictures, and the names of the classes, one per subfolder."""
    classes = sorted(e.name for e in os.scandir(pictures) if e.is_dir() and not e.name.startswith("."))
    if not 2 <= len(classes) <= most:
        stop(f"{pictures} has {len(classes)} subfolders; give a folder with one for each class, 2 to {most}")
    train, test = [], []
    for label, name in enumerate(classes):
        files = sorted(os.scandir(os.path.join(pictures, name)), key=lambda e: e.name)
        of_class = [(e.path, label) for e in files if e.is_file() and not e.name.startswith(".")]
        if len(of_class) < 2:
            stop(f"class {name} has {len(of_class)} pictures; give at least 2, one to train and one to test")
        draw.shuffle(of_class)
        n = max(1, round(share * len(of_class)))
        test += of_class[:n]
        train += of_class[n:]
    return train, test, classes
