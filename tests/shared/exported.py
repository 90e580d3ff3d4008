#!/usr/bin/env python3
"""Checks what a shared Escrow exports: all that the public headers promise, nothing of private headers, nothing else.

exported.py NM LIBRARY PARTS...: the library and the archives of the parts that it has. What the headers mark with
ESCROW_API is exported; the simulated runtime exports CUDA's names and all of its own.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/faults"))
from public_functions import public_functions, without_comments  # noqa: E402

HEADERS = "\n".join(without_comments(path.read_text(), keep_marks=True)
                    for path in sorted(ROOT.glob("*/include/escrow/**/*.hpp")))
MARKED = set(re.findall(r"\b(?:class|struct) (?:\[\[nodiscard\]\] )?ESCROW_API (\w+)", HEADERS))
MARKED |= set(re.findall(r"ESCROW_API [^;{(]*?(\w+)\(", HEADERS))
MARKED |= {"retired_object"}  # one member is marked: its templates stay with who calls them
# Classes whose members can be seen: private nested ones are only declared in public headers.
DEFINED = set(re.findall(r"\b(?:class|struct)\b(?: \[\[\w+\]\]| ESCROW_\w+| alignas\(\w+\))* (\w+)[^;{()]*\{", HEADERS))


def symbols(nm, *options):
    """The types and names of the symbols that are defined, as the linker has them."""
    lines = subprocess.run([nm, "-p", "--defined-only", "--format=posix", *options], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return [(fields[1], fields[0]) for fields in map(str.split, lines) if len(fields) > 2]


def demangled(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, text.splitlines()))


def scopes(name):
    """The names of a function or class in escrow::, from outside in; nothing for what is not Escrow's."""
    match = re.match(r"(?:typeinfo (?:name )?for |vtable for )?escrow::(?:v\d+_\d+::)?(?:detail::)?([\w:~]+)", name)
    return match[1].split("::") if match else []


def is_public(name, marked):
    path = scopes(name)
    return bool(path) and path[0] in marked and all(outer in DEFINED for outer in path[:-1])


def main():
    nm, library, *parts = sys.argv[1:]
    is_simulated = "simulated" in Path(library).name
    exported = {name for _, name in symbols(nm, "-D", library)}
    of_parts = {name for kind, name in symbols(nm, *parts) if kind == "T"}
    text = demangled(sorted(exported | of_parts))

    def may_be_there(name):
        return is_public(text[name], MARKED) or is_simulated and (
            name.startswith("cuda") or scopes(text[name])[:1] == ["sim"])

    promised = {name.split("::")[0] for name in public_functions()}
    problems = [f"{text[name]} is exported, and is not public" for name in sorted(exported) if not may_be_there(name)]
    problems += [f"{text[name]} is public, and is not exported" for name in sorted(of_parts - exported)
                 if is_public(text[name], promised)]
    print("\n".join(problems))
    print(f"{Path(library).name}: {len(exported)} exported names, {len(problems)} problems")
    return 1 if problems or len(exported) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
