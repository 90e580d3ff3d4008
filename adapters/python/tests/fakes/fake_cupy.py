# SPDX-License-Identifier: Apache-2.0
"""As much of CuPy 14 as an allocator sees: streams, memory, and arrays that own it."""

import types

from world import Stream as SimulatedStream


class Stream(SimulatedStream):
    """Current in a `with`, as CuPy's; its handle is `ptr`, without the protocol of older CuPys."""

    __cuda_stream__ = property()  # hasattr is False

    @property
    def ptr(self):
        return self.handle

    def __enter__(self):
        self.before, cuda.current = cuda.current, self
        return self

    def __exit__(self, *_):
        cuda.current = self.before


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        assert isinstance(ptr, int) and isinstance(device_id, int)
        self.ptr, self.size, self.device_id, self._owner = ptr, size, device_id, owner


class MemoryPointer:
    def __init__(self, mem, offset):
        assert isinstance(mem, UnownedMemory)
        self.mem, self.ptr = mem, mem.ptr + offset


class ndarray:
    """Set by work on the current stream."""

    def __init__(self, size):
        self.data = cuda.allocator(size)
        self.size = size
        cuda.current.memset(self.data.ptr, size)


def set_allocator(allocator):
    cuda.allocator = allocator


cuda = types.SimpleNamespace(
    MemoryPointer=MemoryPointer,
    UnownedMemory=UnownedMemory,
    allocator=None,
    current=None,
    device=types.SimpleNamespace(get_device_id=lambda: 0),
    get_current_stream=lambda: cuda.current,
    set_allocator=set_allocator,
)
