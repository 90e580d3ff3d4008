#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays on its own pool and on Escrow: clients/python/cupy_arrays.py FILE

Four captured graphs whose temporaries are gone, then twelve live arrays, then launches: how many live arrays does a launch
overwrite, and how many results are wrong? Then one elementwise operation with a new array, the allocators in turns.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import cupy
import numpy

import escrow
import escrow.cupy

COUNT, GRAPHS, LIVE = 1 << 20, 4, 12
ROUNDS, OPERATIONS = 15, 2000


def computed(x, y):
    """Into y, by seven temporaries."""
    cupy.add(cupy.sqrt((x * 2 + 1) * (x * 3 + 2)), (x - 5) * (x + 4), out=y)


def overwritten(allocator):
    """Live arrays that launches changed, and launches with a wrong result."""
    cupy.cuda.set_allocator(allocator)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.arange(COUNT, dtype=cupy.float32) % 97
        y = cupy.zeros(COUNT, dtype=cupy.float32)
        computed(x, y)
        expected = cupy.asnumpy(y)
        graphs = []
        for _ in range(GRAPHS):
            stream.begin_capture()
            computed(x, y)
            graphs.append(stream.end_capture())
        live = [cupy.full(COUNT, numpy.nan, dtype=cupy.float32) for _ in range(LIVE)]
        wrong = 0
        for graph in graphs:
            y.fill(0)
            graph.launch(stream)
            wrong += not numpy.allclose(cupy.asnumpy(y), expected)
        changed = sum(not bool(cupy.isnan(each).all()) for each in live)
        stream.synchronize()
    return {"live_arrays_overwritten": changed, "wrong_results": wrong}


def operation_us(allocator, stream, count):
    cupy.cuda.set_allocator(allocator)
    with stream:
        x = cupy.ones(count, dtype=cupy.float32)
        for _ in range(100):
            y = x * 2
        stream.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(OPERATIONS):
            y = x * 2
        result = (time.perf_counter_ns() - begin) / 1e3 / OPERATIONS
        stream.synchronize()
        del x, y
    return result


def main(file):
    allocators = {"own": cupy.cuda.MemoryPool().malloc, "escrow": escrow.cupy.Allocator()}
    eager = {**allocators, "escrow_streams_outlive": escrow.cupy.Allocator(streams_outlive_pool=True)}
    stream = cupy.cuda.Stream(non_blocking=True)
    result = {"cupy": cupy.__version__, "device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
              "graphs": {name: overwritten(each) for name, each in allocators.items()}, "operation_us": {}}
    for count in (1 << 10, 1 << 20):
        rounds = [{name: operation_us(each, stream, count) for name, each in eager.items()} for _ in range(ROUNDS)]
        its = result["operation_us"][count] = {name: statistics.median(each[name] for each in rounds) for name in eager}
        for name in list(eager)[1:]:
            over = sorted(each[name] / each["own"] for each in rounds)
            its[f"{name}_over_own"] = statistics.median(over)
            its[f"{name}_over_own_all"] = [round(each, 3) for each in over]
    cupy.cuda.set_allocator(None)
    Path(file).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    assert result["graphs"]["escrow"] == {"live_arrays_overwritten": 0, "wrong_results": 0}
    escrow.drain(10)


if __name__ == "__main__":
    main(sys.argv[1])
