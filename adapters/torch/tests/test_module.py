#!/usr/bin/env python3
"""The Python module's calls, on the simulated runtime and without PyTorch."""
import ctypes
import sys
import time
import unittest

sys.modules["torch"] = None  # its CUDA runtime would take the simulated one's place
import escrow_torch  # noqa: E402

POINTER = ctypes.c_void_p
SIZE = 1 << 20


class Module(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = ctypes.CDLL(escrow_torch.library_path())
        cls.library.escrow_torch_allocate.restype = POINTER
        cls.library.escrow_torch_allocate.argtypes = (ctypes.c_size_t, ctypes.c_int, POINTER)
        cls.library.escrow_torch_free.argtypes = (POINTER, ctypes.c_size_t, ctypes.c_int, POINTER)
        escrow_torch.configure(0, label="net", group="decode", bytes_max=1 << 30)

    def cuda(self, name, *arguments):
        self.assertEqual(getattr(self.library, name)(*arguments), 0, name)

    def made(self, name, *arguments):
        """What a call creates whose first argument is the place for it."""
        handle = POINTER()
        self.cuda(name, ctypes.byref(handle), *arguments)
        return handle

    def captured(self, stream):
        self.cuda("cudaStreamBeginCapture", stream, 0)
        memory = self.library.escrow_torch_allocate(SIZE, 0, stream)
        self.cuda("cudaMemsetAsync", POINTER(memory), 1, ctypes.c_size_t(SIZE), stream)
        self.library.escrow_torch_free(memory, SIZE, 0, stream)
        graph = POINTER()
        self.cuda("cudaStreamEndCapture", stream, ctypes.byref(graph))
        return graph

    def test_graphs_take_turns_and_give_their_memory_back(self):
        stream = self.made("cudaStreamCreateWithFlags", 1)
        graphs = [self.captured(stream) for _ in range(3)]
        held = [escrow_torch._Held(graph, lambda: stream) for graph in graphs]
        execs = [self.made("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0)) for graph in graphs]
        for _ in range(5):
            for each, launched in zip(held, execs):
                each.enter()
                self.cuda("cudaGraphLaunch", launched, stream)
                each.leave()
        self.assertEqual(escrow_torch.stats(0)["memory"]["bytes_in_graphs"], SIZE)
        self.assertEqual(escrow_torch.stats(0)["group"]["launches"], 15)
        for graph, launched in zip(graphs, execs):
            self.cuda("cudaGraphExecDestroy", launched)
            self.cuda("cudaGraphDestroy", graph)
        self.assertEqual(escrow_torch.stats()["group"]["launches"], 15)  # of device 0 without PyTorch
        held[0].enter()  # a launch that fails is followed by no leave()
        held[0].enter()
        held[0].leave()
        del each
        held.clear()
        self.cuda("cudaDeviceSynchronize")
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
        stream = self.made("cudaStreamCreateWithFlags", 1)
        memory = self.library.escrow_torch_allocate(SIZE, 0, stream)
        with self.assertRaisesRegex(RuntimeError, "configure before the first allocation"):
            escrow_torch.configure(0)
        self.library.escrow_torch_free(memory, SIZE, 0, stream)


if __name__ == "__main__":
    unittest.main()
