#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
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


def launch_us(graphs, order, is_row=True):
    """A launch in a row, with the synchronization at its end, or the host's time alone."""
    begin = time.perf_counter_ns()
    for index in order:
        graphs[index].replay()
    if is_row:
        torch.cuda.synchronize()
    result = (time.perf_counter_ns() - begin) / 1e3 / len(order)
    torch.cuda.synchronize()
    return result


def main(file):
    cell = torch.zeros(1, device="cuda")
    cell.add_(1)  # loads the kernel
    arena = torch.empty(SCRATCH, dtype=torch.uint8, device="cuda")
    order = random.Random(1).choices(range(GRAPHS), k=LAUNCHES)
    floor, _ = captured("arena", cell, arena)
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "ways": {}}
    for way in ("shared", "private"):
        graphs, taken = captured(way, cell, arena)
        rounds = [(launch_us(floor, order), launch_us(graphs, order), launch_us(graphs, order[:200], False))
                  for _ in range(ROUNDS + 1)][1:]  # the first warms up
        result["ways"][way] = {"over_one_graph": taken / SCRATCH, "host_us": statistics.median(host for *_, host in rounds),
                               "throughput_of_arena": statistics.median(floor_us / us for floor_us, us, _ in rounds)}
        del graphs
    Path(file).write_text(json.dumps(result, indent=1) + "\n")
    print(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
