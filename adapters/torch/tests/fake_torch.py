# SPDX-License-Identifier: Apache-2.0
"""As much of PyTorch as escrow_torch.Graph calls, on the runtime that Escrow's library is linked to."""
import collections
import contextlib
import ctypes
import os
import types
import weakref

POINTER = ctypes.c_void_p
library = ctypes.CDLL(os.environ["ESCROW_TORCH_LIBRARY"])
library.escrow_torch_allocate.restype = POINTER
library.escrow_torch_allocate.argtypes = (ctypes.c_size_t, ctypes.c_int, POINTER)
library.escrow_torch_free.argtypes = (POINTER, ctypes.c_size_t, ctypes.c_int, POINTER)


def check(name, *arguments):
    status = getattr(library, name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name} returned {status}")


def made(name, *arguments):
    """What a call creates whose first argument is the place for it."""
    handle = POINTER()
    check(name, ctypes.byref(handle), *arguments)
    return handle


def use_memory(stream, size):
    """Memory from Escrow, set by the stream's work."""
    memory = library.escrow_torch_allocate(size, 0, stream)
    check("cudaMemsetAsync", POINTER(memory), 1, ctypes.c_size_t(size), POINTER(stream))
    library.escrow_torch_free(memory, size, 0, stream)


class Stream:
    def __init__(self):
        self.cuda_stream = made("cudaStreamCreateWithFlags", 1).value


class Hook:
    """As torch.utils.hooks.RemovableHandle."""
    last = 0

    def __init__(self, hooks, call):
        Hook.last += 1
        self.id, self.hooks_dict_ref = Hook.last, weakref.ref(hooks)
        hooks[self.id] = call

    def remove(self):
        hooks = self.hooks_dict_ref()
        if hooks is not None:
            hooks.pop(self.id, None)


class CUDAGraph:
    """Of a PyTorch before hooks for replays."""

    def __init__(self, keep_graph=False):
        assert keep_graph
        self.graph, self.exec = None, None

    def __new__(cls, _keep_graph=False, **_arguments):
        return super().__new__(cls)

    def capture_begin(self):
        if self.exec is not None or (self.graph is not None and not hasattr(self, "keep_graph")):
            raise RuntimeError("the graph was captured before")
        check("cudaStreamBeginCapture", POINTER(cuda.current_stream().cuda_stream), 0)

    def capture_end(self):
        self.graph = POINTER()
        check("cudaStreamEndCapture", POINTER(cuda.current_stream().cuda_stream), ctypes.byref(self.graph))

    def raw_cuda_graph(self):
        return self.graph.value

    def instantiate(self):
        self.exec = made("cudaGraphInstantiate", self.graph, ctypes.c_ulonglong(0))

    def replay(self):
        check("cudaGraphLaunch", self.exec, POINTER(cuda.current_stream().cuda_stream))

    def reset(self):
        if self.exec is not None:
            check("cudaGraphExecDestroy", self.exec)
        if self.graph is not None:
            check("cudaGraphDestroy", self.graph)
        self.graph, self.exec = None, None

    __del__ = reset


class CUDAGraphWithHooks(CUDAGraph):
    def __init__(self, keep_graph=False):
        super().__init__(keep_graph)
        self.start_hooks, self.end_hooks = collections.OrderedDict(), collections.OrderedDict()

    def register_replay_start_hook(self, hook):
        return Hook(self.start_hooks, hook)

    def register_replay_end_hook(self, hook):
        return Hook(self.end_hooks, hook)

    def replay(self):
        run_for_all(graphs.replay_hooks, self)
        for hook in list(self.start_hooks.values()):
            hook(self)
        try:
            super().replay()
        finally:
            for hook in list(self.end_hooks.values()):
                hook(self)


class CUDAGraphOf214(CUDAGraphWithHooks):
    """Of a PyTorch with hooks for all graphs, and which ends the captured graph by default. After 2.15's graphs.py."""

    def __init__(self, keep_graph=False):
        super().__init__(True)
        self.keep_graph = keep_graph
        self.arm()

    def arm(self):
        self.callbacks = collections.OrderedDict()
        self.finalizer = weakref.finalize(self, self.fire, self.callbacks)

    @staticmethod
    def fire(callbacks):
        for each in list(callbacks.values()):
            with contextlib.suppress(Exception):
                each()
        callbacks.clear()

    def register_destroy_callback(self, call):
        return Hook(self.callbacks, call)

    def capture_begin(self):
        super().capture_begin()
        run_for_all(graphs.start_hooks, self)

    def capture_end(self, by_hand=False):
        super().capture_end()
        if not by_hand:
            run_for_all(graphs.end_hooks, self)
        if not self.keep_graph:
            self.instantiate()
            check("cudaGraphDestroy", self.graph)
            self.graph = None

    def replay(self):
        if self.exec is None and self.graph is not None:
            self.instantiate()
        super().replay()

    def reset(self):
        self.fire(self.callbacks)
        self.finalizer.detach()
        self.arm()
        super().reset()

    __del__ = CUDAGraph.reset


def run_for_all(hooks, graph):
    for each in list(hooks.values()):
        with contextlib.suppress(Exception):
            each(graph)


graphs = types.SimpleNamespace(
    **{name: collections.OrderedDict() for name in ("start_hooks", "end_hooks", "replay_hooks")})
graphs.register_graph_capture_start_hook = lambda hook: Hook(graphs.start_hooks, hook)
graphs.register_graph_capture_end_hook = lambda hook: Hook(graphs.end_hooks, hook)
graphs.register_graph_replay_start_hook = lambda hook: Hook(graphs.replay_hooks, hook)


@contextlib.contextmanager
def capture(graph, **how):
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end(**how)


class CUDAPluggableAllocator:
    def __init__(self, *_):
        self.allocator = lambda: types.SimpleNamespace(set_record_stream_fn=id, set_reset_fn=id)


stream_now = Stream()
cuda = types.SimpleNamespace(
    CUDAGraph=CUDAGraph,
    current_device=lambda: 0,
    current_stream=lambda device=0: stream_now,
    device=lambda device: contextlib.nullcontext(),
    graph=capture,
    memory=types.SimpleNamespace(
        CUDAPluggableAllocator=CUDAPluggableAllocator, change_current_allocator=lambda _allocator: None),
)
_C = types.SimpleNamespace(
    _cuda_clearCublasWorkspaces=lambda: None,
    _cuda_getCurrentRawStream=lambda device: stream_now.cuda_stream,
)
