# SPDX-License-Identifier: Apache-2.0
"""What the tests and the benchmark run, in a process for each way to get memory: workloads.py WORKLOAD MODE."""
import contextlib
import gc
import json
import random
import statistics
import sys
import time

import torch

import escrow_torch

MODES = {
    "native": {},
    "installed": {},
    "outliving": {"streams_outlive": True},
    "grouped": {"group": "graphs"},
    "pool": {},
}
SIZES = range(60, 0, -1)  # the largest first


def model_of(width):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(layer, torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, 8)).cuda()


def input_of(batch, width):
    return torch.randn(batch, 16, width, generator=torch.Generator().manual_seed(batch)).cuda()


def train_step(model, optimizer, batch):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(mode):
    """Losses of training, with batches of several sizes that another stream reads, too."""
    model = model_of(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    side = torch.cuda.Stream()
    losses, sums = [], []
    for step in range(24):
        batch = input_of(8 + step % 5, 64)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            sums.append(batch.sum())
        batch.record_stream(side)
        losses.append(train_step(model, optimizer, batch))
    torch.cuda.synchronize()
    return {"values": [each.item() for each in losses + sums]}


def graph_for(mode, pool):
    """A graph, and what captures it."""
    if mode == "grouped":
        graph = escrow_torch.Graph()
        return graph, graph.capture()
    graph = torch.cuda.CUDAGraph()
    return graph, torch.cuda.graph(graph, pool=pool)


def captured_steps(mode, sizes, width=256):
    """For each size: its graph, the output that a launch writes, and what that should be. Then what the graphs use and
    the program keeps, the pool last; and the bytes of the graphs' own memory."""
    model = model_of(width).eval()
    pool = {"native": torch.cuda.graph_pool_handle, "pool": escrow_torch.mem_pool}.get(mode, lambda: None)()
    pool_id = pool.id if mode == "pool" else pool
    inputs = {size: input_of(size, width) for size in sizes}
    expected = {size: model(inputs[size]) for size in sizes}
    outputs = {size: torch.zeros_like(expected[size]) for size in sizes}
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved() if mode == "native" else 0
    graphs = {}
    for size in sizes:
        graphs[size], capturing = graph_for(mode, pool_id)
        with capturing:
            outputs[size].copy_(model(inputs[size]))
    if mode == "native":
        used = torch.cuda.memory_reserved() - reserved
    else:
        now = escrow_torch.stats()
        used = now["group"]["bytes"] if mode == "grouped" else now["memory"]["bytes" if mode == "pool" else "bytes_in_graphs"]
    return graphs, outputs, expected, [model, inputs, pool], used


def worst_of(outputs, expected):
    differences = [(outputs[size] - expected[size]).abs().max() for size in SIZES]
    return torch.stack(differences).nan_to_num(nan=1e9).max().item()


@torch.no_grad()
def graphs(mode):
    """Launches graphs in random order, those of a sharing group on two streams; the last ones end without them."""
    launched, outputs, expected, kept, used = captured_steps(mode, SIZES)
    streams = [torch.cuda.Stream() for _ in range(2 if mode == "grouped" else 1)]
    order = random.Random(7)
    worst = 0.0
    for _ in range(10):
        for size in SIZES:
            outputs[size].zero_()
        torch.cuda.synchronize()
        for size in order.sample(list(SIZES), len(SIZES)):
            with torch.cuda.stream(streams[size % len(streams)]):
                launched[size].replay()
        torch.cuda.synchronize()
        worst = max(worst, worst_of(outputs, expected))
    for size in SIZES:
        outputs[size].zero_()
    torch.cuda._sleep(200_000_000)
    for size in SIZES:
        launched[size].replay()
    launched.clear()
    kept.pop()
    gc.collect()
    pool = torch.cuda.use_mem_pool(escrow_torch.mem_pool()) if mode == "pool" else contextlib.nullcontext()
    with pool, torch.cuda.stream(streams[0]):  # in what is free now
        others = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(64)]
    torch.cuda.synchronize()
    del others
    return {"worst": max(worst, worst_of(outputs, expected)), "bytes": used}


def out_of_memory(mode):
    """The error for more memory than there is, and work after it."""
    try:
        torch.empty(1 << 39, dtype=torch.uint8, device="cuda")
        return {"error": None}
    except RuntimeError as error:
        return {"error": str(error), "type": type(error).__name__, "sum": torch.ones(1000, device="cuda").sum().item()}


def step_time(mode):
    """For each line of input, twenty training steps: prints the median in microseconds. Then the most memory that was
    reserved for a step."""
    model = model_of(512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = input_of(32, 512)

    def steps(count):
        for _ in range(count):
            start = time.perf_counter()
            train_step(model, optimizer, batch)
            torch.cuda.synchronize()
            yield 1e6 * (time.perf_counter() - start)

    warm = statistics.median(steps(30))
    print(json.dumps({"warm_up_us": warm}), flush=True)
    for _ in iter(sys.stdin.readline, ""):
        print(json.dumps({"step_us": statistics.median(steps(20))}), flush=True)
    peak = torch.cuda.max_memory_reserved() if mode == "native" else escrow_torch.stats()["memory"]["bytes_peak"]
    return {"bytes_peak": peak}


@torch.no_grad()
def replay_time(mode):
    """Microseconds for a launch of graphs in turn, on one stream, and their memory."""
    launched, _, _, kept, used = captured_steps(mode, SIZES)
    rounds = []
    for _ in range(12):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for size in SIZES:
            launched[size].replay()
        torch.cuda.synchronize()
        rounds.append(1e6 * (time.perf_counter() - start) / len(SIZES))
    launched.clear()
    kept.clear()
    return {"replay_us": statistics.median(rounds[2:]), "bytes": used}


def run(workload, mode):
    if mode != "native":
        escrow_torch.configure(**MODES[mode])
    if mode == "pool" and workload not in (graphs, replay_time):  # those name it in their captures
        pool = escrow_torch.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            result = workload(mode)
        del pool
    else:
        if mode not in ("native", "pool"):
            escrow_torch.install()
        result = workload(mode)
    if mode != "native":
        torch._C._cuda_clearCublasWorkspaces()
        gc.collect()
        torch.cuda.synchronize()
        time.sleep(0.1)  # the end of graphs is told later
        torch.cuda.empty_cache()
        result["left"] = escrow_torch.stats(0)
    return result


if __name__ == "__main__":
    print(json.dumps(run(globals()[sys.argv[1]], sys.argv[2])))
