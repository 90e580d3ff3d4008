#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it takes torch_memory_saver (PyPI) to give memory back to the device and to map it again.

    bench/torch_memory_saver_park.py FILE

writes FILE, beside which the footprint bench's park/... stand. As there: so many GiB in 16 blocks, contents discarded, medians
of nine. torch_memory_saver asks its user to synchronize first, and Escrow waits for the group's last launch by itself: both
times begin with the device idle.
"""
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch_memory_saver import torch_memory_saver

BLOCKS, ROUNDS = 16, 9


def ms_of(call):
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1e6


def measured(gib):
    tag = f"{gib} GiB"
    with torch_memory_saver.region(tag=tag):
        held = [torch.zeros((gib << 30) // BLOCKS, dtype=torch.uint8, device="cuda") for _ in range(BLOCKS)]
    pause, resume, freed = [], [], []
    for _ in range(ROUNDS):
        held[0].add_(1)
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        pause.append(ms_of(lambda: torch_memory_saver.pause(tag)))
        freed.append((torch.cuda.mem_get_info()[0] - before) / (gib << 30))
        resume.append(ms_of(lambda: torch_memory_saver.resume(tag)))
    del held
    return {"gib": gib, "park_ms": statistics.median(pause), "unpark_ms": statistics.median(resume),
            "over_freed": statistics.median(freed)}


def main():
    torch_memory_saver.hook_mode = "torch"
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rounds": ROUNDS,
              "sizes": [measured(gib) for gib in (1, 4, 16)]}
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
