#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws how graphs lie in the arena of their sharing group: arena_svg.py [FILE] [options]

FILE has what escrow::to_json(escrow::report_memory()) gives; none or "-": standard input.

    --group LABEL   the group; else the one with the most bytes
    --graph ID      a graph, by the id of its capture; several times: a panel for each. Else the one that reaches furthest
    -o OUT          the SVG; else standard output

From left to right: claims and releases in the order of the capture. From the bottom up: where in the arena. A rectangle is a
claim from its claim to its release. Hatched is what lies unused below something in use; the dashed lines are the most that
is in use at a time, and how far the graph reaches: what the group needs for it.
"""
import argparse
import json
import sys
import zlib
from html import escape
from pathlib import PurePath

WIDTH, LEFT, RIGHT, TOP, HEIGHT, BELOW = 900, 64, 20, 54, 340, 44  # of a panel
MIB = 1 << 20
COLORS = ("#0969da", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#1b7c83", "#bc4c00", "#57606a")
STYLE = """
  text { font: 12px sans-serif; fill: #1f2328 }
  .title { font-weight: bold }
  .note { fill: #59636e }
  .mark { fill: #59636e; text-anchor: end }
  .in { text-anchor: middle; font-size: 11px; pointer-events: none }
  .panel { fill: #ffffff }
  .frame { fill: none; stroke: #d1d9e0 }
  .claim { stroke: #1f2328; stroke-width: 0.5; fill-opacity: 0.35 }
  .leased { stroke-dasharray: 3 2; stroke-width: 1.5 }
  .gap { fill: url(#hatch) }
  .hatch { stroke: #cf222e; stroke-opacity: 0.5 }
  .line { stroke: #59636e; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note, .mark { fill: #9198a1 }
    .panel { fill: #0d1117 }
    .frame { stroke: #3d444d }
    .claim { stroke: #e6edf3 }
    .hatch { stroke: #f85149 }
    .line { stroke: #9198a1 }
  }"""


def chosen(report, label, ids):
    """The group, and its graphs. Exits with what is missing."""
    groups = [each for each in report["groups"] if label in (None, each["label"])]
    if not groups:
        sys.exit(f"there is no group {label!r}" if label else "the report has no sharing group")
    group = max(groups, key=lambda each: each["bytes"])
    graphs = {each["id"]: each for each in group["graphs"]}
    if not graphs:
        sys.exit(f"no graph is in the arena of the group {group['label']!r}")
    missing = [each for each in ids if each not in graphs]
    if missing:
        sys.exit(f"the group {group['label']!r} has no graph {missing[0]}, but {', '.join(map(str, graphs))}")
    if ids:
        return group, [graphs[each] for each in ids]
    return group, [max(graphs.values(), key=lambda each: each["extent"])]


def steps_of(claims):
    """How many claims and releases there are; 0: their order is not known."""
    if any(each["claimed"] is None for each in claims):
        return 0
    return 1 + max((max(each["claimed"], each["released"] or 0) for each in claims), default=-1)


def lives(claim, step):
    return claim["claimed"] <= step and (claim["released"] is None or step < claim["released"])


def unused(claims, steps):
    """Rectangles (step, step, begin, end) of what lies unused below something in use; and the most bytes in use."""
    done, opened, most = [], {}, 0
    for step in range(steps):
        end, gaps, used = 0, set(), 0
        for claim in sorted((each for each in claims if lives(each, step)), key=lambda each: each["begin"]):
            if claim["begin"] > end:
                gaps.add((end, claim["begin"]))
            used += max(0, claim["end"] - max(end, claim["begin"]))
            end = max(end, claim["end"])
        most = max(most, used)
        for gap in set(opened) - gaps:
            done.append((opened.pop(gap), step, *gap))
        for gap in gaps:
            opened.setdefault(gap, step)
    done += [(begin, steps, *gap) for gap, begin in opened.items()]
    return sorted(done), most


def mib(count):
    return f"{count / MIB:.1f} MiB" if count >= MIB / 10 else f"{count} B"


def rect(kind, x, y, width, height, extra="", inside=""):
    end = f">{inside}</rect>" if inside else "/>"
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{extra}{end}'


def text(kind, x, y, said):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(said)}</text>'


def labels_of(claim, room):
    """What there is room for, in so many characters: line, size, pool."""
    line = PurePath(claim["where"]).name if claim["where"] else ""
    if len(line) > room:
        line = line[line.rfind(":"):]
    said = (line, mib(claim["end"] - claim["begin"]), claim["pool"])
    return [each for each in said if 0 < len(each) <= room]


def color(claim):
    """The same for all claims of a line."""
    return COLORS[zlib.crc32((claim["where"] or claim["pool"]).encode()) % len(COLORS)]


def marks(extent):
    """Round numbers of MiB up to the extent, some five."""
    step = 1
    while extent / MIB / step > 6:
        step *= 2 if str(step)[0] in "15" else 2.5
        step = int(step)
    return range(0, int(extent / MIB) + 1, step)


def panel(graph, top):
    claims, extent = graph["claims"], max(graph["extent"], 1)
    steps = steps_of(claims)
    gaps, most = unused(claims, steps)
    bottom = top + TOP + HEIGHT
    x_of = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * step / max(steps, 1)
    y_of = lambda offset: bottom - HEIGHT * offset / extent
    parts = [text("title", LEFT, top + 20, f"Graph {graph['id']}: {mib(graph['extent'])}, claims: {len(claims)}")]
    for mark in marks(extent):
        parts.append(text("mark", LEFT - 6, y_of(mark * MIB) + 4, f"{mark} MiB" if mark else "0"))
    parts.append(rect("frame", LEFT, bottom - HEIGHT, WIDTH - LEFT - RIGHT, HEIGHT))
    for begin, end, low, high in gaps:
        said = f"<title>{mib(high - low)} unused</title>"
        parts.append(rect("gap", x_of(begin), y_of(high), x_of(end) - x_of(begin), y_of(low) - y_of(high), "", said))
    labels = []
    for claim in claims:
        x = x_of(claim["claimed"] or 0) if steps else LEFT
        right = WIDTH - RIGHT if not steps or claim["released"] is None else x_of(claim["released"])
        y, low = y_of(claim["end"]), y_of(claim["begin"])
        size = mib(claim["end"] - claim["begin"])
        said = (f"{claim['pool']}: {size} at {claim['begin']}" + (f", claimed at {claim['where']}" if claim["where"] else "")
                + (", leased" if claim["is_leased"] else ""))
        kind = "claim leased" if claim["is_leased"] else "claim"
        parts.append(rect(kind, x, y, right - x, max(low - y, 0.5), f' style="fill: {color(claim)}"',
                          f"<title>{escape(said)}</title>"))
        lines = labels_of(claim, (right - x) / 6)[:int((low - y) / 12)]
        for number, line in enumerate(lines):
            labels.append(text("in", (x + right) / 2, (y + low) / 2 + 4 + 13 * (number - (len(lines) - 1) / 2), line))
    parts += labels
    for offset in sorted({graph["extent"], most or graph["extent"]}):
        parts.append(f'<path class="line" d="M{LEFT} {y_of(offset):.1f}H{WIDTH - RIGHT}"/>')
    note = "order of claims not known: the graph was destroyed"
    if steps:
        note = f"at most {mib(most)} in use at a time; the graph reaches {mib(graph['extent'])}"
    parts.append(text("note", LEFT, top + 40, note))
    parts.append(text("note", LEFT, bottom + 20, f"{steps} claims and releases, in the order of the capture" if steps else ""))
    return parts


def svg(group, graphs):
    each_height = TOP + HEIGHT + BELOW
    height = 30 + each_height * len(graphs)
    head = f"Group \"{group['label']}\" on device {group['device']}: {mib(group['bytes'])} mapped"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(head)}">',
        f"<style>{STYLE}\n</style>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="hatch" d="M0 0V6"/></pattern></defs>',
        f'<rect class="panel" width="{WIDTH}" height="{height}" rx="8"/>',
        text("title", 20, 24, head),
    ]
    for number, graph in enumerate(graphs):
        parts += panel(graph, 30 + number * each_height)
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default="-")
    parser.add_argument("--group", metavar="LABEL")
    parser.add_argument("--graph", metavar="ID", type=int, action="append", default=[])
    parser.add_argument("-o", metavar="OUT", dest="out")
    given = parser.parse_args(arguments)
    if given.file == "-":
        report = json.load(sys.stdin)
    else:
        with open(given.file, encoding="utf-8") as file:
            report = json.load(file)
    drawn = svg(*chosen(report, given.group, given.graph))
    if given.out is None:
        sys.stdout.write(drawn)
    else:
        with open(given.out, "w", encoding="utf-8") as file:
            file.write(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
