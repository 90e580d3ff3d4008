#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what bench programs wrote, and makes of it what people read.

    bench/report.py summary FOLDER       prints tables, writes FOLDER/*.svg and FOLDER/summary.json
    bench/report.py page SUMMARY PAGE    writes a summary.json into the tables of docs/performance.md
"""
import json
import math
import operator
import re
import statistics
import sys
from html import escape
from pathlib import Path

from figures import FIGURES, NO_GOAL, NotMeasured, TABLES, TITLES

SUFFIX = re.compile(r"(/iterations:\d+|/repeats:\d+|/manual_time)+$")  # Google Benchmark's
FAILED = "FAILED: "  # so begins the label of a repetition that failed
# What is the same in all repetitions of a benchmark, in its name, or computed from the others.
DROPPED = {"run_name", "repetitions", "per_family_instance_index", "threads", "cpu_time"}


def repetitions_of(result):
    return [run for run in result.get("benchmarks", []) if run["run_type"] == "iteration"]


class Measured:
    """All repetitions of all benchmarks in a folder or a file. A benchmark that failed counts as not measured.

    A field is "time", in the benchmark's own unit, or the name of a counter.
    """

    def __init__(self, folder):
        self.context, self.problems, self._runs = {}, [], {}
        failed = set()
        for path in [folder] if folder.is_file() else sorted(folder.glob("*_bench.json")):
            try:
                result = json.loads(path.read_text())
            except ValueError:
                result = {"skipped": "not complete; its program was ended"}
            context = result.get("context", {})
            self.context.update(context)
            for what, why in (("skipped", result.get("skipped")), ("skipped arms", context.get("skipped_arms"))):
                if why:
                    self.problems.append(f"{path.name}: {what}: {why}")
            for run in repetitions_of(result):
                name, label = SUFFIX.sub("", run["name"]), run.get("label", "")
                self._runs.setdefault(name, []).append(run)
                if label.startswith(FAILED):
                    self.problems.append(f"{name}: {label.removeprefix(FAILED)}")
                    failed.add(name)
        for name in failed:
            del self._runs[name]

    def names(self, prefix=""):
        """The benchmarks whose names begin so, as they were registered."""
        found = [name for name in self._runs if name.startswith(prefix)]
        return sorted(found, key=lambda name: self._runs[name][0].get("family_index", 0))

    def fields(self, name):
        """Everything that one repetition of a benchmark says."""
        return self._runs.get(name, [{}])[0]

    def values(self, name, field="time"):
        """One value for each repetition."""
        key = "real_time" if field == "time" else field
        runs = self._runs.get(name, [])
        if not runs or any(key not in run for run in runs):
            raise NotMeasured(f"{name}: {field}")
        return [run[key] for run in runs]

    def __call__(self, name, field="time"):
        """The median."""
        return statistics.median(self.values(name, field))

    def is_simulated(self):
        return self.context.get("runtime") != "cuda"

    def origin(self):
        """One line that says where the numbers come from."""
        quick = "; quick mode, the numbers are of no use" if self.context.get("quick") == "yes" else ""
        if self.is_simulated():
            return f"SIMULATED CUDA runtime: nothing here says anything about speed on a GPU{quick}"
        return (f"{self.context.get('device')}, driver {self.context.get('driver')}, "
                f"CUDA {self.context.get('cuda_runtime_version')}, {self.context.get('num_cpus')} cores{quick}")


def shorten(path):
    """Makes a result of Google Benchmark small: a line for each repetition. An incomplete one stays as it is."""
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    context = {key: value for key, value in result["context"].items() if key != "host_name"}
    runs = [json.dumps({key: float(f"{value:.6g}") if isinstance(value, float) else value
                        for key, value in run.items() if key not in DROPPED}, separators=(",", ":"))
            for run in repetitions_of(result)]
    path.write_text(json.dumps({"context": context})[:-1] + ',\n"benchmarks": [\n' + ",\n".join(runs) + "\n]}\n")


def join(files, to):
    """Makes one result of several processes' results of one program: the repetitions of all, in the context of the first."""
    results = [json.loads(file.read_text()) for file in files]
    results[0]["benchmarks"] = [run for result in results for run in result.get("benchmarks", [])]
    to.write_text(json.dumps(results[0]))
    shorten(to)


# The summary and the tables.

def is_met(value, goal):
    sign, bound = goal.split()
    return {"<=": operator.le, ">=": operator.ge, ">": operator.gt, "=": operator.eq}[sign](value, float(bound))


def verdict(each):
    if each["value"] is None or each["goal"] == NO_GOAL:
        return "-"
    return "yes" if is_met(each["value"], each["goal"]) else "no"


def shown(value):
    """Three digits, or all of a large number; a share near 1 with three behind the point."""
    if 0.9 < value < 1.1:
        return f"{value:.3f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def summarize(measured):
    """name -> {value, goal, unit, and noise where there is one}."""
    def rounded(compute):
        try:
            return round(compute(measured), 4)
        except (NotMeasured, ZeroDivisionError):
            return None

    return {each.name: {"value": rounded(each.value), "goal": each.goal, "unit": each.unit,
                        **({"noise": rounded(each.noise)} if each.noise else {})} for each in FIGURES}


# The page.

def markdown(summary, rows):
    def unit_of(each):
        return "" if each["unit"] in ("ratio", "launches") else f" {each['unit']}"

    def value(each):
        return "not measured" if each["value"] is None else shown(each["value"]) + unit_of(each)

    def goal(each):
        return each["goal"] if each["goal"] == NO_GOAL else each["goal"] + unit_of(each)

    lines = []
    for title, figures in rows:
        there = [(each.word, summary[each.name]) for each in figures if each.name in summary]

        def column(of, is_one_if_alike=True):
            texts = [of(each) for _, each in there]
            if len(set(texts)) == 1 and (is_one_if_alike or texts[0] == "not measured"):
                return texts[0]
            return ", ".join(f"{word} {text}".strip() for (word, _), text in zip(there, texts))

        if there:
            lines.append(f"| {title} | {column(value, False)} | {column(goal)} | {column(verdict)} |")
    return "\n".join(["| what | value | goal | met |", "| --- | --- | --- | --- |", *lines]) if lines else ""


def page_with(page, summary):
    """The page with all its tables written anew: between <!-- NAME:begin --> and <!-- NAME:end -->."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- {name}:begin -->\n", f"\n<!-- {name}:end -->"
        if not re.search(f"{begin}.*{end}", page, re.DOTALL):
            raise SystemExit(f"the page needs {begin}and, behind it,{end}")
        before, _, rest = page.partition(begin)
        page = before + begin + markdown(summary, rows) + end + rest.partition(end)[2]
    return page


# The plots: a row for each form, a dot for each size, on a logarithmic axis.

LEFT, RIGHT, TOP, ROW, BOTTOM, WIDTH = 190, 40, 84, 28, 44, 860
COLOURS = ["#4477aa", "#228833", "#ee6677", "#aa3377", "#66ccee"]  # also for the colour-blind
PLOTS = [
    ("relaunch_burst.svg", "Host time per launch, in bursts of 16", "kernels:", "relaunch/", "host_burst_us", "us"),
    ("relaunch_host.svg", "Host time per launch, up to 200 in a row: with a user object mostly blocking", "kernels:",
     "relaunch/", "host_us", "us"),
    ("scaling.svg", "Host time per claim and release, on so many threads at once", "threads:", "claim/", None, "us"),
    ("footprint.svg", "Device memory for the scratch of so many graphs", "graphs:", "footprint/", "device_kib", "KiB"),
    ("footprint_launches.svg", "Launches of these graphs in random order", "graphs:", "footprint/", "launches_per_s", "/s"),
]


def text(x, y, content, anchor="start", size=13, fill="#222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{fill}">{escape(content)}</text>')


def dot_plot(title, origin, label, unit, points):
    """`points` maps (form, size) to a value above 0."""
    forms = list(dict.fromkeys(form for form, _ in points))
    sizes = sorted({size for _, size in points}, key=lambda size: (isinstance(size, str), size))
    colour_of = {size: COLOURS[i % len(COLOURS)] for i, size in enumerate(sizes)}
    low = math.floor(math.log10(min(points.values())))
    high = max(math.ceil(math.log10(max(points.values()))), low + 1)
    bottom, height = TOP + ROW * len(forms), TOP + ROW * len(forms) + BOTTOM

    def x_of(value):
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>', text(16, 24, title, size=16),
             text(16, 42, origin, size=12, fill="#555"), text(LEFT, 62, label, size=12, fill="#555")]
    at = LEFT + 70
    for size, colour in colour_of.items():
        parts += [f'<circle cx="{at}" cy="58" r="5" fill="{colour}"/>', text(at + 9, 62, str(size), size=12)]
        at += 24 + 9 * len(str(size))
    for tick in (10.0**power for power in range(low, high + 1)):
        x = x_of(tick)
        parts += [f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>',
                  text(x, bottom + 18, f"{tick:g} {unit}", "middle", 12, "#555")]
    for i, form in enumerate(forms):
        y = TOP + ROW * i + ROW / 2
        parts.append(text(LEFT - 12, y + 4, form.replace("_", " "), "end"))
        parts += [f'<circle cx="{x_of(points[form, size]):.1f}" cy="{y:.1f}" r="5" fill="{colour_of[size]}" '
                  f'fill-opacity="0.85"><title>{escape(form)}, {size}: {points[form, size]:.3g} {unit}</title></circle>'
                  for size in sizes if (form, size) in points]
    return "\n".join([*parts, "</svg>"]) + "\n"


def form_and_size(name):
    """("bare", 8) of "relaunch/bare/kernels:8", ("bare", "fork4") of "relaunch/bare/fork4"."""
    parts = name.split("/")
    _, colon, number = parts[-1].partition(":")
    return parts[-2], int(number) if colon else parts[-1]


def scaling_points(measured):
    """(arm, threads) -> us of a pair, of threads with a stream each; first what takes least time with most threads."""
    names = {int(found[1]): name for name in measured.names("claim/")
             if (found := re.fullmatch(r"claim/threads:(\d+)/streams:1/migrating:0", name))}
    us = {threads: {field.removesuffix("_us"): measured(name, field) for field in measured.fields(name)
                    if field.endswith("_us")} for threads, name in sorted(names.items())}
    last = us[max(us)] if us else {}
    return {(arm, threads): its[arm] for arm in sorted(last, key=last.get) for threads, its in us.items() if arm in its}


def plots(measured):
    """File name -> SVG, of what the folder has."""
    result = {}
    for file, title, label, prefix, field, unit in PLOTS:
        points = ({form_and_size(name): measured(name, field) for name in measured.names(prefix)} if field
                  else scaling_points(measured))
        if points:
            result[file] = dot_plot(title, measured.origin(), label, unit, points)
    return result


# Two builds.

MEASURED = re.compile(r"_(us|ns)$|^of_|_of_|^launches$|^throughput")  # counters that are no facts of the benchmark


def medians_of(measured):
    return {(name, field): measured(name, field) for name in measured.names()
            for field in ("time", *measured.fields(name)) if field == "time" or MEASURED.search(field)}


def compare(folder):
    """A row for each figure that both builds have, and the benchmarks that one has."""
    sides, rows = {"a": {}, "b": {}}, []
    for path in sorted(folder.glob("[ab].*.json")):
        side, _, number = path.name.removesuffix(".json").split(".")
        for key, value in medians_of(Measured(path)).items():
            sides[side].setdefault(key, {})[int(number)] = value

    def spread(values):
        middle = statistics.median(values)
        return 50 * (max(values) - min(values)) / abs(middle) if middle else 0.0

    for key in sorted(sides["a"].keys() & sides["b"].keys()):
        a, b = sides["a"][key], sides["b"][key]
        # Of one round, so that what drifts between rounds is no difference.
        if ratios := [b[each] / a[each] for each in sorted(a.keys() & b.keys()) if a[each]]:
            rows.append((*key, *(f(each.values()) for each in (a, b) for f in (statistics.median, spread)),
                         statistics.median(ratios), min(ratios), max(ratios)))
    return rows, sorted({key[0] for key in sides["a"].keys() ^ sides["b"].keys()})


def comparison_text(rows, alone):
    formats = ("", "", ".4g", ".0f", ".4g", ".0f", ".3f", ".3f", ".3f")
    lines = [" | ".join(format(value, spec) for value, spec in zip(row, formats)) for row in rows]
    return "\n".join(["benchmark | figure | A | +-% | B | +-% | B/A | least | most", *lines,
                      *(f"not measured by both: {name}" for name in alone)])


def verdicts(measured, summary):
    """Four lines that say what relaunches cost, and on what; fewer if something was not measured."""
    def of(name):
        return summary[name]["value"]

    lines = [
        (("relaunch_host_k8",), "A launch with owners takes the host {:.3g} times as long as the bare graph's."),
        (("user_object_over_escrow_burst_k8", "user_object_row_extra_us_k8"),
         "With CUDA's user object it takes {:.3g} times as long as with Escrow, and the GPU {:.3g} us more."),
        (("run_ahead", "user_object_run_ahead"),
         "The host can be {:.0f} launches ahead; with CUDA's user object {:.0f}."),
    ]
    found = [text.format(*map(of, names)) for names, text in lines if None not in map(of, names)]
    return found + [f"Measured on {measured.origin()}; graphs of 8 kernels."] if found else []


def report(folder, is_complete):
    """Prints verdicts and tables of what was measured, and writes the plots and, of a complete run, the summary. Of a
    simulated run it prints one line."""
    measured = Measured(folder)
    written, summary = plots(measured), summarize(measured)
    if is_complete:
        written["summary.json"] = json.dumps(summary, indent=2) + "\n"
    for name, content in written.items():
        (folder / name).write_text(content)
    problems = [f"PROBLEM: {each}" for each in dict.fromkeys(measured.problems)]
    if measured.is_simulated():
        failed = [each for each in problems if ": skipped arms: " not in each]  # other libraries need a GPU
        works = "All benchmarks work" if measured.names() and not failed else "Some benchmarks do not work"
        print("\n".join([f"{works}, on the SIMULATED CUDA runtime: their times mean nothing.", *failed]))
        return
    found = {name: each for name, each in summary.items() if each["value"] is not None}
    tables = [f"{TITLES[name]}\n\n{table}" for name, rows in TABLES.items() if (table := markdown(found, rows))]
    first = verdicts(measured, summary) or [measured.origin()]
    print("\n\n".join(["\n".join(first), *tables, *problems, f"written into {folder}: {', '.join(written)}"]))


def main(what="", *paths):
    paths = [Path(each) for each in paths]
    if what == "summary" and len(paths) == 1:
        report(paths[0], True)
    elif what == "page" and len(paths) == 2:
        paths[1].write_text(page_with(paths[1].read_text(), json.loads(paths[0].read_text())))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
