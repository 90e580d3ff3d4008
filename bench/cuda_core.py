#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The build bench's chain of nodes by Python's cuda.core, which keeps the kernels' arguments alive by itself.

    bench/cuda_core.py FILE

writes FILE as the build bench does. Python's own time is in the figure. Written for cuda.core 1.2. Where it is not installed,
or anything fails, FILE says {"skipped": why}, and the exit status is 0.
"""
import json
import sys
import time
from importlib import metadata
from pathlib import Path

NODES = 10_000
SECONDS, REPETITIONS = 4, 9  # at most


def chain_builder():
    """Builds a chain of so many nodes on the current device, each with two owners; the nanoseconds that a node took."""
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions
    from cuda.core.graph import GraphDefinition
    device = Device()
    device.set_current()
    stream = device.create_stream()
    major, minor = device.compute_capability
    options = ProgramOptions(std="c++17", arch=f"sm_{major}{minor}")
    code = Program('extern "C" __global__ void two_pointers(int*, int*) {}', code_type="c++", options=options)
    kernel, config = code.compile("cubin").get_kernel("two_pointers"), LaunchConfig(grid=1, block=1)
    buffers = [device.allocate(1 << 20, stream=stream) for _ in range(2)]
    stream.sync()

    def ns_a_node(nodes):
        node = GraphDefinition()
        begin = time.perf_counter_ns()
        for _ in range(nodes):
            node = node.launch(config, kernel, *buffers)
        return (time.perf_counter_ns() - begin) / nodes

    return ns_a_node


def repetitions(ns_a_node):
    """At least one, as Google Benchmark writes them, and as many more as there is time for."""
    ns_a_node(NODES // 10)  # warms up
    end, runs = time.monotonic() + SECONDS, []
    while len(runs) < REPETITIONS and (not runs or time.monotonic() < end):
        ns = ns_a_node(NODES)
        runs.append({"name": f"build/cuda_core/nodes:{NODES}", "run_type": "iteration", "repetition_index": len(runs),
                     "real_time": ns, "time_unit": "ns"})
    return runs


def result_of(make_builder):
    try:
        versions = {f"{name}_version": metadata.version(name) for name in ("cuda-core", "cuda-bindings")}
        return {"context": versions, "benchmarks": repetitions(make_builder())}
    except BaseException as error:  # whatever it is, the results of the other arms stay good
        return {"skipped": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(result_of(chain_builder)) + "\n")
