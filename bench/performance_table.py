#!/usr/bin/env python3
"""Writes the figures of a summary.json into the tables of a page.

    bench/performance_table.py SUMMARY PAGE      PAGE: docs/performance.md

A table stands between <!-- NAME:begin --> and <!-- NAME:end -->, NAME one of TABLES. Figures of one
kind share a row.
"""

import argparse
import json
from pathlib import Path

from figures import NO_GOAL
from summary import is_met, shown


def series(pattern, values, word="{}"):
    """Figures that differ in one thing, each with a word for what sets it apart."""
    return {pattern.format(value): word.format(value) for value in values}


THREADS = {"1t": "1 thread", "8t": "8 threads"}
BRANCHES = {1: "1 branch", 16: "16 branches"}

# The tables: what a row says, and the figures in it.
TABLES = {
    "gpu": [
        ("launches/s in a long row, over the bare graph's",
         series("relaunch_throughput_{}", ("k1", "k8", "k64", "k512", "fork4"))),
        ("CUDA's user object adds to each launch in a long row",
         series("user_object_row_extra_us_{}", ("k8", "k64", "k512"))),
    ],
    "host": [
        ("in bursts of 16 launches, over the bare graph's",
         series("relaunch_burst_{}", ("k1", "k8", "k64", "k512"))),
        ("over 200 launches (k512: 32), over the bare graph's; neither blocks",
         series("relaunch_host_{}", ("k1", "k8", "k64", "k512"))),
        ("the same with 4,096 owners in the graph", {"relaunch_host_4096_objects": "k8"}),
        ("in bursts of 16, CUDA's user object over Escrow",
         series("user_object_over_escrow_burst_{}", ("k8", "k64"))),
    ],
    "limit": [
        ("launches in flight before the host blocks, Escrow", {"run_ahead": ""}),
        ("the same with CUDA's user object", {"user_object_run_ahead": ""}),
        ("host time over 200 launches, mostly blocking: CUDA's user object over Escrow",
         series("user_object_over_escrow_host_{}", ("k8", "k64"))),
    ],
    "threads": [
        ("launches/s of 12 threads, each with its own exec of 8 kernels, over the bare graph's",
         {"relaunch_threads12": ""}),
        ("the same with CUDA's user object", {"user_object_threads12": ""}),
        ("p99.9 of a launch while other threads create and destroy graphs, over the bare graph's",
         {"interference_p999": ""}),
    ],
    "claim": [
        ("claim and release over the floor",
         {f"claim_over_floor_{n}": word for n, word in THREADS.items()}),
        ("`cub::CachingDeviceAllocator` over claim and release",
         {f"cub_over_claim_{n}": word for n, word in THREADS.items()}),
        ("claim and release with 16,384 idle free slots", {"claim_16384_idle_us": ""}),
        ("claim and release, 1,024 streams in turn", {"claim_1024_streams_us": ""}),
    ],
    "capture": [
        ("claim and release in a capture, beyond the kernel: 256 claims",
         {f"captured_claim_extra_us_{n}_branches": word for n, word in BRANCHES.items()}),
        ("the same of 16,384 claims, over that of 256",
         {f"captured_claim_growth_{n}_branches": word for n, word in BRANCHES.items()}),
        ("claim in a capture, 64 claims without a release", {"captured_claim_us": ""}),
        ("retire in a capture, 8,192 owners: each", {"captured_retire_8192_us": ""}),
        ("first instantiation, beyond plain CUDA",
         series("instantiate_{}_owners_extra_us", (64, 8192), "{:,} owners")),
        ("64 owners add", series("{}_64_extra_us", ("instantiate", "update", "destroy"))),
        ("capture, instantiate, launch and destroy, over plain CUDA",
         {f"graph_life_over_cuda_{n}": word for n, word in THREADS.items()}),
        ("identifying a graph that is given as a plain handle",
         series("identity_{}_nodes_us", (10, 1000, 10000), "{:,} nodes")),
    ],
    "others": [
        ("retire over an event record", {"retire_over_record": ""}),
        ("`retire(stream, owner)`", {"retire_stream_us": ""}),
        ("destroy callback, with the worker awake or asleep",
         {"destructor_p50_ns": "p50 awake", "destructor_p999_ns": "p99.9 asleep"}),
        ("allocations in steady state", {"steady_allocations": ""}),
        ("adding a node with two owners, over plain CUDA without", {"build_node_over_cuda": ""}),
        ("the same with Python's `cuda.core`, over Escrow", {"build_cuda_core_over_escrow": ""}),
        ("host time per launch of 64 such nodes, over the bare graph's",
         {"retained_launch_host_k64": ""}),
        ("host memory per owner of a node", {"bytes_per_owner": ""}),
    ],
}


def unit_of(each):
    return "" if each["unit"] in ("ratio", "launches") else f" {each['unit']}"


def with_unit(each):
    value = each["value"]
    return "not measured" if value is None else f"{shown(value)}{unit_of(each)}"


def goal_of(each):
    return each["goal"] if each["goal"] == NO_GOAL else f"{each['goal']}{unit_of(each)}"


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
    values = ", ".join(f"{word} {with_unit(each)}".strip() for word, each in zip(words, figures))
    if all(each["value"] is None for each in figures):
        values = "not measured"
    goals = joined(figures, words, goal_of)
    return f"| {title} | {values} | {goals} | {joined(figures, words, verdict)} |"


def markdown(summary, rows):
    lines = ["| what | value | goal | met |", "| --- | --- | --- | --- |"]
    for title, names in rows:
        there = {name: word for name, word in names.items() if name in summary}
        if there:
            lines.append(row(title, [summary[name] for name in there], there.values()))
    return "\n".join(lines)


def replaced(page, summary):
    """The page with all its tables written anew."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, has_begin, rest = page.partition(begin)
        _, has_end, after = rest.partition(end)
        if not has_begin or not has_end:
            raise SystemExit(f"the page needs {begin} and, behind it, {end}")
        page = f"{before}{begin}\n{markdown(summary, rows)}\n{end}{after}"
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("summary", type=Path)
    parser.add_argument("page", type=Path)
    given = parser.parse_args()
    summary = json.loads(given.summary.read_text())
    given.page.write_text(replaced(given.page.read_text(), summary))
    print(f"written: {given.page}")


if __name__ == "__main__":
    main()
