// SPDX-License-Identifier: Apache-2.0
// Which work and which launches use memory of a library under test, from their begin to their end.
#pragma once

#include "objects.hpp"

namespace escrow::sim::model {

// Work has been enqueued, and is done: what uses memory that it has is known in between. Lock held,
// here and below.
void note_uses(op_ptr const& enqueued, std::vector<memory_use> uses);
void forget_uses(op& done) noexcept;
// Ends the process if work begins whose memory other work has, which was enqueued with an earlier
// lease of it: nothing orders the two.
void refuse_overtaking(op const& begun);

// A launch of the exec has begun, and is over. Its graph uses these arenas, and slots that were
// claimed in captures. Ends the process if a launch of another exec, or other work, begins to use
// one of them before that.
void begin_launch(exec_state const& begun, std::vector<memory_use> const& memory);
void end_launch(exec_state const& ended, std::vector<memory_use> const& memory) noexcept;

}  // namespace escrow::sim::model
