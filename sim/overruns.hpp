// SPDX-License-Identifier: Apache-2.0
// Work that writes behind the memory that it was given: behind what a lease of a library under test
// uses, and, if memory is apart, behind an allocation.
#pragma once

#include "objects.hpp"

namespace escrow::sim::model {

// What is behind the memory of a kernel's arguments, up to 256 bytes each, which nobody uses. For
// work as it is made: the leases are known then. Lock held.
std::vector<guarded_bytes> guards_of(kernel_code const& code, kernel_args const& args);
// Ends the process if an operand of a fill or a copy ends behind what a lease uses. Lock held.
void refuse_overrun(char const* operand, void const* begin, std::size_t bytes);

// Before a kernel runs: what is guarded gets known bytes. Lock held.
void set_guards(work& what);
// After it ran: ends the process if it has written there. No lock held.
void look_at_guards(work const& what);

}  // namespace escrow::sim::model
