// A chain of kernel nodes built with Escrow, each with two owners as its arguments.
#pragma once

#include <escrow/nodes.hpp>
#include <span>

#include "node_owners.hpp"
#include "two_pointers.hpp"

namespace escrow::bench {

inline void add_escrow_nodes(graph& to, std::span<node_owners const> owners) {
  kernel const launched(two_pointers_kernel());
  launch_config const config;
  if (owners.empty()) return;
  node last = escrow::build(to).add(
      kernel_node(launched, config, owners.front().first, owners.front().second));
  for (node_owners const& each : owners.subspan(1)) {
    last = last.add(kernel_node(launched, config, each.first, each.second));
  }
}

}  // namespace escrow::bench
