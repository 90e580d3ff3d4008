# SPDX-License-Identifier: Apache-2.0
"""Tests of arena_svg.py: on the committed report, on tiny ones, and on what the example says: arena_svg_test.py [EXAMPLE]"""
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import arena_svg

ROOT = Path(__file__).resolve().parents[1]
FIGURE = ROOT / "docs/figures/arena"
EXAMPLE = sys.argv.pop() if len(sys.argv) > 1 else None
MIB = arena_svg.MIB


def claim(begin, end, claimed, released, where="a/b.cpp:7", **others):
    """In MiB."""
    return {"begin": int(begin * MIB), "end": int(end * MIB), "pool": "pool", "where": where, "claimed": claimed,
            "released": released, "is_leased": False, **others}


def report(*graphs, label="group"):
    all_graphs = [{"id": number, "extent": max(each["end"] for each in claims), "claims": claims}
                  for number, claims in enumerate(graphs, 1)]
    group = {"label": label, "device": 0, "bytes": 8 * MIB, "execs": 0, "graphs": all_graphs}
    return {"groups": [{**group, "label": "smaller", "bytes": 0, "graphs": []}, group]}


def drawn(made, *arguments):
    """The root of what the tool draws."""
    out = io.StringIO()
    with mock.patch("sys.stdin", io.StringIO(json.dumps(made))), contextlib.redirect_stdout(out):
        arena_svg.main(list(arguments))
    return ElementTree.fromstring(out.getvalue())


def of_class(root, kind):
    return [each for each in root.iter() if each.get("class") == kind]


def said(root):
    return " | ".join(each.text for each in root.iter() if each.tag.endswith("text") and each.text)


class CommittedTest(unittest.TestCase):
    def test_picture(self):
        made = json.loads(FIGURE.with_suffix(".json").read_text())
        self.assertEqual(arena_svg.svg(*arena_svg.chosen(made, None, [])), FIGURE.with_suffix(".svg").read_text(),
                         "run tools/arena_svg.py docs/figures/arena.json -o docs/figures/arena.svg")

    @unittest.skipIf(EXAMPLE is None, "no example is given")
    def test_example(self):
        label = 'de"code\\\n<é>'
        told = subprocess.run([EXAMPLE, label], capture_output=True, check=True).stdout
        made = json.loads(told)
        self.assertEqual(made["pools"][0]["label"], label)
        self.assertIn(label.replace("\n", ""), said(drawn(made)).replace("\n", ""))
        graph = made["groups"][0]["graphs"][0]
        committed = json.loads(FIGURE.with_suffix(".json").read_text())["groups"][0]["graphs"][0]
        for each in (*graph["claims"], *committed["claims"]):
            del each["pool"]  # the label
            each["where"] = Path(each["where"]).name
        self.assertEqual(graph["claims"], committed["claims"],
                         "run examples/arena_layout for docs/figures/arena.json, then tools/arena_svg.py")


class PanelTest(unittest.TestCase):
    def test_claims_lie_from_claim_to_release(self):
        root = drawn(report([claim(0, 4, 0, 3), claim(4, 8, 1, 2)]))
        first, second = of_class(root, "claim")
        width = arena_svg.WIDTH - arena_svg.LEFT - arena_svg.RIGHT
        self.assertAlmostEqual(float(first.get("x")), arena_svg.LEFT)
        self.assertAlmostEqual(float(first.get("width")), width * 3 / 4, 0)
        self.assertAlmostEqual(float(second.get("width")), width / 4, 0)
        for each in (first, second):
            self.assertAlmostEqual(float(each.get("height")), arena_svg.HEIGHT / 2, 0)
        self.assertLess(float(second.get("y")), float(first.get("y")))
        self.assertEqual(first[0].text, "pool: 4.0 MiB at 0, claimed at a/b.cpp:7")
        self.assertIn("b.cpp:7 | 4.0 MiB | pool", said(root))
        self.assertIn("at most 8.0 MiB in use at a time; the graph reaches 8.0 MiB", said(root))
        self.assertEqual(len(of_class(root, "line")), 1)
        self.assertEqual(of_class(root, "gap"), [])

    def test_gaps_are_hatched_while_something_is_above(self):
        root = drawn(report([claim(0, 4, 0, 2), claim(4, 8, 1, 4), claim(0, 1, 3, None)]))
        gaps = of_class(root, "gap")
        self.assertEqual([each[0].text for each in gaps], ["4.0 MiB unused", "3.0 MiB unused"])
        self.assertEqual(of_class(drawn(report([claim(0, 4, 0, 2), claim(0, 1, 3, 4)])), "gap"), [])
        root = drawn(report([claim(0, 2, 0, 2), claim(2, 4, 1, 5), claim(4, 5, 3, 4)]))
        self.assertIn("at most 4.0 MiB in use at a time; the graph reaches 5.0 MiB", said(root))
        self.assertEqual(len(of_class(root, "line")), 2)

    def test_what_was_not_released_lasts(self):
        root = drawn(report([claim(0, 1, 0, None, is_leased=True), claim(1, 2, 1, 2)]))
        leased, = of_class(root, "claim leased")
        self.assertAlmostEqual(float(leased.get("x")) + float(leased.get("width")), arena_svg.WIDTH - arena_svg.RIGHT, 0)
        self.assertIn("leased", leased[0].text)

    def test_without_an_order(self):
        root = drawn(report([claim(0, 1, None, None, where=None), claim(1, 2, None, None, where=None)]))
        self.assertEqual(len(of_class(root, "claim")), 2)
        self.assertIn("order of claims not known", said(root))

    def test_small_sizes(self):
        root = drawn(report([claim(0, 256 / MIB, 0, 1)]))
        self.assertIn("256 B", said(root))


class ChoiceTest(unittest.TestCase):
    def setUp(self):
        self.made = report([claim(0, 1, 0, 1)], [claim(0, 3, 0, 1)], [claim(0, 2, 0, 1)])

    def test_graphs(self):
        self.assertIn("Graph 2:", said(drawn(self.made)))
        some = said(drawn(self.made, "--graph", "3", "--graph", "1"))
        self.assertLess(some.index("Graph 3:"), some.index("Graph 1:"))
        self.assertNotIn("Graph 2:", some)

    def test_what_is_missing(self):
        for made, arguments, why in ((self.made, ["--graph", "7"], "has no graph 7, but 1, 2, 3"),
                                     (self.made, ["--group", "other"], "there is no group 'other'"),
                                     (self.made, ["--group", "smaller"], "no graph is in the arena"),
                                     ({"groups": []}, [], "no sharing group")):
            with self.assertRaises(SystemExit) as refused:
                drawn(made, *arguments)
            self.assertIn(why, str(refused.exception))

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "report.json", Path(folder) / "out.svg"
            source.write_text(json.dumps(self.made))
            arena_svg.main([str(source), "-o", str(out)])
            self.assertIn("Graph 2:", said(ElementTree.fromstring(out.read_text())))


if __name__ == "__main__":
    unittest.main()
