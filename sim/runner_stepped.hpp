// SPDX-License-Identifier: Apache-2.0
// The stepped runner: no threads, one seeded choice at a time, virtual time.
#pragma once

#include "state.hpp"

namespace escrow::sim::model {

// One step; false if nothing is pending. The lock is let go while user code runs.
bool step_once(std::unique_lock<std::mutex>& lock);

}  // namespace escrow::sim::model

// For a library under test: 0 if time is not stepped, else one more than there were steps. Any
// thread.
extern "C" [[gnu::visibility("hidden")]] unsigned long long escrow_simulated_steps() noexcept;
