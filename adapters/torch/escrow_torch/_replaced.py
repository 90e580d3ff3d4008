# SPDX-License-Identifier: Apache-2.0
"""The graphs of a PyTorch that has no hooks for all graphs: what other code captures by torch.cuda.CUDAGraph."""


def replacement_of(plain, hold, is_chosen):
    """A class to stand where `plain`, torch.cuda.CUDAGraph, does: each graph is launched in turn, as escrow_torch.Graph is.

    hold(raw_cuda_graph): what holds what its execs would hold. is_chosen(graph): whether, when its capture begins.
    """

    class CUDAGraph(plain):
        __doc__ = plain.__doc__

        def __new__(cls, keep_graph=False):  # noqa: ARG004: __init__ has it
            return super().__new__(cls, True)  # else the captured graph is gone when its capture ends

        def __init__(self, keep_graph=False):
            super().__init__(True)
            self._escrow_keeps = keep_graph
            self._escrow_held = self._escrow_refusal = None

        def capture_begin(self, *arguments, **named):
            self._escrow_release()
            if is_chosen(self):
                self._escrow_refusal = "its capture did not end by capture_end()"
            super().capture_begin(*arguments, **named)

        def capture_end(self):
            super().capture_end()
            if self._escrow_refusal is not None:
                try:
                    self._escrow_held = hold(super().raw_cuda_graph())
                except BaseException as error:
                    self._escrow_refusal = str(error) or repr(error)
                    raise
                self._escrow_refusal = None
            if not self._escrow_keeps:
                self.instantiate()

        def raw_cuda_graph(self):
            if not self._escrow_keeps:
                raise RuntimeError("raw_cuda_graph: the graph is there with keep_graph=True alone")
            return super().raw_cuda_graph()

        def replay(self):
            held = self._escrow_held
            if held is None:
                if self._escrow_refusal is not None:
                    raise RuntimeError(f"escrow_torch: this graph cannot be launched in turn: {self._escrow_refusal}")
                return super().replay()
            held.enter()
            try:
                super().replay()
            finally:
                held.leave()

        def reset(self):
            self._escrow_release()
            super().reset()

        def _escrow_release(self):
            held, self._escrow_held, self._escrow_refusal = self._escrow_held, None, None
            if held is not None:
                held.release()

    CUDAGraph.__qualname__, CUDAGraph.__module__ = plain.__qualname__, plain.__module__
    return CUDAGraph
