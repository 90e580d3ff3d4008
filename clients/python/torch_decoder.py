#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A decoder's step in graphs of 35 batch sizes, PyTorch's own and Escrow's: clients/python/torch_decoder.py FILE

Each way in a process of its own, in turns. `shared`: one graph pool of PyTorch; `private`: a pool for each graph; `group`:
escrow_torch.Graph in one sharing group; `own`: escrow_torch.Graph, each with its own scratch. Random weights.
"""

import json
import random
import statistics
import sys
import time
from pathlib import Path

from turns import rounds_of

WAYS = ("shared", "private", "group", "own")
ROUNDS = 5
SIZES = [1, 2, 4, *range(8, 257, 8)]
COMPARED = (1, 8, 64, max(SIZES))
WIDTH, LAYERS, HEADS, WORDS, LENGTH = 1024, 12, 16, 32000, 512


class Decoder:
    """Twelve layers, one new token for each sequence of the batch."""

    def __init__(self):
        torch.manual_seed(0)
        settings = {"device": "cuda", "dtype": torch.bfloat16}

        def weight(*shape):
            return torch.randn(*shape, **settings) * 0.02
        self.layers = [{"qkv": weight(3 * WIDTH, WIDTH), "out": weight(WIDTH, WIDTH), "up": weight(8 * WIDTH, WIDTH),
                        "down": weight(WIDTH, 4 * WIDTH), "norm": torch.ones(WIDTH, **settings),
                        "keys": weight(max(SIZES), HEADS, LENGTH, WIDTH // HEADS),
                        "values": weight(max(SIZES), HEADS, LENGTH, WIDTH // HEADS)} for _ in range(LAYERS)]
        self.words = weight(WORDS, WIDTH)
        self.tokens = torch.randint(0, WORDS, (max(SIZES),), device="cuda")
        self.output = torch.empty(max(SIZES), WORDS, device="cuda")

    def step(self, batch):
        x = functional.embedding(self.tokens[:batch], self.words)
        for layer in self.layers:
            hidden = functional.rms_norm(x, (WIDTH,), layer["norm"])
            query, key, value = functional.linear(hidden, layer["qkv"]).view(batch, 3, HEADS, 1, -1).unbind(1)
            layer["keys"][:batch, :, 17:18] = key
            layer["values"][:batch, :, 17:18] = value
            found = functional.scaled_dot_product_attention(query, layer["keys"][:batch], layer["values"][:batch])
            x = x + functional.linear(found.reshape(batch, WIDTH), layer["out"])
            up, gate = functional.linear(functional.rms_norm(x, (WIDTH,), layer["norm"]), layer["up"]).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * up, layer["down"])
        self.output[:batch] = functional.linear(x, self.words)


def captured(way, decoder, stream):
    graphs, pool = {}, None
    for batch in reversed(SIZES):
        if way in {"shared", "private"}:
            graph = torch.cuda.CUDAGraph()
            capturing = torch.cuda.graph(graph, pool=pool, stream=stream)
        else:
            graph = escrow_torch.Graph()
            capturing = graph.capture(stream=stream)
        with capturing:
            decoder.step(batch)
        if way == "shared":
            pool = graph.pool()
        graphs[batch] = graph
    return graphs


def launch_us(graphs, order):
    """The host's time for each launch, and all time."""
    torch.cuda.synchronize()
    begin = time.perf_counter_ns()
    for batch in order:
        graphs[batch].replay()
    host = time.perf_counter_ns() - begin
    torch.cuda.synchronize()
    return host / 1e3 / len(order), (time.perf_counter_ns() - begin) / 1e3 / len(order)


def measured(way):
    if way in {"group", "own"}:
        escrow_torch.configure(group="decode" if way == "group" else None)
        escrow_torch.install()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        decoder = Decoder()
        expected = {}
        for batch in COMPARED:
            decoder.step(batch)
            expected[batch] = decoder.output[:batch].clone()
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        begin = time.perf_counter()
        graphs = captured(way, decoder, stream)
        torch.cuda.synchronize()
        result = {"capture_s": time.perf_counter() - begin, "mib": (before - torch.cuda.mem_get_info()[0]) / (1 << 20)}
        worst = 0.0
        for batch in random.Random(2).sample(COMPARED, len(COMPARED)):
            decoder.output.zero_()
            graphs[batch].replay()
            difference = (decoder.output[:batch] - expected[batch]).abs().max() / expected[batch].abs().max()
            worst = max(worst, difference.nan_to_num(nan=1e9).item())
        result["worst_difference"] = worst
        orders = {"few_again": ([1] * 4, 100), "one_again": ([1] * 20, 25),
                  "mixed": (random.Random(1).choices(SIZES, k=200), 5)}
        for name, (order, times) in orders.items():
            times = [launch_us(graphs, order) for _ in range(times)]
            result[f"{name}_host_us"] = statistics.median(each[0] for each in times)
            result[f"{name}_us"] = statistics.median(each[1] for each in times)
    return result


def main(file):
    rounds = rounds_of(__file__, WAYS, ROUNDS, 120)
    ways = {way: {key: statistics.median(each[way][key] for each in rounds) for key in rounds[0][way]} for way in WAYS}
    over = {key: sorted(round(each["group"][key] / each["shared"][key], 3) for each in rounds)
            for key in ("few_again_host_us", "one_again_host_us", "one_again_us", "mixed_host_us", "mixed_us")}
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "graphs": len(SIZES), "ways": ways,
              "group_over_shared": over}
    Path(file).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    assert all(each["worst_difference"] < 0.03 for each in ways.values())


if __name__ == "__main__":
    import torch
    from torch.nn import functional

    from escrow import torch as escrow_torch
    if sys.argv[1] == "--one":
        print(json.dumps(measured(sys.argv[2])))
    else:
        main(sys.argv[1])
