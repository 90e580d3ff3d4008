#!/usr/bin/env python3
"""Prints what the relaunch bench and the build bench found, for people.

    bench/relaunch_table.py FOLDER

reads FOLDER/relaunch_bench.json and build_bench.json, and what cuda.core's arms wrote beside them.
"""

import argparse
from collections import Counter
from pathlib import Path

from alike import likeness
from measured import Measured, NotMeasured, form_and_size, table

LAUNCHES = ["form", "kernels", "us/launch", "host us, 200", "host us, 16", "throughput of bare",
            "host of bare", "slots held", "destructors owed"]
OTHERS = {
    "run_ahead/": ["launches"],
    "threads12/": ["time", "throughput_of_bare"],
    "objects64/": ["plain_us", "escrow_us", "extra_us", "later_extra_us", "first_extra_us",
                   "in_flight_extra_us"],
    "interference/": ["p50_us", "p99_us", "p999_us", "max_us", "bare_p999_us", "p999_of_bare",
                      "graphs_per_s", "bare_graphs_per_s", "samples"],
    "build/": ["build_ns", "bare_build_ns", "of_bare", "seal_ns", "destroy_ns", "bare_destroy_ns"],
    "retained/": ["host_us", "bare_host_us", "host_of_bare", "host_burst_of_bare",
                  "throughput_of_bare", "destructors_owed"],
    "memory/": ["bytes", "bytes_per_owner"],
}


def cell(measured, name, field, digits=2):
    try:
        return f"{measured.median(name, field):.{digits}f}"
    except NotMeasured:
        return "-"


def rows(measured):
    result = []
    for name in measured.names("relaunch/"):
        form, size = form_and_size(name)
        result.append([
            form,
            str(size),
            cell(measured, name, "time"),
            cell(measured, name, "host_us"),
            cell(measured, name, "host_burst_us"),
            cell(measured, name, "throughput_of_bare", 3),
            cell(measured, name, "host_of_bare", 3),
            cell(measured, name, "slots_held", 0),
            cell(measured, name, "destructors_owed", 0),
        ])
    return result


def others(measured):
    """A line for each benchmark that is not about launches in a row."""
    lines = []
    for prefix, fields in OTHERS.items():
        for name in measured.names(prefix):
            said = [f"{field} {cell(measured, name, field)}" for field in fields
                    if field == "time" or field in measured.fields(name)]
            lines.append(f"{name}: {', '.join(said)}")
    return lines


def sizes(measured):
    """The sizes of graphs, each once: "kernels:8"."""
    return list(dict.fromkeys(name.split("/")[-1] for name in measured.names("relaunch/bare/")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    measured = Measured(parser.parse_args().folder)
    print(measured.origin())
    print("Shares are of the bare graph that a form took turns with. bare and bare_again are bare")
    print("graphs too: their distance from 1 is noise. host us is the time to enqueue a launch: over up")
    print("to 200, which a form with a user object spends mostly blocking, and in bursts of 16.\n")
    if launches := rows(measured):
        print(table(LAUNCHES, launches), end="\n\n")
        for size in sizes(measured):
            print(f"{size}: {likeness(measured, size)}.")
        print()
    for line in others(measured):
        print(line)
    for problem, times in Counter(measured.problems).items():
        print(f"PROBLEM: {problem}" + (f" ({times} times)" if times > 1 else ""))


if __name__ == "__main__":
    main()
