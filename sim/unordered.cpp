// SPDX-License-Identifier: Apache-2.0
// Looks for two nodes with the same memory that may run at the same time.
#include "unordered.hpp"

#include "accesses.hpp"
#include "graphs.hpp"
#include "operands.hpp"
#include "state.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace escrow::sim::model {
namespace {

constexpr std::size_t nodes_max = 4096;

struct node_access {
  access what;
  std::size_t node = 0;  // the position in the outermost graph
};

std::vector<node_access> sorted_accesses(graph_state const& graph) {
  std::vector<node_access> all;
  std::vector<access> of_node;
  for (auto const& node : graph.nodes) {
    of_node.clear();
    if (node->enabled) add_accesses(node->what, of_node);
    for (access const& each : of_node) all.push_back({each, node->position});
    for (auto const& inner : inner_graphs(*node)) {
      for (access const& each : accesses_of(*inner)) all.push_back({each, node->position});
    }
  }
  std::ranges::sort(all, {}, [](node_access const& each) { return each.what.begin; });
  return all;
}

bool has_events(graph_state const& graph) {
  return std::ranges::any_of(graph.nodes, [](auto const& node) {
    auto const inner = inner_graphs(*node);
    return std::holds_alternative<record_work>(node->what) ||
           std::holds_alternative<wait_work>(node->what) ||
           std::ranges::any_of(inner, [](auto const& each) { return has_events(*each); });
  });
}

// Which nodes of a sorted graph come before which.
class order {
 public:
  explicit order(graph_state const& graph) : rows_(graph.nodes.size()) {
    std::size_t const words = (rows_.size() + 63) / 64;
    for (auto const& node : graph.nodes) {
      auto& row = rows_[node->position];
      row.resize(words);
      for (cudaGraphNode_t const before : node->before) {
        std::size_t const at = before->position;
        row[at / 64] |= std::uint64_t{1} << (at % 64);
        for (std::size_t i = 0; i < words; ++i) row[i] |= rows_[at][i];
      }
    }
  }
  [[nodiscard]] bool is_between(std::size_t one, std::size_t other) const {
    auto const [first, second] = std::minmax(one, other);
    return one == other || ((rows_[second][first / 64] >> (first % 64)) & 1U) != 0;
  }

 private:
  std::vector<std::vector<std::uint64_t>> rows_;  // a bit for each node that comes before
};

bool is_chain(graph_state const& graph) {
  return std::ranges::all_of(graph.nodes, [](auto const& node) {
    return node->position == 0 || std::ranges::any_of(node->before, [&](cudaGraphNode_t before) {
             return before->position + 1 == node->position;
           });
  });
}

[[noreturn]] void refuse(char const* call, access const& a, access const& b) {
  if (b.kind == access_kind::writes && a.kind != access_kind::writes) refuse(call, b, a);
  auto const* const shared = reinterpret_cast<void const*>(std::max(a.begin, b.begin));
  give_up(std::string(call) + ": no edge of the graph orders " + name_of(a) + ", and " +
          name_of(b) + ", which both use " + text_of(shared) +
          ": give one of the two nodes the other as a dependency, or capture their work on one "
          "stream; sim::let_work_share(true) permits it");
}

}  // namespace

void refuse_unordered(char const* call, graph_state const& graph) {
  if (asked_audits() == audits::off || the().may_work_share) return;
  for (auto const& node : graph.nodes) {
    for (auto const& inner : inner_graphs(*node)) refuse_unordered(call, *inner);
  }
  if (graph.nodes.size() < 2 || graph.nodes.size() > nodes_max || is_chain(graph)) return;
  if (has_events(graph)) return;
  std::vector<node_access> const all = sorted_accesses(graph);
  order const known(graph);
  bool const of_kernels = asked_audits() == audits::all;
  for (auto a = all.begin(); a != all.end(); ++a) {
    for (auto b = a + 1; b != all.end() && b->what.begin - a->what.begin < a->what.bytes; ++b) {
      if (is_conflict(a->what, b->what, of_kernels) && !known.is_between(a->node, b->node))
        refuse(call, a->what, b->what);
    }
  }
}

}  // namespace escrow::sim::model
