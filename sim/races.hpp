// SPDX-License-Identifier: Apache-2.0
// Work that uses the same memory as other work, where nothing orders the two.
#pragma once

#include "objects.hpp"

namespace escrow::sim::model {

// Work has been put last on the stream, by this call, and uses this. Each ends the process if other
// work, which this is not behind, conflicts with it. Lock held.

// Bytes; of two kernels only with ESCROW_AUDIT=1.
void note_accesses(char const* call, stream_state const& stream,
                   std::vector<access> const& accesses, bool is_of_launch = false);
// Memory of leases: work of a later lease may not run beside that of an earlier one.
void note_uses(char const* call, op_ptr const& o, std::vector<memory_use> const& uses);
// Of a launch, which ends with this: arenas, and slots that were claimed in captures. Launches of
// two execs may not have the same.
void note_uses(char const* call, op_ptr const& end, exec_state const& exec,
               std::vector<memory_use> const& uses);
// A lease that was claimed before `next`, the next work on the stream: if memory is apart, it is
// new as that begins, unless work has used it.
void note_claimed(op_ptr const& next, memory_use const& of);
// If memory is apart: what is in the arenas that a launch uses means nothing as it begins.
void make_new_for_launch(op& first, std::vector<memory_use> const& uses);

// `call` frees this. Ends the process if the calling thread destroys an owner that was retired on a
// stream, and later work of that stream uses it, also if that is done: then only by luck. Lock
// held.
void refuse_used_after_retire(char const* call, void const* begin, std::size_t bytes);

}  // namespace escrow::sim::model

// This thread destroys what was retired behind this event; null: nothing.
extern "C" [[gnu::visibility("hidden")]] void escrow_simulated_destroys(cudaEvent_t ready) noexcept;
