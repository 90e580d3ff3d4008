#!/usr/bin/env python3
"""Launches graphs that Python's cuda.core made, which keeps the kernels' arguments alive by itself.

    bench/relaunch/cuda_core_arm.py FILE [--seconds S]

writes FILE as the relaunch bench writes its own: host time and time per launch, in turns with a bare
graph made with cuda.bindings. Both are launched from Python, whose own time is in all figures. Where
cuda.core is not installed, or anything fails, FILE says {"skipped": why}, and the exit status is 0.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

SOURCE = 'extern "C" __global__ void tiny(int*) {}'
STEADY = 200  # launches in a burst from an idle stream
BURST = 16
ROWS = {8: 600, 64: 100}  # kernels -> launches in a row


class Launchable:
    """What is launched over and over, and all that has to stay alive for it."""

    def __init__(self, launch, *keeps):
        self.launch = launch
        self.keeps = keeps


class Maker:
    """Makes graphs of K kernels on one stream of the current device."""

    def __init__(self):
        from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

        self.device = Device()
        self.device.set_current()
        self.stream = self.device.create_stream()
        major, minor = self.device.compute_capability
        options = ProgramOptions(std="c++17", arch=f"sm_{major}{minor}")
        self.code = Program(SOURCE, code_type="c++", options=options).compile("cubin")
        self.kernel = self.code.get_kernel("tiny")
        self.config = LaunchConfig(grid=1, block=1)
        self.buffer = self.device.allocate(1 << 20, stream=self.stream)
        # A kernel that is loaded at its first launch could not be captured.
        self.launch_once = lambda: launch(self.stream, self.config, self.kernel, self.buffer)
        self.launch_once()
        self.stream.sync()

    def cuda_core(self, kernels):
        """A graph definition, which holds its kernels' arguments by user objects."""
        from cuda.core.graph import GraphDefinition

        definition = GraphDefinition()
        node = definition
        for _ in range(kernels):
            node = node.launch(self.config, self.kernel, self.buffer)
        graph = definition.instantiate()
        graph.upload(self.stream)
        self.stream.sync()
        stream = self.stream
        return Launchable(lambda: graph.launch(stream), graph, definition)

    def bare(self, kernels):
        """A plain capture: nobody keeps anything alive."""
        from cuda.bindings import driver

        def checked(result):
            if result[0] != driver.CUresult.CUDA_SUCCESS:
                raise RuntimeError(str(result[0]))
            return result[1] if len(result) > 1 else None

        stream = driver.CUstream(int(self.stream.handle))
        checked(driver.cuStreamBeginCapture(
            stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            for _ in range(kernels):
                self.launch_once()
        finally:
            graph = checked(driver.cuStreamEndCapture(stream))
        graph_exec = checked(driver.cuGraphInstantiate(graph, 0))
        checked(driver.cuGraphUpload(graph_exec, stream))
        self.stream.sync()
        launch_graph = driver.cuGraphLaunch
        return Launchable(lambda: launch_graph(graph_exec, stream), graph, graph_exec)


def row_us(what, stream, launches):
    launch = what.launch
    begin = time.perf_counter_ns()
    for _ in range(launches):
        launch()
    stream.sync()
    return (time.perf_counter_ns() - begin) / 1e3 / launches


def burst_us(what, stream, launches):
    launch = what.launch
    begin = time.perf_counter_ns()
    for _ in range(launches):
        launch()
    result = (time.perf_counter_ns() - begin) / 1e3 / launches
    stream.sync()
    return result


def repetition(name, index, form, bare, stream, row):
    """One repetition as Google Benchmark writes it. Without a bare graph nothing is said of it."""
    measures = {
        "": lambda each: row_us(each, stream, row),
        "host_": lambda each: burst_us(each, stream, STEADY),
        "host_burst_": lambda each: statistics.median(
            burst_us(each, stream, BURST) for _ in range(8)),
    }
    fields = {}
    for prefix, measured in measures.items():
        of_bare = measured(bare) if bare else 0
        fields[f"{prefix}us"] = (measured(form) + measured(form)) / 2
        if bare:
            of_bare = (of_bare + measured(bare)) / 2
            fields[f"bare_{prefix}us"] = of_bare
            fields[f"{prefix}of_bare"] = fields[f"{prefix}us"] / of_bare
    if bare:
        fields["throughput_of_bare"] = 1 / fields.pop("of_bare")
    return {"name": name, "family_index": 1000, "run_type": "iteration",
            "repetition_index": index, "real_time": fields.pop("us"), "time_unit": "us",
            "host_launches": STEADY, **fields}


def attempt(make, kernels):
    try:
        return make(kernels)
    except Exception as error:
        print(f"no {make.__name__} graph of {kernels} kernels: {type(error).__name__}: {error}")
        return None


def measure(seconds):
    """The repetitions of all sizes, as many as there is time for: 9 at most."""
    end = time.monotonic() + seconds
    maker = Maker()
    pairs = {}
    for kernels, row in ROWS.items():
        pairs[kernels] = (maker.cuda_core(kernels), attempt(maker.bare, kernels))
        for each in filter(None, pairs[kernels]):
            row_us(each, maker.stream, row)  # warms up
    runs = []
    for index in range(9):
        for kernels, row in ROWS.items():
            if time.monotonic() > end:
                return runs
            name = f"relaunch/cuda_core/kernels:{kernels}"
            runs.append(repetition(name, index, *pairs[kernels], maker.stream, row))
    return runs


def versions():
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("cuda-core", "cuda-bindings"):
        try:
            found[f"{name}_version"] = version(name)
        except PackageNotFoundError:
            found[f"{name}_version"] = "not known"
    return found


def result_of(measure_all, seconds):
    try:
        return {"context": versions(), "benchmarks": measure_all(seconds)}
    except BaseException as error:  # whatever it is, the results of the other arms stay good
        return {"skipped": f"{type(error).__name__}: {error}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    result = result_of(measure, given.seconds)
    given.file.write_text(json.dumps(result) + "\n")
    if "skipped" in result:
        print(f"the cuda.core arm was skipped: {result['skipped']}")
    for run in result.get("benchmarks", []):
        print(f"{run['name']} {run['real_time']:.2f} us, host {run['host_us']:.2f} us, "
              f"bare {run.get('bare_us', 0):.2f} us, host {run.get('bare_host_us', 0):.2f} us")


if __name__ == "__main__":
    main()
