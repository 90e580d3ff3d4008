#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the examples of docs/guides: guides.py FOLDER COMPILER [options...]

Of each guide one file is made in FOLDER. A block ```cpp is the body of a function; after the line `<!-- file scope -->`
it stands outside of functions. A comment that begins with `<!-- given` has, up to `-->`, what the blocks use and the page
does not show, outside of functions. Blocks in other languages, ```c++ included, are not compiled.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADERS = "deleter graph nodes pool sim".split()
PART = re.compile(
    r"^<!-- given\n(?P<given>.*?)^-->$|^(?P<outside><!-- file scope -->\n)?```cpp\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)


def program(page, text):
    """The guide's file, whose lines have their numbers in the guide, and how many blocks it has."""
    result, blocks = [], 0
    for part in PART.finditer(text):
        name = "given" if part["code"] is None else "code"
        line = text.count("\n", 0, part.start(name)) + 1
        place = f'#line {line} "{page.relative_to(ROOT)}"'
        if name == "given" or part["outside"]:
            result += [place, part[name]]
        else:
            result += [f"[[maybe_unused]] static void block_{line}() {{", place, part[name] + "}"]
        blocks += name == "code"
    return "\n".join(result) + "\n", blocks


def compiles(compiler, source, text, *options):
    source.write_text(text)
    return subprocess.run([*compiler, "-std=c++20", *options, source], check=False).returncode == 0


def main():
    folder, compiler = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    common = folder / "guide.hpp"
    includes = "".join(f"#include <escrow/{name}.hpp>\n" for name in HEADERS)
    if not compiles(compiler, common, includes, "-x", "c++-header", "-o", f"{common}.gch"):
        return 1
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-Wno-unused-but-set-variable"]
    bad, all_blocks = [], 0
    pages = sorted((ROOT / "docs/guides").glob("*.md"))
    for page in pages:
        text = page.read_text()
        code, blocks = program(page, text)
        all_blocks += blocks
        if blocks != len(re.findall(r"^\s*```cpp", text, re.MULTILINE)):
            bad.append(f"{page.name}: a block ```cpp that does not end, or does not begin with that line alone")
        options = ["-fsyntax-only", *warnings, "-include", common]
        if not compiles(compiler, folder / f"{page.stem}.cpp", code, *options):
            bad.append(f"{page.name}: does not compile")
    print("\n".join([*bad, f"{len(pages)} guides, {all_blocks} blocks"]))
    return 1 if bad or not all_blocks else 0


if __name__ == "__main__":
    sys.exit(main())
