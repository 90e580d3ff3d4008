#!/usr/bin/env python3
"""Writes the figures of a summary.json into the README, between two marks.

    bench/readme_table.py SUMMARY README

Figures of one kind share a row.
"""

import argparse
import json
from pathlib import Path

from figures import NO_GOAL
from summary import is_met, shown

BEGIN, END = "<!-- h200:begin -->", "<!-- h200:end -->"

# What a row says, and the figures in it, each with a word for what sets it apart.
ROWS = [
    ("launches/s over the bare graph's, by kernels",
     {f"relaunch_throughput_{k}": k for k in ("k1", "k8", "k64", "k512", "fork4")}),
    ("host time per launch over the bare graph's",
     {f"relaunch_host_{k}": k for k in ("k1", "k8", "k64", "k512")}),
    ("the same with 4,096 objects held", {"relaunch_host_4096_objects": "k8"}),
    ("launches in flight before the host blocks", {"run_ahead": ""}),
    ("launches/s of 12 threads over the bare graph's", {"relaunch_threads12": ""}),
    ("host time of CUDA's user object over ours",
     {f"user_object_over_escrow_host_{k}": k for k in ("k8", "k64")}),
    ("64 objects add",
     {f"{each}_64_extra_us": each for each in ("instantiate", "update", "destroy")}),
    ("p99.9 of a launch beside graphs that come and go, over bare's", {"interference_p999": ""}),
    ("claim and release over the floor",
     {f"claim_over_floor_{n}": f"{n[0]} thread{'s' if n[0] != '1' else ''}" for n in ("1t", "8t")}),
    ("`cub::CachingDeviceAllocator` over claim",
     {f"cub_over_claim_{n}": f"{n[0]} thread{'s' if n[0] != '1' else ''}" for n in ("1t", "8t")}),
    ("claim in a capture", {"captured_claim_us": ""}),
    ("retire over an event record", {"retire_over_record": ""}),
    ("`retire(stream, owner)`", {"retire_stream_us": ""}),
    ("destroy callback, by its worker",
     {"destructor_p50_ns": "p50 awake", "destructor_p999_ns": "p99.9 asleep"}),
    ("allocations in steady state", {"steady_allocations": ""}),
    ("adding a node with two owners over plain CUDA without", {"build_node_over_cuda": ""}),
    ("the same with Python's `cuda.core` over ours", {"build_cuda_core_over_escrow": ""}),
    ("host time per launch of 64 such nodes over the bare graph's",
     {"retained_launch_host_k64": ""}),
    ("host memory per owner of a node", {"bytes_per_owner": ""}),
]


def with_unit(each):
    value = each["value"]
    unit = "" if each["unit"] in ("ratio", "launches") else f" {each['unit']}"
    return "not measured" if value is None else f"{shown(value)}{unit}"


def verdict(each):
    if each["value"] is None or each["goal"] == NO_GOAL:
        return "-"
    return "yes" if is_met(each["value"], each["goal"]) else "no"


def joined(figures, words, of):
    """The values of `of`, or one if they are all the same."""
    values = [of(each) for each in figures]
    if len(set(values)) == 1:
        return values[0]
    return ", ".join(f"{word} {value}".strip() for word, value in zip(words, values))


def row(title, figures, words):
    values = ", ".join(
        f"{word} {with_unit(each)}".strip() for word, each in zip(words, figures)
    )
    goals = joined(figures, words, lambda each: each["goal"])
    return f"| {title} | {values} | {goals} | {joined(figures, words, verdict)} |"


def markdown(summary):
    lines = ["| what | value | goal | met |", "| --- | --- | --- | --- |"]
    left = dict(summary)
    for title, names in ROWS:
        there = {name: word for name, word in names.items() if name in left}
        if there:
            lines.append(row(title, [left.pop(name) for name in there], there.values()))
    for name, each in left.items():
        lines.append(row(f"`{name}`", [each], [""]))
    return "\n".join(lines)


def replaced(readme, content):
    """The README with `content` between the marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the README needs {BEGIN} and, behind it, {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("summary", type=Path)
    parser.add_argument("readme", type=Path)
    given = parser.parse_args()
    content = markdown(json.loads(given.summary.read_text()))
    given.readme.write_text(replaced(given.readme.read_text(), content))
    print(f"written: {given.readme}")


if __name__ == "__main__":
    main()
