// SPDX-License-Identifier: Apache-2.0
// Compares the claims of a graph's parts, and then looks for paths between them.
#include "shared_claims.hpp"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "escrow/internal/graph_query.hpp"
#include "graph_tree.hpp"

namespace escrow::inline v0_2 {

namespace {

using group_set = graph_registry::group_set;

// What: the nodes of a graph, numbered so that each comes after those that end before it starts.
class node_order {
 public:
  explicit node_order(cudaGraph_t graph) : nodes_(nodes_of(graph)) {
    graph_edges const edges = edges_of(graph);
    std::unordered_map<cudaGraphNode_t, std::vector<cudaGraphNode_t>> later;
    std::unordered_map<cudaGraphNode_t, std::size_t> open;  // edges from nodes without a number
    for (std::size_t i = 0; i < edges.to.size(); ++i) {
      if (!ends_after(edges.to[i], edges.data[i])) continue;
      later[edges.from[i]].push_back(edges.to[i]);
      ++open[edges.to[i]];
    }
    std::vector<cudaGraphNode_t> numbered;
    for (cudaGraphNode_t const each : nodes_) {
      if (!open.contains(each)) numbered.push_back(each);
    }
    for (std::size_t i = 0; i < numbered.size(); ++i) {
      for (cudaGraphNode_t const next : later[numbered[i]]) {
        if (--open[next] == 0) numbered.push_back(next);
      }
    }
    for (std::size_t i = 0; i < numbered.size(); ++i) numbers_.emplace(numbered[i], i);
    if (has_cycle()) return;
    later_.resize(numbered.size());
    earlier_.resize(numbered.size());
    for (auto const& [from, all] : later) {
      for (cudaGraphNode_t const to : all) {
        later_[numbers_.at(from)].push_back(numbers_.at(to));
        earlier_[numbers_.at(to)].push_back(numbers_.at(from));
      }
    }
  }

  // Whether no two of these nodes may run concurrently.
  [[nodiscard]] bool is_line(std::vector<cudaGraphNode_t> const& nodes) const {
    std::vector<std::size_t> line;
    for (cudaGraphNode_t const each : nodes) line.push_back(numbers_.at(each));
    std::ranges::sort(line);
    for (std::size_t i = 1; i < line.size(); ++i) {
      // What leads to a node from before the one that is looked for does not come from there.
      auto const before = reached(earlier_, line[i], line[i - 1]);
      if (std::ranges::find(before, line[i - 1]) == before.end()) return false;
    }
    return true;
  }
  // Nor one of them and any other node.
  [[nodiscard]] bool are_apart(std::vector<cudaGraphNode_t> const& nodes) const {
    return std::ranges::all_of(nodes, [this](cudaGraphNode_t each) {
      std::size_t const at = numbers_.at(each);
      return reached(earlier_, at, 0).size() + reached(later_, at, 0).size() + 1 == nodes_.size();
    });
  }
  // CUDA instantiates no graph with a cycle.
  [[nodiscard]] bool has_cycle() const { return numbers_.size() != nodes_.size(); }

 private:
  using neighbours = std::vector<std::vector<std::size_t>>;

  // All to which a path leads from there, of those with at least that number.
  [[nodiscard]] static std::vector<std::size_t> reached(neighbours const& by, std::size_t from,
                                                        std::size_t least) {
    std::vector<std::size_t> all{from};
    std::vector<bool> is_in(by.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t const each : by[all[i]]) {
        if (each < least || is_in[each]) continue;
        is_in[each] = true;
        all.push_back(each);
      }
    }
    all.erase(all.begin());
    return all;
  }

  std::vector<cudaGraphNode_t> nodes_;
  std::unordered_map<cudaGraphNode_t, std::size_t> numbers_;
  neighbours later_;
  neighbours earlier_;
};

class claim_survey {
 public:
  claim_survey(std::span<graph_core::body const> bodies, changed_claims changed)
      : bodies_(bodies), changed_(std::move(changed)) {}

  // Returns the claims of the graph and all in it.
  group_set add(cudaGraph_t graph) {
    group_set all = graph_registry::global().claims_of(graph);
    std::map<std::shared_ptr<launch_order>, std::vector<cudaGraphNode_t>> users;
    auto const add_part = [&](cudaGraphNode_t at, group_set const& its) {
      for (auto const& each : its) {
        auto& nodes = users[each];
        // Of one conditional node one body runs at a time.
        if (nodes.empty() || nodes.back() != at) nodes.push_back(at);
      }
    };
    child_graphs const children = children_of(graph);
    for (std::size_t i = 0; i < children.graphs.size(); ++i) {
      auto const changed = changed_.find(children.nodes[i]);
      add_part(children.nodes[i],
               changed == changed_.end() ? add(children.graphs[i]) : changed->second);
    }
    for (cudaGraphNode_t const node : children.conditionals) {
      for (auto const& body : bodies_) {
        if (body.of == node) add_part(node, add(body.graph));
      }
    }
    judge(graph, all, users);
    for (auto const& each : users) all.insert(each.first);
    return all;
  }

  bool has_race = false;

 private:
  void judge(cudaGraph_t graph, group_set const& own,
             std::map<std::shared_ptr<launch_order>, std::vector<cudaGraphNode_t>> const& users) {
    auto const is_shared = [&own](auto const& each) {
      return each.second.size() > 1 || own.contains(each.first);
    };
    if (has_race || std::ranges::none_of(users, is_shared)) return;
    node_order const order(graph);
    if (order.has_cycle()) return;
    for (auto const& [each, nodes] : users) {
      has_race |= !(own.contains(each) ? order.are_apart(nodes) : order.is_line(nodes));
    }
  }

  std::span<graph_core::body const> bodies_;
  changed_claims changed_;
};

}  // namespace

bool has_unordered_claims(cudaGraph_t graph, std::span<graph_core::body const> bodies,
                          changed_claims const& changed) {
  claim_survey survey(bodies, changed);
  static_cast<void>(survey.add(graph));
  return survey.has_race;
}

group_set claims_in(cudaGraph_t graph) {
  return claim_survey({}, {}).add(graph);
}

group_set claims_in(reference_sets const& sets) {
  group_set all;
  for (auto const& each : sets) {
    if (each->has_claims()) all.insert(each->order());
  }
  return all;
}

}  // namespace escrow::inline v0_2
