// SPDX-License-Identifier: Apache-2.0
// What a library under test tells of its leases, if memory is apart.
#pragma once

#include "objects.hpp"
#include "thread.hpp"

namespace escrow::sim::model {

// This is the next work on its stream, which has not begun: as it begins, scratch that was claimed
// for the stream before is new, also if only pointers in memory lead to it. Lock held.
void make_claimed_new(op_ptr const& next);

// A kernel reads the first byte, at least, of pinned memory behind a pointer to const. Lock held.
void note_constants(kernel_work& k);

// Work of this thread; a kernel's that is given pinned memory by its leases then knows how much it
// uses. Lock held.
void take_given(thread_record& me, work& what);

}  // namespace escrow::sim::model

// As escrow::environment::lease_event has it. Any thread.
extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_lease(int what, void const* memory,
                                                                     unsigned long long bytes,
                                                                     cudaStream_t stream) noexcept;
