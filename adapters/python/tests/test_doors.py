#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The doors to CuPy, Numba, cuda.core and PyTorch, each with a stand-in of that library."""

import importlib
import sys
import types
import unittest

from fakes import fake_cuda_core, fake_cupy, fake_numba
from world import MIB, Stream, capture, wait_until

import escrow


def door(name, **modules):
    """escrow.<name>, whose library is a stand-in."""
    sys.modules.update({key.replace("__", "."): its for key, its in modules.items()})
    return importlib.import_module("escrow." + name)


class CuPy(unittest.TestCase):
    def setUp(self):
        self.door = door("cupy", cupy=fake_cupy)
        self.allocator = self.door.Allocator(bytes_max=64 * MIB)
        fake_cupy.cuda.set_allocator(self.allocator)
        self.stream = fake_cupy.Stream()

    def in_graphs(self):
        return self.allocator.pool().stats()["bytes_in_graphs"]

    def test_an_array_ends_on_the_stream_of_its_allocation(self):
        with self.stream:
            array = fake_cupy.ndarray(1000)
        address = array.data.ptr
        with fake_cupy.Stream():
            del array
        with self.stream:
            third = fake_cupy.ndarray(1000)
        self.assertEqual(third.data.ptr, address)
        del third
        self.assertEqual(self.allocator.pool(0).stats()["bytes_in_use"], 0)

    def test_no_launch_overwrites_a_live_array(self):
        execs = []
        with self.stream:
            for _ in range(4):
                with capture(self.stream) as captured:
                    temporary = fake_cupy.ndarray(MIB)
                    del temporary
                execs.append((escrow.GraphExec(captured[0]), captured[0].destroy()))
            held = self.in_graphs()
            live = [fake_cupy.ndarray(MIB) for _ in range(12)]
            self.assertEqual(held, 4 * MIB)
            self.assertEqual(self.in_graphs(), held)
            self.assertEqual(len({each.data.ptr for each in live}), 12)
            self.assertEqual(self.allocator.pool().stats()["bytes"], 16 * MIB)  # no array in a graph's memory
            for each, _ in execs:
                each.launch(self.stream)
            execs.clear()
            del each
        self.assertTrue(wait_until(lambda: self.in_graphs() == 0))

    def test_a_limit_is_a_memory_error(self):
        with self.stream, self.assertRaisesRegex(MemoryError, "cupy"):
            held = [fake_cupy.ndarray(MIB) for _ in range(65)]
            del held

    def test_a_lease_is_known_by_the_line_that_makes_the_array(self):
        fake_cupy.cuda.set_allocator(self.door.Allocator(track_leases=True))
        with self.stream:
            array = fake_cupy.ndarray(MIB)
            self.assertRegex(escrow.describe(), r"fake_cupy\.py:\d+")
            del array

    def test_an_array_of_before_is_kept_for_a_graph(self):
        with self.stream:
            array = fake_cupy.ndarray(MIB)
            with capture(self.stream) as captured:
                self.stream.memset(array.data.ptr, MIB)
                escrow.keep(array, self.stream)
            del array
            self.assertTrue(escrow.drain(5))
            self.assertEqual(self.allocator.pool().stats()["bytes_in_use"], MIB)
            captured[0].destroy()
        self.assertTrue(wait_until(lambda: self.allocator.pool().stats()["bytes_in_use"] == 0))


class Numba(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        module = types.ModuleType("numba")
        module.cuda = fake_numba.cuda
        cls.door = door("numba", numba=module)
        cls.door.configure(label="numba's")
        fake_numba.cuda.set_memory_manager(cls.door.EscrowMemoryManager)
        cls.manager = fake_numba.cuda.manager

    def pool(self):
        return self.door._pool(0)

    def lease_of(self, memory):
        return next(each for each in self.manager.allocations.values() if each.ptr == memory.device_pointer)

    def test_memory_is_for_the_stream_of_the_block(self):
        stream = Stream()
        with self.door.on(stream):
            memory = self.manager.memalloc(1000)
            lease = self.lease_of(memory)
            self.assertIs(lease.stream, stream)
            with self.door.on(Stream()):
                pass
            second = self.manager.memalloc(1)
            self.assertIs(self.lease_of(second).stream, stream)
        del lease, memory, second
        self.assertEqual(self.pool().stats()["bytes_in_use"], 0)
        default = self.manager.memalloc(1)
        self.assertEqual(self.lease_of(default).stream, 0)
        self.assertIn("numba's", self.pool().describe())

    def test_a_graph_keeps_memory_of_its_capture(self):
        stream = Stream()
        with self.door.on(stream), capture(stream) as captured:
            memory = self.manager.memalloc(MIB)
            stream.memset(memory.device_pointer, MIB)
            del memory
        self.assertEqual(self.pool().stats()["bytes_in_graphs"], MIB)
        captured[0].destroy()
        self.assertTrue(wait_until(lambda: self.pool().stats()["bytes_in_graphs"] == 0))

    def test_the_end_of_an_array_of_before_a_reset_frees_no_other(self):
        stream = Stream()
        with self.door.on(stream):
            before = self.manager.memalloc(1000)
            self.manager.reset()
            now = self.manager.memalloc(1000)
            self.assertEqual(now.device_pointer, before.device_pointer)
            del before
            other = self.manager.memalloc(1000)
            self.assertNotEqual(now.device_pointer, other.device_pointer)

    def test_a_reset_ends_what_is_allocated(self):
        memory = self.manager.memalloc(1)
        self.manager.reset()
        self.assertEqual(self.pool().stats()["bytes_in_use"], 0)
        del memory

    def test_the_rest_of_the_interface(self):
        info = self.manager.get_memory_info()
        self.assertLessEqual(info.free, info.total)
        with self.assertRaisesRegex(NotImplementedError, "without the memory manager"):
            self.manager.get_ipc_handle(None)
        self.assertIs(self.door._numba_memory_manager, self.door.EscrowMemoryManager)


class CudaCore(unittest.TestCase):
    def setUp(self):
        self.door = door("cuda_core", cuda=types.ModuleType("cuda"), cuda__core=fake_cuda_core)
        self.resource = self.door.EscrowMemoryResource(types.SimpleNamespace(device_id=0))
        self.stream = Stream()

    def stats(self):
        return self.resource.allocator.stats()

    def test_a_buffer_ends_on_its_stream_or_on_another(self):
        buffer = self.resource.allocate(1000, stream=self.stream)
        self.assertEqual((buffer.size, buffer.device_id, int(buffer.handle) % 256), (1000, 0, 0))
        self.assertTrue(self.resource.is_device_accessible and not self.resource.is_host_accessible)
        buffer.close(Stream())
        buffer.close()
        second = self.resource.allocate(1000, stream=self.stream)
        del second
        self.assertEqual(self.stats()["bytes_in_use"], 0)

    def test_eager_work_and_captures_have_one_resource(self):
        eager = self.resource.allocate(MIB, stream=self.stream)
        with capture(self.stream) as captured:
            closed = self.resource.allocate(MIB, stream=self.stream)
            later = self.resource.allocate(MIB, stream=self.stream)
            escrow.keep(eager, self.stream)
            closed.close()
        self.assertEqual(self.stats()["bytes_in_graphs"], 2 * MIB)
        later.close()
        del eager
        exec_ = escrow.GraphExec(
            types.SimpleNamespace(handle=fake_cuda_core.DevicePointer(captured[0].handle))
        )
        captured[0].destroy()
        exec_.launch(self.stream)
        self.assertEqual(self.stats()["bytes_in_use"], MIB)  # what is kept
        exec_.close()
        self.assertTrue(
            wait_until(lambda: self.stats()["bytes_in_graphs"] + self.stats()["bytes_in_use"] == 0)
        )

    def test_what_cannot_be_a_buffer_is_freed(self):
        def fail(*_, **__):
            raise RuntimeError("no buffer")

        before, fake_cuda_core.Buffer.from_handle = fake_cuda_core.Buffer.from_handle, staticmethod(fail)
        with self.assertRaisesRegex(RuntimeError, "no buffer"):
            self.resource.allocate(1, stream=self.stream)
        fake_cuda_core.Buffer.from_handle = staticmethod(before)
        self.assertEqual(self.stats()["bytes_in_use"], 0)


class Torch(unittest.TestCase):
    def test_it_is_the_module_of_the_adapter(self):
        sys.modules["torch"] = None
        its = door("torch")
        import escrow_torch

        self.assertIs(its.Graph, escrow_torch.Graph)
        self.assertEqual(set(its.__all__), set(escrow_torch.__all__))
        enter, leave = escrow_torch._turn_calls()  # of the compiled module
        with self.assertRaisesRegex(RuntimeError, "is null"):
            enter(None, 0)
        with self.assertRaisesRegex(RuntimeError, "is null"):
            leave(None)
        its.configure(0, label="net", group="decode")
        self.assertEqual(its.stats(0)["group"]["launches"], 0)


if __name__ == "__main__":
    unittest.main()
