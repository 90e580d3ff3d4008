#!/usr/bin/env python3
"""Draws what a claim and its release consist of, from stacks that the claim bench sampled on 8 threads.

    PROGRAM --stacks=FOLDER              the claim bench; writes FOLDER/claim_ARM.stacks
    bench/flame.py fold PROGRAM FOLDER   names their frames, on the machine where that was, and writes
                                         FOLDER/claim_ARM.folded: a line for each stack, `a;b;c count`
    bench/flame.py draw FOLDER           reads these, writes FOLDER/claim_flame.svg

Inlined functions have names, too, in a program that is compiled with -g1.
"""
import re
import subprocess
import sys
from collections import Counter
from html import escape
from pathlib import Path

from report import COLOURS, WIDTH, text

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


# The picture.

ARMS = {"escrow": "Before: an event record a pair", "local": "After: claimers"}  # in this order
# Whose a function is: the first that fits. What a box has to itself counts for its own function.
KINDS = {"locks and atomics": r"mutex|rwlock|spin_lock|futex|sched_yield|^atomic ", "driver": r"\[libcuda\]$",
         "CUDA runtime": r"^(__)?cuda|^libcudart|^sim::", "system": r"\[", "bench": rf"^{PAIR}$|^\(", "Escrow": ""}
COLOUR_OF = dict(zip(("Escrow", "CUDA runtime", "locks and atomics", "driver", "system", "bench"), [*COLOURS, "#bbbbbb"]))
LEFT, ROW = 16, 17


def kind_of(frame):
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, frame))


def boxes(stacks, x, level, ns_of, px_of):
    """(level, box), one above the other: the stacks as a Counter of tuples; ns of a sample, pixels of a ns."""
    widths = Counter()
    for stack, count in stacks.items():
        widths[stack[:1]] += count
    for head, count in sorted(widths.items(), key=lambda each: -each[1]):
        ns = count * ns_of
        width, y = ns * px_of, -ROW * level
        if head and width >= 0.3:
            room = int((width - 6) / 6.4)
            label = head[0] if len(head[0]) <= room else head[0][:room - 1] + "…" if room > 3 else ""
            yield level, (f'<g><title>{escape(head[0])}: {ns:,.0f} ns</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
                          f'height="{ROW - 1}" fill="{COLOUR_OF[kind_of(head[0])]}" fill-opacity="0.5"/>'
                          + (text(x + 3, y + 12, label, size=11) if label else "") + "</g>")
            above = Counter({stack[1:]: n for stack, n in stacks.items() if stack[:1] == head})
            yield from boxes(above, x, level + 1, ns_of, px_of)
            x += width


def read(path):
    """What the file says of its arm: ns of a pair, where that was, and how often each stack was seen."""
    head, *lines = path.read_text().splitlines()
    stacks = (line.rpartition(" ") for line in lines)
    counts = Counter({tuple(stack.split(";")): int(count) for stack, _, count in stacks})
    return float(head.split()[1]), head.partition(", ")[2], counts


def picture(folder):
    arms = {title: read(folder / f"claim_{arm}.folded") for arm, title in ARMS.items()}
    slowest = max(ns for ns, _, _ in arms.values())
    parts, y = [], 74
    for title, (ns, _, stacks) in arms.items():
        samples, kinds = sum(stacks.values()), Counter()
        for stack, count in stacks.items():
            kinds[kind_of(stack[-1])] += count
        said = ", ".join(f"{kind} {count / samples * ns:,.0f}" for kind, count in kinds.most_common())
        ways = [(slowest, f"{title}: {ns:,.0f} ns, {samples:,} samples", f"of which {said}")]
        if ns < slowest / 2:  # what is narrow is drawn again
            ways.append((ns, f"{title}, {slowest / ns:.1f} times as wide", ""))
        for whole, *lines in ways:
            drawn = list(boxes(stacks, LEFT, 1, ns / samples, (WIDTH - 2 * LEFT) / whole))
            parts += [text(LEFT, y + 12 + 16 * i, line, size=14 - 2 * i) for i, line in enumerate(lines) if line]
            y += 16 * len([line for line in lines if line]) + 6 + ROW * max(level for level, _ in drawn)
            parts += [f'<g transform="translate(0 {y})">', *(box for _, box in drawn), "</g>"]
            y += 20
    where = next(iter(arms.values()))[1]
    legend = [text(16, 24, "Host time of a claim and its release, on 8 threads at once", size=16),
              text(16, 42, f"{where}. A box is as wide as its share of the time; callees stand above their callers; "
                           "times in ns.", size=12, fill="#555")]
    for i, (kind, colour) in enumerate(COLOUR_OF.items()):
        legend += [f'<rect x="{LEFT + 140 * i}" y="50" width="10" height="10" fill="{colour}" fill-opacity="0.5"/>',
                   text(LEFT + 14 + 140 * i, 59, kind, size=12)]
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" '
         'font-family="sans-serif">',
         f'<rect width="{WIDTH}" height="{y}" fill="white"/>', *legend, *parts, "</svg>"]) + "\n"


def main(what="", *paths):
    if what == "fold" and len(paths) == 2:
        fold(paths[0], Path(paths[1]))
    elif what == "draw" and len(paths) == 1:
        (Path(paths[0]) / "claim_flame.svg").write_text(picture(Path(paths[0])))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
