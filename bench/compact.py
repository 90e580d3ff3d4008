#!/usr/bin/env python3
"""Makes results small: a line for each repetition, without what can be computed from them.

    bench/compact.py FILE...      rewrites each file that Google Benchmark wrote
"""

import argparse
import json
from pathlib import Path

# The same in all repetitions of a benchmark, or in its name.
DROPPED = {"run_name", "repetitions", "per_family_instance_index", "threads", "cpu_time"}


def rounded(value):
    return float(f"{value:.6g}") if isinstance(value, float) else value


def compact(result):
    runs = [
        {key: rounded(value) for key, value in run.items() if key not in DROPPED}
        for run in result["benchmarks"]
        if run["run_type"] == "iteration"
    ]
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    context = {key: value for key, value in result["context"].items() if key != "host_name"}
    return f'{{"context": {json.dumps(context)},\n"benchmarks": [\n{lines}\n]}}\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    for path in parser.parse_args().files:
        try:
            small = compact(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError) as error:
            print(f"{path}: left as it is: {error}")
            continue
        fresh = path.with_suffix(".tmp")
        fresh.write_text(small)
        fresh.replace(path)


if __name__ == "__main__":
    main()
