# SPDX-License-Identifier: Apache-2.0
"""Numba's device memory from Escrow: an external memory manager.

    numba.cuda.set_memory_manager(escrow.numba.EscrowMemoryManager)   # or
    NUMBA_CUDA_MEMORY_MANAGER=escrow.numba with escrow.numba.on(stream):
        scratch = numba.cuda.device_array(1000)

Numba does not say for which stream it allocates: on() does, for this thread. Without it, memory is for the
legacy default stream, which orders it with all blocking streams, but which nobody can use while one of those
is being captured (UsageError).
"""

import contextlib
import ctypes
import threading

from numba import cuda

from ._escrow import ScratchPool, _memory_info

__all__ = ["EscrowMemoryManager", "configure", "on"]

_options: dict = {"label": "numba"}
_pools: dict[int, ScratchPool] = {}
_lock = threading.Lock()
_now = threading.local()


def configure(**options) -> None:
    """Options of the ScratchPools that are made from now on, one for each device: see ScratchPool."""
    _options.update(options)


@contextlib.contextmanager
def on(stream):
    """In this block, memory of this thread is for work on `stream`, which lives until it is freed."""
    before = getattr(_now, "stream", 0)
    _now.stream = stream
    try:
        yield
    finally:
        _now.stream = before


def _pool(device: int) -> ScratchPool:
    its = _pools.get(device)
    if its is None:
        with _lock:
            its = _pools.get(device) or ScratchPool(device=device, **_options)
            _pools[device] = its
    return its


class EscrowMemoryManager(cuda.HostOnlyCUDAMemoryManager):
    """For numba.cuda.set_memory_manager. Memory is freed after the work on the stream that it was allocated
    for.

    Errors are those of ScratchPool.claim().
    """

    def initialize(self) -> None:
        """Nothing: pools are made when they are first used."""

    def memalloc(self, size: int):
        """Device memory of at least `size` bytes, for the stream of on()."""
        lease = _pool(self.context.device.id).claim(getattr(_now, "stream", 0), size)
        key, leases = object(), self.allocations  # emptied by reset(): another array may have the address then
        leases[key] = lease
        return cuda.MemoryPointer(
            self.context, ctypes.c_void_p(lease.ptr), size, finalizer=lambda: leases.pop(key, None)
        )

    def get_ipc_handle(self, memory):
        """Raises NotImplementedError: CUDA gives no handle for memory of a memory pool."""
        raise NotImplementedError(
            "memory of Escrow has no IPC handle: allocate what is shared without the memory manager"
        )

    def get_memory_info(self):
        """Free and total bytes of the device, in which idle memory of Escrow is not free."""
        return cuda.MemoryInfo(*_memory_info())

    @property
    def interface_version(self) -> int:
        """That of Numba's plug-ins."""
        return 1


_numba_memory_manager = EscrowMemoryManager
