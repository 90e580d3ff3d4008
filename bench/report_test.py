# SPDX-License-Identifier: Apache-2.0
"""Tests of the scripts that read the benches' results: on the committed run, and on tiny samples."""
import contextlib
import io
import json
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import cuda_core
import report
import run
from report import Measured, NotMeasured

BENCH = Path(__file__).parent
COMMITTED = BENCH / "results/h100"


def runs(name, *values, **counters):
    """The rows that Google Benchmark writes for one benchmark: its repetitions, and a median."""
    common = {"name": f"{name}/iterations:3/manual_time", "time_unit": "us", "family_index": 0, **counters}
    return [*({**common, "run_type": "iteration", "real_time": value} for value in values),
            {**common, "run_type": "aggregate", "real_time": 1e9}]


class JoinTest(unittest.TestCase):
    def test_takes_the_repetitions_of_all(self):
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"one_bench.{number}.json" for number in range(3)]
            for number, file in enumerate(files):
                rows = runs("claim", 1 + number, 1 + number, kind=number)
                file.write_text(json.dumps({"context": {"device": str(number)}, "benchmarks": rows}))
                report.shorten(file)
            joined = Path(folder) / "one_bench.json"
            report.join(files, joined)
            for file in files:
                file.unlink()
            measured = Measured(Path(folder))
            self.assertEqual(measured.values("claim"), [1, 1, 2, 2, 3, 3])
            self.assertEqual(measured("claim"), 2)
            self.assertEqual(measured.context["device"], "0")


class CommittedTest(unittest.TestCase):
    """What is committed is what the scripts make of the committed repetitions and summary."""

    def setUp(self):
        self.measured = Measured(COMMITTED)
        self.summary = json.loads((COMMITTED / "summary.json").read_text())

    def test_summary(self):
        self.assertEqual(report.summarize(self.measured), self.summary, "run bench/report.py summary bench/results/h100")

    def test_page(self):
        page = (BENCH.parent / "docs/performance.md").read_text()
        self.assertEqual(report.page_with(page, self.summary), page, "run bench/report.py page")
        with self.assertRaises(SystemExit):
            report.page_with("no marks", self.summary)

    def test_each_missed_goal_has_its_value_and_a_reason(self):
        page = (BENCH.parent / "docs/performance.md").read_text()
        section = page.split("## Goals that are missed, and why")[1].split("\n## ")[0]
        missed = {name: report.shown(each["value"]) for name, each in self.summary.items()
                  if isinstance(each, dict) and report.verdict(each) == "no"}
        self.assertGreater(len(missed), 9)
        for name, value in missed.items():
            self.assertRegex(section, rf"(?<![\d.]){re.escape(value)}(?![\d])", name)

    def test_readme(self):
        """Its times and ratios are those of the page, perhaps with fewer digits."""
        number = re.compile(r"(?<![\w.-])\d+\.\d+(?!\w|\.\d)")
        known = [float(each) for each in number.findall((BENCH.parent / "docs/performance.md").read_text())]
        found = [each for line in (BENCH.parent / "README.md").read_text().splitlines()
                 if re.search(r"\bus\b|of the time|allocator|host time", line) for each in number.findall(line)]
        self.assertGreater(len(found), 14)
        for each in found:
            digits = len(each.split(".")[1])
            self.assertIn(float(each), [round(value, digits) for value in known])

    def test_plots(self):
        for file, svg in report.plots(self.measured).items():
            self.assertEqual((COMMITTED / file).read_text(), svg, file)


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def measured(self, context=None, **programs):
        """What a folder says that has these results of programs."""
        for program, rows in programs.items():
            result = rows if isinstance(rows, dict) else {"context": context or {}, "benchmarks": rows}
            (self.folder / f"{program}_bench.json").write_text(json.dumps(result))
        return Measured(self.folder)

    def test_figures_have_medians_goals_and_noise_or_no_value(self):
        rows = [*runs("claim_turns/escrow_over_floor/on_threads:1", 0.25, 0.25, of_base=1.25),
                *runs("claim_turns/escrow_over_floor/on_threads:1", 0.9, of_base=1.9)]
        relaunch = [*runs("run_ahead/escrow", 1.0, launches=1000), *runs("run_ahead/bare", 1.0, launches=1029)]
        summary = report.summarize(self.measured(claim=rows, relaunch=relaunch))
        self.assertEqual(summary["claim_over_floor_1t"], {"value": 1.25, "goal": "<= 1.3", "unit": "ratio"})
        self.assertEqual((summary["run_ahead"]["noise"], report.verdict(summary["run_ahead"])), (1029, "no"))
        self.assertFalse(report.is_met(1, "= 0"))
        text = report.markdown(summary, report.TABLES["claim"])
        self.assertIn("| claim and release over the floor | 1 thread 1.25, 8 threads not measured | <= 1.3 |", text)

    def test_a_simulated_run_says_so(self):
        self.assertIn("SIMULATED", self.measured({"runtime": "simulated"}, claim=[]).origin())

    def printed(self, context, **programs):
        self.measured(context, **programs)
        with contextlib.redirect_stdout(io.StringIO()) as text:
            report.report(self.folder, False)
        return text.getvalue().splitlines()

    def test_four_lines_of_verdict_come_first_and_tables_have_titles(self):
        k8 = "kernels:8"
        rows = [*runs(f"relaunch/escrow/{k8}", 2.0, host_of_bare=1.2, host_burst_us=2, host_us=2, throughput_of_bare=1),
                *runs(f"relaunch/user_object/{k8}", 8.5, host_burst_us=5, host_us=9, bare_us=7),
                *runs("run_ahead/escrow", 1.0, launches=1020), *runs("run_ahead/user_object", 1.0, launches=28)]
        lines = self.printed({"runtime": "cuda", "device": "a GPU"}, relaunch=rows)
        self.assertEqual(lines[0], "A launch with owners takes the host 1.2 times as long as the bare graph's.")
        self.assertEqual(lines[1], "With CUDA's user object it takes 2.5 times as long as with Escrow, and the GPU 1.5 us more.")
        self.assertEqual(lines[2], "The host can be 1020 launches ahead; with CUDA's user object 28.")
        self.assertTrue(lines[3].startswith("Measured on a GPU"), lines[3])
        self.assertIn("Relaunches: time on the GPU", lines)
        self.assertEqual(report.TITLES.keys(), report.TABLES.keys())

    def test_a_simulated_run_prints_no_figures(self):
        context = {"runtime": "simulated", "skipped_arms": "pytorch: not built"}
        lines = self.printed(context, relaunch=runs("run_ahead/escrow", 1.0, launches=1020))
        self.assertEqual(lines, ["All benchmarks work, on the SIMULATED CUDA runtime: their times mean nothing."])
        lines = self.printed({"runtime": "simulated"}, relaunch=runs("run_ahead/escrow", 1.0, label="FAILED: no"))
        self.assertEqual(lines[1:], ["PROBLEM: run_ahead/escrow: no"])
        self.assertIn("do not work", lines[0])

    def test_a_failed_benchmark_is_named_and_not_measured(self):
        good, *_ = runs("claim/floor", 1.0)
        measured = self.measured(claim=[good, {**good, "label": "FAILED: no memory"}, *runs("claim/escrow", 2.0)])
        self.assertEqual(measured.problems, ["claim/floor: no memory"])
        self.assertEqual((measured.names(), measured("claim/escrow")), (["claim/escrow"], 2.0))

    def test_what_is_incomplete_skipped_or_lacks_arms_is_a_problem_and_no_more(self):
        (self.folder / "retire_bench.json").write_text('{"context": {')
        measured = self.measured({"skipped_arms": "pytorch: not built"}, claim=runs("x", 1.0), cuda_core={"skipped": "no x"})
        self.assertEqual(measured.problems, ["claim_bench.json: skipped arms: pytorch: not built",
                                             "cuda_core_bench.json: skipped: no x",
                                             "retire_bench.json: skipped: not complete; its program was ended"])
        self.assertEqual(measured("x"), 1.0)
        for name, field in (("x", "no_such_counter"), ("y", "time")):
            with self.assertRaises(NotMeasured):
                measured(name, field)

    def test_a_program_leaves_a_small_result_that_is_read_as_before(self):
        program, file = self.folder / "program", self.folder / "x_bench.json"
        result = {"context": {"host_name": "h", "runtime": "cuda"}, "benchmarks": runs("x", 1.23456789, 2, cpu_time=3, host_us=2)}
        program.write_text(f"#!/bin/bash\n[ $1 = --quick ] && echo '{json.dumps(result)}' >${{2#--benchmark_out=}}; exit 3\n")
        program.chmod(0o755)
        self.assertEqual(run.run_program(10, file, program, "--quick"), 3)
        self.assertEqual(len(file.read_text().splitlines()), 5)
        self.assertEqual({"host_name", "cpu_time"} & set(re.findall(r"\w+", file.read_text())), set())
        measured = Measured(self.folder)
        self.assertEqual((measured.values("x"), measured("x", "host_us")), ([1.23457, 2], 2))
        self.assertEqual(run.run(1, ["sleep", "60"]), 124)

    def compared(self, **sides):
        for side, rounds in sides.items():
            for number, rows in enumerate(rounds):
                result = {"context": {"runtime": "simulated"}, "benchmarks": rows}
                (self.folder / f"{side}.capture.{number}.json").write_text(json.dumps(result))
        return report.compare(self.folder)

    def test_ratios_of_two_builds_are_of_one_round(self):
        rows, _ = self.compared(a=[runs("x", *[drift] * 3, extra_us=drift) for drift in (1.0, 10.0, 4.0)],
                                b=[runs("x", 2 * drift, extra_us=drift / 2) for drift in (1.0, 10.0, 4.0)])
        self.assertEqual(rows[1], ("x", "time", 4, 112.5, 8, 112.5, 2, 2, 2))
        self.assertEqual(rows[0][-3:], (0.5, 0.5, 0.5))

    def test_what_failed_or_one_build_lacks_and_facts_are_not_compared(self):
        rows, alone = self.compared(
            a=[[*runs("x", 1.0, slots_made=3, of_plain=1.5), *runs("y", 1.0), *runs("z", 1.0)]],
            b=[[*runs("x", 1.0, slots_made=4, of_plain=3.0), *runs("y", 1.0, label="FAILED: no")]])
        self.assertEqual([row[:2] for row in rows], [("x", "of_plain"), ("x", "time")])
        self.assertEqual(alone, ["y", "z"])

    def test_repetitions_of_cuda_core_are_read_as_those_of_the_benches_and_what_fails_is_skipped(self):
        with mock.patch.object(cuda_core.metadata, "version", return_value="1.2"):
            result = cuda_core.result_of(lambda: lambda nodes: nodes / 5.0)
        measured = self.measured(cuda_core_build=result)
        self.assertEqual(measured.values("build/cuda_core/nodes:10000"), [2000.0] * cuda_core.REPETITIONS)
        with mock.patch.object(cuda_core.metadata, "version", side_effect=ImportError("no such module")):
            skipped = cuda_core.result_of(None)
        self.assertEqual(skipped, {"skipped": "ImportError: no such module"})
        self.assertIn("no such module", self.measured(cuda_core_build=skipped).problems[0])


if __name__ == "__main__":
    unittest.main()
