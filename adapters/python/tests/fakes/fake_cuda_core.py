# SPDX-License-Identifier: Apache-2.0
"""As much of cuda.core 1.2 as a memory resource sees."""


class MemoryResource:
    """The abstract base: buffers refer to it."""

    is_managed = False


class DevicePointer:
    """What cuda.core gives to deallocate(): an object that is an int."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


class Buffer:
    def __init__(self, *_):
        raise RuntimeError("use from_handle")

    @staticmethod
    def from_handle(ptr, size, mr=None, owner=None, *, stream=None):
        assert isinstance(mr, MemoryResource) and owner is None
        buffer = Buffer.__new__(Buffer)
        buffer.handle, buffer.size, buffer.memory_resource, buffer._stream = (
            DevicePointer(ptr),
            size,
            mr,
            stream,
        )
        return buffer

    @property
    def device_id(self):
        return self.memory_resource.device_id

    def close(self, stream=None):
        if self.handle is not None:
            self.memory_resource.deallocate(self.handle, self.size, stream=stream or self._stream)
            self.handle = None

    __del__ = close
