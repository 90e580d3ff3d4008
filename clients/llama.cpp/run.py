#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp on Escrow against its own pools, in one command on a machine with a GPU:

    clients/llama.cpp/run.py [--archive FILE] [--seconds 540] [--rounds 10]

Gets llama.cpp's source from PyPI, changes it, builds it with both pools, and measures them in turns. Prints the goals and
the tables, and writes OUT/result.json and OUT/result.md. Exit status: 0 if all goals are met, 1 if not, 77 without a GPU.

    clients/llama.cpp/run.py --pack FILE     a small archive for a machine without a network: --archive FILE there
    clients/llama.cpp/run.py --lines         changes the source and counts the lines; needs no GPU
"""
import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import archive
import build
import measure
import model
import port
import report
from programs import Deadline

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_GPU = 77


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=Path, help="that of PyPI, or of --pack; else pip gets it")
    parser.add_argument("--work", type=Path, default=ROOT / "build/llama.cpp", help="where all is built")
    parser.add_argument("--out", type=Path, help="where the results go; else WORK")
    parser.add_argument("--seconds", type=float, default=540, help="in all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--pack", type=Path, metavar="FILE")
    parser.add_argument("--lines", action="store_true")
    return parser.parse_args()


def machine():
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    commit = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    said = []
    for command in (asked, commit):
        try:
            said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        except (OSError, subprocess.CalledProcessError):
            said.append("unknown")
    return {"gpu": said[0], "commit": said[1], "source": f"{archive.PACKAGE} {archive.VERSION}"}


def build_and_measure(files, given, deadline, work):
    result = {"machine": machine(), "changed_lines": build.prepare(files, work)}
    out = given.out or work
    out.mkdir(parents=True, exist_ok=True)

    def save():
        (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        (out / "result.md").write_text(report.tables(result) + "\n")

    save()
    weights = work / "model.gguf"
    writes_model = threading.Thread(target=model.write, args=(weights,))
    writes_model.start()
    try:
        built = build.build(work, given.jobs, deadline.left())
        writes_model.join()
        result["build_seconds"] = round(deadline.spent())
        print(f"== built with {given.jobs} jobs: {result['build_seconds']} s", flush=True)
        measure.measure(built, weights, given.rounds, deadline, result, save)
    except build.BuildError as failed:
        print(f"== not built: {failed}", file=sys.stderr)
    writes_model.join()
    result["seconds"] = round(deadline.spent())
    save()
    print(report.tables(result), *report.details(result), sep="\n")
    print(f"== {result['seconds']} s; {out / 'result.json'}")
    return 0 if report.are_met(result) else 1


def main():
    given = arguments()
    deadline, work = Deadline(given.seconds), given.work.resolve()
    lacks = [] if given.pack or given.lines else build.missing()
    if lacks:
        print("This needs " + "; ".join(lacks) + ".", file=sys.stderr)
        return WITHOUT_GPU
    try:
        files = archive.read(given.archive or archive.download(work))
        if given.pack:
            archive.write(files, given.pack)
            print(f"{given.pack}: {len(files)} files, {given.pack.stat().st_size / 1e6:.1f} MB")
            return 0
        if given.lines:
            added, removed = build.prepare(files, work)
            print(f"lines of ggml-cuda: {added} added, {removed} removed; {added + removed} in all, by {len(port.EDITS)} edits")
            return 0
        return build_and_measure(files, given, deadline, work)
    except (archive.ArchiveError, port.PortError) as failed:
        print(failed, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
