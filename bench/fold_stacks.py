#!/usr/bin/env python3
"""Names the frames of stacks that the claim bench sampled on 8 threads, on the machine where that was.

    PROGRAM --stacks=FOLDER                     the claim bench; writes FOLDER/claim_ARM.stacks
    bench/fold_stacks.py PROGRAM FOLDER         writes FOLDER/claim_ARM.folded: a line for each stack, `a;b;c count`

Inlined functions have names, too, in a program that is compiled with -g1. bench/flame.py draws it.
"""
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

PAIR = "claim and release"  # the outermost frame


def without(brackets, name):
    """The name without what is in such brackets."""
    depth, kept = 0, []
    for char in name:
        depth += char == brackets[0]
        if depth == 0:
            kept.append(char)
        depth -= char == brackets[1] and depth > 0
    return "".join(kept)


def shortened(name):
    """A C++ name without namespaces, arguments and lambdas; empty: a frame that says nothing."""
    if atomic := re.match(r"std::(?:__)?atomic\w*(?:<.*>)?::(\w+)", name):
        return f"atomic {atomic[1]}"
    if re.match(r"\?\?|(\w+ )*(std|__gnu_cxx)::|_ZNSt|__gthread|__invoke|_M_|operator\(\)", name):
        return ""
    name = name.replace("(anonymous namespace)::", "").replace("operator->", "arrow").replace("operator()", "call")
    name = without("()", without("<>", without("{}", name)))
    name = re.sub(r"\b(escrow|bench|detail|test|v\d+_\d+)::|(^|::)call\b|::(?=::|$)| const\b| \[.*", "", name)
    name = re.sub(r"(::)+$", "", name.strip().rpartition(" ")[2])
    return "" if name.startswith("std::") else name


def names_in(program, addresses):
    """Address -> names of its functions, the outermost first: those that are inlined there, too."""
    said = subprocess.run(["addr2line", "-a", "-f", "-i", "-C", "-e", program], input="\n".join(addresses),
                          capture_output=True, text=True, check=True).stdout
    result = {}
    for block in re.split(r"^(?=0x[0-9a-f]{8,}$)", said, flags=re.MULTILINE)[1:]:
        address, *lines = block.splitlines()
        result[hex(int(address, 16))] = lines[::2][::-1]
    return result


def named(frame):
    """Of a frame of a library, its name there; without a name it counts for its caller, but the driver's has a box."""
    symbol, at, library = frame.partition("@")
    library = library.split(".")[0]
    if not at:
        return shortened(frame)
    if symbol == "?":
        return f"[{library}]" if library == "libcuda" else ""
    return f"{symbol} [{library}]" if shortened(symbol) else ""


def folded(stack, names):
    """The frames of a pair, by name."""
    frames = []
    for name in (name for frame in stack.strip(";").split(";") for name in names.get(frame, [frame])):
        if "sampled_pair::operator()" in name:
            frames = [PAIR]
        elif (short := named(name)) and frames[-1:] != [short]:
            frames.append(short)
    return ";".join(frames if PAIR in frames else [PAIR, "(caller unknown)", *frames[-1:]])


def fold(program, folder):
    for path in folder.glob("claim_*.stacks"):
        head, *lines = path.read_text().splitlines()
        addresses = {frame for line in lines for frame in re.split("[ ;]", line) if frame.startswith("0x")}
        names, counts = names_in(program, sorted(addresses)), Counter()
        for line in lines:
            count, _, stack = line.partition(" ")
            counts[folded(stack, names)] += int(count)
        path.with_suffix(".folded").write_text("\n".join([head, *(f"{s} {n}" for s, n in sorted(counts.items()))]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    fold(sys.argv[1], Path(sys.argv[2]))
