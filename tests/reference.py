#!/usr/bin/env python3
"""The reference is built without a warning, and has every public function: reference.py DOXYGEN DOXYFILE"""
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/faults"))
from public_functions import public_functions  # noqa: E402

# What a class's comment speaks of may be left out: constructors, the destructor, assignment, members of specializations.
SPECIAL = re.compile(r"(\w+)::(~?\1|operator =)|kernel_argument_traits::.*")
HIDDEN = re.compile(r"\bv0_1\b|ESCROW_(API|LOCAL)|namespace escrow::detail|Internal:|\[\[nodiscard")


def shown(tag_file):
    """Every class, and every function as Type::function or function."""
    for compound in ElementTree.parse(tag_file).getroot():
        scope = re.sub(r"<.*|.*::", "", compound.findtext("name", ""))
        if compound.get("kind") in ("class", "struct"):
            yield scope
        for member in compound.findall("member"):
            name = re.sub(r"^operator(?=\w)", "operator ", member.findtext("name", ""))
            yield f"{scope}::{name}" if compound.get("kind") in ("class", "struct") else name


def main():
    doxygen, doxyfile = sys.argv[1:]
    pages = Path(re.search(r"^OUTPUT_DIRECTORY = (.*)", Path(doxyfile).read_text(), re.MULTILINE)[1])
    shutil.rmtree(pages / "html", ignore_errors=True)  # or pages of what is left out now would stay
    if subprocess.run([doxygen, doxyfile], cwd=ROOT, check=False).returncode != 0:
        return 1
    there = set(shown(pages / "tags.xml"))
    expected = {re.sub(r"operator\s*(?=\W)", "operator", name) for name in public_functions() if not SPECIAL.fullmatch(name)}
    expected |= {name.split("::")[0] for name in public_functions() if "::" in name}
    problems = [f"{name} is not in the reference" for name in sorted(expected - there)]
    problems += [f"{page.name}: shows {HIDDEN.search(page.read_text())[0]}" for page in sorted(pages.glob("html/*escrow*.html"))
                 if HIDDEN.search(page.read_text())]
    print("\n".join([*problems, f"{len(expected)} classes and functions, {len(problems)} problems"]))
    return 1 if problems or len(expected) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
