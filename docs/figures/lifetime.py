#!/usr/bin/env python3
"""Draws the life of a resource under a graph.

    docs/figures/lifetime.py              writes lifetime.svg beside this file
    docs/figures/lifetime.py --check      fails if that file is not up to date
"""

import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 900, 376
LEFT, COLUMN, GAP = 20, 130, 16  # six columns
STYLE = """
  text { font: 12px sans-serif; fill: #1f2328; text-anchor: middle }
  .code { font-family: monospace }
  .label { text-anchor: start; fill: #59636e }
  .panel { fill: #ffffff }
  .call { fill: #ddf4ff; stroke: #0969da }
  .keep { fill: #dafbe1; stroke: #1a7f37 }
  .back { fill: #fff8c5; stroke: #9a6700 }
  .gpu { fill: #f6f8fa; stroke: #59636e }
  .arrow { stroke: #59636e; stroke-width: 1.5; fill: none; marker-end: url(#head) }
  #head path { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .label { fill: #9198a1 }
    .panel { fill: #0d1117 }
    .call { fill: #121d2f; stroke: #4493f8 }
    .keep { fill: #12261e; stroke: #3fb950 }
    .back { fill: #2b2111; stroke: #d29922 }
    .gpu { fill: #212830; stroke: #9198a1 }
    .arrow { stroke: #9198a1 }
    #head path { fill: #9198a1 }
  }"""


def x_of(column):
    """The left edge of a column; half a column more is its middle."""
    return LEFT + column * (COLUMN + GAP)


def box(kind, left, top, right, bottom, *lines, code=""):
    """A box with lines of text in its middle; `code` is the first, in a fixed-width font."""
    said = [(line, False) for line in lines]
    if code:
        said.insert(0, (code, True))
    parts = [f'<rect class="{kind}" x="{left}" y="{top}" width="{right - left}" '
             f'height="{bottom - top}" rx="5"/>']
    middle = (left + right) / 2
    y = (top + bottom) / 2 + 4 - 8 * (len(said) - 1)
    for line, is_code in said:
        name = ' class="code"' if is_code else ""
        parts.append(f'<text{name} x="{middle:g}" y="{y:g}">{escape(line)}</text>')
        y += 16
    return parts


def arrow(*points):
    path = " ".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))
    return [f'<path class="arrow" d="{path}"/>']


def label(y, text):
    return [f'<text class="label" x="{LEFT}" y="{y}">{escape(text)}</text>']


def calls():
    parts = label(24, "what the program does, from left to right")
    steps = [
        ("call", "claim(stream)", "in a capture"),
        ("call", "", "kernels captured,", "lease released"),
        ("call", "graph_exec(g)", "instantiates"),
        ("call", "exec.launch()", "many times"),
        ("call", "", "exec and graph are", "destroyed in flight"),
        ("gpu", "", "the last launch", "ends on the GPU"),
    ]
    for i, (kind, code, *lines) in enumerate(steps):
        parts += box(kind, x_of(i), 36, x_of(i) + COLUMN, 84, *lines, code=code)
        if i:
            parts += arrow((x_of(i) - GAP, 60), (x_of(i) - 2, 60))
    return parts


def keepers():
    parts = label(120, "what keeps the resource meanwhile")
    destroyed, ended = x_of(4) + COLUMN / 2, x_of(5) + COLUMN / 2
    bars = [
        (x_of(0), x_of(1) + COLUMN, "the lease"),
        (x_of(0), destroyed, "the graph: one CUDA user object for all that it holds"),
        (x_of(2), destroyed, "graph_exec itself: its exec has no user object"),
        (destroyed, ended, "last launch's event"),
        (x_of(2), ended, "or a plain cudaGraphExec_t: CUDA's copy of the user object's reference"),
    ]
    for i, (left, right, text) in enumerate(bars):
        top = 132 + 32 * (i if i < 3 else i - 1)
        parts += box("keep", left, top, right, top + 26, text)
    return parts


def way_back():
    parts = label(280, "after the last of them (right to left)")
    steps = [
        (5, 5, "last reference", "dropped: a push to", "a lock-free queue"),
        (3, 4, "recycle lane, on any thread:", "resources return to their pools"),
        (0, 2, "destroy lane, on Escrow's worker thread:", "retired owners are destroyed"),
    ]
    for i, (first, last, *lines) in enumerate(steps):
        right = x_of(last) + COLUMN
        parts += box("back", x_of(first), 292, right, 356, *lines)
        if i:
            parts += arrow((right + GAP, 324), (right + 2, 324))
    ended = x_of(5) + COLUMN / 2
    return parts + arrow((ended, 84), (ended, 192)) + arrow((ended, 254), (ended, 290))


def svg():
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="The life of a resource that a captured graph uses">',
        f"<style>{STYLE}\n</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="panel" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *calls(), *keepers(), *way_back(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main():
    path = Path(__file__).with_suffix(".svg")
    if "--check" not in sys.argv[1:]:
        path.write_text(svg())
        return 0
    if path.exists() and path.read_text() == svg():
        return 0
    print(f"{path.name} is not up to date: run docs/figures/lifetime.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
