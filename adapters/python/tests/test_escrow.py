#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package on the simulated runtime: memory, groups and execs."""

import gc
import threading
import unittest
import weakref

from world import MIB, POINTER, Stream, capture, check, wait_until

import escrow


class Memory(unittest.TestCase):
    def setUp(self):
        self.stream = Stream()

    def test_a_lease_ends_with_its_block(self):
        pool = escrow.ScratchPool(label="solver", track_leases=True)
        with pool.claim(self.stream, 1000) as lease:
            self.assertTrue(lease)
            self.assertEqual((lease.ptr % 256, lease.size, lease.stream), (0, 1000, self.stream))
            self.assertIn(f"a lease holds 1 for 0 ms, since the claim at {__file__}", pool.describe())
            self.stream.memset(lease.ptr, 1000)
        self.assertFalse(lease)
        for use in (lambda: lease.ptr, lease.release, lambda: lease.record_stream(self.stream)):
            with self.assertRaisesRegex(escrow.UsageError, "the lease has ended; claim again"):
                use()
        self.assertEqual(pool.stats()["bytes_in_use"], 0)
        self.stream.synchronize()
        self.assertEqual(pool.trim(), 1024)

    def test_a_lease_ends_as_an_object_and_on_another_stream(self):
        pool = escrow.ScratchPool()
        lease = pool.claim(self.stream.handle, 1)
        address = lease.ptr
        del lease
        again = pool.claim(self.stream, 1)
        self.assertEqual(again.ptr, address)
        other = Stream()
        again.record_stream(other)
        again.release(other)
        self.assertEqual(pool.stats()["bytes_in_use"], 0)

    def test_the_error_of_a_block_is_the_one_to_see(self):
        pool = escrow.ScratchPool()
        with self.assertRaisesRegex(ValueError, "of the block"), pool.claim(self.stream, 1):
            raise ValueError("of the block")
        with self.assertRaises(ValueError), pool.claim(self.stream, 1) as lease:
            lease.release()
            raise ValueError
        self.assertEqual(pool.stats()["bytes_in_use"], 0)

    def test_errors_have_types_and_say_what_to_do(self):
        pool = escrow.ScratchPool(label="small", bytes_max=1024)
        kept = pool.claim(self.stream, 1024)
        with self.assertRaisesRegex(escrow.PoolExhausted, r"^ScratchPool\.claim: .*small") as caught:
            pool.claim(self.stream, 1024)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertIsInstance(caught.exception, escrow.EscrowError)
        with self.assertRaises(escrow.OutOfMemory) as caught:
            escrow.ScratchPool().claim(self.stream, 1 << 39)
        self.assertEqual((caught.exception.status, caught.exception.name), (2, "cudaErrorMemoryAllocation"))
        with self.assertRaises(escrow.CudaError) as caught:
            escrow.ScratchPool(device=1000)
        self.assertEqual(caught.exception.name, "cudaErrorInvalidDevice")
        for stream in ("a stream", 1.5j, object()):
            with self.assertRaisesRegex(TypeError, "__cuda_stream__"):
                pool.claim(stream, 1)
        with self.assertRaisesRegex(TypeError, "incompatible function arguments"):
            escrow.ScratchPool(byte_max=1)
        with self.assertRaises((OverflowError, TypeError)):
            pool.claim(self.stream, -1)
        self.assertEqual(pool.close(), 1)
        with self.assertRaisesRegex(escrow.UsageError, "close"):
            pool.claim(self.stream, 1)
        kept.release()

    def test_a_graph_keeps_memory_of_its_capture(self):
        pool = escrow.ScratchPool()
        with capture(self.stream) as captured, pool.claim(self.stream, MIB) as lease:
            address = lease.ptr
            self.stream.memset(address, MIB)
        with pool.claim(self.stream, MIB) as other:
            self.assertNotEqual(other.ptr, address)
        self.assertEqual(pool.stats()["bytes_in_graphs"], MIB)
        exec_ = escrow.GraphExec(captured[0])
        captured[0].destroy()
        self.assertTrue(exec_.is_bare)
        exec_.launch(self.stream, 3)
        exec_.close()
        with self.assertRaisesRegex(escrow.UsageError, "GraphExec.launch: it was closed"):
            exec_.launch(self.stream)
        self.assertTrue(wait_until(lambda: pool.stats()["bytes_in_graphs"] == 0))

    def test_memory_for_the_host_and_kept(self):
        pool = escrow.ScratchPool(pinned_host=True)
        with pool.claim_for_host(self.stream, 10) as lease, pool.claim_kept(self.stream, 10) as other:
            self.assertNotEqual(lease.ptr, other.ptr)
        stream = Stream()
        lasting = escrow.ScratchPool(streams_outlive_pool=True)
        lasting.claim(stream, MIB).release()
        self.assertEqual(lasting.trim(), 0)
        lasting.flush(stream)
        stream.synchronize()
        self.assertEqual(lasting.trim(), MIB)

    def test_python_runs_while_a_claim_waits(self):
        pool, other, ran = escrow.ScratchPool(slots_max=1), Stream(), []
        lease = pool.claim(self.stream, 1)
        keep_alive = self.stream.host_function(lambda: ran.append(True))  # takes the GIL
        lease.release()
        with pool.claim_for_host(other, 1):
            self.assertEqual(ran, [True])
        del keep_alive

    def test_an_array_interface(self):
        with escrow.ScratchPool().claim(0, 8) as lease:
            interface = lease.__cuda_array_interface__
        self.assertEqual((interface["shape"], interface["typestr"], interface["stream"]), ((8,), "|u1", 1))

    def test_an_allocator_frees_by_address(self):
        allocator = escrow.StreamAllocator(label="by address")
        address = allocator.allocate(self.stream, 1000, alignment=1024)
        self.assertEqual(address % 1024, 0)
        self.assertTrue(allocator.is_allocated(address))
        other = Stream()
        allocator.record_stream(other, address)
        allocator.free(self.stream, address)
        self.assertFalse(allocator.is_allocated(address))
        with self.assertRaisesRegex(escrow.UsageError, "^StreamAllocator.free: "):
            allocator.free(self.stream, address)
        with self.assertRaisesRegex(escrow.UsageError, "`alignment` is 3; pass a power of two"):
            allocator.allocate(self.stream, 1, 3)
        kept, host = allocator.allocate_kept(self.stream, 1), allocator.allocate_for_host(self.stream, 1)
        allocator.free(self.stream, kept)
        allocator.free(self.stream, host)
        allocator.free(self.stream, 0)
        self.assertEqual(allocator.device, 0)

    def test_reports_are_of_the_process(self):
        before = escrow.stats()["memory"]
        pool = escrow.ScratchPool(label="to report")
        with pool.claim(self.stream, MIB):
            now = escrow.stats()["memory"]
            self.assertEqual(now["bytes_in_use"], before["bytes_in_use"] + MIB)
            self.assertGreaterEqual(now["pools"], 1)
            self.assertIn("to report", [each["label"] for each in escrow.report()["pools"]])
            self.assertIn('"to report"', escrow.describe())
        self.stream.synchronize()
        self.assertGreaterEqual(escrow.trim(0), MIB)
        self.assertEqual(pool.stats()["bytes"], 0)
        self.assertEqual(escrow.stats(1000)["memory"]["pools"], 0)


class Groups(unittest.TestCase):
    def test_eager_work_and_graphs_share_memory_in_turn(self):
        stream, group = Stream(), escrow.Group("engine", streams_outlive_group=True)
        pool = escrow.ScratchPool(group=group)

        def work():
            with pool.claim(stream, MIB) as lease:
                stream.memset(lease.ptr, MIB)
            return lease.size

        self.assertEqual(group.run(stream, work), MIB)
        with capture(stream) as captured:
            work()
        held = escrow.Hoisted(captured[0])
        exec_ = escrow.GraphExec(captured[0])
        self.assertEqual(held.launch(stream, lambda: exec_.handle) > 0, True)
        captured[0].destroy()
        stats = group.stats()
        self.assertEqual((group.label, stats["bytes"], stats["launches"]), ("engine", 2 * MIB, 2))
        with self.assertRaises(ZeroDivisionError):
            group.run(stream, lambda: 1 / 0)
        with self.assertRaisesRegex(escrow.UsageError, "inside"):
            group.run(stream, lambda: group.run(stream, work))
        exec_.close()
        held.release(stream)
        with self.assertRaisesRegex(escrow.UsageError, "closed"):
            held.release()
        self.assertTrue(wait_until(lambda: pool.stats()["bytes_in_graphs"] == 0))

    def test_a_group_is_parked(self):
        stream, group = Stream(), escrow.Group("sleeps")
        pool = escrow.ScratchPool(group=group)
        stream.begin()
        pool.claim(stream, MIB).release()
        graph = stream.end()
        exec_ = escrow.GraphExec(graph)
        graph.destroy()
        exec_.launch(stream)
        with self.assertRaisesRegex(escrow.UsageError, "^Group.unpark: "):
            group.unpark()
        self.assertEqual(group.park(keep_contents=True), 2 * MIB)
        self.assertTrue(group.stats()["is_parked"])
        with self.assertRaisesRegex(escrow.UsageError, "parked"):
            exec_.launch(stream)
        self.assertEqual(group.unpark(), 2 * MIB)
        exec_.launch(stream)
        exec_.close()
        self.assertTrue(wait_until(lambda: pool.stats()["bytes_in_graphs"] == 0))

    def test_another_threads_launch_is_waited_for(self):
        one, two, group = Stream(), Stream(), escrow.Group()
        inside, go_on = threading.Event(), threading.Event()

        def work():
            inside.set()
            go_on.wait(10)

        other = threading.Thread(target=lambda: group.run(one, work))
        other.start()
        inside.wait(10)
        with self.assertRaises(escrow.GroupBusy) as caught:
            group.run(two, lambda: None, wait_max=0.01)
        self.assertIsInstance(caught.exception, TimeoutError)
        go_on.set()
        other.join()
        self.assertEqual(group.run(two, lambda: 7), 7)

    def test_a_captured_stream_is_refused(self):
        stream, pool = Stream(), escrow.ScratchPool()
        with capture(stream) as captured:
            pool.claim(stream, 1).release()
        exec_ = escrow.GraphExec(captured[0].handle)
        with capture(stream) as other:
            with self.assertRaisesRegex(escrow.UsageError, "`stream` is being captured"):
                exec_.launch(stream)
            with self.assertRaisesRegex(escrow.UsageError, "captured"):
                pool.flush(stream)
        exec_.update(captured[0])
        with self.assertRaisesRegex(TypeError, "`graph` is a str"):
            exec_.update("a graph")
        captured[0].destroy()
        other[0].destroy()



class Audits(unittest.TestCase):
    def test_a_lease_of_before_the_capture_is_found(self):
        stream, pool = Stream(), escrow.ScratchPool(label="early")
        early = pool.claim(stream, MIB)
        with capture(stream) as captured:
            stream.memset(early.ptr, MIB)
            with pool.claim(stream, MIB) as lease:
                stream.memset(lease.ptr, MIB)
        (found,) = escrow.audit(captured[0])
        self.assertEqual((found["what"], found["address"], found["kernel"]), ("not_held", early.ptr, None))
        self.assertRegex(found["text"], "early.*which a lease has")
        self.assertRegex(found["owner"], "early")
        early.release()
        (found,) = escrow.audit(captured[0].handle, bodies=[])
        self.assertRegex(found["text"], "where it is free")
        captured[0].destroy()
        with self.assertRaisesRegex(TypeError, "`graph`"):
            escrow.audit(None)


class Users(unittest.TestCase):
    """What programs did that somebody wrote who had read half a page."""

    def test_what_is_no_stream_is_refused_by_its_name(self):
        class Tells(Stream):
            def __init__(self, told):
                self.told = told

            def __cuda_stream__(self):
                return self.told

        pool = escrow.ScratchPool()
        for wrong in (None, 1.5, True, "0", Tells(None), Tells((0, None)), Tells((0,)), Tells((0, "1"))):
            with self.assertRaisesRegex(TypeError, "`stream`"):
                pool.claim(wrong, 10)
        with self.assertRaisesRegex(TypeError, "`stream`"):
            pool.flush(None)
        with self.assertRaisesRegex(TypeError, "`graph`"):
            escrow.GraphExec(None)
        with self.assertRaisesRegex(ValueError, "not a number"):
            escrow.ScratchPool(host_wait_max=float("nan"))

    def test_a_stream_ends_after_its_leases(self):
        pool, in_use_at_end = escrow.ScratchPool(), []

        class Owned(Stream):
            """As CuPy's: its end destroys the stream."""

            def __del__(self):
                in_use_at_end.append(pool.stats()["bytes_in_use"])
                check("cudaStreamDestroy", POINTER(self.handle))

        class Model:
            """Refers to itself, as an object with a bound method does."""

            def __init__(self):
                self.itself, self.stream = self, Owned()
                self.scratch = pool.claim(self.stream, MIB)

        lease = pool.claim(Owned(), MIB)
        del lease
        self.assertEqual(in_use_at_end, [0])
        Model()
        gc.collect()
        self.assertEqual(in_use_at_end, [0, 0])

    def test_all_may_be_referred_to_weakly(self):
        pool, stream = escrow.ScratchPool(), Stream()
        with pool.claim(stream, 1) as lease:
            for each in (pool, lease, escrow.Group(), escrow.StreamAllocator()):
                self.assertIs(weakref.ref(each)(), each)

    def test_a_file_name_may_be_no_text(self):
        program = compile("lease = pool.claim(stream, 1)", "of\udce9", "exec")
        values = {"pool": escrow.ScratchPool(track_leases=True), "stream": Stream()}
        exec(program, values)
        self.assertIn("of\\udce9", values["pool"].describe())


if __name__ == "__main__":
    unittest.main()
