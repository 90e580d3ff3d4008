#!/usr/bin/env python3
"""Boils the benches' results down to a few figures, most of which have a goal.

    bench/summary.py FOLDER

reads FOLDER/*_bench.json, writes FOLDER/summary.json and prints a table.
"""

import argparse
import json
import operator
from collections import Counter
from pathlib import Path

from figures import FIGURES, NO_GOAL
from measured import Measured, NotMeasured, table

COMPARE = {"<=": operator.le, ">=": operator.ge, ">": operator.gt, "=": operator.eq}


def is_met(value, goal):
    sign, bound = goal.split()
    return COMPARE[sign](value, float(bound))


def verdict_on(value, goal):
    if goal == NO_GOAL:
        return ""
    return "pass" if is_met(value, goal) else "MISS"


def shown(value):
    """Three digits, or all of a large number; a share near 1 with three behind the point."""
    if 0.9 < value < 1.1:
        return f"{value:.3f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def commands_of(folder):
    """The command of each program, as bench/run.sh wrote them down."""
    path = Path(folder) / "commands.tsv"
    if not path.exists():
        return {}
    return dict(line.split("\t", 1) for line in path.read_text().splitlines())


def value_of(compute, measured):
    try:
        return round(compute(measured), 4)
    except (NotMeasured, ZeroDivisionError):
        return None


def summarize(measured, commands):
    """name -> {value, goal, unit, command, and noise and note where there are}, and name -> spread.

    A value that was not measured is None.
    """
    summary, spreads = {}, {}
    for figure in FIGURES:
        measured.used.clear()
        value = value_of(figure.compute, measured)
        spreads[figure.name] = max((measured.spread(*each) for each in measured.used), default=0.0)
        entry = {
            "value": value,
            "goal": figure.goal,
            "unit": figure.unit,
            "command": commands.get(figure.program, figure.program),
        }
        if figure.noise is not None:
            entry["noise"] = value_of(figure.noise, measured)
        if figure.note is not None:
            entry["note"] = figure.note(measured) if callable(figure.note) else figure.note
        summary[figure.name] = entry
    return summary, spreads


def report(summary, spreads):
    rows = []
    for name, each in summary.items():
        value, noise = each["value"], each.get("noise")
        alike = "" if noise is None else shown(noise)
        if value is None:
            rows.append([name, "-", each["goal"], each["unit"], "-", alike, "not measured"])
            continue
        verdict = verdict_on(value, each["goal"])
        spread = f"{spreads[name]:.1%}" if spreads[name] < 0.1 else f"{spreads[name]:.0%}"
        rows.append([name, shown(value), each["goal"], each["unit"], spread, alike, verdict])
    return table(["figure", "value", "goal", "unit", "spread", "A/A", ""], rows)


def notes(summary):
    """The notes, each once, behind the names that have it."""
    by_note = {}
    for name, each in summary.items():
        if each.get("note"):
            by_note.setdefault(each["note"], []).append(name)
    return [f"{', '.join(names)}: {note}." for note, names in by_note.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    measured = Measured(folder)
    summary, spreads = summarize(measured, commands_of(folder))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(measured.origin())
    print("Medians; spread is the distance between the quartiles of what a figure is made of; A/A is")
    print("what the figure would be if nothing but chance told the two apart.\n")
    print(report(summary, spreads))
    print()
    for line in notes(summary):
        print(line)
    for problem, times in Counter(measured.problems).items():
        print(f"PROBLEM: {problem}" + (f" ({times} times)" if times > 1 else ""))
    print(f"\nwritten: {folder / 'summary.json'}")


if __name__ == "__main__":
    main()
