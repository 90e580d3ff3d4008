// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate: an address for good, and memory there from an alloc node to a free.
#pragma once

#include "state.hpp"

namespace escrow::sim::model {

// The state's mutex is held by whoever calls these, and by who lets go of a block last.

// What one alloc node allocates. The address is the node's as long as it lives; a sanitizer
// reports whoever touches it while no memory is there.
struct graph_block : std::enable_shared_from_this<graph_block> {
  enum class freed_by { nobody, its_graph, others };

  graph_block(cudaMemAllocNodeParams const& as_asked, std::uint64_t graph_id);
  graph_block(graph_block const&) = delete;
  graph_block& operator=(graph_block const&) = delete;
  ~graph_block();

  // With its address in dptr.
  cudaMemAllocNodeParams params;
  std::vector<cudaMemAccessDesc> access;
  // The id of the graph that allocates it.
  std::uint64_t owner = 0;
  // Which graphs have free nodes for it.
  freed_by freed = freed_by::nobody;
};

// Memory is there from now on, or is not.
void appear(graph_block& block);
void vanish(graph_block& block);

// The block that an address is in; null if there is none.
std::shared_ptr<graph_block> find_block_around(void const* address);
// The block that begins at an address; null if there is none.
std::shared_ptr<graph_block> find_block(void const* address);

// What a node of `graph` needs that allocates; `params` gets the address.
cudaError_t make_alloc_work(graph_state const& graph, cudaMemAllocNodeParams& params, work& what);
// What a node of `graph` needs that frees what an alloc node of any graph has allocated.
cudaError_t make_graph_free_work(graph_state const& graph, void const* address, work& what);

// Alloc or free nodes, also inside.
bool has_memory_nodes(graph_state const& graph);

using graph_blocks = std::vector<std::shared_ptr<graph_block>>;

// Books what a launch allocates and frees; an error if something is still there from a launch
// before, or is not there to be freed. `left` gets what the launch must free first.
cudaError_t book_launch(exec_state const& exec, graph_blocks& left);
// Books a free by a call; an error if the memory is not there, or is its graph's to free.
cudaError_t book_free(graph_block& block);

}  // namespace escrow::sim::model
