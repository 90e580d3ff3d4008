#!/usr/bin/env python3
"""PyTorch on Escrow's memory over PyTorch on its own: bench_torch.py [result.json]. See README.md."""
import json
import pathlib
import statistics
import subprocess
import sys

WORKLOADS = pathlib.Path(__file__).parent / "tests" / "workloads.py"
ROUNDS = 7
STEP_MODES = ("native", "installed", "outliving", "pool")
GRAPH_MODES = ("native", "installed", "grouped")


def run(workload, mode):
    done = subprocess.run([sys.executable, WORKLOADS, workload, mode], stdout=subprocess.PIPE, text=True, timeout=300,
                          check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(workload, modes, key):
    """Rounds of processes, one for each mode: what changes on the machine meanwhile meets all of them."""
    return [{mode: run(workload, mode) for mode in modes} for _ in range(ROUNDS)], key


def medians(measured):
    rounds, key = measured
    return {mode: statistics.median(each[mode][key] for each in rounds) for mode in rounds[0]}


def ratios(measured, mode):
    """Over native, in each round, sorted; the one in the middle is the figure."""
    rounds, key = measured
    return sorted(each[mode][key] / each["native"][key] for each in rounds)


def main():
    steps = measure("step_time", STEP_MODES, "step_us")
    graphs = measure("replay_time", GRAPH_MODES, "replay_us")
    result = {"torch_step_time_over_native": statistics.median(ratios(steps, "installed"))}
    result |= {f"torch_step_time_over_native_{mode}": ratios(steps, mode) for mode in STEP_MODES if mode != "native"}
    result |= {f"torch_replay_time_over_native_{mode}": ratios(graphs, mode) for mode in GRAPH_MODES if mode != "native"}
    result |= {
        "torch_step_us": medians(steps),
        "torch_replay_us": medians(graphs),
        "torch_step_bytes_peak": {mode: each["bytes_peak"] for mode, each in steps[0][0].items()},
        "torch_sixty_graphs_bytes": {mode: each["bytes"] for mode, each in graphs[0][0].items()},
    }
    text = json.dumps(result, indent=1)
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
