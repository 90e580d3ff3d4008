#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The installed package on a GPU, with the real CuPy, Numba, cuda.core and PyTorch: each in a process of its own.

    adapters/python/tests/gpu_doors.py [NAME...]

What cannot be imported is skipped by name.
"""

import importlib.util
import subprocess
import sys

MIB = 1 << 20
LAUNCHES = 200


def ended(what):
    """Waits until nothing of Escrow's is held by a graph or in use."""
    import escrow

    for _ in range(100):
        escrow.drain(1)
        memory = escrow.stats()["memory"]
        if memory["bytes_in_use"] == 0 and memory["bytes_in_graphs"] == 0:
            break
    else:
        raise AssertionError(f"{what}: {escrow.describe()}")
    assert escrow.stats()["worker"]["leaked"] == 0


def cupy():
    """Arrays of a capture belong to its graph; results stay right beside later arrays."""
    import cupy as cp

    import escrow
    import escrow.cupy

    cp.cuda.set_allocator(escrow.cupy.Allocator())
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        total = cp.zeros(MIB, dtype=cp.int32)
        (total + 1).astype(cp.int64)  # compiles the kernels
        total += cp.ones_like(total)
        total[:] = 0
        stream.synchronize()
        stream.begin_capture()
        total += cp.ones_like(total) * 2
        graph = stream.end_capture()
        with escrow.GraphExec(graph.graph) as exec_:
            for i in range(LAUNCHES):
                exec_.launch(stream)
                if i % 10 == 0:
                    cp.full(MIB, 7, dtype=cp.int32)  # would overwrite what the graph had released too early
        stream.synchronize()
        assert (cp.asnumpy(total) == 2 * LAUNCHES).all()
        del graph, total
    ended("cupy")


def numba():
    """Device arrays of a stream; a kernel's results."""
    import numpy

    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack  # of NumPy 1, which Numba asks for
    from numba import cuda

    import escrow.numba

    cuda.set_memory_manager(escrow.numba.EscrowMemoryManager)

    @cuda.jit
    def add(values, more):
        i = cuda.grid(1)
        if i < values.size:
            values[i] += more

    stream = cuda.stream()
    with escrow.numba.on(stream):
        for _ in range(20):
            values = cuda.to_device(numpy.zeros(1 << 16, dtype=numpy.int32), stream=stream)
            for _ in range(10):
                add[256, 256, stream](values, 3)
            result = values.copy_to_host(stream=stream)
            stream.synchronize()
            assert (result == 30).all()
            del values
    ended("numba")


def cuda_core():
    """Buffers of a stream and of a graph builder."""
    import ctypes

    from cuda.core import Device

    import escrow.cuda_core

    device = Device()
    device.set_current()
    stream = device.create_stream()
    memory = escrow.cuda_core.EscrowMemoryResource(device)
    result = memory.allocate(MIB, stream=stream)
    builder = device.create_graph_builder()
    builder.begin_building()
    scratch = memory.allocate(MIB, stream=builder)
    scratch.fill(7, stream=builder)
    result.copy_from(scratch, stream=builder)
    scratch.close(builder)
    graph = builder.end_building().complete()
    for _ in range(LAUNCHES):
        graph.launch(stream)
        other = memory.allocate(MIB, stream=stream)
        other.fill(9, stream=stream)
        other.close(stream)
    stream.sync()
    host = (ctypes.c_ubyte * MIB)()
    runtime = ctypes.CDLL("libcudart.so." + str(escrow.cuda_major))
    assert runtime.cudaMemcpy(host, ctypes.c_void_p(int(result.handle)), ctypes.c_size_t(MIB), 2) == 0
    assert set(bytes(host)) == {7}
    graph.close()
    builder.close()
    result.close(stream)
    stream.sync()
    ended("cuda.core")


def torch():
    """Tensors from Escrow, a graph of them, and a tensor that it keeps."""
    import torch as pt

    import escrow
    import escrow.torch

    escrow.torch.install()
    weights = pt.full((1024, 1024), 0.5, device="cuda")
    kept = pt.full((1024,), 3.0, device="cuda")
    result = pt.zeros(1024, device="cuda")
    stream = pt.cuda.Stream()
    with pt.cuda.stream(stream):
        (weights @ kept).add_(1)
    stream.synchronize()
    graph = pt.cuda.CUDAGraph()
    with pt.cuda.graph(graph, stream=stream):
        result.copy_((weights @ kept).add_(1))
        escrow.keep(kept, stream)
    del kept
    others = []
    for _ in range(LAUNCHES):
        graph.replay()
        others.append(pt.full((1024,), 9.0, device="cuda"))
    pt.cuda.synchronize()
    assert (result == 0.5 * 3 * 1024 + 1).all(), result[:4]
    del graph, others, weights, result
    pt.cuda.synchronize()


def alone():
    """The package alone: claims by address, a group that parks."""
    import escrow

    group = escrow.Group("alone")
    pool = escrow.ScratchPool(label="alone", group=group)
    for size in (1, 1000, MIB, 100 * MIB):
        with pool.claim(0, size) as lease:
            assert lease.ptr % 256 == 0 and lease.size >= size
    assert group.park() >= 0
    assert group.unpark() >= 0
    ended("alone")


DOORS = {"alone": (alone, "escrow"), "cupy": (cupy, "cupy"), "numba": (numba, "numba.cuda"),
         "cuda_core": (cuda_core, "cuda.core"), "torch": (torch, "torch")}


def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def main():
    if sys.argv[1:2] == ["--one"]:
        DOORS[sys.argv[2]][0]()
        return 0
    failed = []
    for name in sys.argv[1:] or DOORS:
        if not is_there(DOORS[name][1]):
            print(f"{name}: skipped, {DOORS[name][1]} cannot be imported")
            continue
        status = subprocess.run([sys.executable, "-B", __file__, "--one", name], check=False, timeout=120).returncode
        print(f"{name}: {'passed' if status == 0 else f'FAILED ({status})'}", flush=True)
        if status != 0:
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
