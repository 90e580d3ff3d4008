// SPDX-License-Identifier: Apache-2.0
// Execs: instantiation, update, and the end of their references.
#include "execs.hpp"

#include "conditionals.hpp"
#include "families.hpp"
#include "graph_memory.hpp"
#include "graphs.hpp"
#include "nodes.hpp"
#include "runner.hpp"

#include <algorithm>
#include <array>

namespace escrow::sim::model {
namespace {

// On which nodes one depends, by their positions, and by what edges.
std::vector<std::array<std::size_t, 3>> dependencies(CUgraphNode_st const& node) {
  std::vector<std::array<std::size_t, 3>> result;
  for (std::size_t i = 0; i < node.before.size(); ++i) {
    cudaGraphEdgeData const& edge = node.before_edges[i];
    result.push_back({node.before[i]->position, edge.from_port, edge.type});
  }
  std::ranges::sort(result);
  return result;
}

// The first node of `graph` that differs from its counterpart; both are sorted. `why` says how.
CUgraphNode_st* first_difference(graph_state const& old, graph_state const& graph,
                                 cudaGraphExecUpdateResult& why) {
  why = cudaGraphExecUpdateErrorTopologyChanged;
  for (std::size_t i = 0; i < std::min(old.nodes.size(), graph.nodes.size()); ++i) {
    auto const& before = *old.nodes[i];
    auto& now = *graph.nodes[i];
    if (dependencies(before) != dependencies(now)) return &now;
    if (before.type != now.type) {
      why = cudaGraphExecUpdateErrorNodeTypeChanged;
      return &now;
    }
    if (!may_become(before.what, now.what)) {
      why = refusal(before.what, now.what);
      return &now;
    }
    auto const inner_before = inner_graphs(before);
    auto const inner_now = inner_graphs(now);
    if (inner_before.size() != inner_now.size()) return &now;
    for (std::size_t k = 0; k < inner_now.size(); ++k) {
      if (auto* const inner = first_difference(*inner_before[k], *inner_now[k], why)) return inner;
      if (inner_before[k]->nodes.size() != inner_now[k]->nodes.size()) return &now;
    }
  }
  return nullptr;
}

// Calls `act(of_old, of_graph)` for the graphs inside their nodes; both have the same ones.
template <class Act>
void for_each_inside(graph_state const& old, graph_state& graph, Act act) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    auto const inner_old = inner_graphs(*old.nodes[i]);
    auto const inner = inner_graphs(*graph.nodes[i]);
    for (std::size_t k = 0; k < inner.size(); ++k) act(*inner_old[k], *inner[k]);
  }
}

// An exec's nodes stay known under the names of the graph that the exec was made from, whatever
// updates it.
void keep_origins(graph_state const& old, graph_state& graph) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    graph.nodes[i]->origin = old.nodes[i]->origin;
    graph.nodes[i]->enabled = old.nodes[i]->enabled;
  }
  for_each_inside(old, graph, keep_origins);
}

// The same with its links to other graphs.
void keep_links(graph_state const& old, graph_state& graph) {
  graph.made_of = old.made_of;
  for_each_inside(old, graph, keep_links);
}

// The same with what an update does not change.
void keep_clusters(exec_state const& exec, graph_state const& old, graph_state& graph) {
  bool const is_used = exec.launched || exec.last_upload != nullptr;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    keep_clusters(old.nodes[i]->what, graph.nodes[i]->what, is_used);
  for_each_inside(old, graph, [&](auto const& inner_old, auto& inner) {
    keep_clusters(exec, inner_old, inner);
  });
}

// The references of an exec's copy go at once if the exec was never launched, soon on CUDA's own
// thread if it was, and not before the launches that run have ended: launch_ended() sees to those.
// After a fault they go as soon, although the launches of another device go on. The values of its
// conditions go when no launch runs.
void retire(exec_state& exec, std::shared_ptr<graph_state> old, callbacks& reclaimed) {
  if (exec.in_flight == 0) forget_conditions(*old, *exec.graph);
  if (!exec.launched) {
    dismantle(old, reclaimed);
  } else if (exec.in_flight == 0 || fault() != cudaSuccess) {
    callbacks later;
    dismantle(old, later);
    if (exec.in_flight == 0) the().known_done.learn(exec.last_end->at);
    defer(std::move(later), std::chrono::microseconds(5), std::chrono::microseconds(230));
  } else {
    exec.replaced.push_back(std::move(old));
  }
}

cudaError_t replace(exec_state& exec, std::shared_ptr<graph_state>& place,
                    graph_state const& source, cudaGraphExecUpdateResultInfo& result,
                    callbacks& reclaimed) {
  auto fresh = clone(source, false);
  bool const acyclic = sort_nodes(*fresh);
  auto* different = first_difference(*place, *fresh, result.result);
  if (!acyclic || different != nullptr || place->nodes.size() != fresh->nodes.size()) {
    result.errorNode = different != nullptr ? different->origin : nullptr;
    dismantle(fresh, reclaimed);
    return cudaErrorGraphExecUpdateFailure;
  }
  result.result = cudaGraphExecUpdateSuccess;
  exec.accesses = nullptr;
  keep_origins(*place, *fresh);
  keep_clusters(exec, *place, *fresh);
  // Linked to both (measured); what links the graphs inside then nobody measured.
  fresh->made_of.insert(fresh->made_of.begin(), place->made_of.front());
  fresh->embedded = place->embedded;
  fresh->parent = place->parent;
  retire(exec, std::exchange(place, std::move(fresh)), reclaimed);
  return cudaSuccess;
}

}  // namespace

std::shared_ptr<exec_state> find_exec(cudaGraphExec_t handle) {
  return the().execs.find(handle);
}

cudaError_t instantiate(graph_state& source, int device, unsigned long long flags,
                        callbacks& reclaimed, cudaGraphExec_t* handle) {
  if ((has_conditionals(source) || has_memory_nodes(source)) && *source.copies != 0)
    return cudaErrorNotSupported;
  if (!bodies_are_legal(source) || !conditions_are_used(source) || !fills_are_legal(source))
    return cudaErrorInvalidValue;
  auto exec = std::make_shared<exec_state>();
  exec->graph = clone(source, false);
  if (!sort_nodes(*exec->graph)) {
    dismantle(exec->graph, reclaimed);
    return cudaErrorInvalidValue;
  }
  exec->device = device;
  exec->frees_on_launch = (flags & cudaGraphInstantiateFlagAutoFreeOnLaunch) != 0;
  exec->copies_of_source = source.copies;
  ++*exec->copies_of_source;
  *handle = the().execs.add(std::move(exec));
  return cudaSuccess;
}

void destroy_exec(api_call& c, std::shared_ptr<exec_state> const& exec) {
  auto& s = the();
  enter_families(c, *exec->graph);
  exec->destroyed = true;
  s.execs.erase(exec->handle);
  if (exec->in_flight != 0) ++s.execs_in_flight;
  if (has_conditionals(*exec->graph)) {
    block(
        c.lock,
        [&] {
          return exec->in_flight == 0 && (exec->last_upload == nullptr || exec->last_upload->done);
        },
        c.name);
    if (exec->last_end != nullptr) s.known_done.learn(exec->last_end->at);
  }
  // An update may have given it conditions without a node.
  if (exec->in_flight == 0) forget_conditions(*exec->graph);
  --*exec->copies_of_source;
  retire(*exec, exec->graph, c.reclaimed);
}

cudaError_t update(exec_state& exec, graph_state const& source,
                   cudaGraphExecUpdateResultInfo& result, callbacks& reclaimed) {
  return replace(exec, exec.graph, source, result, reclaimed);
}

cudaGraphNode_t find_twin(graph_state const& graph, cudaGraphNode_t origin) {
  for (auto const& node : graph.nodes) {
    if (node->origin == origin) return node.get();
    for (auto const& inner : inner_graphs(*node)) {
      if (auto* const found = find_twin(*inner, origin)) return found;
    }
  }
  return nullptr;
}

void part_from_launches(exec_state& exec, callbacks& reclaimed) {
  exec.accesses = nullptr;
  // Only conditional nodes look at the exec's nodes after the launch call.
  if (exec.in_flight == 0 || !has_conditionals(*exec.graph)) return;
  auto fresh = clone(*exec.graph, false);
  keep_origins(*exec.graph, *fresh);
  keep_links(*exec.graph, *fresh);
  retire(exec, std::exchange(exec.graph, std::move(fresh)), reclaimed);
}

cudaError_t update_child(exec_state& exec, CUgraphNode_st& twin, graph_state const& source,
                         callbacks& reclaimed) {
  auto* const child = std::get_if<child_work>(&twin.what);
  if (child == nullptr) return cudaErrorInvalidValue;
  cudaGraphExecUpdateResultInfo result{};
  return replace(exec, child->graph, source, result, reclaimed);
}

}  // namespace escrow::sim::model
