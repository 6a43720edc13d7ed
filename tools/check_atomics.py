#!/usr/bin/env python3
"""check_atomics.py [--write] [TREE]: docs/memory-order.md names every atomic of the product, with its lines and its orders.

A row of the table names flags, as the code reaches them after the first arrow (`place.step`; `fence` is a fence), and files.
Their lines and orders in the table are compared with the sources. Offences are an atomic in no row or in two, a row that names a
removed flag, and a wrong line or order: a line each, and exit 1. --write updates the lines and orders of the flags and files
that a row names; the choice of flags, and the reason for an order, are written by hand.
"""
import pathlib
import re
import sys

# Promise: Every atomic has a row in docs/memory-order.md, with its lines, its order and what it publishes.

PAGE = "docs/memory-order.md"
TREES = ("cli", "config", "core", "data", "examples", "include", "job", "models", "ops", "plugin", "rank", "remote", "report", "run",
         "runtime", "server", "strategies", "worker")
TYPE = r"(?:_Atomic\s*\([^)]*\)|_Atomic\s+\w+|atomic_(?:bool|u?int\w*)\b)"
OPERATION = re.compile(r"\b(atomic_(?!bool\b|u?int)\w+|__atomic_\w+)\s*\(")
DECLARED = re.compile(TYPE + r"\s*((?:const\s*)?\*?\s*\w[^;(){}=]*)")
COLUMNS = 6  # flags, declared, stores, loads, pair, what it publishes


def bare(text):
    """Without comments and the preprocessor; as many lines as before."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    return re.sub(r"^[ \t]*#[^\n]*", "", text, flags=re.M)


def call_text(text, at):
    """The text in the parentheses that open before `at`."""
    begin, depth = at, 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return text[begin:at - 1]


def reached(argument):
    """`&of->claim[1].number` is claim.number, `&box_of(ring, k)->asked` is asked, `(atomic_int *)lent` is lent."""
    argument = re.sub(r"\(\s*" + TYPE + r"\s*\*\s*\)", "", argument)
    while re.search(r"\([^()]*\)|\[[^][]*\]", argument):
        argument = re.sub(r"\([^()]*\)|\[[^][]*\]", "", argument)
    parts = re.split(r"->", re.sub(r"[&\s]", "", argument.split(",")[0]), maxsplit=1)
    return parts[-1].replace("->", ".")


def operations(file, text):
    """(kind, flag, place, order) of each: any write is a store."""
    for m in OPERATION.finditer(text):
        inside = call_text(text, m.end())
        place = f"{file}:{text.count(chr(10), 0, m.start()) + 1}"
        orders = re.findall(r"memory_order_(\w+)", inside)
        if "fence" in m.group(1):
            yield "stores" if orders[0] == "release" else "loads", "fence", place, orders[0]
            continue
        kind = "loads" if "load" in m.group(1) else "stores"
        order = "init" if m.group(1).endswith("_init") else orders[0] if orders else "seq_cst"
        yield kind, reached(inside), place, order


def declarations(file, text):
    for m in DECLARED.finditer(text):
        place = f"{file}:{text.count(chr(10), 0, m.start()) + 1}"
        for name in re.sub(r"\[[^]]*\]", "", m.group(1)).split(","):
            if re.fullmatch(r"[\s*]*\w+\s*", name):  # otherwise a parameter after it
                yield "declared", name.strip(" *\n"), place, ""


def sites(tree):
    for folder in TREES:
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".cu") or not path.is_file():
                continue
            file, text = str(path.relative_to(tree)), bare(path.read_text(encoding="utf-8"))
            yield from declarations(file, text)
            yield from operations(file, text)


def belongs(row, site):
    kind, flag, place, _ = site
    names = row["flags"] if kind != "declared" else [name.split(".")[-1] for name in row["flags"]]
    return place.split(":")[0] in row["files"] and any(flag == n or flag.endswith("." + n) for n in names)


def cell(found):
    """`core/log.c:134`, `:137` relaxed: a place without an order is seq_cst."""
    words, before = [], ""
    for _, _, place, order in sorted(found, key=lambda s: (s[2].split(":")[0], int(s[2].split(":")[1]))):
        file, line = place.split(":")
        words.append(f"`{':' + line if file == before else place}`" + ("" if order in ("", "seq_cst") else " " + order))
        before = file
    return ", ".join(dict.fromkeys(words)) or "-"


def rows(lines):
    for number, line in enumerate(lines):
        cells = [c.strip() for c in line.strip().strip("|").split(" | ")]
        if not line.startswith("| `") or len(cells) != COLUMNS:
            continue
        yield number, cells, {"flags": re.findall(r"`([^`]+)`", cells[0]),
                              "files": set(re.findall(r"[\w./]+\.(?:cu|[ch])\b", " ".join(cells[1:4])))}


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    tree = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parent.parent)
    lines, found, offences, written = (tree / PAGE).read_text(encoding="utf-8").split("\n"), list(sites(tree)), [], 0
    owners = [[] for _ in found]
    for number, cells, row in rows(lines):
        own = [i for i, site in enumerate(found) if belongs(row, site)]
        for i in own:
            owners[i].append(cells[0])
        for name in row["flags"]:
            if not any(belongs({**row, "flags": [name]}, found[i]) for i in own):
                offences.append(f"{PAGE}:{number + 1}: {name} is in none of the files that its row names")
        now = [cell([found[i] for i in own if found[i][0] == kind]) for kind in ("declared", "stores", "loads")]
        if now != cells[1:4] and "--write" in sys.argv:
            lines[number], written = "| " + " | ".join([cells[0], *now, *cells[4:]]) + " |", written + 1
        elif now != cells[1:4]:
            offences.append(f"{PAGE}:{number + 1}: the lines or orders of {cells[0]} are others now: run tools/check_atomics.py --write, "
                            "and check that the pair still holds")
    for (kind, flag, place, order), rows_of in zip(found, owners):
        if not rows_of or len(rows_of) > 1 and kind != "declared":
            offences.append(f"{place}: {flag} ({kind} {order}) is in {len(rows_of)} rows of {PAGE}: it needs one, which says what "
                            "the flag publishes and by which order")
    if written:
        (tree / PAGE).write_text("\n".join(lines), encoding="utf-8")
    for offence in offences:
        print(offence)
    count = sum(kind != "declared" for kind, *_ in found)
    print(f"atomics: {count} uses of {len(found) - count} flags" + ("" if offences else ", each in one row"))
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
