# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the simulated runtime below the package, its streams, captures and graphs."""

import contextlib
import ctypes
import gc
import os
import time
import weakref

import escrow

library = ctypes.CDLL(os.environ["ESCROW_LIBRARY"])
POINTER = ctypes.c_void_p
MIB = 1 << 20


def check(name, *arguments):
    status = getattr(library, name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name} returned {status}")


def made(name, *arguments):
    """What a call creates whose first argument is the place for it."""
    handle = POINTER()
    check(name, ctypes.byref(handle), *arguments)
    return handle


class Stream:
    """As cuda.core's."""

    def __init__(self):
        self.handle = made("cudaStreamCreateWithFlags", 1).value

    def __cuda_stream__(self):
        return 0, self.handle

    def synchronize(self):
        check("cudaStreamSynchronize", POINTER(self.handle))

    def begin(self, mode=2):  # relaxed
        check("cudaStreamBeginCapture", POINTER(self.handle), mode)

    def end(self):
        graph = POINTER()
        check("cudaStreamEndCapture", POINTER(self.handle), ctypes.byref(graph))
        return Graph(graph.value)

    def memset(self, address, size):
        check("cudaMemsetAsync", POINTER(address), 1, ctypes.c_size_t(size), POINTER(self.handle))

    def host_function(self, call):
        """Enqueues a call of Python's. The caller keeps what this returns until it has run."""
        function = ctypes.CFUNCTYPE(None, POINTER)(lambda _: call())
        check("cudaLaunchHostFunc", POINTER(self.handle), function, POINTER())
        return function


class Graph:
    def __init__(self, handle):
        self.handle = handle

    def destroy(self):
        check("cudaGraphDestroy", POINTER(self.handle))


@contextlib.contextmanager
def capture(stream):
    """The graph of what the block does on the stream, in a list."""
    result = []
    stream.begin()
    try:
        yield result
    finally:
        result.append(stream.end())


class Thing:
    """An object that can be seen to end."""

    living = 0

    def __init__(self):
        Thing.living += 1

    def __del__(self):
        Thing.living -= 1


def thing():
    """An object, and what tells whether it lives."""
    its = Thing()
    return its, weakref.ref(its)


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        gc.collect()
        escrow.drain(0.01)
        time.sleep(0.001)
    return True
