// SPDX-License-Identifier: Apache-2.0
// Lets a thread that had a fault do one instruction, and comes back behind it.
#pragma once

namespace escrow::sim::model {

// Not on other processors than x86-64, nor below a debugger, which has the processor's trap.
[[nodiscard]] bool can_step() noexcept;

// In the handler of a fault, whose `context` it gets: when the handler has returned, and the thread
// has done the instruction, it calls `behind`.
void step_over(void* context) noexcept;

// Sets the handler that calls it.
void watch_steps(void (*behind)() noexcept) noexcept;

}  // namespace escrow::sim::model
