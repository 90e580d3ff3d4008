#!/usr/bin/env python3
"""Graphs of PyTorch with scratch from its graph pools: bytes of the device, and launches/s.

    bench/torch_footprint.py FILE

writes FILE. 64 graphs of eight tiny kernels, each with 64 MiB of scratch, as in the footprint bench, are launched in random
order on one stream, in turns with the same graphs over one tensor that all use. `shared`: one graph pool for all graphs, which is
right only as long as no two are launched concurrently. `private`: a pool for each. Python's time is in all figures.
"""
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch

GRAPHS, KERNELS, SCRATCH = 64, 8, 64 << 20
ROUNDS, LAUNCHES = 9, 2000


def captured(way, cell, arena):
    """The graphs, and the bytes that they took."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    shared = torch.cuda.graph_pool_handle()
    graphs = []
    for _ in range(GRAPHS):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=shared if way == "shared" else None):
            scratch = arena if way == "arena" else torch.empty(SCRATCH, dtype=torch.uint8, device="cuda")
            for _ in range(KERNELS):
                cell.add_(1)
            del scratch
        graphs.append(graph)
    return graphs, torch.cuda.memory_reserved() - before


def times_us(graphs, order):
    """A launch in a row, with the synchronization at its end; and the host's time over 200 launches."""
    begin = time.perf_counter_ns()
    for index in order:
        graphs[index].replay()
    torch.cuda.synchronize()
    row = (time.perf_counter_ns() - begin) / 1e3 / len(order)
    begin = time.perf_counter_ns()
    for index in order[:200]:
        graphs[index].replay()
    host = (time.perf_counter_ns() - begin) / 1e3 / 200
    torch.cuda.synchronize()
    return row, host


def main(file):
    cell = torch.zeros(1, device="cuda")
    cell.add_(1)  # loads the kernel
    arena = torch.empty(SCRATCH, dtype=torch.uint8, device="cuda")
    order = random.Random(1).choices(range(GRAPHS), k=LAUNCHES)
    floor, _ = captured("arena", cell, arena)
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "graphs": GRAPHS,
              "scratch_bytes": SCRATCH, "ways": {}}
    for way in ("shared", "private"):
        graphs, taken = captured(way, cell, arena)
        rounds = []
        for _ in range(ROUNDS + 1):  # the first warms up
            (of_floor, floor_host), (row, host) = times_us(floor, order), times_us(graphs, order)
            rounds.append({"us": row, "host_us": host, "throughput_of_arena": of_floor / row, "host_of_arena": host / floor_host})
        result["ways"][way] = {"device_bytes": taken, "over_one_graph": taken / SCRATCH, "rounds": rounds[1:],
                               **{f"median_{key}": statistics.median(each[key] for each in rounds[1:]) for key in rounds[0]}}
        del graphs
    Path(file).write_text(json.dumps(result, indent=1) + "\n")
    for way, found in result["ways"].items():
        print(way, {key: round(value, 3) for key, value in found.items() if key != "rounds"})


if __name__ == "__main__":
    main(*sys.argv[1:])
