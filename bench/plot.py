#!/usr/bin/env python3
"""Draws the benches' results as SVG.

    bench/plot.py FOLDER      reads FOLDER/*_bench.json, writes FOLDER/*.svg
"""

import argparse
import math
from html import escape
from pathlib import Path

from measured import Measured, NotMeasured, form_and_size

LEFT, RIGHT, TOP, ROW, BOTTOM, WIDTH = 190, 40, 84, 28, 44, 860
COLOURS = ["#4477aa", "#228833", "#ee6677", "#aa3377", "#66ccee"]  # also for the colour-blind


class Axis:
    """A logarithmic axis from one power of ten to another."""

    def __init__(self, values):
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)

    def x(self, value):
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def ticks(self):
        return [10.0**power for power in range(self.low, self.high + 1)]


def text(x, y, content, anchor="start", size=13, fill="#222"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{fill}">{escape(content)}</text>'
    )


def grid(axis, bottom, unit):
    parts = []
    for tick in axis.ticks():
        x = axis.x(tick)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        )
        parts.append(text(x, bottom + 18, f"{tick:g} {unit}", "middle", 12, "#555"))
    return parts


def legend(label, series):
    parts, x = [text(LEFT, 62, label, size=12, fill="#555")], LEFT + 70
    for i, each in enumerate(series):
        parts.append(f'<circle cx="{x}" cy="58" r="5" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(text(x + 9, 62, str(each), size=12))
        x += 24 + 9 * len(str(each))
    return parts


def by_size(size):
    """Numbers by their value, words behind them."""
    return (isinstance(size, str), size)


def dot_plot(title, origin, label, unit, points):
    """A row for each form, a dot for each size.

    `points` maps (form, size) to a value above 0.
    """
    forms = list(dict.fromkeys(form for form, _ in points))
    series = sorted({size for _, size in points}, key=by_size)
    axis = Axis(points.values())
    bottom = TOP + ROW * len(forms)
    height = bottom + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(16, 24, title, size=16),
        text(16, 42, origin, size=12, fill="#555"),
        *legend(label, series),
        *grid(axis, bottom, unit),
    ]
    for i, form in enumerate(forms):
        y = TOP + ROW * i + ROW / 2
        parts.append(text(LEFT - 12, y + 4, form.replace("_", " "), "end"))
        for j, size in enumerate(series):
            value = points.get((form, size))
            if value is not None:
                parts.append(
                    f'<circle cx="{axis.x(value):.1f}" cy="{y:.1f}" r="5" '
                    f'fill="{COLOURS[j % len(COLOURS)]}" fill-opacity="0.85">'
                    f"<title>{escape(form)}, {size}: {value:.3g} {unit}</title></circle>"
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


def points_of(measured, prefix, field="time"):
    points = {}
    for name in measured.names(prefix):
        try:
            value = measured.median(name, field)
        except NotMeasured:
            continue
        if len(name.split("/")) == 3 and value > 0:
            points[form_and_size(name)] = value
    return points


def plots(measured):
    """File name -> SVG, of what the folder has."""
    wanted = [
        ("relaunch_burst.svg", "Host time per launch, in bursts of 16", "kernels:",
         "relaunch/", "host_burst_us", "us"),
        ("relaunch_host.svg", "Host time per launch, up to 200 in a row: with a user object mostly "
         "blocking", "kernels:", "relaunch/", "host_us", "us"),
        ("relaunch.svg", "Time per launch, many in a row", "kernels:", "relaunch/", "time", "us"),
        ("claim.svg", "Host time per claim and release", "threads:", "claim/", "time", "us"),
        ("build.svg", "Host time per node of a graph built by hand", "nodes:", "build/", "build_ns",
         "ns"),
    ]
    result = {}
    for file, title, label, prefix, field, unit in wanted:
        points = points_of(measured, prefix, field)
        if points:
            result[file] = dot_plot(title, measured.origin(), label, unit, points)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for name, svg in plots(Measured(folder)).items():
        (folder / name).write_text(svg)
        print(f"written: {folder / name}")


if __name__ == "__main__":
    main()
