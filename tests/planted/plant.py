#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants a bug: plant.py BUG TREE.

A .bug file has lines `# bug:`, `# row:` (of the table of bugs that docs/proof.md had at 915ee8e; a finding of the review
of 318121c; or what may not happen), `# test:` (program and filter), and hunks without line numbers:
    @@ deleter/ pool/claim.cpp
     a line that stays
    -a line that goes
    +a line that comes
The old text has to occur once in the files whose names begin with one of those behind @@. White space does not count,
so the text may move to another file or be wrapped differently. `# none: why` in place of a test: nothing is planted.
"""
import re
import sys
from pathlib import Path

SUFFIXES = {".cpp", ".hpp", ".inc", ".txt"}


def hunks(text):
    where, old, new = None, [], []
    for line in text.split("\n"):
        if line.startswith("@@"):
            if where:
                yield where, old, new
            where, old, new = line[2:].split(), [], []
        elif where and line[:1] in {" ", "-", "+"}:
            if line[0] != "+":
                old.append(line[1:])
            if line[0] != "-":
                new.append(line[1:])
    if where:
        yield where, old, new


def files(tree, where):
    for part in sorted({name.split("/")[0] for name in where}):
        for path in sorted((tree / part).rglob("*")):
            name = str(path.relative_to(tree))
            if path.suffix in SUFFIXES and name.startswith(tuple(where)):
                yield path


def plant(tree, where, old, new):
    pattern = re.compile(r"\s+".join(map(re.escape, "\n".join(old).split())))
    found = [(path, match) for path in files(tree, where) for match in pattern.finditer(path.read_text())]
    if len(found) != 1:
        sys.exit(f"found {len(found)} times: {' '.join(old).strip()}")
    path, match = found[0]
    text = path.read_text()
    path.write_text(text[: match.start()] + "\n".join(new).strip() + text[match.end() :])
    print(f"planted in {path.relative_to(tree)}")


def main():
    bug, tree = Path(sys.argv[1]), Path(sys.argv[2])
    for where, old, new in hunks(bug.read_text()):
        plant(tree, where, old, new)


if __name__ == "__main__":
    main()
