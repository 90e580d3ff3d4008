#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers' continuous batching on PyTorch's own memory and on Escrow: clients/python/batching.py FILE

Each way in a process of its own, in turns, random weights. `own`: as it is; `installed`: escrow_torch.install(graphs=False);
`group`: install(graphs=True), all graphs in one sharing group.
"""

import contextlib
import importlib
import json
import statistics
import sys
import time
from pathlib import Path

from turns import rounds_of

WAYS = ("own", "installed", "group")
ROUNDS, REPEATS = 3, 3
PROMPTS, NEW_TOKENS = 48, 64


def answer_for_memory():
    """transformers asks PyTorch how much is allocated, which no pluggable allocator of this PyTorch answers."""
    def of_escrow(name):
        return lambda device=None: escrow_torch.stats(0)["memory"][name]  # noqa: ARG005
    torch.cuda.memory_reserved = of_escrow("bytes")
    torch.cuda.memory_allocated = of_escrow("bytes_in_use")


def answer_for_pools():
    """transformers makes a torch.cuda.MemPool for its graphs, which a pluggable allocator of this PyTorch refuses."""
    of_transformers = "transformers.generation.continuous_batching"
    for name, module in list(sys.modules.items()):
        if name.startswith(of_transformers) and hasattr(module, "get_cuda_pools"):
            module.get_cuda_pools = lambda: (None, torch.cuda.graph_pool_handle())
        if name.startswith(of_transformers) and hasattr(module, "mem_pool_ctx"):
            module.mem_pool_ctx = lambda _pool: contextlib.nullcontext()


def model_of():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12,
                                      num_attention_heads=16, num_key_value_heads=16, vocab_size=32000)
    model = transformers.LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16).eval()
    model.set_attn_implementation("sdpa")
    return model


def measured(way):
    if way != "own":
        escrow_torch.configure(group="batches" if way == "group" else None)
        escrow_torch.install(graphs=way == "group")
        answer_for_memory()
        importlib.import_module("transformers.generation.continuous_batching")
        answer_for_pools()
    model = model_of()
    prompts = [torch.randint(0, 32000, (20 + 3 * i,), generator=torch.Generator().manual_seed(i)).tolist()
               for i in range(PROMPTS)]
    generation = transformers.GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1,
                                               pad_token_id=0)
    batching = transformers.ContinuousBatchingConfig(use_cuda_graph=True, num_blocks=128, max_batch_tokens=512)
    before = torch.cuda.mem_get_info()[0]
    seconds = []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        outputs = model.generate_batch(prompts, generation_config=generation, continuous_batching_config=batching)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        least = torch.cuda.mem_get_info()[0]
    tokens = [outputs[each].generated_tokens for each in sorted(outputs, key=lambda name: int(name.split("_")[-1]))]
    count = sum(map(len, tokens))
    return {"tokens_per_s": count / statistics.median(seconds[1:]), "first_s": seconds[0], "tokens": tokens,
            "mib": (before - least) / (1 << 20)}


def main(file):
    rounds = rounds_of(__file__, WAYS, ROUNDS, 150)
    expected = rounds[0]["own"].pop("tokens")
    same = {way: statistics.mean(mine == theirs for each in rounds for mine, theirs in
                                 zip(each[way].pop("tokens", expected), expected, strict=True)) for way in WAYS}
    result = {"torch": torch.__version__, "transformers": transformers.__version__,
              "device": torch.cuda.get_device_name(), "equal_outputs": same,
              "ways": {way: {key: statistics.median(each[way][key] for each in rounds) for key in rounds[0][way]}
                       for way in WAYS},
              "over_own": {way: sorted(round(each[way]["tokens_per_s"] / each["own"]["tokens_per_s"], 3)
                                       for each in rounds) for way in WAYS}}
    Path(file).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    import torch
    import transformers

    from escrow import torch as escrow_torch
    if sys.argv[1] == "--one":
        print(json.dumps(measured(sys.argv[2])))
    else:
        main(sys.argv[1])
