// Who moves the model: threads when running free, step() when stepped.
#pragma once

#include "state.hpp"

#include <functional>
#include <span>

namespace escrow::sim::model {

// Hands an operation that may start now to whoever runs it. Lock held.
void begin(op_ptr const& o);

// Runs `list` on the calling thread, marked as being inside callbacks. Lock not held.
void run_callbacks(std::span<callback const> list);

// Queues a callback to be due after `delay`. Lock held.
void queue_callback(callback what, std::chrono::nanoseconds delay);

// Queues destructors, each due after a random time within the bounds, as measured on a GPU. Lock
// held.
void defer(callbacks list, std::chrono::microseconds shortest, std::chrono::microseconds longest);

// Blocks the host until `ready`, stepping if stepped. `what` is for the message if it never comes.
void block(std::unique_lock<std::mutex>& lock, std::function<bool()> const& ready,
           char const* what);
// Blocks until all of `list` are done.
void block_on(std::unique_lock<std::mutex>& lock, std::vector<op_ptr> const& list,
              char const* what);

// One step; false if nothing is pending. The lock is let go while user code runs.
bool step_once(std::unique_lock<std::mutex>& lock);

// The device fails for good: work that already waits for a thread or a step is dropped, and what
// follows it as it starts. Lock held.
void break_device(int device, cudaError_t fault);

// Lets go of all threads and waits until they have ended; false if that took too long.
bool stop_threads(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds limit);

}  // namespace escrow::sim::model
