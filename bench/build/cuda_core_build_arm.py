#!/usr/bin/env python3
"""Builds the build bench's chain with Python's cuda.core, which keeps the kernels' arguments alive.

    bench/build/cuda_core_build_arm.py FILE [--seconds S] [--nodes N]

writes FILE as the build bench writes its own: the time per node of an explicit graph, from the empty
graph to the last of its kernel nodes, each of which has two buffers as arguments. Python's own time
is in it. Where cuda.core or its explicit graphs are not there, or anything fails, FILE says
{"skipped": why}, and the exit status is 0.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "relaunch"))
from cuda_core_arm import result_of, versions

SOURCE = 'extern "C" __global__ void two_pointers(int*, int*) {}'
REPETITIONS = 9
MODULES = ("cuda.core.graph", "cuda.core", "cuda.core.experimental.graph", "cuda.core.experimental")
CLASSES = ("GraphDefinition", "GraphDef")  # the newer name first


def attribute(modules, names, wanted):
    """The first of `names` that one of `modules` has. Says where it was found, or what was there."""
    seen = []
    for path in modules:
        try:
            module = importlib.import_module(path)
        except ImportError as error:
            seen.append(f"{path}: {error}")
            continue
        for name in names:
            if hasattr(module, name):
                print(f"{wanted}: {path}.{name}")
                return getattr(module, name)
        alike = [name for name in dir(module) if "graph" in name.lower()]
        seen.append(f"{path} has {', '.join(alike) or 'nothing of graphs'}")
    raise ImportError(f"no {wanted} in cuda.core ({'; '.join(seen)})")


def graph_class():
    return attribute(MODULES, CLASSES, "explicit graphs")


class Builder:
    """Builds chains on the current device."""

    def __init__(self, definition_class):
        core = ("cuda.core", "cuda.core.experimental")
        self.definition_class = definition_class
        self.device = attribute(core, ("Device",), "devices")()
        self.device.set_current()
        options = attribute(core, ("ProgramOptions",), "options")
        program = attribute(core, ("Program",), "programs")
        major, minor = self.device.compute_capability
        code = program(SOURCE, code_type="c++",
                       options=options(std="c++17", arch=f"sm_{major}{minor}"))
        self.code = code.compile("cubin")
        self.kernel = self.code.get_kernel("two_pointers")
        self.config = attribute(core, ("LaunchConfig",), "launch configurations")(grid=1, block=1)
        stream = self.device.create_stream()
        self.buffers = [self.device.allocate(256, stream=stream) for _ in range(2)]
        stream.sync()

    def chain(self, nodes):
        """Returns the nanoseconds that a node took; the graph is gone afterwards."""
        config, kernel, (first, second) = self.config, self.kernel, self.buffers
        definition = self.definition_class()
        node = definition
        begin = time.perf_counter_ns()
        for _ in range(nodes):
            node = node.launch(config, kernel, first, second)
        return (time.perf_counter_ns() - begin) / nodes


def repetition(index, ns, nodes):
    """One repetition as Google Benchmark writes it."""
    return {"name": f"build/cuda_core/nodes:{nodes}", "family_index": 1000,
            "run_type": "iteration", "repetition_index": index, "real_time": ns,
            "time_unit": "ns", "build_ns": ns}


def measured(chain, nodes, seconds):
    """At least one repetition, and as many more as there is time for."""
    end = time.monotonic() + seconds
    chain(max(nodes // 10, 1))  # warms up
    runs = []
    while len(runs) < REPETITIONS and (not runs or time.monotonic() < end):
        runs.append(repetition(len(runs), chain(nodes), nodes))
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--nodes", type=int, default=10_000)
    given = parser.parse_args()
    result = result_of(
        lambda seconds: measured(Builder(graph_class()).chain, given.nodes, seconds),
        given.seconds)
    print(", ".join(f"{name} {value}" for name, value in versions().items()))
    given.file.write_text(json.dumps(result) + "\n")
    if "skipped" in result:
        print(f"the cuda.core arm was skipped: {result['skipped']}")
    for run in result.get("benchmarks", []):
        print(f"{run['name']} {run['real_time']:.0f} ns a node")


if __name__ == "__main__":
    main()
