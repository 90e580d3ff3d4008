// SPDX-License-Identifier: Apache-2.0
// Compares the claims of a graph's parts, and then looks for paths between them.
#include "shared_claims.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "escrow/internal/graph_query.hpp"
#include "graph_tree.hpp"

namespace escrow::inline v0_2 {

namespace {

using group_set = graph_registry::group_set;

// What: the nodes of a graph, numbered so that each comes after those that it depends on.
class node_order {
 public:
  explicit node_order(cudaGraph_t graph) {
    std::vector<cudaGraphNode_t> const nodes = nodes_of(graph);
    graph_edges const edges = edges_of(graph);
    std::vector<cudaGraphNode_t> const numbered = sorted_by_edges(nodes, edges);
    for (std::size_t i = 0; i < numbered.size(); ++i) numbers_.emplace(numbered[i], i);
    has_cycle_ = numbered.size() != nodes.size();
    if (!has_cycle_) note_paths(edges);
  }

  // CUDA instantiates no graph with a cycle.
  [[nodiscard]] bool has_cycle() const noexcept { return has_cycle_; }
  // Whether neither of these nodes may run beside any other node.
  [[nodiscard]] bool are_apart(std::vector<cudaGraphNode_t> const& nodes) const {
    return std::ranges::all_of(nodes, [this](auto each) { return is_apart_[numbers_.at(each)]; });
  }
  // Whether no two of these nodes may run concurrently. Each ends before what depends on it starts.
  [[nodiscard]] bool is_line(std::vector<cudaGraphNode_t> const& nodes) const {
    std::vector<std::size_t> line;
    for (cudaGraphNode_t const each : nodes) line.push_back(numbers_.at(each));
    std::ranges::sort(line);
    for (std::size_t i = 1; i < line.size(); ++i) {
      if (!is_apart_[line[i]] && !is_before(line[i - 1], line[i])) return false;
    }
    return true;
  }

 private:
  using neighbours = std::vector<std::vector<std::size_t>>;

  void note_paths(graph_edges const& edges) {
    std::size_t const count = numbers_.size();
    earlier_.resize(count);
    std::vector<std::size_t> before(count, 0);     // 1 + the last one that it starts after
    std::vector<std::size_t> after(count, count);  // the first one that starts after its end
    for (std::size_t i = 0; i < edges.to.size(); ++i) {
      std::size_t const from = numbers_.at(edges.from[i]);
      std::size_t const to = numbers_.at(edges.to[i]);
      earlier_[to].push_back(from);
      before[to] = std::max(before[to], from + 1);
      if (ends_after(edges.to[i], edges.data[i])) after[from] = std::min(after[from], to);
    }
    // All later ones come after a node if each has an edge from that, or from one behind it; the
    // same of those before.
    is_apart_.assign(count, true);
    for (std::size_t i = 0, most = 0; i < count; ++i) {
      is_apart_[i] = most <= i;
      most = std::max(most, after[i]);
    }
    for (std::size_t i = count, least = count; i-- != 0;) {
      is_apart_[i] = is_apart_[i] && least > i;
      least = std::min(least, before[i]);
    }
  }

  // Whether a path leads from the one to the other, through numbers between theirs.
  [[nodiscard]] bool is_before(std::size_t one, std::size_t other) const {
    std::vector<std::size_t> reached{other};
    std::vector<bool> is_in(other - one);
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for (std::size_t const each : earlier_[reached[i]]) {
        if (each == one) return true;
        if (each < one || is_in[each - one]) continue;
        is_in[each - one] = true;
        reached.push_back(each);
      }
    }
    return false;
  }

  std::unordered_map<cudaGraphNode_t, std::size_t> numbers_;
  neighbours earlier_;
  std::vector<bool> is_apart_;
  bool has_cycle_ = false;
};

class claim_survey {
 public:
  explicit claim_survey(std::span<graph_core::body const> bodies) : bodies_(bodies) {}

  // Returns the claims of the graph and all in it.
  group_set add(cudaGraph_t graph) {
    group_set all = graph_registry::global().exclusives_of(graph);
    users_of_claims users;
    auto const add_part = [&](cudaGraphNode_t at, group_set const& its) {
      for (auto const& each : its) {
        auto& nodes = users[each];
        // Of one conditional node one body runs at a time.
        if (nodes.empty() || nodes.back() != at) nodes.push_back(at);
      }
    };
    child_graphs const children = children_of(graph);
    for (std::size_t i = 0; i < children.graphs.size(); ++i) {
      add_part(children.nodes[i], add(children.graphs[i]));
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
  using users_of_claims = std::map<std::shared_ptr<launch_order>, std::vector<cudaGraphNode_t>>;

  void judge(cudaGraph_t graph, group_set const& own, users_of_claims const& users) {
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
};

}  // namespace

bool has_unordered_claims(cudaGraph_t graph, std::span<graph_core::body const> bodies) {
  claim_survey survey(bodies);
  static_cast<void>(survey.add(graph));
  return survey.has_race;
}

group_set claims_in(cudaGraph_t graph) {
  return claim_survey({}).add(graph);
}

std::span<exec_claims::graph_of const> exec_claims::parts_of(cudaGraphNode_t node) const noexcept {
  auto const at = std::ranges::find(graphs_, node, &graph_of::node);
  if (at == graphs_.end()) return {};
  auto const is_beside = [at](graph_of const& each) { return each.depth <= at->depth; };
  return {at, std::find_if(at + 1, graphs_.end(), is_beside)};
}

bool exec_claims::may_race(cudaGraphNode_t node, group_set const& claims) const {
  auto const is_in = [](orders const& all, std::shared_ptr<launch_order> const& claim) {
    return std::ranges::any_of(all, [&claim](auto const& each) {
      return !each.owner_before(claim) && !claim.owner_before(each);
    });
  };
  auto const own = parts_of(node);
  return std::ranges::any_of(claims, [&](auto const& claim) {
    auto const has_it = [&](graph_of const& each) { return is_in(each.claims, claim); };
    return std::ranges::none_of(own, has_it) &&
           (std::ranges::any_of(of_update_, has_it) || std::ranges::any_of(graphs_, has_it));
  });
}

void exec_claims::set(cudaGraphNode_t node, group_set const& claims) {
  auto const parts = parts_of(node);
  if (parts.empty()) return;
  orders its(claims.begin(), claims.end());
  auto const at = static_cast<std::size_t>(parts.data() - graphs_.data());
  for (std::size_t i = 0; i < parts.size(); ++i) graphs_[at + i].claims.clear();
  graphs_[at].claims = std::move(its);
}

void exec_claims::update(exec_claims&& other) noexcept {
  bool const is_sure = graphs_.size() <= 2 && graphs_.size() == other.graphs_.size();
  for (std::size_t i = 0; i < graphs_.size(); ++i) {
    is_sure ? graphs_[i].claims.swap(other.graphs_[i].claims) : graphs_[i].claims.clear();
  }
  of_update_.swap(other.graphs_);
  if (is_sure) of_update_.clear();
}

}  // namespace escrow::inline v0_2
