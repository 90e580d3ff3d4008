# SPDX-License-Identifier: Apache-2.0
"""PyTorch's device memory from Escrow: tensors, graphs, and graphs that share their memory. See README.md."""
import contextlib
import ctypes
import functools
import json
import os
import pathlib

try:  # first: it loads the CUDA runtime that it comes with
    import torch
except ImportError:  # all but allocator(), mem_pool(), install() and Graph work without; the current device is 0
    torch = None

from ._replaced import replacement_of

__all__ = ["Graph", "allocator", "configure", "exclude", "install", "kept", "mem_pool", "park", "stats", "trim", "unpark"]

_POINTER = ctypes.c_void_p
_SIGNATURES = {
    "error": (ctypes.c_char_p, ()),
    "configure": (ctypes.c_int, (ctypes.c_int, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)),
    "keep": (ctypes.c_int, (ctypes.c_int,)),
    "stats": (ctypes.c_char_p, (ctypes.c_int,)),
    "trim": (ctypes.c_longlong, (ctypes.c_int, ctypes.c_size_t)),
    "park": (ctypes.c_longlong, (ctypes.c_int, ctypes.c_int, ctypes.c_double)),
    "unpark": (ctypes.c_longlong, (ctypes.c_int,)),
    "hoist": (_POINTER, (_POINTER,)),
    "enter": (ctypes.c_int, (_POINTER, _POINTER)),
    "leave": (ctypes.c_int, (_POINTER,)),
    "release": (ctypes.c_int, (_POINTER,)),
}


def library_path():
    """ESCROW_TORCH_LIBRARY, or the library beside this file, or what the dynamic loader finds."""
    beside = pathlib.Path(__file__).with_name("libescrow_torch.so")
    return os.environ.get("ESCROW_TORCH_LIBRARY") or (str(beside) if beside.exists() else beside.name)


@functools.cache
def _library():
    library = ctypes.CDLL(library_path())
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, "escrow_torch_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def _failure():
    return RuntimeError(_library().escrow_torch_error().decode(errors="replace"))


def _call(name, *arguments):
    result = getattr(_library(), "escrow_torch_" + name)(*arguments)
    if result in {None, -1}:  # hashed: python -bb refuses to compare bytes with a number
        raise _failure()
    return result


def _address_of(name):
    return ctypes.cast(getattr(_library(), "escrow_torch_" + name), _POINTER).value


def _device(device):
    if device is not None:
        return int(device)
    return torch.cuda.current_device() if torch else 0


def configure(device=0, *, bytes_max=None, label="torch", group=None, streams_outlive=False):
    """How Escrow serves a device. Call it before the first allocation there.

    bytes_max: most bytes of all blocks together. group: a label; all graphs that are captured on the device then share
    their memory, and must be launched in turn: see Graph. streams_outlive: no stream that tensors use ends before the
    process, and none begins a capture while another thread frees its tensors; freeing is cheaper then.
    """
    most = ctypes.c_size_t(-1).value if bytes_max is None else bytes_max
    _call("configure", device, most, label.encode(), None if group is None else group.encode(), bool(streams_outlive))


@functools.cache
def allocator():
    """A CUDAPluggableAllocator that asks Escrow for each tensor."""
    made = torch.cuda.memory.CUDAPluggableAllocator(library_path(), "escrow_torch_allocate", "escrow_torch_free")
    functions = made.allocator()
    functions.set_record_stream_fn(_address_of("record_stream"))
    functions.set_reset_fn(_address_of("empty_cache"))
    return made


def install(graphs=None):
    """All of PyTorch's device memory comes from Escrow. Call it before PyTorch uses a device.

    From PyTorch 2.14 on, each graph that any code captures from now on is launched as a Graph is: in its group's turn, and
    without paying for a user object. `graphs`: whether; or a function that says so of a torch.cuda.CUDAGraph when its
    capture begins, in which it may not use CUDA. See exclude(). A graph that cannot be launched so refuses each replay().
    An older PyTorch has no hooks for that: there, with `graphs`, torch.cuda.CUDAGraph is another class from now on, for
    code that asks torch.cuda for it later. Import such code after this call.
    """
    has_hooks = hasattr(getattr(torch.cuda, "graphs", None), "register_graph_capture_end_hook")
    torch.cuda.memory.change_current_allocator(allocator())
    while _hooks:  # of an earlier call
        _hooks.pop().remove()
    is_chosen = graphs if callable(graphs) else lambda _graph: True
    if has_hooks and (graphs is None or graphs):
        _hook_all(is_chosen)
    elif graphs and not has_hooks:
        _hooks.append(_Replaced(is_chosen))


_hooks = []  # of install(), for all graphs


def exclude(graph):
    """install() leaves this torch.cuda.CUDAGraph as PyTorch makes it. Call it before the capture. Returns the graph.

    For code that instantiates or copies raw_cuda_graph() itself, and for bodies of conditional nodes without memory of a
    group.
    """
    graph.escrow_excludes = True
    return graph


@functools.cache
def _segments():
    return torch.cuda.memory.CUDAPluggableAllocator(
        library_path(), "escrow_torch_allocate_segment", "escrow_torch_free_segment")


def mem_pool(**arguments):
    """A torch.cuda.MemPool whose segments come from Escrow; `arguments` as MemPool's. PyTorch splits and caches them."""
    return torch.cuda.MemPool(_segments().allocator(), **arguments)


@contextlib.contextmanager
def kept():
    """In a capture: memory that this thread allocates has its content until the graph is launched again.

        with graph.capture():
            hidden = model(input)
            with escrow_torch.kept():
                output = hidden.clone()

    No other graph of the group overwrites it, and no later tensor of the capture. For results alone: all else shares.
    """
    was_kept = _call("keep", 1)
    try:
        yield
    finally:
        _call("keep", was_kept)


def stats(device=None):
    """Statistics of the device's memory, of its sharing group if it has one, and of Escrow's deleter."""
    return json.loads(_call("stats", _device(device)))


def trim(device=None, keep_bytes=0):
    """Frees memory that no work uses, until `keep_bytes` are left. Returns the bytes freed."""
    return _call("trim", _device(device), keep_bytes)


def park(device=None, *, keep_contents=False, wait_max=10.0):
    """Gives the memory that the graphs of the device's group share back to the device, until unpark().

    Graphs stay as they are, and their memory keeps its addresses; to launch or capture one meanwhile is an error. What is
    in that memory is lost without keep_contents. It waits at most `wait_max` seconds for the last launch. It fails while a
    tensor that was allocated in a capture lives: allocate results inside kept(). Returns the bytes.
    """
    return _call("park", _device(device), bool(keep_contents), wait_max)


def unpark(device=None):
    """Maps that memory again. Returns the bytes. If there is none, it fails, and the group stays parked."""
    return _call("unpark", _device(device))


@functools.cache
def _turn_calls():
    """For each launch: compiled, if the package escrow is there."""
    try:
        from escrow._escrow import _TorchCalls
    except ImportError:
        return tuple(functools.partial(_call, name) for name in ("enter", "leave"))
    calls = _TorchCalls(_address_of("enter"), _address_of("leave"), _address_of("error"))
    return calls.enter, calls.leave


class _Held:
    """What a graph holds, taken off it: its launches pay for no user object. Has no reference to the graph."""

    def __init__(self, raw_graph, current_stream):
        self._of = of = [None]  # for the destructor, if the next line throws; null once it is released
        of[0] = _call("hoist", raw_graph)
        # For each launch: without a look at names, and without a reference to this, whose end is the release.
        enter, leave = _turn_calls()

        def enter_now(_graph=None):
            enter(of[0], current_stream())

        def leave_now(_graph=None):
            leave(of[0])
        self.enter, self.leave = enter_now, leave_now

    def release(self):
        if self._of[0] is None:
            return
        try:
            _call("release", self._of[0])
        except RuntimeError:  # the failure may not repeat, and nobody else releases it
            _call("release", self._of[0])
        self._of[0] = None

    def __del__(self):
        if _call is not None:  # else the interpreter ends, and has emptied this module
            self.release()


def _hold(raw_graph):
    """What an instantiation of the graph would hold, for launches on the current device."""
    current_stream = functools.partial(torch._C._cuda_getCurrentRawStream, torch.cuda.current_device())
    return _Held(raw_graph, current_stream)


class _Turns:
    """The turns of a graph that other code captured. Has no reference to the graph: it would never end.

    PyTorch swallows what hooks for all graphs raise, not what hooks of one graph do: so each graph has hooks of its own,
    from the beginning of its capture on, and is refused until what it holds is known.
    """

    def __init__(self, graph):
        self.held = None
        self.may_be_held = True
        self.refusal = "its capture did not end by capture_end()"
        self._start = graph.register_replay_start_hook(self._enter)
        self._end = graph.register_replay_end_hook(self._leave)
        graph.register_destroy_callback(self._ended)

    def _enter(self, _graph):
        held = self.held
        if held is None:
            raise RuntimeError(f"escrow_torch: this graph cannot be launched in turn: {self.refusal}")
        held.enter()

    def _leave(self, _graph):
        self.held.leave()

    def put_inside(self):
        """Before each replay: what other hooks raise, they raise outside of the turn, which would stay open."""
        self._start.hooks_dict_ref().move_to_end(self._start.id)
        self._end.hooks_dict_ref().move_to_end(self._end.id, last=False)

    def _ended(self):  # by reset(), the graph's end or the interpreter's: the graph may live then
        self.refusal = "what it holds was released: it was reset, or the interpreter ends"
        held, self.held = self.held, None
        if held is not None:
            held.release()

    def forget(self):
        """There is another capture, or none for install()."""
        self._start.remove()
        self._end.remove()
        self._ended()


def _hook_all(is_chosen):
    """Hoists each chosen graph when its capture ends."""
    def begin(graph):
        earlier = vars(graph).pop("_escrow_turns", None)
        if earlier is not None:
            earlier.forget()
        if vars(graph).get("escrow_excludes"):
            return
        turns = graph._escrow_turns = _Turns(graph)
        try:
            if not is_chosen(graph):
                del graph._escrow_turns
                turns.forget()
        except BaseException as error:  # its text alone: its traceback has the graph
            turns.refusal = f"install()'s function raised {error!r}"
            turns.may_be_held = False
            raise

    def end(graph):
        turns = vars(graph).get("_escrow_turns")
        if turns is None or not turns.may_be_held:
            return
        try:
            turns.held = _hold(graph.raw_cuda_graph())
        except BaseException as error:
            turns.refusal = str(error) or repr(error)
            raise

    def replay(graph):
        turns = vars(graph).get("_escrow_turns")
        if turns is not None:
            turns.put_inside()

    for_all = torch.cuda.graphs
    _hooks.append(for_all.register_graph_capture_start_hook(begin))
    _hooks.append(for_all.register_graph_capture_end_hook(end))
    _hooks.append(for_all.register_graph_replay_start_hook(replay))


class _Replaced:
    """torch.cuda.CUDAGraph is another class, until remove()."""

    def __init__(self, is_chosen):
        self._plain = torch.cuda.CUDAGraph
        torch.cuda.CUDAGraph = replacement_of(
            self._plain, _hold, lambda graph: not vars(graph).get("escrow_excludes") and is_chosen(graph))

    def remove(self):
        torch.cuda.CUDAGraph = self._plain


class Graph:
    """A torch.cuda.CUDAGraph whose memory comes back after its last launch, and which shares it in turn.

        graph = escrow_torch.Graph()
        with graph.capture():
            output = model(input)
        graph.replay()

    Each launch waits, on the GPU, for the last launch of any graph of the device's group (configure). What a launch
    left in memory that was allocated in the capture is lost at the next launch of another graph of the group: have the
    capture write results to memory of kept(), or to a tensor that was made before it, or copy them before.
    """

    def __init__(self):
        self.cuda_graph = exclude(torch.cuda.CUDAGraph(keep_graph=True))  # from install()'s hooks: it has its own
        self._held = None
        self._has_hooks = hasattr(self.cuda_graph, "register_replay_start_hook")
        self._hooks = ()

    @contextlib.contextmanager
    def capture(self, **arguments):
        """As torch.cuda.graph(), whose `arguments` it takes."""
        device = torch.cuda.current_device()
        torch._C._cuda_clearCublasWorkspaces()  # those of eager work stay with eager work
        with torch.cuda.graph(self.cuda_graph, **arguments):
            try:
                yield self
            finally:  # in the capture: other graphs of the group then share the workspaces
                torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.device(device):
            self._held = _hold(self.cuda_graph.raw_cuda_graph())
        self.cuda_graph.instantiate()
        if self._has_hooks:  # also when other code replays cuda_graph
            for hook in self._hooks:  # of an earlier capture
                hook.remove()
            self._hooks = (self.cuda_graph.register_replay_start_hook(self._held.enter),
                           self.cuda_graph.register_replay_end_hook(self._held.leave))

    @contextlib.contextmanager
    def turn(self):
        """For code that replays cuda_graph itself, on the current stream, where PyTorch has no hooks for replays."""
        held = self._captured()
        held.enter()
        try:
            yield
        finally:
            held.leave()

    def _captured(self):
        if self._held is None:
            raise RuntimeError("the graph was not captured, or its capture failed: call capture() before")
        return self._held

    def replay(self):
        """Launches the graph on the current stream."""
        held = self._captured()
        if not self._has_hooks:
            held.enter()
            try:
                self.cuda_graph.replay()
            finally:
                held.leave()
            return
        try:
            self.cuda_graph.replay()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # it has left, unless the hook of another failed
                held.leave()
            raise
