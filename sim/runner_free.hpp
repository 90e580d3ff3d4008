// SPDX-License-Identifier: Apache-2.0
// The free-running runner: a thread for each stream that has work, and one for all callbacks. Lock
// held.
#pragma once

#include "state.hpp"

namespace escrow::sim::model {

// Queues `o` for its stream's thread, and starts that thread if need be.
void give_to_executor(op_ptr const& o);
// Starts the callback thread if need be, and wakes it.
void wake_callback_thread();

// Lets go of all threads and waits until they have ended; false if that took too long.
bool stop_threads(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit);

}  // namespace escrow::sim::model
