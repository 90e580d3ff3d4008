// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate: an address for good, and memory there from an alloc node to a free.
#include "graph_memory.hpp"

#include "apart.hpp"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <new>
#include <span>

namespace escrow::sim::model {
namespace {

bool is_a_device(cudaMemLocation const& place) {
  return place.type == cudaMemLocationTypeDevice && place.id >= 0 && place.id < the().how.devices;
}

bool is_possible(cudaMemAllocNodeParams const& params) {
  auto const& pool = params.poolProps;
  std::span const access(params.accessDescs,
                         params.accessDescs == nullptr ? 0 : params.accessDescCount);
  return params.bytesize != 0 && pool.allocType == cudaMemAllocationTypePinned &&
         pool.handleTypes == cudaMemHandleTypeNone && is_a_device(pool.location) &&
         access.size() == params.accessDescCount &&
         std::ranges::all_of(access, [](auto const& each) {
           return is_a_device(each.location) || each.location.type == cudaMemLocationTypeHost;
         });
}

void collect(graph_state const& graph, graph_blocks& allocated, graph_blocks& freed) {
  for (auto const& node : graph.nodes) {
    if (auto const* const a = std::get_if<alloc_work>(&node->what)) allocated.push_back(a->block);
    if (auto const* const f = std::get_if<graph_free_work>(&node->what)) freed.push_back(f->block);
    if (auto const* const child = std::get_if<child_work>(&node->what))
      collect(*child->graph, allocated, freed);
  }
}

bool contains(graph_blocks const& list, std::shared_ptr<graph_block> const& block) {
  return std::ranges::find(list, block) != list.end();
}

}  // namespace

graph_block::graph_block(cudaMemAllocNodeParams const& as_asked, std::uint64_t graph_id)
    : params(as_asked), owner(graph_id) {
  access.assign(params.accessDescs, params.accessDescs + params.accessDescCount);
  params.accessDescs = access.data();
  params.dptr = new_device_memory(params.bytesize);
  if (params.dptr == nullptr) throw std::bad_alloc();
  the().graph_blocks.emplace(params.dptr, this);
  vanish(*this);
}

graph_block::~graph_block() {
  the().graph_blocks.erase(params.dptr);
  the().used.forget(params.dptr, params.bytesize);
  appear(*this);
  delete_device_memory(params.dptr, params.bytesize);
}

void appear(graph_block& block) {
  ASAN_UNPOISON_MEMORY_REGION(block.params.dptr, block.params.bytesize);
}

void vanish(graph_block& block) {
  ASAN_POISON_MEMORY_REGION(block.params.dptr, block.params.bytesize);
}

std::shared_ptr<graph_block> find_block_around(void const* address) {
  auto& blocks = the().graph_blocks;
  auto const after = blocks.upper_bound(address);
  if (after == blocks.begin()) return nullptr;
  auto const& [start, block] = *std::prev(after);
  auto const* const end = static_cast<char const*>(start) + block->params.bytesize;
  return static_cast<char const*>(address) < end ? block->shared_from_this() : nullptr;
}

std::shared_ptr<graph_block> find_block(void const* address) {
  auto const found = the().graph_blocks.find(address);
  return found == the().graph_blocks.end() ? nullptr : found->second->shared_from_this();
}

cudaError_t make_alloc_work(graph_state const& graph, cudaMemAllocNodeParams& params, work& what) {
  if (!is_possible(params)) return cudaErrorInvalidValue;
  if (graph.embedded && !graph.body) return cudaErrorNotSupported;
  if (params.bytesize > the().how.device_memory) return cudaErrorMemoryAllocation;
  auto block = std::make_shared<graph_block>(params, graph.id);
  params.dptr = block->params.dptr;
  what = alloc_work{std::move(block)};
  return cudaSuccess;
}

cudaError_t make_graph_free_work(graph_state const& graph, void const* address, work& what) {
  using freed_by = graph_block::freed_by;
  auto const block = find_block(address);
  if (block == nullptr) return cudaErrorInvalidValue;
  if (graph.embedded && !graph.body) return cudaErrorNotSupported;
  bool const is_own = block->owner == graph.id;
  if (block->freed == freed_by::its_graph || (is_own && block->freed == freed_by::others))
    return cudaErrorInvalidValue;
  bool const is_second = std::ranges::any_of(graph.nodes, [&](auto const& node) {
    auto const* const f = std::get_if<graph_free_work>(&node->what);
    return f != nullptr && f->block == block;
  });
  if (is_second) return cudaErrorInvalidValue;
  block->freed = is_own ? freed_by::its_graph : freed_by::others;
  what = graph_free_work{block};
  return cudaSuccess;
}

bool has_memory_nodes(graph_state const& graph) {
  return std::ranges::any_of(graph.nodes, [](auto const& node) {
    if (node->type == cudaGraphNodeTypeMemAlloc || node->type == cudaGraphNodeTypeMemFree)
      return true;
    auto const* const child = std::get_if<child_work>(&node->what);
    return child != nullptr && has_memory_nodes(*child->graph);
  });
}

cudaError_t book_launch(exec_state const& exec, graph_blocks& left) {
  auto& unfreed = the().unfreed_blocks;
  graph_blocks allocated;
  graph_blocks freed;
  collect(*exec.graph, allocated, freed);
  for (auto const& block : allocated) {
    if (unfreed.contains(block->params.dptr)) left.push_back(block);
  }
  if (!left.empty() && !exec.frees_on_launch) return cudaErrorInvalidValue;
  for (auto const& block : freed) {
    if (!contains(allocated, block) && !unfreed.contains(block->params.dptr))
      return cudaErrorInvalidValue;
  }
  for (auto const& block : allocated) unfreed.emplace(block->params.dptr, block);
  for (auto const& block : freed) unfreed.erase(block->params.dptr);
  return cudaSuccess;
}

cudaError_t book_free(graph_block& block) {
  if (block.freed == graph_block::freed_by::its_graph) return cudaErrorInvalidValue;
  return the().unfreed_blocks.erase(block.params.dptr) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace escrow::sim::model
