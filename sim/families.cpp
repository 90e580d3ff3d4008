// SPDX-License-Identifier: Apache-2.0
// Families of graphs: who makes or ends a member right now.
#include "families.hpp"

#include "graphs.hpp"

namespace escrow::sim::model {
namespace {

void enter(api_call& c, std::shared_ptr<sole_use> const& entered) {
  c.note_user();
  // relaxed: a call that the program ordered behind the other one reads 0; one that it did not
  // order is at the same time, even if the other has just returned.
  std::uint64_t const user = entered->user.load(std::memory_order_relaxed);
  if (user == c.me.number) return;
  if (user != 0) {
    give_up(std::string(c.name) + " on " + describe_this_thread() + " beside " + entered->call +
            " on thread " + std::to_string(user) +
            ": both make or end what is of one graph, and CUDA's links between these have no lock");
  }
  c.sole_uses.push_back(entered);
  entered->user.store(c.me.number, std::memory_order_relaxed);
  entered->call = c.name;
}

template <class Enter>
void for_all_inside(graph_state const& graph, Enter enter_one) {
  for (auto const& node : graph.nodes) {
    for (auto const& inner : inner_graphs(*node)) enter_one(*inner);
  }
}

}  // namespace

void enter_links(api_call& c, graph_state const& made) {
  for (auto const& each : made.made_of) enter(c, each);
  for_all_inside(made, [&c](graph_state const& inner) { enter_links(c, inner); });
}

void enter_own(api_call& c, graph_state const& original) {
  enter(c, original.own);
  for_all_inside(original, [&c](graph_state const& inner) { enter_own(c, inner); });
}

void enter_families(api_call& c, graph_state const& ended) {
  enter_own(c, ended);
  enter_links(c, ended);
}

}  // namespace escrow::sim::model
