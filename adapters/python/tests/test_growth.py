#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A library that replaces its workspace when a call needs more, while graphs that have captured the old one are launched."""

import unittest

from world import MIB, Stream, capture, wait_until

import escrow


class Growth(unittest.TestCase):
    def setUp(self):
        self.stream = Stream()
        self.pool = escrow.ScratchPool(label="workspaces")

    def work(self, size):
        """The library after: a claim in each call."""
        with self.pool.claim(self.stream, size) as workspace:
            self.stream.memset(workspace.ptr, size)
            return workspace.ptr

    def test_a_cached_one_leaves_the_graph_with_the_memory_of_others(self):
        cached = self.pool.claim(self.stream, 4 * MIB)
        with capture(self.stream) as captured:
            self.stream.memset(cached.ptr, 4 * MIB)  # by its address: the graph holds nothing
        in_graph = cached.ptr
        cached = self.pool.claim(self.stream, 16 * MIB)  # a longer prompt
        other = self.pool.claim(self.stream, 4 * MIB)
        self.assertEqual(other.ptr, in_graph)  # the graph's next launch would overwrite it
        captured[0].destroy()
        del cached

    def test_claims_harm_no_graph(self):
        with capture(self.stream) as captured:
            in_graph = self.work(4 * MIB)
        with escrow.GraphExec(captured[0]) as decode:
            captured[0].destroy()
            for step in range(20):
                decode.launch(self.stream)
                self.assertNotEqual(self.work((16 + step) * MIB), in_graph)  # a longer prompt
            self.assertEqual(self.pool.stats()["bytes_in_graphs"], 4 * MIB)
        self.stream.synchronize()
        self.assertTrue(wait_until(lambda: self.pool.stats()["bytes_in_graphs"] == 0))

    def test_a_cached_one_that_the_graph_keeps_is_safe(self):
        cached = self.pool.claim(self.stream, 4 * MIB)
        with capture(self.stream) as captured:
            self.stream.memset(cached.ptr, 4 * MIB)
            escrow.keep(cached, self.stream)
        in_graph = cached.ptr
        cached = self.pool.claim(self.stream, 16 * MIB)  # the last reference of the library's goes
        others = [self.pool.claim(self.stream, 4 * MIB) for _ in range(3)]
        self.assertNotIn(in_graph, [each.ptr for each in others])
        with escrow.GraphExec(captured[0]) as decode:
            captured[0].destroy()
            decode.launch(self.stream)
        self.stream.synchronize()
        del cached, others
        self.assertTrue(wait_until(lambda: self.pool.stats()["bytes_in_use"] == 0))


if __name__ == "__main__":
    unittest.main()
