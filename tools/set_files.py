"""What the tools that write data sets share: pictures in, whole files out, one sentence where something is wrong."""
import contextlib, os, sys


def stop(text):
    sys.stderr.write(f"{os.path.basename(sys.argv[0])[:-3]}: {text}\n")
    sys.exit(2)


def run(main):
    try:
        main()
    except OSError as e:
        stop(f"{e.filename}: {e.strerror}; give folders that are there, and one that can be written")


@contextlib.contextmanager
def written(folder, name):
    """A file, under its name once it is whole: who has mapped the one before keeps it."""
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
    """Its samples from 0 to 255: Pillow's convert() would cut those of 16 bits off, and round 0 to 1 to black."""
    if picture.mode not in ("F", "I") and not picture.mode.startswith("I;16"):
        return picture
    most = 1.0 if picture.mode == "F" else 65535
    picture = picture if picture.mode == "F" else picture.convert("I")
    low, high = picture.getextrema()
    if not (0 <= low and high <= most) or (most > 1 and 0 < high < 256):  # nor is a NaN; those have 8 bits of 16
        stop(f"{path} has samples from {low:g} to {high:g}, where 0 to {most:g} are read as black to white; save it with 8 bits")
    return picture.convert("F").point(lambda v: v * (255 / most) + 0.5).convert("L")


def on_paper(path, picture):
    """What is transparent becomes white, as a viewer shows it; convert() would show what lies below, mostly black."""
    from PIL import Image
    if not picture.mode.endswith(("A", "a")) and "transparency" not in picture.info:
        return picture
    picture = picture.convert("RGBA")
    paper = Image.new("RGBA", picture.size, "white")
    paper.alpha_composite(picture)
    alpha = picture.getchannel("A").getextrema()
    if alpha[0] != alpha[1] and all(low == high for low, high in paper.getextrema()[:3]):
        stop(f"{path} is white on nothing, which is all white on paper; save it on a background of its own")
    return paper


def read_picture(path, mode, side=None):
    """An image of this mode ("L", "RGB"), scaled to side x side pixels."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        stop("there is no Pillow: apt-get install python3-pil, or pip install pillow")
    try:
        picture = on_paper(path, eight_bits(path, Image.open(path))).convert(mode)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as e:
        stop(f"{path}: {e}; take it out, or save it again")
    return picture if side is None else picture.resize((side, side), Image.BILINEAR)


def split_pictures(pictures, most, share, draw):
    """(path, label) of those to train and to test, and the names of the classes: a subfolder each."""
    classes = sorted(e.name for e in os.scandir(pictures) if e.is_dir() and not e.name.startswith("."))
    if not 2 <= len(classes) <= most:
        stop(f"{pictures} has {len(classes)} subfolders; give a folder with one for each class, 2 to {most}")
    train, test = [], []
    for label, name in enumerate(classes):
        files = sorted(os.scandir(os.path.join(pictures, name)), key=lambda e: e.name)
        of_class = [(e.path, label) for e in files if e.is_file() and not e.name.startswith(".")]
        if len(of_class) < 2:
            stop(f"class {name} has {len(of_class)} pictures; give 2 at least, one to train and one to test")
        draw.shuffle(of_class)
        n = max(1, round(share * len(of_class)))
        test += of_class[:n]
        train += of_class[n:]
    return train, test, classes
