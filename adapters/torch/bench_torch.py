#!/usr/bin/env python3
"""PyTorch on Escrow's memory over PyTorch on its own: bench_torch.py [result.json]. See README.md."""
import json
import pathlib
import statistics
import subprocess
import sys

WORKLOADS = pathlib.Path(__file__).parent / "tests" / "workloads.py"
ROUNDS = 5
STEP_MODES = ("native", "installed", "outliving", "pool")
GRAPH_MODES = ("native", "installed", "grouped")


def run(workload, mode):
    done = subprocess.run([sys.executable, WORKLOADS, workload, mode], stdout=subprocess.PIPE, text=True, timeout=300,
                          check=True)
    return json.loads(done.stdout.splitlines()[-1])


def medians(workload, modes, key):
    """By mode. Rounds of processes, one for each mode: what changes on the machine meanwhile meets all of them."""
    rounds = [{mode: run(workload, mode) for mode in modes} for _ in range(ROUNDS)]
    return {mode: {key: statistics.median(each[mode][key] for each in rounds), "memory": rounds[0][mode]}
            for mode in modes}


def main():
    steps = medians("step_time", STEP_MODES, "step_us")
    graphs = medians("replay_time", GRAPH_MODES, "replay_us")
    result = {
        "torch_step_time_over_native": steps["installed"]["step_us"] / steps["native"]["step_us"],
        "torch_step_time_over_native_streams_outlive": steps["outliving"]["step_us"] / steps["native"]["step_us"],
        "torch_step_time_over_native_pool": steps["pool"]["step_us"] / steps["native"]["step_us"],
        "torch_step_bytes_peak": {mode: each["memory"]["bytes_peak"] for mode, each in steps.items()},
        "torch_step_us": {mode: each["step_us"] for mode, each in steps.items()},
        "torch_sixty_graphs_bytes": {mode: each["memory"]["bytes"] for mode, each in graphs.items()},
        "torch_replay_us": {mode: each["replay_us"] for mode, each in graphs.items()},
    }
    text = json.dumps(result, indent=1)
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
