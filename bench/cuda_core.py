#!/usr/bin/env python3
"""Graphs that Python's cuda.core made, which keeps the kernels' arguments alive by itself.

    bench/cuda_core.py relaunch FILE   launches them for 8 s, as the relaunch bench does
    bench/cuda_core.py build FILE      builds the build bench's chain for 4 s, node by node

writes FILE as these benches do. Launches take turns with a bare graph made with cuda.bindings. Python's
own time is in all figures. Written for cuda.core 1.2. Where it is not installed, or anything fails, FILE
says {"skipped": why}, and the exit status is 0.
"""
import json
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

SOURCE = 'extern "C" __global__ void tiny(int*) {}  extern "C" __global__ void two_pointers(int*, int*) {}'
REPETITIONS = 9
STEADY, BURST = 200, 16  # launches in a burst from an idle stream
ROWS = {8: 600, 64: 100}  # kernels -> launches in a row
CHAIN_NODES = 10_000


class Maker:
    """Makes graphs on one stream of the current device."""

    def __init__(self):
        from cuda.core import Device, LaunchConfig, Program, ProgramOptions
        from cuda.core.graph import GraphDefinition
        self.graph_class = GraphDefinition
        self.device = Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        major, minor = self.device.compute_capability
        options = ProgramOptions(std="c++17", arch=f"sm_{major}{minor}")
        self.code = Program(SOURCE, code_type="c++", options=options).compile("cubin")
        self.config = LaunchConfig(grid=1, block=1)
        self.buffers = [self.device.allocate(1 << 20, stream=self.stream) for _ in range(2)]
        self.stream.sync()

    def add_chain(self, kernel_name, nodes):
        """A graph definition, which holds its kernels' arguments; and the nanoseconds that a node took."""
        config, kernel = self.config, self.code.get_kernel(kernel_name)
        arguments = self.buffers[:1 if kernel_name == "tiny" else 2]
        definition = node = self.graph_class()
        begin = time.perf_counter_ns()
        for _ in range(nodes):
            node = node.launch(config, kernel, *arguments)
        return definition, (time.perf_counter_ns() - begin) / nodes

    def cuda_core(self, kernels):
        definition, _ = self.add_chain("tiny", kernels)
        graph = definition.instantiate()
        graph.upload(self.stream)
        self.stream.sync()
        return SimpleNamespace(launch=lambda: graph.launch(self.stream), keeps=definition)

    def bare(self, kernels):
        """A plain capture: nothing is kept alive."""
        from cuda.bindings import driver
        from cuda.core import launch
        kernel = self.code.get_kernel("tiny")

        def checked(result):
            if result[0] != driver.CUresult.CUDA_SUCCESS:
                raise RuntimeError(str(result[0]))
            return result[1] if len(result) > 1 else None

        # A kernel that is loaded at its first launch could not be captured.
        launch(self.stream, self.config, kernel, self.buffers[0])
        self.stream.sync()
        stream = driver.CUstream(int(self.stream.handle))
        checked(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            for _ in range(kernels):
                launch(self.stream, self.config, kernel, self.buffers[0])
        finally:
            graph = checked(driver.cuStreamEndCapture(stream))
        graph_exec = checked(driver.cuGraphInstantiate(graph, 0))
        checked(driver.cuGraphUpload(graph_exec, stream))
        self.stream.sync()
        launch_graph = driver.cuGraphLaunch
        return SimpleNamespace(launch=lambda: launch_graph(graph_exec, stream), keeps=graph)


def launches_us(what, stream, launches, is_row):
    """In a row, with the synchronization at its end, or the host's time alone."""
    launch = what.launch
    begin = time.perf_counter_ns()
    for _ in range(launches):
        launch()
    if is_row:
        stream.sync()
    result = (time.perf_counter_ns() - begin) / 1e3 / launches
    stream.sync()
    return result


def repetition(name, index, time_unit, real_time, **fields):
    """One repetition as Google Benchmark writes it."""
    return {"name": name, "family_index": 1000, "run_type": "iteration", "repetition_index": index,
            "real_time": real_time, "time_unit": time_unit, **fields}


def launch_repetition(kernels, index, form, bare, stream, row):
    measures = {
        "": lambda each: launches_us(each, stream, row, True),
        "host_": lambda each: launches_us(each, stream, STEADY, False),
        "host_burst_": lambda each: statistics.median(launches_us(each, stream, BURST, False) for _ in range(8)),
    }
    fields = {}
    for prefix, measured in measures.items():
        before, *of_form, after = (measured(each) for each in (bare, form, form, bare))
        fields[f"{prefix}us"], fields[f"bare_{prefix}us"] = sum(of_form) / 2, (before + after) / 2
        fields[f"{prefix}of_bare"] = sum(of_form) / (before + after)
    fields["throughput_of_bare"] = 1 / fields.pop("of_bare")
    return repetition(f"relaunch/cuda_core/kernels:{kernels}", index, "us", fields.pop("us"), host_launches=STEADY,
                      **fields)


def relaunch(end):
    """The repetitions of all sizes, as many as there is time for."""
    maker, runs = Maker(), []
    pairs = {kernels: (maker.cuda_core(kernels), maker.bare(kernels)) for kernels in ROWS}
    for index in range(-1, REPETITIONS):  # the first warms up
        for kernels, row in ROWS.items():
            if time.monotonic() > end:
                return runs
            measured = launch_repetition(kernels, index, *pairs[kernels], maker.stream, row)
            runs += [measured] if index >= 0 else []
    return runs


def build(end, ns_a_node=None, nodes=CHAIN_NODES):
    """At least one repetition, and as many more as there is time for."""
    if ns_a_node is None:
        maker = Maker()
        ns_a_node = lambda count: maker.add_chain("two_pointers", count)[1]
    ns_a_node(max(nodes // 10, 1))  # warms up
    runs = []
    while len(runs) < REPETITIONS and (not runs or time.monotonic() < end):
        ns = ns_a_node(nodes)
        runs.append(repetition(f"build/cuda_core/nodes:{nodes}", len(runs), "ns", ns, build_ns=ns))
    return runs


def result_of(measure, seconds):
    try:
        versions = {f"{name}_version": metadata.version(name) for name in ("cuda-core", "cuda-bindings")}
        return {"context": versions, "benchmarks": measure(time.monotonic() + seconds)}
    except BaseException as error:  # whatever it is, the results of the other arms stay good
        return {"skipped": f"{type(error).__name__}: {error}"}


def main(what, file):
    result = result_of(*{"relaunch": (relaunch, 8), "build": (build, 4)}[what])
    Path(file).write_text(json.dumps(result) + "\n")
    print(f"the cuda.core arm was skipped: {result['skipped']}" if "skipped" in result else result)


if __name__ == "__main__":
    main(*sys.argv[1:])
