#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python module on the simulated runtime, with the part of PyTorch that it calls."""
import contextlib
import gc
import pathlib
import subprocess
import sys
import time
import unittest
import weakref

import fake_torch

sys.modules["torch"] = fake_torch
import escrow_torch  # noqa: E402

SIZE = 1 << 20


def captured(graph):
    with graph.capture():
        fake_torch.use_memory(fake_torch.stream_now.cuda_stream, SIZE)
    return graph


def launches():
    return escrow_torch.stats()["group"]["launches"]


def fail(_graph):
    raise ValueError("another hook")


def run_python(program):
    return subprocess.run([sys.executable, "-c", program], cwd=pathlib.Path(__file__).parent, capture_output=True,
                          text=True, timeout=60, check=True)


class GraphOfPyTorch(unittest.TestCase):
    kinds = (fake_torch.CUDAGraph, fake_torch.CUDAGraphWithHooks, fake_torch.CUDAGraphOf214)

    @classmethod
    def setUpClass(cls):
        escrow_torch.configure(group="decode", bytes_max=1 << 30)

    def wait_for_the_worker(self):
        """It sees the end of the launches, and then frees what no graph holds."""
        end = time.monotonic() + 10
        while any(escrow_torch.stats()["memory"][of] != 0 for of in ("bytes_in_graphs", "bytes_in_arena")):
            self.assertLess(time.monotonic(), end, escrow_torch.stats())
            time.sleep(0.001)

    def tearDown(self):
        self.wait_for_the_worker()
        self.assertEqual(escrow_torch.stats()["deleter"]["leaked"], 0)

    def each_kind(self):
        for kind in self.kinds:
            fake_torch.cuda.CUDAGraph = kind
            with self.subTest(kind.__name__):
                yield kind

    def test_launches_in_turn(self):
        for _ in self.each_kind():
            before = launches()
            first, second = captured(escrow_torch.Graph()), captured(escrow_torch.Graph())
            for graph in (first, second, first):
                graph.replay()
            self.assertEqual(launches() - before, 3)
            self.assertEqual(escrow_torch.stats()["group"]["unordered"], [])
            self.assertEqual(escrow_torch.stats()["group"]["bytes"], 2 * SIZE)  # memory is mapped in steps of 2 MiB
            self.assertEqual(escrow_torch.stats(0)["memory"]["bytes_in_arena"], 2 * SIZE)  # over each other
            del first, second, graph  # their releases are turns, too
            self.wait_for_the_worker()
        self.assertGreaterEqual(escrow_torch.trim(0), SIZE)

    def test_is_captured_before_its_launch(self):
        for _ in self.each_kind():
            with self.assertRaisesRegex(RuntimeError, "call capture"):
                escrow_torch.Graph().replay()
            graph = escrow_torch.Graph()
            with self.assertRaises(ValueError), graph.capture():
                fail(graph)
            with self.assertRaisesRegex(RuntimeError, "call capture"):
                graph.replay()

    def test_is_captured_again(self):
        for _ in self.each_kind():
            graph = captured(escrow_torch.Graph())
            graph.replay()
            graph.cuda_graph.reset()
            captured(graph).replay()

    def test_leaves_after_a_launch_that_fails(self):
        for kind in self.each_kind():
            graph, other = captured(escrow_torch.Graph()), captured(escrow_torch.Graph())
            if kind is not fake_torch.CUDAGraph:
                failing = graph.cuda_graph.register_replay_start_hook(fail)
                with self.assertRaisesRegex(ValueError, "another hook"):
                    graph.replay()
                other.replay()
                failing.remove()
            launched, graph.cuda_graph.exec = graph.cuda_graph.exec, fake_torch.POINTER()
            with self.assertRaisesRegex(RuntimeError, "cudaGraphLaunch"):
                graph.replay()
            other.replay()
            graph.cuda_graph.exec = launched
            graph.replay()

    def test_ends_in_the_turn_of_another(self):
        for _ in self.each_kind():
            graph, other = captured(escrow_torch.Graph()), captured(escrow_torch.Graph())
            graph.replay()
            with other.turn():
                del graph

    def test_leaves_on_the_stream_of_its_turn(self):
        first = fake_torch.stream_now
        for _ in self.each_kind():
            graph, ignored = captured(escrow_torch.Graph()), fake_torch.CUDAGraph(keep_graph=True)
            with graph.turn():
                with fake_torch.capture(ignored):
                    fake_torch.stream_now = fake_torch.Stream()
                    with self.assertRaisesRegex(RuntimeError, "inside its own launch"):  # the turn cannot end in the capture
                        graph.replay()
                    fake_torch.stream_now = first

    def test_keeps_results_from_other_graphs(self):
        for _ in self.each_kind():
            graph = escrow_torch.Graph()
            with graph.capture(), contextlib.suppress(ValueError), escrow_torch.kept():
                fake_torch.use_memory(fake_torch.stream_now.cuda_stream, SIZE)
                fail(graph)
            other = captured(escrow_torch.Graph())
            self.assertEqual(escrow_torch.stats()["memory"]["bytes_in_graphs"], SIZE)  # what is kept
            del graph, other
            self.tearDown()

    def test_parks_between_launches(self):
        for _ in self.each_kind():
            graph, idle = captured(escrow_torch.Graph()), captured(escrow_torch.Graph())
            graph.replay()
            self.assertGreaterEqual(escrow_torch.park(), 2 * SIZE)  # memory is mapped in steps of 2 MiB
            self.assertTrue(escrow_torch.stats()["group"]["is_parked"])
            for refused in (graph.replay, idle.replay, escrow_torch.park):
                with self.assertRaisesRegex(RuntimeError, 'group "decode" is parked'):
                    refused()
            self.assertEqual(escrow_torch.unpark(), 2 * SIZE)
            with self.assertRaisesRegex(RuntimeError, "is not parked"):
                escrow_torch.unpark()
            graph.replay()
            escrow_torch.park(0, keep_contents=True, wait_max=5)
            escrow_torch.unpark(0)
            idle.replay()
            del graph, idle, refused
            self.wait_for_the_worker()

    @contextlib.contextmanager
    def installed(self, graphs=None):
        """As in a PyTorch with hooks for all graphs."""
        fake_torch.cuda.CUDAGraph, fake_torch.cuda.graphs = fake_torch.CUDAGraphOf214, fake_torch.graphs
        try:
            escrow_torch.install(graphs)
            yield
        finally:
            escrow_torch.install(False)
            self.assertEqual((len(fake_torch.graphs.start_hooks), len(fake_torch.graphs.end_hooks)), (0, 0))
            del fake_torch.cuda.graphs

    @contextlib.contextmanager
    def replaced(self, graphs=True):
        """As in a PyTorch without."""
        escrow_torch.install(graphs)
        try:
            yield
        finally:
            escrow_torch.install(False)

    @staticmethod
    def captured_by_others(graph=None, **how):
        graph = graph or fake_torch.cuda.CUDAGraph()
        with fake_torch.cuda.graph(graph, **how):
            fake_torch.use_memory(fake_torch.stream_now.cuda_stream, SIZE)
        return graph

    def test_install_orders_the_graphs_of_others(self):
        with self.installed():
            before = launches()
            first, second, own = self.captured_by_others(), self.captured_by_others(), captured(escrow_torch.Graph())
            for graph in (first, second, own, first):
                graph.replay()
            self.assertEqual(launches() - before, 4)
            self.assertEqual(escrow_torch.stats()["group"]["unordered"], [])
            self.assertEqual(escrow_torch.stats()["group"]["bytes"], 2 * SIZE)
            escrow_torch.park()
            with self.assertRaisesRegex(RuntimeError, 'group "decode" is parked'):
                first.replay()  # refused by a hook of the graph itself
            escrow_torch.unpark()
            first.reset()
            self.captured_by_others(first).replay()  # its hooks of before are gone
            self.assertEqual(len(first.start_hooks), 1)
            self.assertEqual(launches() - before, 5)

    def test_install_leaves_alone_what_it_is_told_to(self):
        for graphs in (False, lambda graph: graph is chosen):
            with self.installed(graphs):
                before, chosen = launches(), fake_torch.cuda.CUDAGraph()
                for graph in (self.captured_by_others(), self.captured_by_others(chosen)):
                    graph.replay()
                self.assertEqual(launches() - before, 0 if graphs is False else 1)
                del graph, chosen
                self.wait_for_the_worker()
        with self.installed():
            self.captured_by_others(escrow_torch.exclude(fake_torch.cuda.CUDAGraph())).replay()
            self.assertEqual(launches() - before, 1)

    def test_install_refuses_the_launch_of_what_it_could_not_order(self):
        with self.installed(fail):
            graph = self.captured_by_others()
            with self.assertRaisesRegex(RuntimeError, "cannot be launched in turn: install.* raised .*another hook"):
                graph.replay()
            graph.reset()
        with self.installed():
            self.captured_by_others(graph).replay()
            graph.reset()
            for kept in (False, True):
                by_hand = self.captured_by_others(fake_torch.CUDAGraphOf214(keep_graph=kept), by_hand=True)
                with self.assertRaisesRegex(RuntimeError, "did not end by capture_end"):
                    by_hand.replay()
            seen = weakref.ref(by_hand)
            gc.disable()
            del by_hand  # no cycle keeps it
            self.assertIsNone(seen())
            gc.enable()

    def test_install_twice_is_as_once(self):
        with self.installed():
            escrow_torch.install()
            self.captured_by_others().replay()

    def test_install_orders_what_is_captured_twice_before_its_exec(self):
        with self.installed():
            graph = fake_torch.CUDAGraphOf214(keep_graph=True)
            self.captured_by_others(graph)
            fake_torch.check("cudaGraphDestroy", graph.graph)
            self.captured_by_others(graph)
            graph.replay()
            graph.replay()
            self.assertEqual(len(graph.start_hooks), 1)

    def test_install_lets_other_hooks_fail_outside_of_the_turn(self):
        with self.installed():
            graph, other = self.captured_by_others(), self.captured_by_others()
            for register in (graph.register_replay_start_hook, graph.register_replay_end_hook):
                failing = register(fail)
                with self.assertRaisesRegex(ValueError, "another hook"):
                    graph.replay()
                other.replay()
                failing.remove()
                graph.replay()

    def test_install_refuses_what_is_replayed_after_its_end(self):
        with self.installed():
            graph = self.captured_by_others()
            graph.finalizer()  # as atexit does
            with self.assertRaisesRegex(RuntimeError, "the interpreter ends"):
                graph.replay()

    def test_install_replaces_graphs_where_there_are_no_hooks(self):
        plain = fake_torch.cuda.CUDAGraph = fake_torch.CUDAGraph
        with self.replaced():
            before = launches()
            first, second, own = self.captured_by_others(), self.captured_by_others(), captured(escrow_torch.Graph())
            self.assertIsInstance(first, plain)
            for graph in (first, second, own, first):
                graph.replay()
            self.assertEqual(launches() - before, 4)
            self.assertEqual(escrow_torch.stats()["group"]["unordered"], [])
            with self.assertRaisesRegex(RuntimeError, "keep_graph=True"):
                first.raw_cuda_graph()
            escrow_torch.install(True)  # replaces the plain one, not its replacement
            self.assertIs(fake_torch.cuda.CUDAGraph.__mro__[1], plain)
            first.reset()
            self.captured_by_others(first).replay()
            self.captured_by_others(escrow_torch.exclude(fake_torch.cuda.CUDAGraph())).replay()
            self.assertEqual(launches() - before, 5)
            del graph, first, second, own
            self.wait_for_the_worker()
        self.assertIs(fake_torch.cuda.CUDAGraph, plain)
        with self.replaced(fail), self.assertRaisesRegex(ValueError, "another hook"):
            self.captured_by_others()
        with self.replaced():
            graph = fake_torch.cuda.CUDAGraph(keep_graph=True)
            graph.capture_begin()
            plain.capture_end(graph)
            with self.assertRaisesRegex(RuntimeError, "did not end by capture_end"):
                graph.replay()

    def test_may_live_as_long_as_the_interpreter(self):
        program = """
import collections, ctypes, test_graph
test_graph.escrow_torch.configure(group="decode")
collections.graph = test_graph.captured(test_graph.escrow_torch.Graph())
collections.graph.replay()
for module in (collections, test_graph.escrow_torch):  # so that the interpreter empties them
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
"""
        self.assertEqual(run_python(program).stderr, "")

    def test_errors_say_what_to_do(self):
        with self.assertRaisesRegex(RuntimeError, "pass the index of a device"):
            escrow_torch.stats(-1)
        captured(escrow_torch.Graph())
        with self.assertRaisesRegex(RuntimeError, "configure before the first allocation"):
            escrow_torch.configure(0)

    def test_needs_no_pytorch(self):
        run_python("""
import sys
sys.modules["torch"] = None
import escrow_torch
escrow_torch.configure(0, label="net", group="decode")
assert escrow_torch.stats()["group"]["launches"] == 0
""")


if __name__ == "__main__":
    unittest.main()
