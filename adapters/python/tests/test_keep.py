#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package on the simulated runtime: objects that graphs keep, the interpreter's end, and the stub."""

import ast
import os
import pathlib
import subprocess
import sys
import threading
import unittest

from world import Stream, Thing, capture, thing, wait_until

import escrow
from escrow import _escrow


class Kept(unittest.TestCase):
    def setUp(self):
        self.stream = Stream()

    def test_a_graph_keeps_an_object_until_its_last_launch(self):
        its, weak = thing()
        with capture(self.stream) as captured:
            self.assertIs(escrow.keep(its, self.stream), its)
        del its
        exec_ = escrow.GraphExec(captured[0])
        captured[0].destroy()
        go_on = threading.Event()
        keep_alive = self.stream.host_function(go_on.wait)
        exec_.launch(self.stream)
        exec_.close()
        self.assertFalse(escrow.drain(0.05))
        self.assertIsNotNone(weak())
        go_on.set()
        self.assertTrue(wait_until(lambda: weak() is None))
        del keep_alive

    def test_a_stream_keeps_an_object_until_its_work_is_done(self):
        for keep in (escrow.keep, escrow.retire):
            its, weak = thing()
            go_on = threading.Event()
            keep_alive = self.stream.host_function(go_on.wait)
            keep(its, self.stream)
            del its
            self.assertIsNotNone(weak())
            go_on.set()
            self.assertTrue(wait_until(lambda: weak() is None))  # noqa: B023
            del keep_alive

    def test_what_cannot_be_kept_is_not_held(self):
        its, weak = thing()
        with self.assertRaises(TypeError):
            escrow.keep(its, "no stream")
        del its
        self.assertIsNone(weak())
        self.assertIsNone(escrow.keep(None, self.stream))

    def test_an_objects_end_may_use_escrow_but_not_wait_for_itself(self):
        seen = []

        class Uses:
            def __del__(self):
                pool = escrow.ScratchPool()
                pool.claim(0, 1).release()
                try:
                    escrow.drain(1)
                except escrow.UsageError as error:
                    seen.append(str(error))

        escrow.retire(Uses(), self.stream)
        self.assertTrue(wait_until(lambda: seen))
        self.assertIn("drain: it is called while a kept object ends", seen[0])

    def test_many_captures_on_many_threads_lose_nothing(self):
        rounds, workers = int(os.environ.get("ESCROW_KEEP_ROUNDS", "250")), 4
        early = []

        def work():
            stream = Stream()

            for _ in range(rounds):
                thing_, seen = thing()
                with capture(stream) as captured:
                    escrow.keep(thing_, stream)
                del thing_
                exec_ = escrow.GraphExec(captured[0])
                captured[0].destroy()
                exec_.launch(stream, 2)
                early.append(seen() is None)
                exec_.close()

        before = Thing.living
        threads = [threading.Thread(target=work) for _ in range(workers)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual((len(early), any(early)), (rounds * workers, False))
        self.assertTrue(wait_until(lambda: Thing.living == before), Thing.living - before)
        self.assertEqual(escrow.stats()["worker"]["leaked"], 0)


class Interpreter(unittest.TestCase):
    def run_python(self, program):
        result = subprocess.run(
            [sys.executable, "-c", program],
            cwd=pathlib.Path(__file__).parent,
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_ends_while_graphs_and_streams_keep_objects(self):
        program = """
import atexit, collections, threading, time
import escrow
from world import Stream, capture
class Speaks:
    def __init__(self, name): self.name = name
    def __del__(self): print(self.name, flush=True)
stream = Stream()
with capture(stream) as captured:
    escrow.keep(Speaks("of a graph"), stream)
collections.exec_ = escrow.GraphExec(captured[0])  # ends with the interpreter's modules
captured[0].destroy()
escrow.retire(Speaks("of a stream"), stream)
escrow.drain(10)
pools = [escrow.ScratchPool() for _ in range(3)]
collections.lease = pools[0].claim(stream, 1)
def destroy():
    while True:
        with capture(stream2) as other: escrow.keep(object(), stream2)
        other[0].destroy()
stream2 = Stream()
threading.Thread(target=destroy, daemon=True).start()
time.sleep(0.1)
"""
        for _ in range(5):
            self.assertEqual(self.run_python(program), "of a stream\n")

    def test_a_forked_child_ends(self):
        program = """
import os, sys
import escrow
from world import Stream
stream = Stream()
for _ in range(15):
    for _ in range(20): escrow.retire([1], stream)
    stream.synchronize()
    child = os.fork()
    if child == 0: sys.exit(0)
    os.waitpid(child, 0)
"""
        self.run_python(program)

    def test_works_in_the_main_interpreter_alone(self):
        program = """
import _xxsubinterpreters as other, escrow
try:
    other.run_string(other.create(), "import escrow")
except other.RunFailedError as error:
    print(error)
escrow.ScratchPool(label="main").describe()
"""
        if sys.version_info >= (3, 13):
            self.skipTest("_xxsubinterpreters is of CPython before 3.13")
        self.assertIn("main interpreter alone", self.run_python(program))

    def test_the_stub_names_what_is_there(self):
        source = pathlib.Path(escrow.__file__).with_name("_escrow.pyi").read_text()
        tree = {
            each.name: each
            for each in ast.parse(source).body
            if isinstance(each, (ast.ClassDef, ast.FunctionDef))
        }
        told = set(tree) - {"HasCudaStream", "HasHandle", "_Memory"}
        there = {
            name for name in dir(_escrow) if callable(getattr(_escrow, name)) and not name.startswith("__")
        }
        self.assertEqual(told, there)
        shared = [each.name for each in tree["_Memory"].body if isinstance(each, ast.FunctionDef)]
        for name in ("ScratchPool", "StreamAllocator", "Lease", "Group", "GraphExec", "Hoisted"):
            methods = [each.name for each in tree[name].body if isinstance(each, ast.FunctionDef)]
            methods += shared if name in ("ScratchPool", "StreamAllocator") else []
            there = {
                each for each in vars(getattr(_escrow, name)) if not each.startswith("_") or each in methods
            }
            self.assertEqual(set(methods), there, name)

    def test_all_is_documented(self):
        for name in escrow.__all__:
            its = getattr(escrow, name)
            if isinstance(its, (str, int)):
                continue
            self.assertTrue(its.__doc__, name)
            for method in vars(its) if isinstance(its, type) and not issubclass(its, Exception) else ():
                if not method.startswith("_"):
                    self.assertTrue(getattr(its, method).__doc__, f"{name}.{method}")


if __name__ == "__main__":
    unittest.main()
