#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the benches and sums up what they found, or compares those of two builds.

    bench/run.py BUILD OUT sim|gpu [--quick] [--only BENCH...] [--beside BUILD_B ROUNDS]

BENCH: a folder of bench/ that has a program. Into OUT go one JSON file a bench, commands.tsv, machine.txt, the plots and, of
all benches, summary.json. What fails is left out, and named at the end with exit status 1.

With BUILD_B the same programs of both builds run in turns, and each figure's medians, spread and ratio are printed. Every
other round runs B first, so that what drifts does so for both. OUT gets a JSON file a run.
"""
import argparse
import subprocess
import sys
import time
from pathlib import Path

import report

HERE = Path(__file__).parent
# Where a process has one of two speeds for as long as it lives: so many take turns, with fewer repetitions each.
PROCESSES, REPETITIONS = {"claim": 3}, 4
BENCHES = ("relaunch", "claim", "resource", "retire", "destructor", "steady", "build", "capture", "life", "footprint")


def run(seconds, command):
    """The exit status; 124 if the time was over."""
    try:
        return subprocess.run(command, timeout=max(seconds, 1), check=False).returncode
    except subprocess.TimeoutExpired:
        return 124


def run_program(seconds, file, program, *arguments):
    """Runs one bench program and leaves what it measured as one small file. Returns its exit status."""
    status = run(seconds, [program, *arguments, f"--benchmark_out={file}", "--benchmark_out_format=json"])
    report.shorten(file)
    return status


def run_in_processes(end, count, file, program, *arguments):
    """The same with the repetitions of so many processes in the file. Returns the exit status of the first that fails."""
    files = [file.with_suffix(f".{number}.json") for number in range(count)]
    if count > 1 and "--quick" not in arguments:
        arguments = (*arguments, f"--benchmark_repetitions={REPETITIONS}")
    for each in files:
        if status := run_program(end - time.monotonic(), each, program, *arguments):
            return status
    report.join(files, file)
    for each in files:
        each.unlink()
    return 0


def run_all(programs, out, runtime, arguments):
    """Returns what failed."""
    failed, file = [], out / "commands.tsv"
    commands = dict(line.split("\t", 1) for line in file.read_text().splitlines()) if file.exists() else {}
    end = time.monotonic() + 600  # when a program that hangs is ended; all take about 300 s on a GPU
    for bench, program in programs.items():
        if bench == "resource" and not program.exists():
            print("== there is no resource bench: its build did not find CCCL")
            continue
        begin, name = time.monotonic(), f"{bench}_bench"
        commands[name] = " ".join(map(str, [program, *arguments]))
        print("==", commands[name], flush=True)
        count = PROCESSES.get(bench, 1)
        if status := run_in_processes(end, count, out / f"{name}.json", program, *arguments):
            failed.append(f"{name}: exit status {status}")
        print(f"== {name} took {time.monotonic() - begin:.0f} s", flush=True)
    if runtime == "gpu" and "build" in programs:
        # Python's cuda.core has graphs that keep arguments alive too. Its failures are no failures of ours.
        result = out / "cuda_core_build_bench.json"
        result.write_text('{"skipped": "the program did not get to its end"}')
        command = [sys.executable, "-B", str(HERE / "cuda_core.py"), str(result)]
        commands["cuda_core_build_bench"] = f"python3 -B bench/cuda_core.py {result.name}"  # no paths of the machine
        run(30, command)
    file.write_text("".join(f"{name}\t{command}\n" for name, command in commands.items()))
    with open(out / "machine.txt", "wb") as machine:
        subprocess.run([HERE.parent / "tests/support/describe_machine.sh", runtime], stdout=machine, check=False)
    report.report(out, len(programs) == len(BENCHES))
    return failed


def compare(builds, rounds, out, arguments):
    """`builds`: the programs of A and B. Returns what failed."""
    for number in range(rounds):
        for bench in builds["a"]:
            for side in "ba" if number % 2 else "ab":
                print(f"round {number + 1} of {rounds}: {builds[side][bench]}", flush=True)
                if run_program(3600, out / f"{side}.{bench}.{number}.json", builds[side][bench], *arguments):
                    return [builds[side][bench]]
    print(report.comparison_text(*report.compare(out)))
    return []


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("runtime", choices=("sim", "gpu"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=BENCHES, nargs="+", default=BENCHES)
    parser.add_argument("--beside", nargs=2)
    of = parser.parse_args()
    arguments = ["--quick"] * of.quick

    def programs(build):
        return {bench: Path(build) / "bench" / f"{bench}_bench_{of.runtime}" for bench in of.only}

    of.out.mkdir(parents=True, exist_ok=True)
    for old in [*of.out.glob("[ab].*.json"), *(of.out / f"{bench}_bench.json" for bench in of.only)]:
        old.unlink(missing_ok=True)  # nothing of an earlier run may look like a result of this one
    if of.beside:
        failed = compare({"a": programs(of.build), "b": programs(of.beside[0])}, int(of.beside[1]), of.out, arguments)
    else:
        failed = run_all(programs(of.build), of.out, of.runtime, arguments)
    if failed:
        raise SystemExit("\n".join(f"FAILED: {each}" for each in failed))


if __name__ == "__main__":
    main()
