#!/usr/bin/env python3
"""check_prose.py [--list KIND] [TREE]: counts the sentences that a native reader of English stumbles over.

Looked at are the messages and comments of the product, and the pages: docs/, README, CONTRIBUTING. Counted are
sentences that begin with a relative or with "Of" where their subject should stand ("Who lets a rank go is the leader"),
negations as nouns ("is none", "is no file"), "for ever", and in pages lines over 100 characters (tables, code and links
may be longer). LIMITS says how many may be left, good English among them; more end the check with 1. --list shows them.
"""
import pathlib
import re
import sys

TREES = ("cli", "config", "core", "data", "include", "models", "ops", "plugin", "rank", "remote", "report", "run", "runtime",
         "server", "strategies", "virtual", "worker")
WIDTH = 100
KINDS = {
    "relative": re.compile(r"(?:What|Who|Whose|Whom|That|Which)\b(?! is\b[^.]*:)"),
    "of": re.compile(r"Of\b(?! course\b)"),
    "none": re.compile(r".*(?<!there )\b(?:is|are|was|were) none\b", re.S),
    "no": re.compile(r".*(?<!there )\b(?:is|are|was|were) no\b(?! (?:longer|more|less|such|way|need|other|room)\b)(?= \w)", re.S),
    "ever": re.compile(r".*\bfor ever\b", re.S),
}
LIMITS = {  # kind: (messages, comments, pages)
    "relative": (0, 0, 0), "of": (0, 0, 0), "none": (0, 0, 0), "no": (0, 0, 0), "ever": (0, 0, 0), "long": (0, 0, 0),
}
TOKEN = re.compile(r"(/\*.*?\*/)|(\"(?:\\.|[^\"\\\n])*\"(?:\s*(?:PRI\w+\s*)?\"(?:\\.|[^\"\\\n])*\")*)|'(?:\\.|[^'\\\n])+'|//[^\n]*", re.S)


def sentences(text):
    return [s.strip() for s in re.split(r"(?<=[.?!])\s+|\n\s*\n", text) if s.strip()]


def of_source(path):
    """(where, sentence, line) of the messages and comments of a file."""
    text = path.read_text()
    for m in TOKEN.finditer(text):
        line = text.count("\n", 0, m.start()) + 1
        if m.group(1):
            inner = re.sub(r"\n[ \t]*\*[ \t]?", "\n", m.group(1)[2:-2])
            inner = re.sub(r"\n(?: {3,}|\s*$).*", "\n\n", inner)  # tables and drawings
            inner = re.sub(r"^\s*\S+\.\w+ - ", "", inner)
            for s in sentences(re.sub(r"(?<!\n)\n(?!\n)", " ", inner)):
                yield 1, s, line
        elif m.group(2):
            inner = re.sub(r'"\s*(PRI\w+\s*)?"', "", m.group(2)[1:-1])
            if " " in inner:
                for s in sentences(inner.replace("\\n", "\n\n")):
                    yield 0, s, line


def of_page(path):
    """The same of a page; its code, tables and drawings are left out."""
    is_code, paragraph, start = False, [], 1
    lines = path.read_text().splitlines()
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("```"):
            is_code = not is_code
        is_text = not is_code and not line.startswith(("```", "|", "    ", "#", "<")) and line.strip()
        if is_text and len(line) > WIDTH and " " in re.sub(r"\]\([^)]*\)", "]", line)[:WIDTH]:
            yield "long", line, number
        if is_text:
            if not paragraph:
                start = number
            paragraph.append(re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", line))
        elif paragraph:
            for s in sentences(re.sub(r"(?<!\n)\n(?!\n)", " ", "\n".join(paragraph))):
                yield 2, re.sub(r"^[*`_]+", "", s), start
            paragraph = []


def main():
    arguments = sys.argv[1:]
    shown = arguments[1] if arguments[:1] == ["--list"] else None
    arguments = arguments[2 if shown else 0:]
    tree = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent)
    found = {kind: [0, 0, 0] for kind in LIMITS}

    def count(kind, where, path, line, text):
        found[kind][where] += 1
        if shown in (kind, "all"):
            print(f"{path.relative_to(tree)}:{line}: {kind}: {' '.join(text.split())[:150]}")

    for path in sorted(p for t in TREES for p in (tree / t).rglob("*") if p.suffix in (".c", ".h", ".cu", ".cuh")):
        for where, text, line in of_source(path):
            for kind, pattern in KINDS.items():
                if pattern.match(text) and not text.endswith("?"):
                    count(kind, where, path, line, text)
    for path in [*sorted((tree / "docs").glob("*.md")), tree / "README.md", tree / "CONTRIBUTING.md", tree / "bench/README.md"]:
        for where, text, line in of_page(path):
            if where == "long":
                count("long", 2, path, line, text)
                continue
            for kind, pattern in KINDS.items():
                if pattern.match(text) and not text.endswith("?"):
                    count(kind, where, path, line, text)

    is_over = False
    print(f"{'':10s}{'messages':>10s}{'comments':>10s}{'pages':>10s}   of at most")
    for kind, n in found.items():
        print(f"{kind:10s}" + "".join(f"{x:10d}" for x in n) + "   " + ", ".join(map(str, LIMITS[kind])))
        is_over = is_over or any(x > most for x, most in zip(n, LIMITS[kind]))
    if is_over:
        print("check_prose.py: more than may be left; --list KIND (or all) shows each with its place")
    return 1 if is_over else 0


sys.exit(main())
