// SPDX-License-Identifier: Apache-2.0
// What memory work reads and writes, as far as its parameters tell.
#pragma once

#include "objects.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace escrow::sim::model {

// Whether it is known that nobody else may use the memory meanwhile.
inline bool is_exclusive(access_kind kind) {
  return kind == access_kind::writes || kind >= access_kind::allocates;
}

// Adds what the work uses; nothing for child and conditional nodes, whose graphs have nodes.
void add_accesses(work const& what, std::vector<access>& to);
// What the enabled nodes of the graph use, and of those inside it.
std::vector<access> accesses_of(graph_state const& graph);

// Whether both use some byte.
bool overlap(access const& a, access const& b);
// The same, and one writes what the other uses. Of kernels only if asked: by their types they may
// write, which they need not do.
bool is_conflict(access const& a, access const& b, bool of_kernels);

// For messages: "a fill or copy", "its free", or a kernel and its argument.
std::string name_of(access const& what);

}  // namespace escrow::sim::model
