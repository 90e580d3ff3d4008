# SPDX-License-Identifier: Apache-2.0
"""CuPy's device memory from Escrow, also in captures.

    cupy.cuda.set_allocator(escrow.cupy.Allocator(bytes_max=8 << 30))

An array that is made in a capture belongs to the graph: no later array gets its memory before the graph's
last launch has ended, also once the array is gone. An array of before the capture that the graph uses:
escrow.keep(array, stream) in the capture. Work on a second stream: after it, escrow.keep(array, stream) with
that stream.
"""

import threading

import cupy

from ._escrow import Group, ScratchPool, _CuPyCalls

__all__ = ["Allocator"]


class Allocator(_CuPyCalls):
    """For cupy.cuda.set_allocator: claims each array's memory for the current stream.

    Memory is freed after the work on that stream so far; the stream lives until then. One ScratchPool for
    each device, made with `options` (see ScratchPool) when it is first used. Any thread. Errors are those of
    ScratchPool.claim(); PoolExhausted and OutOfMemory are MemoryErrors.
    """

    def __init__(self, *, label: str = "cupy", group: Group | None = None, **options) -> None:
        super().__init__(
            cupy.cuda.device.get_device_id,
            cupy.cuda.get_current_stream,
            cupy.cuda.UnownedMemory,
            cupy.cuda.MemoryPointer,
        )
        self._options = {"label": label, "group": group, **options}
        self._pools: dict[int, ScratchPool] = {}
        self._lock = threading.Lock()

    def pool(self, device: int | None = None) -> ScratchPool:
        """The pool of a device, or of the current one: for stats(), trim() and the like."""
        device = cupy.cuda.device.get_device_id() if device is None else device
        its = self._pools.get(device)
        if its is None:
            with self._lock:
                its = self._pools.get(device) or ScratchPool(device=device, **self._options)
                self._pools[device] = its
        return its
