"""Reads what the bench programs wrote: a folder of JSON files as Google Benchmark writes them."""

import json
import re
import statistics
from pathlib import Path

# What Google Benchmark appends to a name.
SUFFIX = re.compile(r"(/iterations:\d+|/repeats:\d+|/manual_time)+$")
# A benchmark that was left out because its program had no time left: the others stay good.
OUT_OF_TIME = "out of time"
# What the label of a repetition that failed begins with.
FAILED = "FAILED: "


class NotMeasured(Exception):
    """A benchmark that the folder has no results of."""


class Measured:
    """All repetitions of all benchmarks in a folder, by name and field.

    A field is "time", in the benchmark's own unit, or the name of a counter. A benchmark that failed
    counts as not measured.
    """

    def __init__(self, folder):
        self.context = {}
        self.problems = []  # what failed or was left out, a line each
        self.used = []  # the (name, field) of each median that was asked for
        self._runs = {}
        files = sorted(Path(folder).glob("*_bench.json"))
        if not files:
            raise SystemExit(f"no *_bench.json in {folder}: run bench/run.sh first")
        failed = set()
        for path in files:
            failed |= self._read(path)
        for name in failed:
            self._runs.pop(name, None)

    def _read(self, path):
        """Returns the names of the benchmarks that failed."""
        try:
            result = json.loads(path.read_text())
        except ValueError:
            self.problems.append(f"{path.name}: not complete; its program was ended")
            return set()
        if "skipped" in result:
            self.problems.append(f"{path.name}: skipped: {result['skipped']}")
            return set()
        self.context.update(result["context"])
        failed = set()
        for run in result["benchmarks"]:
            if run["run_type"] != "iteration":
                continue
            name = SUFFIX.sub("", run["name"])
            label = run.get("label", "")
            if label.startswith(FAILED):
                message = label.removeprefix(FAILED)
                self.problems.append(f"{name}: {message}")
                if not message.startswith(OUT_OF_TIME):
                    failed.add(name)
            else:
                self._runs.setdefault(name, []).append(run)
        return failed

    def names(self, prefix):
        """The benchmarks whose names begin so, as they were registered."""
        found = [name for name in self._runs if name.startswith(prefix)]
        return sorted(found, key=lambda name: self._runs[name][0].get("family_index", 0))

    def values(self, name, field="time"):
        """One value for each repetition."""
        key = "real_time" if field == "time" else field
        runs = self._runs.get(name, [])
        if not runs or any(key not in run for run in runs):
            raise NotMeasured(f"{name}: {field}")
        return [run[key] for run in runs]

    def fields(self, name):
        """Everything that one repetition of a benchmark says."""
        return self._runs[name][0] if name in self._runs else {}

    def median(self, name, field="time"):
        median = statistics.median(self.values(name, field))
        self.used.append((name, field))
        return median

    def spread(self, name, field="time"):
        """The distance between the quartiles, as a share of the median."""
        values = self.values(name, field)
        median = statistics.median(values)
        if len(values) < 2 or median == 0:
            return 0.0
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return abs((high - low) / median)

    @property
    def is_simulated(self):
        return self.context.get("runtime") != "cuda"

    def origin(self):
        """One line that says where the numbers come from."""
        is_quick = self.context.get("quick") == "yes"
        quick = "; quick mode, the numbers are of no use" if is_quick else ""
        if self.is_simulated:
            return f"SIMULATED CUDA runtime: nothing here says anything about speed on a GPU{quick}"
        return (
            f"{self.context.get('device')}, driver {self.context.get('driver')}, "
            f"CUDA {self.context.get('cuda_runtime_version')}, "
            f"{self.context.get('num_cpus')} cores{quick}"
        )


def form_and_size(name):
    """("bare", 8) of "relaunch/bare/kernels:8", ("bare", "fork4") of "relaunch/bare/fork4"."""
    parts = name.split("/")
    _, colon, number = parts[-1].partition(":")
    return parts[-2], int(number) if colon else parts[-1]


def table(header, rows):
    """Rows of text as lines, columns aligned: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
