// SPDX-License-Identifier: Apache-2.0
// Conditional nodes: their handles, their values, their bodies, and which body runs.
#include "conditionals.hpp"

#include "graphs.hpp"

#include <algorithm>
#include <array>
#include <set>

namespace escrow::sim::model {
namespace {

bool has_condition(graph_state const& graph, cudaGraphConditionalHandle handle) {
  for (auto const* each = &graph; each != nullptr; each = each->parent) {
    if (each->conditions.contains(handle)) return true;
  }
  return false;
}

bool has_size_of_its_type(cudaConditionalNodeParams const& params) {
  switch (params.type) {
    case cudaGraphCondTypeIf:
      return params.size == 1 || params.size == 2;
    case cudaGraphCondTypeWhile:
      return params.size == 1;
    case cudaGraphCondTypeSwitch:
      return params.size > 0;
  }
  return false;
}

bool is_seen_by_device(memory_place const& place) {
  return place.type != cudaMemoryTypeUnregistered;
}

bool fits_in_a_body(CUgraphNode_st const& node) {
  constexpr std::array allowed{cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy,
                               cudaGraphNodeTypeMemset, cudaGraphNodeTypeGraph,
                               cudaGraphNodeTypeEmpty,  cudaGraphNodeTypeConditional};
  if (std::ranges::find(allowed, node.type) == allowed.end()) return false;
  if (auto const* const copy = std::get_if<copy_work>(&node.what)) {
    return is_seen_by_device(copy->to) && is_seen_by_device(copy->from);
  }
  auto const inner = inner_graphs(node);
  return std::ranges::all_of(inner, [](auto const& graph) {
    return std::ranges::all_of(graph->nodes,
                               [](auto const& each) { return fits_in_a_body(*each); });
  });
}

void collect_conditions(graph_state const& graph, std::set<cudaGraphConditionalHandle>& made,
                        std::set<cudaGraphConditionalHandle>& used) {
  for (auto const& [handle, condition] : graph.conditions) made.insert(handle);
  for (auto const& node : graph.nodes) {
    if (auto const* const what = std::get_if<conditional_work>(&node->what))
      used.insert(what->handle);
    for (auto const& inner : inner_graphs(*node)) collect_conditions(*inner, made, used);
  }
}

// Whether a node there, or in a graph inside, has the condition.
bool has_node(graph_state const& graph, cudaGraphConditionalHandle condition) {
  std::set<cudaGraphConditionalHandle> made;
  std::set<cudaGraphConditionalHandle> used;
  collect_conditions(graph, made, used);
  return used.contains(condition);
}

}  // namespace

cudaError_t make_conditional_work(graph_state const& graph, cudaConditionalNodeParams const& params,
                                  work& what) {
  if (!has_condition(graph, params.handle) || has_node(graph, params.handle) ||
      !has_size_of_its_type(params))
    return cudaErrorInvalidValue;
  conditional_work made{params.handle, params.type, {}, {}};
  for (unsigned int i = 0; i < params.size; ++i) {
    made.bodies.push_back(make_graph());
    made.bodies.back()->embedded = true;
    made.bodies.back()->body = true;
    made.handles.push_back(made.bodies.back()->handle);
  }
  what = std::move(made);
  return cudaSuccess;
}

bool conditions_are_used(graph_state const& graph) {
  std::set<cudaGraphConditionalHandle> made;
  std::set<cudaGraphConditionalHandle> used;
  collect_conditions(graph, made, used);
  return std::ranges::includes(used, made);
}

bool bodies_are_legal(graph_state const& graph) {
  return std::ranges::all_of(graph.nodes, [](auto const& node) {
    return node->type != cudaGraphNodeTypeConditional || fits_in_a_body(*node);
  });
}

void set_conditions(graph_state const& graph) {
  auto& values = the().conditions;
  for (auto const& [handle, condition] : graph.conditions) {
    if ((condition.flags & cudaGraphCondAssignDefault) != 0) values[handle] = condition.initial;
  }
  for (auto const& node : graph.nodes) {
    for (auto const& inner : inner_graphs(*node)) set_conditions(*inner);
  }
}

void forget_conditions(graph_state const& graph) {
  for (auto const& [handle, condition] : graph.conditions) the().conditions.erase(handle);
  for (auto const& node : graph.nodes) {
    for (auto const& inner : inner_graphs(*node)) forget_conditions(*inner);
  }
}

void forget_conditions(graph_state const& graph, graph_state const& still_used) {
  std::set<cudaGraphConditionalHandle> gone;
  std::set<cudaGraphConditionalHandle> kept;
  std::set<cudaGraphConditionalHandle> with_nodes;
  collect_conditions(graph, gone, with_nodes);
  collect_conditions(still_used, kept, with_nodes);
  for (auto const handle : gone) {
    if (!kept.contains(handle)) the().conditions.erase(handle);
  }
}

graph_state const* body_to_run(conditional_work const& what) {
  auto const value = the().conditions[what.handle];
  auto const& bodies = what.bodies;
  std::size_t index = value;
  if (what.type == cudaGraphCondTypeIf) index = value != 0 ? 0 : 1;
  if (what.type == cudaGraphCondTypeWhile) index = value != 0 ? 0 : bodies.size();
  return index < bodies.size() ? bodies[index].get() : nullptr;
}

}  // namespace escrow::sim::model

namespace escrow::sim {

void set_conditional(cudaGraphConditionalHandle handle, unsigned int value) {
  auto& s = model::the();
  std::lock_guard lock(s.mutex);
  s.conditions[handle] = value;
}

}  // namespace escrow::sim
