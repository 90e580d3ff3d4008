#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the life of a pool's resource, from its claim to its return: eager, and under a graph.

    docs/figures/lifetime.py              writes lifetime.svg beside this file
    docs/figures/lifetime.py --check      fails if that file is not up to date
"""

import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 900, 350
LEFT, COLUMN, GAP = 16, 112, 14  # seven columns
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


def eager():
    parts = label(24, "on a stream that is not captured")
    free = x_of(6)
    parts += box("call", x_of(0), 36, x_of(0) + COLUMN, 84, code="claim(stream)")
    parts += box("call", x_of(1), 36, x_of(1) + COLUMN, 84, "work enqueued,", "lease released")
    parts += box("keep", x_of(2), 36, free - GAP, 84, "the event that the release recorded: a claim on this stream needs no wait,",
                 "one on another stream takes a free slot, or waits in its stream")
    parts += box("back", free, 36, free + COLUMN, 84, "free for all, once", "the work is done")
    for column in (1, 2, 6):
        parts += arrow((x_of(column) - GAP, 60), (x_of(column) - 2, 60))
    return parts


def calls():
    parts = label(124, "in a capture")
    steps = [
        ("call", "claim(stream)"),
        ("call", "", "work captured,", "lease released"),
        ("call", "graph_exec(g)", "instantiates"),
        ("call", "exec.launch()", "many times"),
        ("call", "", "graph and exec", "end in flight"),
        ("gpu", "", "the last launch", "ends on the GPU"),
    ]
    for i, (kind, code, *lines) in enumerate(steps):
        parts += box(kind, x_of(i), 136, x_of(i) + COLUMN, 184, *lines, code=code)
        if i:
            parts += arrow((x_of(i) - GAP, 160), (x_of(i) - 2, 160))
    return parts


def keepers():
    parts = label(216, "what keeps the resource meanwhile")
    destroyed, ended = x_of(4) + COLUMN / 2, x_of(5) + COLUMN / 2
    bars = [
        (x_of(0), x_of(1) + COLUMN, 228, "the lease"),
        (x_of(2), destroyed, 228, "graph_exec: its exec has no user object"),
        (destroyed, ended, 228, "last launch's event"),
        (x_of(0), destroyed, 260, "the graph: one CUDA user object for all that it holds"),
        (x_of(2), ended, 292, "or a plain cudaGraphExec_t: CUDA's copy of the user object"),
    ]
    for left, right, top, text in bars:
        parts += box("keep", left, top, right, top + 26, text)
    return parts


def way_back():
    left, right = x_of(6), x_of(6) + COLUMN
    parts = box("back", left, 136, right, 224, "resource:", "free again, by", "any thread")
    parts += box("back", left, 234, right, 318, "retired owner:", "destroyed by", "the worker")
    parts += arrow((left - GAP, 160), (left - 2, 160))
    turn = left - GAP / 2
    return parts + arrow((turn, 160), (turn, 276), (left - 2, 276))


def svg():
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="The life of a resource: eager, and in a graph">',
        f"<style>{STYLE}\n</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="panel" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        *eager(), *calls(), *keepers(), *way_back(),
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
