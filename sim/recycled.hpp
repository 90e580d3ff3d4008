// SPDX-License-Identifier: Apache-2.0
// Memory of what handles of nodes point to.
#pragma once

#include <escrow/sim/control.hpp>

#include <cstddef>

namespace escrow::sim::model {

// What: a base that gives its objects memory. A handle of a node is its address, which the newest
// object of that size that was made and destroyed in the same run leaves to the next (slots.hpp).
// With AddressSanitizer none does, so that uses of what is gone are seen. The state's mutex is held
// by whoever makes and destroys them.
struct recycled {
  static void* operator new(std::size_t bytes);
  static void operator delete(void* memory, std::size_t bytes) noexcept;
};

// A run begins. The state's mutex is held.
void forget_recycled(options const& how) noexcept;

}  // namespace escrow::sim::model
