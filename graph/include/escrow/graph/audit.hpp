// SPDX-License-Identifier: Apache-2.0
// Audits: addresses in a graph of memory that the graph does not keep.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/graph/graph.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What is wrong with an address in a graph:
//     not_held           of a slot of a pool that no graph holds: it is free, or a lease has it
//     of_another_graph   of a slot, or of a part of a group's arena, that another graph has
//     freed              Escrow had the memory, and has given it back
//     only_looks_like    the same, but the value is a part of a larger argument: perhaps no address
enum class address_problem : std::uint8_t { not_held, of_another_graph, freed, only_looks_like };

// An address that a node of a graph has.
struct audit_finding {
  cudaGraphNode_t node = nullptr;  // of `graph`: the audited one, a child graph, or a body
  cudaGraph_t graph = nullptr;
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;  // of the node; or a copy, or a fill
  std::string kernel = {};                           // its name; empty: not a kernel
  // Of the kernel, from 0. Of a copy 0 is the destination and 1 the source; of a fill 0.
  std::size_t argument = 0;
  std::size_t offset = 0;  // of the address in the argument, e.g. of a member of a struct
  void const* address = nullptr;
  address_problem what = address_problem::not_held;
  std::string owner = {};  // the label of the pool, or of the group; empty: not known
  std::string text = {};   // all of this, and what to do
};

// The addresses in a graph, its child graphs and its bodies that are of memory of Escrow's and not
// kept by the graph: of a lease of before the capture that is used by its address, of what another
// graph has claimed, of what is freed. Kernels' arguments, copies and fills are read. `graph`: any,
// also one of another library; of a part it is not known what the whole keeps. `bodies`: as
// instantiate_options::bodies.
//   CUDA does not tell the types of arguments: an aligned word counts as an address if it is in
// memory that Escrow has, or had lately. No finding: memory of others, as of cudaMalloc; what a
// living device_buffer has, or a stream_allocator gave out, which its owner keeps; and what a plain
// copy, a hoisted graph, or an owner that the graph keeps may hold, which is not known.
//   It changes nothing: the caller's device, captures and last error stay. Capture-safe. Any
// thread, while no other one changes the graph. Throws cuda_error, std::bad_alloc; usage_error if
// the graph is null, or a sharing group of it is parked. Source: cuFuncGetParamInfo,
// cuPointerGetAttributes.
[[nodiscard]] ESCROW_API std::vector<audit_finding> audit(
    graph_ref graph, std::span<cudaGraph_t const> bodies = {},
    source_location where = source_location::current());

// The same in words, a line for each. Any thread. Throws std::bad_alloc.
//
//     kernel "scale", argument 0: 0x7f31c2000000 is of the pool "solver of 4096 bytes", which a
//     lease has, and not the graph; give the lease to launch(), or claim in the capture
[[nodiscard]] ESCROW_API std::string describe(std::span<audit_finding const> findings);

}  // namespace escrow::inline v0_2
