// SPDX-License-Identifier: Apache-2.0
// Walks a graph's nodes, and judges what their addresses are in.
#include "escrow/graph/audit.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "audited_call.hpp"
#include "escrow/core/error.hpp"
#include "escrow/internal/address_lookup.hpp"
#include "escrow/internal/driver.hpp"
#include "escrow/internal/graph_query.hpp"
#include "escrow/internal/graph_registry.hpp"
#include "escrow/internal/parked_group.hpp"
#include "graph_core.hpp"
#include "graph_tree.hpp"
#include "node_words.hpp"

namespace escrow::inline v0_2 {

namespace {

using kind = known_address::kind;
using claim = graph_registry::noted_claim;

// A word of a node that is in memory of Escrow's.
struct suspect {
  cudaGraph_t graph;
  cudaGraphNode_t node;
  cudaGraphNodeType type;
  node_words::word word;
  known_address its;
};

// What: one audit.
// Lifetime: of the call.
class auditor {
 public:
  auditor(address_lookup& lookup, bool with_freed) : lookup_(lookup), with_freed_(with_freed) {}

  // With its child graphs, at any depth.
  void walk(char const* call, cudaGraph_t root);
  [[nodiscard]] std::vector<audit_finding> judge_all();

 private:
  [[nodiscard]] std::optional<address_problem> judge(suspect const& found);
  [[nodiscard]] bool is_end(suspect const& found);
  [[nodiscard]] std::optional<address_problem> judge_slot(known_address const& its) const;
  // What was claimed there last, of an arena; null: not known.
  [[nodiscard]] claim const* claim_at(known_address const& its);
  [[nodiscard]] audit_finding finding_of(suspect const& found, address_problem what);

  address_lookup& lookup_;
  bool const with_freed_;
  node_words words_;
  group_pins pins_;
  std::vector<cudaGraph_t> graphs_;
  std::vector<suspect> suspects_;
  held_memory held_;
  std::map<group_order const*, std::vector<claim>> claims_;  // of arenas
};

void auditor::walk(char const* call, cudaGraph_t root) {
  std::size_t next = graphs_.size();
  graphs_.push_back(root);
  for (; next < graphs_.size(); ++next) {
    cudaGraph_t const graph = graphs_[next];
    identify(call, graph);
    for (auto const& group : graph_registry::global().groups_of(graph)) pins_.add(call, group);
    for (cudaGraphNode_t const node : nodes_of(graph)) {
      cudaGraphNodeType const type = type_of(node);
      if (type == cudaGraphNodeTypeGraph) {
        cudaGraph_t child = nullptr;
        check(cudaGraphChildGraphNodeGetGraph(node, &child), "cudaGraphChildGraphNodeGetGraph");
        graphs_.push_back(child);
      }
      for (node_words::word const& each : words_.of(node, type)) {
        constexpr std::uint64_t least = 1U << 16U;
        if (each.value < least) continue;
        known_address its = lookup_.find(each.value, with_freed_);
        if (its.what == kind::unknown || its.what == kind::block) continue;
        if (its.what == kind::unmapped && !with_freed_) continue;
        suspects_.push_back({graph, node, type, each, std::move(its)});
      }
    }
  }
}

std::vector<audit_finding> auditor::judge_all() {
  held_ = graph_registry::global().memory_of(graphs_);
  std::vector<audit_finding> all;
  for (suspect const& each : suspects_) {
    auto const what = judge(each);
    if (what && !is_end(each)) all.push_back(finding_of(each, *what));
  }
  return all;
}

// Whether the node uses memory that ends there, as `[begin, end)` does: what begins there then is
// not meant.
bool auditor::is_end(suspect const& found) {
  if (found.its.what == kind::slot && found.its.offset != 0) return false;
  suspect before = found;
  --before.word.value;
  before.its = lookup_.find(before.word.value, false);
  if (before.its.what == kind::unknown || judge(before)) return false;
  if (before.its.what != kind::slot && before.its.what != kind::arena) return true;
  return std::ranges::any_of(suspects_, [&](suspect const& each) {
    known_address const& its = each.its;
    if (each.node != found.node || its.what != before.its.what) return false;
    if (its.what == kind::slot) return its.slot == before.its.slot;
    return its.group == before.its.group && its.offset <= before.its.offset &&
           held_.has_range(its.group, its.offset, before.its.offset);
  });
}

std::optional<address_problem> auditor::judge(suspect const& found) {
  known_address const& its = found.its;
  switch (its.what) {
    case kind::slot:
      return judge_slot(its);
    case kind::arena: {
      if (held_.has_range(its.group, its.offset, its.offset) || held_.may_hold_more)
        return std::nullopt;
      claim const* const last = claim_at(its);
      if (last != nullptr && is_alive(last->state)) return std::nullopt;
      return address_problem::of_another_graph;
    }
    case kind::freed:
      if (lookup_.is_others(found.word.value)) return std::nullopt;
      break;
    default:
      break;
  }
  return found.word.is_whole ? address_problem::freed : address_problem::only_looks_like;
}

std::optional<address_problem> auditor::judge_slot(known_address const& its) const {
  bool const is_used = its.used_by != known_address::use::none;
  if (held_.slots.contains(its.slot)) return std::nullopt;
  if (its.used_by == known_address::use::allocation) return std::nullopt;
  if (its.is_in_graphs) {
    // The lease's owner orders the graphs, e.g. where one reads what another one has left.
    if (is_used || held_.may_hold_more) return std::nullopt;
    return address_problem::of_another_graph;
  }
  if (is_used && held_.has_owners) return std::nullopt;  // one may own the lease
  return address_problem::not_held;
}

claim const* auditor::claim_at(known_address const& its) {
  auto const [found, is_new] = claims_.try_emplace(its.group);
  if (is_new) found->second = graph_registry::global().claims_in(*its.group);
  claim const* last = nullptr;
  for (claim const& each : found->second) {
    if (each.place.slot != 0 || its.offset < each.place.begin || its.offset >= each.place.end) {
      continue;
    }
    if (last == nullptr || is_alive(each.state) || !is_alive(last->state)) last = &each;
  }
  return last;
}

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 24> text{};
  static_cast<void>(
      std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value)));
  return text.data();
}

std::string place_of(suspect const& found) {
  if (found.word.kernel == nullptr) {
    if (found.type == cudaGraphNodeTypeMemset) return "fill, destination";
    return found.word.argument == 0 ? "copy, destination" : "copy, source";
  }
  std::string text =
      "kernel \"" + found.word.kernel->name + "\", argument " + std::to_string(found.word.argument);
  if (!found.word.is_whole) text += ", offset " + std::to_string(found.word.offset);
  return text;
}

std::string owner_of(known_address const& its) {
  if (its.of.empty()) return "memory of Escrow's";
  bool const is_group = its.what == kind::arena || its.what == kind::unmapped;
  return (is_group ? "the arena of the sharing group \"" : "the pool \"") + its.of + "\"";
}

audit_finding auditor::finding_of(suspect const& found, address_problem what) {
  std::string text = place_of(found) + ": " + hexadecimal(found.word.value);
  std::string const owner = owner_of(found.its);
  switch (what) {
    case address_problem::not_held:
      text += " is of " + owner;
      text +=
          found.its.used_by == known_address::use::lease
              ? ", which a lease has, and not the graph; give the lease to launch(), retain() or "
                "the node, or claim in the capture"
              : ", where it is free; claim in the capture, or give a node the lease, and keep no "
                "address of a lease that has ended";
      break;
    case address_problem::of_another_graph: {
      text += " is of " + owner + ", and another graph's";
      claim const* const last = found.its.what == kind::arena ? claim_at(found.its) : nullptr;
      if (last != nullptr) text += ": graph " + std::to_string(last->graph);
      if (last != nullptr) text += detail::line_text(", claimed at ", last->where);
      text += "; claim in the capture of this graph";
      break;
    }
    case address_problem::freed:
      text += " was of " + owner +
              ", and is freed; let the graph keep "
              "its owner, by retain() or a claim in the capture";
      break;
    case address_problem::only_looks_like:
      text += " looks like an address in " + owner + " that is freed; look whether it is used";
      break;
  }
  return {.node = found.node,
          .graph = found.graph,
          .type = found.type,
          .kernel = found.word.kernel != nullptr ? found.word.kernel->name : std::string(),
          .argument = found.word.argument,
          .offset = found.word.offset,
          // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's address
          .address = reinterpret_cast<void const*>(found.word.value),
          .what = what,
          .owner = found.its.of,
          .text = std::move(text)};
}

}  // namespace

std::vector<audit_finding> audit_for(char const* call, graph_ref const& graph,
                                     std::span<cudaGraph_t const> bodies, bool with_freed) {
  if (graph.get() == nullptr) {
    throw usage_error(call, "the graph is null: it was moved from or detached",
                      "pass a graph that exists");
  }
  address_lookup* const lookup = address_lookup::known();
  if (lookup == nullptr) return {};
  std::vector<cudaGraph_t> roots{graph.get()};
  auto const add = [&roots](cudaGraph_t each) {
    if (std::ranges::find(roots, each) == roots.end()) roots.push_back(each);
  };
  if (graph.core() != nullptr) {
    std::ranges::for_each(graph.core()->bodies, add, &graph_core::body::graph);
  }
  std::ranges::for_each(bodies, add);
  auditor its(*lookup, with_freed);
  for (cudaGraph_t const each : roots) its.walk(call, each);
  return its.judge_all();
}

std::vector<audit_finding> audit(graph_ref graph, std::span<cudaGraph_t const> bodies,
                                 source_location where) {
  constexpr char const* call = "audit";
  return detail::called_at(call, where, [&] { return audit_for(call, graph, bodies, true); });
}

std::string describe(std::span<audit_finding const> findings) {
  std::string text;
  for (audit_finding const& each : findings) text += (text.empty() ? "" : "\n") + each.text;
  return text;
}

}  // namespace escrow::inline v0_2
