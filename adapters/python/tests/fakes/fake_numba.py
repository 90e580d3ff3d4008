# SPDX-License-Identifier: Apache-2.0
"""As much of numba-cuda 0.30 as an external memory manager sees, in the module numba.cuda."""

import abc
import collections
import ctypes
import types
import weakref


class UniqueDict(dict):
    def __setitem__(self, key, value):
        if key in self:
            raise AssertionError("key already in dictionary")
        super().__setitem__(key, value)


class BaseCUDAMemoryManager(metaclass=abc.ABCMeta):
    def __init__(self, *args, **kwargs):
        if "context" not in kwargs:
            raise RuntimeError("Memory manager requires a context")
        self.context = kwargs.pop("context")

    @abc.abstractmethod
    def memalloc(self, size): ...

    @abc.abstractmethod
    def initialize(self): ...

    @abc.abstractmethod
    def get_ipc_handle(self, memory): ...

    @abc.abstractmethod
    def get_memory_info(self): ...

    @property
    @abc.abstractmethod
    def interface_version(self): ...


class HostOnlyCUDAMemoryManager(BaseCUDAMemoryManager):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.allocations = UniqueDict()

    def reset(self):
        self.allocations.clear()


class MemoryPointer:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        assert isinstance(pointer, ctypes.c_void_p) and owner is None
        self.context, self.device_pointer, self.size = context, pointer.value, size
        self._finalizer = weakref.finalize(self, finalizer)


MemoryInfo = collections.namedtuple("MemoryInfo", "free,total")


class Context:
    device = types.SimpleNamespace(id=0)


def set_memory_manager(plugin):
    if plugin(context=None).interface_version != 1:
        raise RuntimeError("EMM Plugin interface")
    cuda.manager = plugin(context=Context())
    cuda.manager.initialize()


cuda = types.SimpleNamespace(
    HostOnlyCUDAMemoryManager=HostOnlyCUDAMemoryManager,
    MemoryInfo=MemoryInfo,
    MemoryPointer=MemoryPointer,
    manager=None,
    set_memory_manager=set_memory_manager,
)
