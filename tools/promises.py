#!/usr/bin/env python3
"""promises.py [--check] [TREE]: the table of docs/testing.md, from the tests' own words.

A test declares what it shows in a comment, "Promise: ..", which goes on to the next one or to the comment's end. The table,
between two markers, has a row for each test. A test that prints a PROMISE line with its figures declares at least one.
--check writes nothing, and ends with 1 where the page is behind the tests or a declaration is missing.
"""
import pathlib
import re
import sys

PAGE = "docs/testing.md"
MARKERS = re.compile(r"(?<=<!-- promises: tools/promises.py -->\n).*?(?=<!-- end of promises -->)", re.S)
COMMENTS = {".c": re.compile(r"/\*.*?\*/", re.S), ".py": re.compile(r"(?:^#.*\n)+", re.M), ".sh": re.compile(r"(?:^#.*\n)+", re.M)}
DECLARED = re.compile(r"Promise: (.*?)(?= Promise: |$)")
PRINTED = re.compile(r"[\"']PROMISE (?!['%])|\bpromise\((?!const)")
NOT_TESTS = {"tools/promises.py", "tools/test.sh", "tests/gpu/run", "tests/system/process.c", "tests/system/side_by_side.c"}


def promises(text, comments):
    for comment in comments.findall(text):
        words = re.sub(r"^(?:/\*| \*(?!/)|#)|\*/", "", comment, flags=re.M).split()
        yield from DECLARED.findall(" ".join(words))


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    tree = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent)
    rows, wrong = ["| test | promise |", "|---|---|"], []
    for path in sorted(p for folder in ("tests", "tools") for p in (tree / folder).rglob("*") if p.is_file()):
        name = str(path.relative_to(tree))
        if name in NOT_TESTS or path.suffix not in COMMENTS:
            continue
        text = path.read_text()
        found = " ".join(promises(text, COMMENTS[path.suffix]))
        if found:
            rows.append(f"| [{name}](../{name}) | {found} |")
        elif PRINTED.search(text):
            wrong.append(f"{name} prints a PROMISE line and declares none: a comment \"Promise: ..\" says what it shows")
    page = (tree / PAGE).read_text()
    made = MARKERS.sub(lambda _: "\n".join(rows) + "\n", page)
    if "--check" not in sys.argv:
        (tree / PAGE).write_text(made)
    elif made != page:
        wrong.append(f"{PAGE} is behind the tests: tools/promises.py writes its table")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


sys.exit(main())
