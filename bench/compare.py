#!/usr/bin/env python3
"""Prints what two builds measured in turns: each figure's medians, spread and ratio.

    bench/compare.py FOLDER

reads FOLDER/a.BENCH.ROUND.json and b.BENCH.ROUND.json, which bench/compare.sh leaves there.
"""

import argparse
import json
import re
import statistics
from pathlib import Path

from measured import FAILED, OUT_OF_TIME, SUFFIX, table

# Counters that are measured, not facts of the benchmark.
MEASURED = re.compile(r"_(us|ns)$|^of_|_of_|^launches$|^throughput")


def fields_of(run):
    """The name -> value pairs of one repetition: its time, and the counters that are measured."""
    values = {f"time_{run['time_unit']}": run["real_time"]}
    values.update((key, value) for key, value in run.items()
                  if MEASURED.search(key) and isinstance(value, (int, float)))
    return values


def medians_of(result):
    """(benchmark, field) -> median of its repetitions, of one run of a program."""
    values = {}
    for run in result["benchmarks"]:
        label = run.get("label", "")
        if run["run_type"] != "iteration" or label.startswith((FAILED, OUT_OF_TIME)):
            continue
        for field, value in fields_of(run).items():
            values.setdefault((SUFFIX.sub("", run["name"]), field), []).append(value)
    return {key: statistics.median(each) for key, each in values.items()}


def read(folder):
    """side -> (benchmark, field) -> round -> median, and whether the runtime is simulated."""
    sides, is_simulated = {"a": {}, "b": {}}, False
    for path in sorted(Path(folder).glob("[ab].*.json")):
        side, _, number = path.name.removesuffix(".json").split(".")
        result = json.loads(path.read_text())
        is_simulated |= result["context"].get("runtime") == "simulated"
        for key, value in medians_of(result).items():
            sides[side].setdefault(key, {})[int(number)] = value
    return sides, is_simulated


def spread(values):
    """Half of what lies between the smallest and the largest, in percent of the median."""
    middle = statistics.median(values)
    return 50 * (max(values) - min(values)) / abs(middle) if middle else 0.0


def compare(sides):
    """One row for each figure that both builds have, and the names of those that one has."""
    rows = []
    for key in sorted(sides["a"].keys() & sides["b"].keys()):
        a, b = sides["a"][key], sides["b"][key]
        # Of one round, so that what drifts between rounds is no difference.
        ratios = [b[each] / a[each] for each in sorted(a.keys() & b.keys()) if a[each]]
        if not ratios:
            continue
        rows.append((*key, statistics.median(a.values()), spread(a.values()),
                     statistics.median(b.values()), spread(b.values()),
                     statistics.median(ratios), min(ratios), max(ratios)))
    alone = sorted({key[0] for key in sides["a"].keys() ^ sides["b"].keys()})
    return rows, alone


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    sides, is_simulated = read(parser.parse_args().folder)
    rows, alone = compare(sides)
    if not rows:
        raise SystemExit("no figure was measured by both builds")
    print(table(("benchmark", "figure", "A", "+-%", "B", "+-%", "B/A", "least", "most"),
                [(name, field, f"{a:.4g}", f"{at:.0f}", f"{b:.4g}", f"{bt:.0f}", f"{ratio:.3f}",
                  f"{least:.3f}", f"{most:.3f}")
                 for name, field, a, at, b, bt, ratio, least, most in rows]))
    for name in alone:
        print(f"not measured by both: {name}")
    if is_simulated:
        print("These numbers come from the SIMULATED runtime and say nothing about speed.")


if __name__ == "__main__":
    main()
