"""Tests of the scripts that read the benches' results, on a tiny sample."""
import json
import subprocess
import tempfile
import time
import types
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path
from unittest import mock

import cuda_core
import flame
import report
from figures import FIGURES, TABLES
from report import Measured, NotMeasured


def runs(name, *values, **counters):
    """The rows that Google Benchmark writes for one benchmark: its repetitions, and a median."""
    common = {"name": f"{name}/iterations:3/manual_time", "time_unit": "us", "family_index": 0, **counters}
    return [*({**common, "run_type": "iteration", "real_time": value} for value in values),
            {**common, "run_type": "aggregate", "real_time": 1e9}]


SAMPLE = {
    "relaunch_bench": [
        *runs("relaunch/bare/kernels:1", 1.0, 1.0, host_us=0.5, nodes_kernel=1, edges=0),
        *runs("relaunch/bare_again/kernels:1", 1.0, throughput_of_bare=1.01, host_of_bare=0.98),
        *runs("relaunch/escrow/kernels:1", 1.5, 1.5, host_us=0.75, host_burst_us=0.9, host_launches=200,
              throughput_of_bare=0.995, host_of_bare=1.2, host_burst_of_bare=1.4, slots_held=1, destructors_owed=2,
              nodes_kernel=1, edges=0),
        *runs("relaunch/escrow/fork4", 25.0, throughput_of_bare=0.9, nodes_kernel=64, edges=61),
        *runs("relaunch/bare/fork4", 25.0, nodes_kernel=64, edges=60),
        *runs("relaunch/escrow/kernels:8", 8.0, host_us=1.5, host_burst_us=1.6),
        *runs("relaunch/user_object/kernels:8", 12.0, bare_us=7.0, host_us=12.0, host_burst_us=2.0, host_launches=200),
        *runs("run_ahead/bare", 200.0, launches=1029),
        *runs("run_ahead/user_object", 200.0, launches=28),
        *runs("run_ahead/escrow", 200.0, launches=1000),
        *runs("objects64/update", 9.0, plain_us=4.0, extra_us=3.0),
    ],
    "claim_bench": [
        *runs("claim/threads:16/streams:1/migrating:0", 9.0, escrow_us=4.5, pytorch_us=40.0),
        *runs("claim/threads:8/streams:1/migrating:0", 9.0, 8.0, escrow_us=2.0, pytorch_us=20.0, cub_of_escrow=11.0,
              rmm_pool_of_local=80.0, rmm_fixed_size_of_local=60.0),
        *runs("claim/threads:8/streams:4/migrating:100", 9.0, escrow_us=77.0, local_of_escrow=1.05),
        *runs("claim_turns/escrow_over_floor/on_threads:1", 0.25, 0.25, of_base=1.25),
        *runs("claim_turns/escrow_over_floor/on_threads:1", 0.9, of_base=1.9),
    ],
    "destructor_bench": [
        *runs("destructor/escrow_asleep", 2000.0, p999_ns=6000.0),
        *runs("steady/allocations", 3.0, 3.0, allocations_per_million=0.0),
    ],
    "build_bench": [
        *runs("build/bare_again/nodes:10000", 500.0, of_bare=1.02),
        *runs("build/escrow/nodes:10000", 700.0, 700.0, of_bare=1.4, build_ns=700.0),
        *runs("memory/escrow/nodes:10000", 20.0, bytes_per_owner=112.5),
    ],
    "footprint_bench": [
        *runs("footprint/shared/graphs:64", 5.1, device_kib=64.0, scratch_kib=64.0, host_of_bare=1.2,
              launches_per_s=2e5),
        *runs("footprint/arena_again/graphs:64", 5.0, host_of_bare=1.01),
        *runs("footprint_races/shared/streams:2", 9.0, launches=1e5, wrong_values=0.0),
    ],
    "cuda_core_build_bench": [*runs("build/cuda_core/nodes:10000", 7000.0, build_ns=7000.0)],
}


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def leave(self, sample=None, **context):
        """Fills the folder as bench/run.sh does."""
        context = {"runtime": "cuda", "device": "<GPU>", "driver": "1.2", "num_cpus": 4, **context}
        for program, benchmarks in (sample or SAMPLE).items():
            (self.folder / f"{program}.json").write_text(json.dumps({"context": context, "benchmarks": benchmarks}))
        return self.folder

    def summarize(self):
        return report.summarize(Measured(self.leave()), {"claim_bench": "claim_bench_gpu --x"})


class SummaryTest(ReportTest):
    def setUp(self):
        super().setUp()
        self.summary, self.spreads = self.summarize()
        self.lines = {line.split()[0]: line for line in report.summary_text(self.summary, self.spreads).splitlines()
                      if line}

    def test_a_figure_has_value_noise_goal_unit_and_command(self):
        self.assertEqual(self.summary["claim_over_floor_1t"],
                         {"value": 1.25, "goal": "<= 1.3", "unit": "ratio", "command": "claim_bench_gpu --x"})
        values = {name: (each["value"], each.get("noise")) for name, each in self.summary.items()}
        expected = {
            "relaunch_throughput_k1": (0.995, 1.01), "relaunch_burst_k1": (1.4, None), "run_ahead": (1000, 1029),
            "user_object_run_ahead": (28, None), "user_object_row_extra_us_k8": (5.0, None),
            "user_object_over_escrow_host_k8": (8.0, None), "user_object_over_escrow_burst_k8": (1.25, None),
            "update_64_extra_us": (3.0, None), "build_node_over_cuda": (1.4, 1.02),
            "build_cuda_core_over_escrow": (10.0, None), "shared_bytes_64_graphs": (1.0, None),
            "alternating_host": (1.2, 1.01), "two_stream_races": (0, None), "claim_over_floor_8t": (None, None),
            "cub_over_claim_8t": (11, None), "rmm_over_local_8t": (60, None), "migrate100_over_eager": (1.05, None)}
        self.assertEqual({name: values[name] for name in expected}, expected)

    def test_the_table_tells_pass_miss_no_goal_and_not_measured_apart(self):
        for name, verdict in (("claim_over_floor_1t", "pass"), ("destructor_p999_ns", "MISS"), ("run_ahead", "MISS"),
                              ("steady_allocations", "pass"), ("retire_over_record", "not measured")):
            self.assertTrue(self.lines[name].endswith(verdict), self.lines[name])
        self.assertNotRegex(self.lines["bytes_per_owner"], "pass|MISS")
        self.assertFalse(report.is_met(1, "= 0"))

    def test_notes_say_what_a_figure_was_measured_with(self):
        for name, words in (("relaunch_throughput_k1", "1 kernel nodes, 0 edges: the timing is an A/A test"),
                            ("relaunch_throughput_fork4", "the graphs differ"),
                            ("user_object_over_escrow_host_k8", "200 launches from an idle stream; with a user object"),
                            ("user_object_over_escrow_burst_k8", "bursts of 16"),
                            ("two_stream_races", "in 100,000 launches")):
            self.assertIn(words, self.summary[name]["note"])

    def test_without_cuda_core_the_summary_says_why(self):
        (self.folder / "cuda_core_build_bench.json").write_text('{"skipped": "ImportError: no x"}')
        figure = report.summarize(Measured(self.folder), {})[0]["build_cuda_core_over_escrow"]
        self.assertEqual((figure["value"], "ImportError: no x" in figure["note"]), (None, True))

    def test_spread_is_the_distance_between_quartiles_over_the_median(self):
        self.assertAlmostEqual(self.spreads["claim_over_floor_1t"], 0.325 / 1.25)


class MeasuredTest(ReportTest):
    def test_a_run_says_what_it_ran_on(self):
        self.assertIn("<GPU>, driver 1.2", Measured(self.leave()).origin())
        self.assertIn("SIMULATED", Measured(self.leave(runtime="simulated")).origin())

    def test_a_failed_benchmark_is_named_and_not_measured_unless_there_was_no_time(self):
        for message, is_measured in (("no memory", False), ("out of time: 90 s", True)):
            good = runs("claim/floor", 1.0)[0]
            other = runs("claim/escrow", 2.0)
            measured = Measured(self.leave({"claim_bench": [good, {**good, "label": f"FAILED: {message}"}, *other]}))
            self.assertEqual(measured.problems, [f"claim/floor: {message}"])
            self.assertEqual(measured.names("claim/floor"), ["claim/floor"] * is_measured)
            self.assertEqual(measured("claim/escrow"), 2.0)

    def test_an_incomplete_file_and_a_skipped_arm_are_problems_and_no_more(self):
        self.leave()
        (self.folder / "retire_bench.json").write_text('{"context": {')
        (self.folder / "cuda_core_bench.json").write_text('{"skipped": "not there"}')
        measured = Measured(self.folder)
        self.assertEqual(len(measured.problems), 2)
        self.assertEqual(measured("run_ahead/escrow", "launches"), 1000)

    def test_arms_that_a_program_lacks_are_problems(self):
        measured = Measured(self.leave({"claim_bench": []}, skipped_arms="pytorch: not built"))
        self.assertEqual(measured.problems, ["claim_bench.json: skipped arms: pytorch: not built"])

    def test_what_is_not_there_was_not_measured(self):
        for name, field in (("relaunch/bare/kernels:1", "no_such_counter"), ("claim/none", "time")):
            with self.assertRaises(NotMeasured):
                Measured(self.leave())(name, field)

    def test_parts_of_a_program_become_one_result_that_is_read_as_before(self):
        one, other, both = (self.folder / name for name in ("1", "2", "x_bench.json"))
        for path, name, index in ((one, "z", 5), (other, "a", 0)):
            rows = runs(name, 1.23456789, host_us=2, family_index=index)
            path.write_text(json.dumps({"context": {"host_name": "h"}, "benchmarks": rows}))
        both.write_text(report.joined([one, other, self.folder / "3"]))
        self.assertEqual(len(json.loads(both.read_text())["benchmarks"]), 2)
        measured = Measured(self.folder)
        self.assertEqual((measured.names(), measured("a", "host_us"), measured("z")), (["z", "a"], 2, 1.23457))
        self.assertEqual(measured.problems, ["3: not complete; its program was ended"])


class RunProgramTest(ReportTest):
    def names_of(self, program, *arguments):
        """What is left of a program that measures one benchmark, named as its filter."""
        path, file = self.folder / program, self.folder / "x_bench.json"
        path.write_text("#!/bin/bash\nname=all\nfor each; do [[ $each == --benchmark_filter=* ]] && name=${each#*=}\n"
                        "[[ $each == --benchmark_out=* ]] && out=${each#*=}; done\necho '{\"context\": {}, \"benchmarks\":"
                        "[{\"name\": \"'$name'\", \"run_type\": \"iteration\", \"family_index\": 0}]}' > $out\n")
        path.chmod(0o755)
        script = Path(__file__).parent / "run_program.sh"
        subprocess.run([script, "10", file, path, *arguments], check=True)
        return [run["name"] for run in json.loads(file.read_text())["benchmarks"]]

    def test_lives_and_instantiations_run_first_in_a_process_of_their_own(self):
        alone = "capture/(whole|instantiate)/"
        self.assertEqual(self.names_of("capture_bench_sim", "--quick"), [alone, f"-{alone}"])
        self.assertEqual(self.names_of("capture_bench_sim", "--benchmark_filter=whole"), ["whole"])
        self.assertEqual(self.names_of("claim_bench_sim"), ["all"])


class TablesTest(ReportTest):
    def test_launches_have_a_row_and_other_benchmarks_a_line(self):
        measured = Measured(self.leave())
        self.assertIn(["escrow", "1", "1.50", "0.75", "0.90", "0.995", "1.200", "1", "2"],
                      report.launch_rows(measured))
        self.assertIn("objects64/update: time 9.00, plain_us 4.00, extra_us 3.00", report.tables_text(measured))

    def test_claims_have_a_row_for_each_arm_and_a_column_for_each_load(self):
        lines = [line.split() for line in report.claims_text(Measured(self.leave())).splitlines()]
        self.assertEqual(lines[0][5:], ["8t", "8t", "4s", "100%", "16t"])
        self.assertEqual(lines[2:], [["escrow", "2", "77", "4.5"], ["pytorch", "20", "-", "40"]])

    def test_plots_are_well_formed_and_have_a_dot_for_each_value(self):
        plots = report.plots(Measured(self.leave(runtime="simulated")))
        self.assertEqual(set(plots), {"relaunch.svg", "relaunch_host.svg", "relaunch_burst.svg", "scaling.svg", "build.svg",
                                      "footprint.svg", "footprint_launches.svg"})
        tree = xml.fromstring(plots["relaunch_host.svg"])
        dots = [dot for dot in tree.iter("{http://www.w3.org/2000/svg}circle") if len(dot)]
        self.assertEqual([dot[0].text for dot in dots], ["bare, 1: 0.5 us", "escrow, 1: 0.75 us", "escrow, 8: 1.5 us",
                                                         "user_object, 8: 12 us"])
        places = [float(dot.get("cx")) for dot in dots]
        self.assertEqual(places, sorted(places), "a larger value is further to the right")
        self.assertIn("escrow, fork4: 25 us", plots["relaunch.svg"])
        self.assertIn("cuda_core, 10000: 7e+03 ns", plots["build.svg"])
        dots = [dot[0].text for dot in xml.fromstring(plots["scaling.svg"]).iter("{http://www.w3.org/2000/svg}circle") if len(dot)]
        self.assertEqual(dots, ["escrow, 8: 2 us", "escrow, 16: 4.5 us", "pytorch, 8: 20 us", "pytorch, 16: 40 us"],
                         "one stream a thread, sorted by number")
        self.assertTrue(all("SIMULATED" in svg for svg in plots.values()))

    def test_figures_of_one_kind_share_a_row_of_the_page_and_keep_their_goals(self):
        summary, _ = self.summarize()
        summary["destructor_p50_ns"]["value"] = 50
        page = "\n".join(f"of {name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->" for name in TABLES)
        result = report.page_with(page, summary)
        self.assertIn("| destroy callback, with the worker awake or asleep | p50 awake 50 ns, p99.9 asleep 6000 ns | "
                      "p50 awake <= 100 ns, p99.9 asleep <= 5000 ns | p50 awake yes, p99.9 asleep no |", result)
        self.assertIn("| host memory per owner of a node | 112 bytes | none | - |", result)
        self.assertEqual([line for line in result.splitlines() if not line.startswith("|")],
                         [line for line in page.splitlines() if line != "old"])
        self.assertEqual(report.page_with(result, summary), result)
        with self.assertRaises(SystemExit):
            report.page_with("no marks", summary)

    def test_a_plot_stands_below_its_table_where_there_is_one(self):
        page = "\n".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->" for name in TABLES)
        where = self.folder / "docs/page.md"
        self.assertEqual(report.pictures_of(self.folder, where), {})
        (self.folder / "scaling.svg").touch()
        result = report.page_with(page, self.summarize()[0], report.pictures_of(self.folder, where))
        self.assertRegex(result, r"\|\n\n!\[Host time per claim.*\]\(\.\./scaling\.svg\)\n<!-- claim:end -->")

    def test_the_page_has_the_figures_of_the_committed_run(self):
        root = Path(__file__).parent
        committed = json.loads((root / "results/h200/summary.json").read_text())
        self.assertEqual(set(committed), {figure.name for figure in FIGURES})
        path = root.parent / "docs/performance.md"
        page, pictures = path.read_text(), report.pictures_of(root / "results/h200", path)
        self.assertEqual(report.page_with(page, committed, pictures), page, "run bench/report.py page")

    def test_the_committed_summary_is_that_of_the_committed_run(self):
        folder = Path(__file__).parent / "results/h200"
        measured, _ = report.summarize(Measured(folder), {})
        committed = json.loads((folder / "summary.json").read_text())
        for name, each in committed.items():
            self.assertEqual({**measured[name], "command": each["command"]}, each)


class FlameTest(unittest.TestCase):
    NAMES = {"0x10": ["main"], "0x20": ["escrow::bench::(anonymous namespace)::sampled_pair::operator()(unsigned long) const"],
             "0x30": ["std::__invoke_impl<void, int>(int)", "escrow::v0_1::detail::pool<int>::claim(CUstream_st*) const"],
             "0x40": ["cudaEventRecord"], "0x50": ["std::__atomic_base<unsigned long>::fetch_add(unsigned long)"]}

    def test_frames_are_named_from_the_pair_on_and_those_that_say_nothing_are_left_out(self):
        for stack, expected in {
                "?@libc.so.6;0x10;0x20;0x30;0x40;?@libcuda.so.1;?@libcuda.so.1;pthread_mutex_lock@libc.so.6;?@libc.so.6;":
                    "pool::claim;cudaEventRecord;[libcuda];pthread_mutex_lock [libc]",
                "0x10;0x20;0x30;0x50;": "pool::claim;atomic fetch_add",
                "?@libcuda.so.1;": "(caller unknown);[libcuda]"}.items():
            self.assertEqual(flame.folded(stack, self.NAMES), f"{flame.PAIR};{expected}")
        self.assertEqual(flame.shortened("void escrow::local()::{lambda(int)#1}::operator()(int) const::{lambda()#2}::"
                                         "operator()() const"), "local")

    def test_both_arms_are_drawn_at_one_scale_and_what_is_narrow_once_more(self):
        with tempfile.TemporaryDirectory() as name:
            for arm, ns in (("escrow", 4000), ("local", 1000)):
                Path(name, f"claim_{arm}.folded").write_text(
                    f"# {ns} ns a pair, <GPU>\n{flame.PAIR} 1\n{flame.PAIR};a;cudaEventRecord 3\n")
            tree = xml.fromstring(flame.picture(Path(name)))
        boxes = [(box[0].text, float(box[1].get("width"))) for box in tree.iter("{http://www.w3.org/2000/svg}g")
                 if box[0].text]
        full = report.WIDTH - 2 * flame.LEFT
        self.assertEqual([box for box in boxes if box[0].startswith(flame.PAIR)],
                         [(f"{flame.PAIR}: {ns} ns", width) for ns, width in
                          (("4,000", full), ("1,000", full / 4), ("1,000", full))])
        self.assertEqual(boxes[1:3], [("a: 3,000 ns", full * 3 / 4), ("cudaEventRecord: 3,000 ns", full * 3 / 4)])

    def test_committed_pictures_are_those_of_the_committed_stacks(self):
        for drawn in Path(__file__).parent.glob("results/*/claim_flame.svg"):
            self.assertEqual(flame.picture(drawn.parent), drawn.read_text(), "run bench/flame.py draw")


class CompareTest(ReportTest):
    def compare(self, **sides):
        for side, rounds in sides.items():
            for number, rows in enumerate(rounds):
                result = {"context": {"runtime": "simulated"}, "benchmarks": rows}
                (self.folder / f"{side}.capture.{number}.json").write_text(json.dumps(result))
        return report.compare(self.folder)

    def test_ratios_are_of_one_round(self):
        drifts = (1.0, 10.0, 4.0)
        rows, _, is_simulated = self.compare(
            a=[runs("x", drift, drift, drift, extra_us=drift) for drift in drifts],
            b=[runs("x", 2 * drift, extra_us=drift / 2) for drift in drifts])
        self.assertEqual(rows[1], ("x", "time_us", 4, 112.5, 8, 112.5, 2, 2, 2))
        self.assertEqual(rows[0][-3:], (0.5, 0.5, 0.5))
        self.assertTrue(is_simulated)

    def test_what_failed_or_one_build_lacks_and_facts_are_no_figures(self):
        rows, alone, _ = self.compare(
            a=[[*runs("x", 1.0, slots_made=3, of_plain=1.5), *runs("y", 1.0), *runs("z", 1.0)]],
            b=[[*runs("x", 1.0, slots_made=4, of_plain=3.0), *runs("y", 1.0, label="FAILED: no")]])
        self.assertEqual([row[:2] for row in rows], [("x", "of_plain"), ("x", "time_us")])
        self.assertEqual(alone, ["y", "z"])


class CudaCoreTest(ReportTest):
    def test_what_fails_is_skipped_with_its_reason(self):
        with mock.patch.object(cuda_core, "Maker", side_effect=ImportError("no such module")):
            self.assertEqual(cuda_core.result_of(cuda_core.build, 1), {"skipped": "ImportError: no such module"})

    def test_its_repetitions_are_read_as_those_of_the_benches(self):
        stream, launch = mock.Mock(), types.SimpleNamespace(launch=lambda: None)
        for bare in (launch, None):
            self.leave({"cuda_core_bench": [cuda_core.launch_repetition(8, 0, launch, bare, stream, 3)],
                        "cuda_core_build_bench": cuda_core.build(time.monotonic(), lambda nodes: nodes / 5.0)})
            measured = Measured(self.folder)
            self.assertEqual([row[:2] for row in report.launch_rows(measured)], [["cuda_core", "8"]])
            self.assertEqual("throughput_of_bare" in measured.fields("relaunch/cuda_core/kernels:8"), bare is not None)
            self.assertEqual(measured.values("build/cuda_core/nodes:10000"), [2000.0])


if __name__ == "__main__":
    unittest.main()
