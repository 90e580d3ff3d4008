#!/usr/bin/env python3
"""The Python module's calls, on the simulated runtime and without PyTorch."""
import ctypes
import sys
import time
import unittest

sys.modules["torch"] = None  # its CUDA runtime would take the simulated one's place
import escrow_torch  # noqa: E402
from fake_torch import Stream, check, library, made, use_memory  # noqa: E402

SIZE = 1 << 20


def captured(stream):
    graph = ctypes.c_void_p()
    check("cudaStreamBeginCapture", stream, 0)
    use_memory(stream.value, SIZE)
    check("cudaStreamEndCapture", stream, ctypes.byref(graph))
    return graph


class Module(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        escrow_torch.configure(0, label="net", group="decode", bytes_max=1 << 30)
        cls.stream = ctypes.c_void_p(Stream().cuda_stream)

    def test_graphs_take_turns_and_give_their_memory_back(self):
        stream = self.stream
        graphs = [captured(stream) for _ in range(3)]
        held = [escrow_torch._Held(graph, lambda: stream) for graph in graphs]
        execs = [made("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0)) for graph in graphs]
        for _ in range(5):
            for each, launched in zip(held, execs):
                each.enter()
                check("cudaGraphLaunch", launched, stream)
                each.leave()
        self.assertEqual(escrow_torch.stats(0)["memory"]["bytes_in_graphs"], SIZE)
        self.assertEqual(escrow_torch.stats(0)["group"]["launches"], 15)
        for graph, launched in zip(graphs, execs):
            check("cudaGraphExecDestroy", launched)
            check("cudaGraphDestroy", graph)
        self.assertEqual(escrow_torch.stats()["group"]["launches"], 15)  # of device 0 without PyTorch
        held[0].enter()  # a launch that fails is followed by no leave()
        held[0].enter()
        held[0].leave()
        del each
        held.clear()
        check("cudaDeviceSynchronize")
        freed = 0
        end = time.monotonic() + 10
        while freed == 0 and time.monotonic() < end:  # the worker sees the end of the launches
            time.sleep(0.001)
            freed = escrow_torch.trim(0)
        self.assertEqual(freed, SIZE)
        self.assertEqual(escrow_torch.stats(0)["deleter"]["leaked"], 0)

    def test_errors_say_what_to_do(self):
        with self.assertRaisesRegex(RuntimeError, "pass the index of a device"):
            escrow_torch.stats(-1)
        memory = library.escrow_torch_allocate(SIZE, 0, self.stream)
        with self.assertRaisesRegex(RuntimeError, "configure before the first allocation"):
            escrow_torch.configure(0)
        library.escrow_torch_free(memory, SIZE, 0, self.stream)


if __name__ == "__main__":
    unittest.main()
