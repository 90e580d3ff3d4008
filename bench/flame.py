#!/usr/bin/env python3
"""Draws what a claim and its release consist of, from what bench/fold_stacks.py wrote.

    bench/flame.py FOLDER       reads FOLDER/claim_ARM.folded, writes FOLDER/claim_flame.svg
"""
import re
import sys
from collections import Counter
from html import escape
from pathlib import Path

from fold_stacks import PAIR
from report import COLOURS, WIDTH, text

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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    (Path(sys.argv[1]) / "claim_flame.svg").write_text(picture(Path(sys.argv[1])))
