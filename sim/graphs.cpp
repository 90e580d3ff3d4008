// SPDX-License-Identifier: Apache-2.0
// Graphs, nodes and user objects.
#include "graphs.hpp"

#include "edges.hpp"

#include <algorithm>

namespace escrow::sim::model {
namespace {

work clone_work(work const& what, bool with_handles) {
  auto copy = what;
  if (auto* const child = std::get_if<child_work>(&copy)) {
    child->graph = clone(*child->graph, with_handles);
    child->graph->embedded = true;
  }
  if (auto* const conditional = std::get_if<conditional_work>(&copy)) {
    for (std::size_t i = 0; i < conditional->bodies.size(); ++i) {
      auto& body = conditional->bodies[i];
      body = clone(*body, with_handles);
      body->embedded = true;
      conditional->handles[i] = body->handle;
    }
  }
  return copy;
}

void copy_edges(graph_state const& from, graph_state& to) {
  std::unordered_map<cudaGraphNode_t, cudaGraphNode_t> twin;
  for (std::size_t i = 0; i < from.nodes.size(); ++i) twin[from.nodes[i].get()] = to.nodes[i].get();
  for (std::size_t i = 0; i < from.nodes.size(); ++i) {
    for (auto* const before : from.nodes[i]->before) to.nodes[i]->before.push_back(twin.at(before));
    to.nodes[i]->before_edges = from.nodes[i]->before_edges;
    for (auto* const after : from.nodes[i]->after) to.nodes[i]->after.push_back(twin.at(after));
  }
}

// The conditions that were made in a body stay with the graph that had its node.
void leave_conditions(graph_state const& body, graph_state& graph) {
  graph.conditions.insert(body.conditions.begin(), body.conditions.end());
  for (auto const& node : body.nodes) {
    for (auto const& inner : inner_graphs(*node)) leave_conditions(*inner, graph);
  }
}

}  // namespace

std::shared_ptr<graph_state> find_graph(cudaGraph_t handle) {
  return the().graphs.find(handle);
}

std::shared_ptr<graph_state> make_graph() {
  auto& s = the();
  auto graph = std::make_shared<graph_state>();
  graph->id = ++s.next_graph_id;
  s.graphs.add(graph);
  return graph;
}

cudaGraphNode_t add_node(graph_state& graph, std::span<cudaGraphNode_t const> before,
                         cudaGraphEdgeData const* edges, cudaGraphNodeType type, work what) {
  auto node = std::make_unique<CUgraphNode_st>();
  node->graph = &graph;
  node->type = type;
  node->what = std::move(what);
  node->position = graph.nodes.size();
  for (auto const& inner : inner_graphs(*node)) inner->parent = &graph;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!depends_on(*node, *before[i])) add_edge(*before[i], *node, edge_at(edges, i));
  }
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().get();
}

bool depends_on(CUgraphNode_st const& node, CUgraphNode_st const& earlier) {
  return std::ranges::find(node.before, &earlier) != node.before.end();
}

cudaGraphEdgeData edge_from(CUgraphNode_st const& before, CUgraphNode_st const& node) {
  auto const found = std::ranges::find(node.before, &before);
  return node.before_edges[static_cast<std::size_t>(found - node.before.begin())];
}

void add_edge(CUgraphNode_st& from, CUgraphNode_st& to, cudaGraphEdgeData const& edge) {
  from.after.push_back(&to);
  to.before.push_back(&from);
  to.before_edges.push_back(edge);
}

void remove_edge(CUgraphNode_st& from, CUgraphNode_st& to) {
  std::erase(from.after, &to);
  auto const found = std::ranges::find(to.before, &from);
  to.before_edges.erase(to.before_edges.begin() + (found - to.before.begin()));
  to.before.erase(found);
}

void remove_node(CUgraphNode_st& node, callbacks& reclaimed) {
  if (node.type == cudaGraphNodeTypeConditional) {
    for (auto const& body : inner_graphs(node)) leave_conditions(*body, *node.graph);
  }
  for (auto const& inner : inner_graphs(node)) dismantle(inner, reclaimed);
  while (!node.before.empty()) remove_edge(*node.before.back(), node);
  while (!node.after.empty()) remove_edge(node, *node.after.back());
  auto& nodes = node.graph->nodes;
  std::erase_if(nodes, [&](auto const& each) { return each.get() == &node; });
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i]->position = i;
}

std::shared_ptr<graph_state> clone(graph_state const& source, bool with_handles) {
  auto copy = with_handles ? make_graph() : std::make_shared<graph_state>();
  copy->conditions = source.conditions;
  copy->made_of.push_back(source.own);
  if (with_handles) {
    copy->copies_of_source = source.copies;
    ++*copy->copies_of_source;
  }
  for (auto const& [id, reference] : source.references) {
    if (auto* const object = find_object(reference.object);
        object != nullptr && object->id == id && reference.count > 0) {
      retain(*copy, *object, reference.count);
      object->references += static_cast<std::uint64_t>(reference.count);
    }
  }
  for (auto const& node : source.nodes) {
    auto* const twin =
        add_node(*copy, {}, nullptr, node->type, clone_work(node->what, with_handles));
    twin->origin = node.get();
  }
  copy_edges(source, *copy);
  return copy;
}

void release_references(graph_state& graph, callbacks& reclaimed) {
  for (auto const& [id, reference] : graph.references) {
    let_go(reference.object, id, reference.count, reclaimed);
  }
  graph.references.clear();
}

void dismantle(std::shared_ptr<graph_state> const& graph, callbacks& reclaimed) {
  release_references(*graph, reclaimed);
  for (auto const& node : graph->nodes) {
    for (auto const& inner : inner_graphs(*node)) dismantle(inner, reclaimed);
  }
  if (auto const source = std::exchange(graph->copies_of_source, {})) --*source;
  the().graphs.erase(graph->handle);
}

std::vector<std::shared_ptr<graph_state>> inner_graphs(CUgraphNode_st const& node) {
  if (auto const* const child = std::get_if<child_work>(&node.what)) return {child->graph};
  if (auto const* const conditional = std::get_if<conditional_work>(&node.what))
    return conditional->bodies;
  return {};
}

bool has_conditionals(graph_state const& graph) {
  return std::ranges::any_of(graph.nodes, [](auto const& node) {
    if (node->type == cudaGraphNodeTypeConditional) return true;
    auto const* const child = std::get_if<child_work>(&node->what);
    return child != nullptr && has_conditionals(*child->graph);
  });
}

bool sort_nodes(graph_state& graph) {
  std::vector<std::size_t> missing;
  std::vector<std::size_t> order;
  for (auto const& node : graph.nodes) {
    missing.push_back(node->before.size());
    if (node->before.empty()) order.push_back(node->position);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (auto const* const after : graph.nodes[order[i]]->after) {
      if (--missing[after->position] == 0) order.push_back(after->position);
    }
  }
  if (order.size() != graph.nodes.size()) return false;
  std::vector<std::unique_ptr<CUgraphNode_st>> sorted;
  for (auto const position : order) sorted.push_back(std::move(graph.nodes[position]));
  graph.nodes = std::move(sorted);
  bool acyclic = true;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    graph.nodes[i]->position = i;
    for (auto const& inner : inner_graphs(*graph.nodes[i])) acyclic = sort_nodes(*inner) && acyclic;
  }
  return acyclic;
}

CUuserObject_st* find_object(cudaUserObject_t handle) {
  auto const found = the().user_objects.find(handle);
  return found == the().user_objects.end() ? nullptr : found->second.get();
}

void retain(graph_state& graph, CUuserObject_st& object, std::int64_t count) {
  auto& reference = graph.references[object.id];
  reference.object = &object;
  reference.count += count;
}

void let_go(cudaUserObject_t handle, std::uint64_t id, std::int64_t count, callbacks& reclaimed) {
  auto& objects = the().user_objects;
  auto const found = objects.find(handle);
  if (found == objects.end() || found->second->id != id) return;
  auto& object = *found->second;
  auto const left = static_cast<std::int64_t>(object.references) - count;
  object.references = static_cast<std::uint64_t>(std::max<std::int64_t>(left, 0));
  if (object.references != 0) return;
  reclaimed.push_back({object.destroy, object.argument, nullptr});
  objects.erase(found);
}

}  // namespace escrow::sim::model
