#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on Escrow's memory gives the results of PyTorch on its own, and gives the memory back."""
import functools
import json
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent


@functools.cache
def run(workload, mode):
    """In a process of its own: PyTorch's allocator cannot be changed twice."""
    done = subprocess.run([sys.executable, HERE / "workloads.py", workload, mode], capture_output=True, text=True,
                          timeout=300, check=False)
    if done.returncode != 0 or "escrow_torch_free" in done.stderr:
        raise AssertionError(f"{workload} {mode}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


class EscrowTorch(unittest.TestCase):
    def expect_all_back(self, result):
        left = result["left"]
        self.assertEqual(left["memory"]["bytes_in_graphs"], 0)
        self.assertEqual(left["deleter"]["leaked"], 0)
        self.assertEqual(left["deleter"]["errors"], 0)
        self.assertLess(left["memory"]["bytes_in_use"], 1 << 16)  # the state of random generators

    def test_training_has_the_same_losses(self):
        native = run("train", "native")["values"]
        for mode in ("installed", "outliving", "pool"):
            with self.subTest(mode):
                result = run("train", mode)
                for mine, expected in zip(result["values"], native, strict=True):
                    self.assertAlmostEqual(mine, expected, delta=1e-4 * max(1.0, abs(expected)))
                self.expect_all_back(result)

    def test_graphs_have_the_right_results_until_their_last_launch(self):
        for mode in ("native", "installed", "grouped", "pool"):
            with self.subTest(mode):
                result = run("graphs", mode)
                self.assertLess(result["worst"], 1e-3)  # not a number fails, too
                if mode != "native":
                    self.expect_all_back(result)

    def test_graphs_of_a_group_need_about_what_pytorchs_shared_pool_does(self):
        grouped, native = run("graphs", "grouped")["bytes"], run("graphs", "native")["bytes"]
        print(f"sixty graphs: {grouped} bytes in a group, {native} in PyTorch's shared pool, "
              f"{run('graphs', 'installed')['bytes']} without sharing")
        self.assertLess(grouped, 1.5 * native)
        self.assertLess(grouped, run("graphs", "installed")["bytes"] / 4)

    def test_out_of_memory_is_an_error_that_says_so(self):
        for mode, kind in (("installed", "RuntimeError"), ("pool", "OutOfMemoryError")):
            with self.subTest(mode):
                result = run("out_of_memory", mode)
                self.assertIn("out of memory", result["error"])
                self.assertEqual(result["type"], kind)
                self.assertEqual(result["sum"], 1000)


if __name__ == "__main__":
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed")
        sys.exit(77)
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        sys.exit(77)
    unittest.main()
