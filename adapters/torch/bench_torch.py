#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch on Escrow's memory over PyTorch on its own: bench_torch.py [result.json]. See README.md."""
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys

WORKLOADS = pathlib.Path(__file__).parent / "tests" / "workloads.py"
ROUNDS = 7
TURNS = 30
STEP_MODES = ("native", "installed", "outliving", "pool")
GRAPH_MODES = ("native", "installed", "grouped")


def replay_times():
    """Rounds of processes, one for each mode: what changes on the machine meanwhile meets all of them."""
    def run(mode):
        done = subprocess.run([sys.executable, WORKLOADS, "replay_time", mode], stdout=subprocess.PIPE, text=True,
                              timeout=300, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    return [{mode: run(mode) for mode in GRAPH_MODES} for _ in range(ROUNDS)]


def step_times():
    """Rounds of processes, one for each mode, all on the same two cores: they take turns of twenty steps."""
    cores = sorted(os.sched_getaffinity(0))
    rounds = []
    for number in range(ROUNDS):
        pair = {cores[2 * number % len(cores)], cores[(2 * number + 1) % len(cores)]}
        running = {mode: subprocess.Popen([sys.executable, WORKLOADS, "step_time", mode], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, text=True,
                                          preexec_fn=functools.partial(os.sched_setaffinity, 0, pair))
                   for mode in STEP_MODES}
        for each in running.values():
            each.stdout.readline()  # warm
        turns = {mode: [] for mode in STEP_MODES}
        for _ in range(TURNS):
            for mode, each in running.items():
                each.stdin.write("\n")
                each.stdin.flush()
                turns[mode].append(json.loads(each.stdout.readline())["step_us"])
        rounds.append({})
        for mode, each in running.items():
            rest = each.communicate(timeout=300)[0]
            rounds[-1][mode] = json.loads(rest.splitlines()[-1]) | {
                "step_us": statistics.median(turns[mode]),
                "over_native": statistics.median(mine / native for mine, native in
                                                 zip(turns[mode], turns["native"], strict=True))}
    return rounds


def medians(rounds, key):
    return {mode: statistics.median(each[mode][key] for each in rounds) for mode in rounds[0]}


def main():
    steps = step_times()
    graphs = replay_times()
    for each in graphs:
        for mode in GRAPH_MODES:
            each[mode]["over_native"] = each[mode]["replay_us"] / each["native"]["replay_us"]
    result = {"torch_step_time_over_native": medians(steps, "over_native")["installed"]}
    for name, rounds in (("step", steps), ("replay", graphs)):
        for mode in list(rounds[0])[1:]:  # in each round, sorted; the one in the middle is the figure
            key = f"torch_{name}_time_over_native_{mode}"
            result[key] = sorted(round(each[mode]["over_native"], 4) for each in rounds)
    result |= {
        "torch_step_us": medians(steps, "step_us"),
        "torch_replay_us": medians(graphs, "replay_us"),
        "torch_step_bytes_peak": {mode: each["bytes_peak"] for mode, each in steps[0].items()},
        "torch_sixty_graphs_bytes": {mode: each["bytes"] for mode, each in graphs[0].items()},
    }
    text = json.dumps(result, indent=1)
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
