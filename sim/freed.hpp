// SPDX-License-Identifier: Apache-2.0
// Memory that was freed lately. Its addresses are not given again for a while, so that work which
// still uses them is known for a mistake. A sanitizer sees that by itself, and more: under one
// memory goes at once.
#pragma once

#include "state.hpp"

namespace escrow::sim::model {

// An allocation's memory, at once.
void delete_memory(void* address, allocation const& what) noexcept;
// The memory of one that nothing names any more. Lock held, as for all below.
void end_memory(state& s, void* address, allocation const& what);
// Nothing is known any more of what was freed.
void forget_freed(state& s) noexcept;
[[nodiscard]] bool is_freed(void const* address);

}  // namespace escrow::sim::model
