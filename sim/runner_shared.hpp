// SPDX-License-Identifier: Apache-2.0
// Pieces that the free-running and the stepped runner share. Lock held, unless a name or a comment
// says otherwise.
#pragma once

#include "state.hpp"

#include <span>

namespace escrow::sim::model {

// True if `o` is not to be run any more: its device has failed or everything is being dropped.
bool is_abandoned(op_ptr const& o);
// True if `o` runs with the lock let go: a kernel, a copy, a fill.
bool takes_time(op_ptr const& o);
// Does what `o` does to the model itself, and completes it.
void finish_at_once(op_ptr const& o);
// Lets the lock go, does the work, takes the lock again. False: not done yet.
bool perform_unlocked(std::unique_lock<std::mutex>& lock, op_ptr const& o);
// Lets the lock go, calls the user's function, takes the lock again and completes its operation.
void run_callback_unlocked(std::unique_lock<std::mutex>& lock, callback const& what);

// Runs `list` on the calling thread, marked as being inside callbacks. Lock not held.
void run_callbacks(std::span<callback const> list);

// The device fails for good: work that already waits for a thread or a step is dropped, and what
// follows it as it starts.
void break_device(int device, cudaError_t fault);

}  // namespace escrow::sim::model
