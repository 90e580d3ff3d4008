# SPDX-License-Identifier: Apache-2.0
"""GPU memory and Python objects that live until the last CUDA graph or stream that uses them has finished.

    pool = escrow.ScratchPool(label="solver")
    with pool.claim(stream, 1 << 20) as lease:  # `stream` may be captured into a graph, by any code
        launch(stream, lease.ptr)
    escrow.keep(weights, stream)  # the graph that is being captured keeps the object

A stream is an int (a cudaStream_t), or an object with __cuda_stream__, as those of cuda.core, CuPy and
PyTorch. Sizes are bytes, times seconds. Doors to other libraries: escrow.torch, escrow.cupy, escrow.numba,
escrow.cuda_core.
"""

import importlib


def _is_main_interpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # of CPython 3.13, and before
        try:
            known = importlib.import_module(name)
        except ImportError:
            continue
        return known.get_current() == known.get_main()
    return True


if not _is_main_interpreter():  # another import would take the types of the first
    raise ImportError("escrow works in the main interpreter alone")

try:
    from . import _escrow
except ImportError as error:
    if "libcudart" not in str(error):
        raise
    raise ImportError(
        f"{error}; escrow needs the CUDA runtime that it was built for: import torch before, or install "
        "escrow-cuda[cuda13] (or [cuda12]), or set LD_LIBRARY_PATH to the CUDA Toolkit's libraries"
    ) from error
from ._escrow import (
    CudaError,
    EscrowError,
    GraphExec,
    Group,
    GroupBusy,
    Hoisted,
    Lease,
    OutOfMemory,
    PoolExhausted,
    ScratchPool,
    StreamAllocator,
    UsageError,
    __version__,
    audit,
    cuda_major,
    describe,
    drain,
    keep,
    report,
    retire,
    trim,
)

__all__ = [
    "CudaError",
    "EscrowError",
    "GraphExec",
    "Group",
    "GroupBusy",
    "Hoisted",
    "Lease",
    "OutOfMemory",
    "PoolExhausted",
    "ScratchPool",
    "StreamAllocator",
    "UsageError",
    "__version__",
    "audit",
    "cuda_major",
    "describe",
    "drain",
    "keep",
    "report",
    "retire",
    "stats",
    "trim",
]


def stats(device: int | None = None) -> dict[str, dict[str, int]]:
    """The sums of report(), of one device or of all.

    "memory": bytes, bytes_in_use, bytes_idle and bytes_in_graphs of all pools, bytes_in_arenas of groups,
    bytes_reserved of the device, in bytes; the numbers of pools, groups, graphs and execs. "worker": what the
    worker has reclaimed, what is pending, in_graphs, leaked (never freed), and errors that no call could
    raise.
    """
    now = report()
    pools, groups, devices = (
        [each for each in now[name] if device is None or each["device"] == device]
        for name in ("pools", "groups", "devices")
    )
    memory = {
        name: sum(pool["bytes"][name] for pool in pools)
        for name in ("bytes", "bytes_in_use", "bytes_idle", "bytes_in_graphs")
    }
    memory["bytes_in_arenas"] = sum(group["bytes"] for group in groups)
    memory["bytes_reserved"] = sum(each["reserved"] + each["ranges"] + each["arenas"] for each in devices)
    memory |= {
        "pools": len(pools),
        "groups": len(groups),
        "graphs": len(now["graphs"]),
        "execs": now["execs"],
    }
    return {"memory": memory, "worker": _escrow.worker_stats()}
