#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Audits of graphs that PyTorch and CuPy captured on Escrow's memory: clients/python/audits.py FILE

Each graph as it should be, which must have no finding, and with a planted stale address, which must be found: of an array
that is gone when the graph is launched. Each library in a process of its own.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

LIBRARIES = ("torch", "cupy")
COUNT = 1 << 16


def audited(graph):
    begin = time.perf_counter_ns()
    found = escrow.audit(graph)
    return {"ms": (time.perf_counter_ns() - begin) / 1e6, "findings": [each["text"] for each in found]}


def of_torch():
    from escrow import torch as escrow_torch
    escrow_torch.install(graphs=False)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, device="cuda").eval()
    inputs = {name: torch.randn(4, 32, 256, device="cuda") for name in ("healthy", "stale")}
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        layer(inputs["stale"])
        result = {}
        for name in list(inputs):
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.graph(graph, stream=stream):
                output = layer(inputs[name]) * 2
            if name == "stale":
                inputs.clear()
            torch.cuda.synchronize()
            result[name] = audited(graph.raw_cuda_graph())
            del output
    return result


def of_cupy():
    import cupy

    import escrow.cupy
    cupy.cuda.set_allocator(escrow.cupy.Allocator())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        inputs = {name: cupy.ones(COUNT, dtype=cupy.float32) for name in ("healthy", "stale")}
        y = cupy.zeros(COUNT, dtype=cupy.float32)
        result = {}
        for name in list(inputs):
            cupy.add(cupy.sqrt(inputs[name] * 2), inputs[name], out=y)  # compiles
            stream.begin_capture()
            cupy.add(cupy.sqrt(inputs[name] * 2), inputs[name], out=y)
            escrow.keep(y, stream)
            if name == "healthy":
                escrow.keep(inputs[name], stream)
            graph = stream.end_capture()
            if name == "stale":
                inputs.clear()
            stream.synchronize()
            result[name] = audited(graph.graph)
        del y, inputs
    cupy.cuda.set_allocator(None)
    return result


def main(file):
    result = {}
    for library in LIBRARIES:
        done = subprocess.run([sys.executable, "-B", __file__, "--one", library], stdout=subprocess.PIPE, text=True,
                              timeout=120, check=True)
        result[library] = json.loads(done.stdout.splitlines()[-1])
    Path(file).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    assert not any(each["healthy"]["findings"] for each in result.values())
    assert all(each["stale"]["findings"] for each in result.values())


if __name__ == "__main__":
    import escrow
    if sys.argv[1] == "--one":
        if sys.argv[2] == "torch":
            import torch
        print(json.dumps({"torch": of_torch, "cupy": of_cupy}[sys.argv[2]]()))
    else:
        main(sys.argv[1])
