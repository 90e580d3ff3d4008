"""Tests of the scripts that read the benches' results, on a tiny sample."""

import json
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path
from unittest import mock

import compact
import compare
import performance_table
import plot
import relaunch_table
import summary
from measured import Measured, NotMeasured

sys.path += [str(Path(__file__).parent / folder) for folder in ("relaunch", "build")]
import cuda_core_arm
import cuda_core_build_arm


def runs(name, *values, **counters):
    """The rows that Google Benchmark writes for one benchmark: its repetitions, and a median."""
    common = {"real_time": 0, "time_unit": "us", **counters}
    repetitions = [
        {**common, "name": f"{name}/iterations:3/manual_time", "run_type": "iteration",
         "real_time": value}
        for value in values
    ]
    aggregate = {**common, "name": f"{name}/iterations:3/manual_time_median",
                 "run_type": "aggregate", "real_time": 1e9}
    return [*repetitions, aggregate]


SAMPLE = {
    "relaunch_bench": [
        *runs("relaunch/bare/kernels:1", 1.0, 1.0, host_us=0.5, slots_held=0, destructors_owed=0,
              nodes_kernel=1, edges=0),
        *runs("relaunch/bare_again/kernels:1", 1.0, throughput_of_bare=1.01, host_of_bare=0.98),
        *runs("relaunch/escrow/kernels:1", 1.5, 1.5, host_us=0.75, host_burst_us=0.9,
              host_launches=200, throughput_of_bare=0.995, host_of_bare=1.2,
              host_burst_of_bare=1.4, slots_held=1, destructors_owed=2, nodes_kernel=1, edges=0),
        *runs("relaunch/escrow/fork4", 25.0, throughput_of_bare=0.9, nodes_kernel=64, edges=61),
        *runs("relaunch/bare/fork4", 25.0, nodes_kernel=64, edges=60),
        *runs("relaunch/escrow/kernels:8", 8.0, host_us=1.5, host_burst_us=1.6),
        *runs("relaunch/user_object/kernels:8", 12.0, bare_us=7.0, host_us=12.0, host_burst_us=2.0,
              host_launches=200),
        *runs("run_ahead/bare", 200.0, launches=1029),
        *runs("run_ahead/user_object", 200.0, launches=28),
        *runs("run_ahead/escrow", 200.0, launches=1000),
        *runs("objects64/update", 9.0, plain_us=4.0, escrow_us=7.0, extra_us=3.0),
    ],
    "claim_bench": [
        *runs("claim/floor/on_threads:1", 0.25, 0.2, 0.15),
        *runs("claim/escrow/on_threads:1", 0.25, 0.25, 0.9),
        *runs("claim/escrow/on_threads:8", 4.0),
        *runs("claim/cub/on_threads:8", 10.0),
        *runs("claim/ping_pong/escrow/on_threads:1", 77.0),
    ],
    "destructor_bench": [
        *runs("destructor/escrow_asleep", 2000.0, p50_ns=1500.0, p999_ns=6000.0),
        *runs("steady/allocations", 3.0, 3.0, allocations_per_million=0.0),
    ],
    "build_bench": [
        *runs("build/bare_again/nodes:10000", 500.0, of_bare=1.02),
        *runs("build/escrow/nodes:10000", 700.0, 700.0, of_bare=1.4, build_ns=700.0,
              bare_build_ns=500.0, seal_ns=40.0),
        *runs("build/user_objects/nodes:10000", 1000.0, of_bare=2.0),
        *runs("memory/escrow/nodes:10000", 20.0, bytes_per_owner=112.5),
        *runs("retained/bare_again/nodes:64", 60.0, host_of_bare=0.99),
        *runs("retained/escrow/nodes:64", 60.0, host_of_bare=1.3, host_burst_of_bare=1.2,
              host_launches=200),
    ],
    "capture_bench": [
        *runs("capture/claim/branches:1/claims:256", 2.0, extra_us=0.8),
        *runs("capture/claim/branches:1/claims:16384", 2.2, extra_us=1.2),
        *runs("capture/instantiate/owners:64", 20.0, extra_us=2.5, later_extra_us=1.0),
        *runs("capture/whole/on_threads:8", 90.0, extra_us=9.0, of_plain=1.1),
        *runs("capture/eager/free_idle:16384", 0.9, escrow_us=0.9, extra_us=0.5),
        *runs("capture/identity/plain_handle/nodes:1000", 200.0, extra_us=120.0),
        *runs("capture/identity/own_graph/nodes:1000", 90.0, extra_us=10.0),
    ],
    "cuda_core_build_bench": [*runs("build/cuda_core/nodes:10000", 7000.0, build_ns=7000.0)],
}


class Folder:
    """A folder with the sample as bench/run.sh leaves it."""

    def __init__(self, sample=None, **context):
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        context = {"runtime": "cuda", "device": "a GPU", "driver": "1.2", "num_cpus": 4, **context}
        for program, benchmarks in (sample or SAMPLE).items():
            content = {"context": context, "benchmarks": benchmarks}
            (self.path / f"{program}.json").write_text(json.dumps(content))
        (self.path / "commands.tsv").write_text("claim_bench\tbuild/claim_bench_gpu --x\n")

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        self._folder.cleanup()


class SummaryTest(unittest.TestCase):
    def setUp(self):
        with Folder() as folder:
            self.summary, self.spreads = summary.summarize(
                Measured(folder), summary.commands_of(folder)
            )

    def test_a_ratio_is_one_of_medians_of_repetitions(self):
        self.assertEqual(self.summary["claim_over_floor_1t"]["value"], 1.25)
        self.assertEqual(self.summary["cub_over_claim_8t"]["value"], 2.5)

    def test_each_figure_has_value_goal_unit_and_command(self):
        for each in self.summary.values():
            self.assertLessEqual({"value", "goal", "unit", "command"}, set(each))
        figure = self.summary["claim_over_floor_1t"]
        self.assertEqual(figure["command"], "build/claim_bench_gpu --x")
        self.assertEqual(figure["goal"], "<= 1.3")

    def test_what_was_not_measured_has_no_value(self):
        self.assertIsNone(self.summary["claim_over_floor_8t"]["value"])
        self.assertIsNone(self.summary["retire_stream_us"]["value"])

    def test_the_table_tells_pass_miss_and_not_measured_apart(self):
        report = summary.report(self.summary, self.spreads)
        lines = {line.split()[0]: line for line in report.splitlines()}
        self.assertTrue(lines["claim_over_floor_1t"].endswith("pass"))
        self.assertTrue(lines["destructor_p999_ns"].endswith("MISS"))
        self.assertTrue(lines["steady_allocations"].endswith("pass"))
        self.assertTrue(lines["retire_over_record"].endswith("not measured"))

    def test_a_relaunch_is_compared_with_the_bare_graph_beside_it_and_with_noise(self):
        figure = self.summary["relaunch_throughput_k1"]
        self.assertEqual((figure["value"], figure["noise"]), (0.995, 1.01))
        self.assertEqual(self.summary["relaunch_host_k1"]["value"], 1.2)
        self.assertEqual(self.summary["update_64_extra_us"]["value"], 3.0)

    def test_graphs_that_are_alike_make_an_a_a_test(self):
        alike = self.summary["relaunch_throughput_k1"]["note"]
        self.assertIn("A/A test", alike)
        self.assertIn("1 kernel nodes, 0 edges", alike)
        other = self.summary["relaunch_throughput_fork4"]["note"]
        self.assertIn("differ", other)
        self.assertIn("61 edges", other)

    def test_a_goal_of_more_than_a_number_is_missed_by_that_number(self):
        self.assertEqual(self.summary["run_ahead"]["noise"], 1029)
        lines = summary.report(self.summary, self.spreads).splitlines()
        run_ahead = next(line for line in lines if line.startswith("run_ahead"))
        self.assertTrue(run_ahead.endswith("MISS"), run_ahead)

    def test_a_single_allocation_misses_the_goal_of_none(self):
        self.assertTrue(summary.is_met(0, "= 0"))
        self.assertFalse(summary.is_met(1, "= 0"))

    def test_building_is_compared_with_plain_calls_beside_it_and_with_cuda_core(self):
        figure = self.summary["build_node_over_cuda"]
        self.assertEqual((figure["value"], figure["noise"]), (1.4, 1.02))
        self.assertIn("seal_ns 40", figure["note"])
        self.assertIn("user_objects 2", figure["note"])
        self.assertEqual(self.summary["build_cuda_core_over_escrow"]["value"], 10.0)
        retained = self.summary["retained_launch_host_k64"]
        self.assertEqual((retained["value"], retained["noise"]), (1.3, 0.99))
        self.assertIn("1.200", retained["note"])

    def test_a_user_object_is_measured_over_many_launches_and_in_bursts_apart(self):
        over_many = self.summary["user_object_over_escrow_host_k8"]
        self.assertEqual(over_many["value"], 8.0)
        self.assertIn("200 launches", over_many["note"])
        self.assertIn("mostly blocking", over_many["note"])
        in_bursts = self.summary["user_object_over_escrow_burst_k8"]
        self.assertEqual(in_bursts["value"], 1.25)
        self.assertIn("bursts of 16", in_bursts["note"])
        self.assertEqual(self.summary["relaunch_burst_k1"]["value"], 1.4)
        self.assertEqual(self.summary["user_object_run_ahead"]["value"], 28)
        self.assertEqual(self.summary["user_object_row_extra_us_k8"]["value"], 5.0)

    def test_captures_are_compared_with_plain_cuda(self):
        values = {name: each["value"] for name, each in self.summary.items()}
        self.assertEqual(values["captured_claim_extra_us_1_branches"], 0.8)
        self.assertEqual(values["captured_claim_growth_1_branches"], 1.5)
        self.assertIsNone(values["captured_claim_extra_us_16_branches"])
        self.assertEqual(values["instantiate_64_owners_extra_us"], 2.5)
        self.assertEqual(values["graph_life_over_cuda_8t"], 1.1)
        self.assertEqual(values["claim_16384_idle_us"], 0.9)
        self.assertEqual(values["identity_1000_nodes_us"], 110.0)

    def test_a_figure_without_a_goal_is_neither_met_nor_missed(self):
        lines = summary.report(self.summary, self.spreads).splitlines()
        line = next(line for line in lines if line.startswith("bytes_per_owner"))
        self.assertNotRegex(line, "pass|MISS")
        row = performance_table.markdown({"bytes_per_owner": self.summary["bytes_per_owner"]},
                                         performance_table.TABLES["others"])
        self.assertTrue(row.endswith(" 112 bytes | none | - |"), row)

    def test_without_cuda_core_the_summary_says_why(self):
        with Folder() as folder:
            (folder / "cuda_core_build_bench.json").write_text('{"skipped": "ImportError: no x"}')
            figure = summary.summarize(Measured(folder), {})[0]["build_cuda_core_over_escrow"]
        self.assertIsNone(figure["value"])
        self.assertIn("ImportError: no x", figure["note"])

    def test_spread_is_the_distance_between_quartiles_over_the_median(self):
        self.assertAlmostEqual(self.spreads["claim_over_floor_1t"], 0.325 / 0.25)


class MeasuredTest(unittest.TestCase):
    def test_a_simulated_run_says_so(self):
        with Folder(runtime="simulated") as folder:
            self.assertIn("SIMULATED", Measured(folder).origin())
        with Folder() as folder:
            self.assertIn("a GPU, driver 1.2", Measured(folder).origin())

    def failing(self, message):
        """One that failed in its second repetition, beside one that did not."""
        good = runs("claim/floor/on_threads:1", 1.0)[0]
        bad = {**good, "label": f"FAILED: {message}"}
        return {"claim_bench": [good, bad, *runs("claim/escrow/on_threads:1", 2.0)]}

    def test_a_failed_benchmark_is_named_and_not_summed_up_but_others_are(self):
        with Folder(self.failing("no memory")) as folder:
            measured = Measured(folder)
        self.assertEqual(measured.problems, ["claim/floor/on_threads:1: no memory"])
        self.assertEqual(measured.median("claim/escrow/on_threads:1"), 2.0)
        with self.assertRaises(NotMeasured):
            measured.median("claim/floor/on_threads:1")

    def test_repetitions_that_there_was_no_time_for_leave_the_others_good(self):
        with Folder(self.failing("out of time: 90 s")) as folder:
            measured = Measured(folder)
        self.assertEqual(measured.median("claim/floor/on_threads:1"), 1.0)
        self.assertEqual(len(measured.problems), 1)

    def test_an_incomplete_file_and_a_skipped_arm_are_problems_and_no_more(self):
        with Folder() as folder:
            (folder / "retire_bench.json").write_text('{"context": {')
            (folder / "cuda_core_bench.json").write_text('{"skipped": "not there"}')
            measured = Measured(folder)
        self.assertEqual(len(measured.problems), 2)
        self.assertEqual(measured.median("run_ahead/escrow", "launches"), 1000)

    def test_a_counter_that_is_not_there_was_not_measured(self):
        with Folder() as folder, self.assertRaises(NotMeasured):
            Measured(folder).median("relaunch/bare/kernels:1", "no_such_counter")

    def test_an_unknown_benchmark_is_an_error(self):
        with Folder() as folder, self.assertRaises(NotMeasured):
            Measured(folder).median("claim/none")


class RelaunchTableTest(unittest.TestCase):
    def setUp(self):
        with Folder() as folder:
            self.measured = Measured(folder)

    def test_a_row_has_times_shares_slots_and_destructors(self):
        rows = {tuple(row[:2]): row for row in relaunch_table.rows(self.measured)}
        self.assertEqual(
            rows["escrow", "1"],
            ["escrow", "1", "1.50", "0.75", "0.90", "0.995", "1.200", "1", "2"])
        self.assertEqual(rows["escrow", "fork4"][2:4], ["25.00", "-"])

    def test_other_benchmarks_have_a_line_each(self):
        lines = relaunch_table.others(self.measured)
        self.assertIn("run_ahead/escrow: launches 1000.00", lines)
        self.assertIn("objects64/update: plain_us 4.00, escrow_us 7.00, extra_us 3.00", lines)
        self.assertIn("build/bare_again/nodes:10000: of_bare 1.02", lines)
        self.assertIn("memory/escrow/nodes:10000: bytes_per_owner 112.50", lines)


class CompactTest(unittest.TestCase):
    def test_a_compact_file_is_read_as_before(self):
        with Folder() as folder:
            before = Measured(folder)
            for path in folder.glob("*_bench.json"):
                path.write_text(compact.compact(json.loads(path.read_text())))
            after = Measured(folder)
        self.assertEqual(before.context, after.context)
        self.assertEqual(summary.summarize(before, {}), summary.summarize(after, {}))


class CudaCoreArmTest(unittest.TestCase):
    def test_what_fails_is_skipped_with_its_reason(self):
        def failing(seconds):
            raise ImportError("no such module")

        self.assertEqual(cuda_core_arm.result_of(failing, 1),
                         {"skipped": "ImportError: no such module"})

    def test_a_repetition_is_read_as_those_of_the_relaunch_bench(self):
        class Stream:
            def sync(self):
                pass

        name = "relaunch/cuda_core/kernels:8"
        launch = cuda_core_arm.Launchable(lambda: None)
        for bare in (launch, None):
            run = cuda_core_arm.repetition(name, 0, launch, bare, Stream(), 3)
            with Folder({"cuda_core_bench": [run]}) as folder:
                rows = relaunch_table.rows(Measured(folder))
            self.assertEqual(rows[0][:2], ["cuda_core", "8"])
            self.assertEqual(rows[0][5] == "-", bare is None)


class CudaCoreBuildArmTest(unittest.TestCase):
    def found(self, **classes):
        module = types.ModuleType("a_graph_module")
        for name, value in classes.items():
            setattr(module, name, value)
        with mock.patch.dict(sys.modules, {"a_graph_module": module}), mock.patch("builtins.print"):
            return cuda_core_build_arm.attribute(("no_such_module", "a_graph_module"),
                                                 cuda_core_build_arm.CLASSES, "explicit graphs")

    def test_explicit_graphs_are_found_by_either_name(self):
        self.assertEqual(self.found(GraphDef=1), 1)
        self.assertEqual(self.found(GraphDef=1, GraphDefinition=2), 2)

    def test_where_there_are_none_the_reason_says_what_there_is(self):
        with self.assertRaisesRegex(ImportError, "no_such_module.*a_graph_module has GraphBuilder"):
            self.found(GraphBuilder=1)

    def test_its_repetitions_are_read_as_those_of_the_build_bench(self):
        def chain(nodes):
            return nodes / 5.0

        recorded = cuda_core_build_arm.measured(chain, 10_000, 0)
        self.assertEqual(len(recorded), 1)  # one, however little time there is
        with Folder({**SAMPLE, "cuda_core_build_bench": recorded}) as folder:
            measured = Measured(folder)
        self.assertEqual(measured.median("build/cuda_core/nodes:10000"), 2000.0)


class PlotTest(unittest.TestCase):
    def setUp(self):
        with Folder(runtime="simulated", device="<GPU>") as folder:
            self.plots = plot.plots(Measured(folder))

    def test_plots_are_well_formed_and_have_a_dot_for_each_value(self):
        tree = xml.fromstring(self.plots["relaunch_host.svg"])
        titles = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(titles, ["bare, 1: 0.5 us", "escrow, 1: 0.75 us", "escrow, 8: 1.5 us",
                                  "user_object, 8: 12 us"])

    def test_launches_in_bursts_have_a_plot_of_their_own(self):
        self.assertIn("user_object, 8: 2 us", self.plots["relaunch_burst.svg"])

    def test_sizes_that_are_words_stand_behind_numbers(self):
        titles = [line for line in self.plots["relaunch.svg"].splitlines() if "<title>" in line]
        self.assertTrue(any("escrow, fork4: 25 us" in line for line in titles))
        self.assertEqual(sorted(["fork4", 64, 8], key=plot.by_size), [8, 64, "fork4"])

    def test_a_larger_value_is_further_to_the_right(self):
        axis = plot.Axis([0.5, 40])
        self.assertLess(axis.x(0.5), axis.x(0.75))
        self.assertEqual(axis.ticks(), [0.1, 1, 10, 100])

    def test_other_kinds_of_claims_are_not_mixed_in(self):
        self.assertNotIn("77 us", self.plots["claim.svg"])
        self.assertIn("escrow, 1: 0.25 us", self.plots["claim.svg"])

    def test_building_has_a_plot_in_its_own_unit(self):
        self.assertIn("escrow, 10000: 700 ns", self.plots["build.svg"])
        self.assertIn("cuda_core, 10000: 7e+03 ns", self.plots["build.svg"])

    def test_a_plot_says_that_numbers_are_simulated(self):
        for svg in self.plots.values():
            self.assertIn("SIMULATED", svg)


class CompareTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def leave(self, side, number, *rows):
        result = {"context": {"runtime": "simulated"}, "benchmarks": [*rows]}
        path = self.folder / f"{side}.capture.{number}.json"
        path.write_text(json.dumps(result))

    def rows(self):
        return {row[:2]: row[2:] for row in compare.compare(compare.read(self.folder)[0])[0]}

    def test_ratios_are_of_one_round(self):
        for number, drift in ((1, 1.0), (2, 10.0), (3, 4.0)):
            self.leave("a", number, *runs("x", drift, drift, drift, extra_us=drift))
            self.leave("b", number, *runs("x", 2 * drift, extra_us=drift / 2))
        found = self.rows()
        self.assertEqual(found["x", "time_us"], (4, 112.5, 8, 112.5, 2, 2, 2))
        self.assertEqual(found["x", "extra_us"][-3:], (0.5, 0.5, 0.5))

    def test_what_failed_or_one_build_lacks_is_no_figure(self):
        self.leave("a", 1, *runs("x", 1.0), *runs("y", 1.0), *runs("z", 1.0))
        self.leave("b", 1, *runs("x", 1.0), *runs("y", 1.0, label="FAILED: no"))
        self.assertEqual(set(self.rows()), {("x", "time_us")})
        self.assertEqual(compare.compare(compare.read(self.folder)[0])[1], ["y", "z"])

    def test_facts_of_a_benchmark_are_no_figures(self):
        self.leave("a", 1, *runs("x", 1.0, slots_made=3, of_plain=1.5, on_threads=8))
        self.leave("b", 1, *runs("x", 1.0, slots_made=4, of_plain=3.0, on_threads=8))
        self.assertEqual(set(self.rows()), {("x", "time_us"), ("x", "of_plain")})


class PerformanceTableTest(unittest.TestCase):
    both = {
        "destructor_p50_ns": {"value": 50, "goal": "<= 100", "unit": "ns", "command": "x"},
        "destructor_p999_ns": {"value": None, "goal": "<= 5000", "unit": "ns", "command": "x"},
    }
    page = "\n".join(f"of {name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->"
                     for name in performance_table.TABLES)

    def test_figures_of_one_kind_share_a_row_and_keep_their_goals(self):
        rows = performance_table.markdown(self.both, performance_table.TABLES["others"])
        self.assertEqual(
            rows.splitlines()[2:],
            ["| destroy callback, with the worker awake or asleep | "
             "p50 awake 50 ns, p99.9 asleep not measured | "
             "p50 awake <= 100 ns, p99.9 asleep <= 5000 ns | p50 awake yes, p99.9 asleep - |"])

    def test_every_figure_has_one_row_with_words(self):
        named = [name for rows in performance_table.TABLES.values()
                 for _, names in rows for name in names]
        self.assertEqual(sorted(named), sorted(figure.name for figure in summary.FIGURES))

    def test_only_what_is_between_the_marks_changes(self):
        result = performance_table.replaced(self.page, self.both)
        self.assertIn("p50 awake 50 ns", result)
        self.assertNotIn("old", result)
        self.assertEqual([line for line in result.splitlines() if not line.startswith("|")],
                         [line for line in self.page.splitlines() if line != "old"])
        self.assertEqual(performance_table.replaced(result, self.both), result)

    def test_a_page_without_marks_is_an_error(self):
        with self.assertRaises(SystemExit):
            performance_table.replaced("no marks", {})

    def test_the_page_has_the_figures_of_the_committed_run(self):
        root = Path(__file__).parent
        committed = json.loads((root / "results/h200/summary.json").read_text())
        page = (root.parent / "docs/performance.md").read_text()
        self.assertEqual(performance_table.replaced(page, committed), page,
                         "run bench/performance_table.py")


if __name__ == "__main__":
    unittest.main()
