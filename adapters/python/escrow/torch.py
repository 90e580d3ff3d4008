# SPDX-License-Identifier: Apache-2.0
"""PyTorch's device memory from Escrow: tensors, graphs, and graphs that share their memory.

The module escrow_torch by another name: see adapters/torch/README.md. escrow.keep(tensor, stream) keeps a
tensor of before a capture for the graph.
"""

from escrow_torch import Graph, allocator, configure, exclude, install, kept, mem_pool, park, stats, trim, unpark

__all__ = [
    "Graph",
    "allocator",
    "configure",
    "exclude",
    "install",
    "kept",
    "mem_pool",
    "park",
    "stats",
    "trim",
    "unpark",
]
