// SPDX-License-Identifier: Apache-2.0
// Who moves the model: threads when running free, step() when stepped.
#pragma once

#include "ops.hpp"
#include "state.hpp"

#include <functional>

namespace escrow::sim::model {

// Queues a callback to be due after `delay`. Lock held.
void queue_callback(callback what, std::chrono::nanoseconds delay);

// Queues destructors, each due after a random time within the bounds, as measured on a GPU. Lock
// held.
void defer(callbacks list, std::chrono::microseconds shortest, std::chrono::microseconds longest);

// Blocks the host until `ready`, stepping if stepped. `what` is for the message if it never comes.
void block(std::unique_lock<std::mutex>& lock, std::function<bool()> const& ready,
           char const* what);
// Blocks until all of `list` are done, which the host then knows.
void block_on(std::unique_lock<std::mutex>& lock, std::vector<op_ptr> const& list,
              char const* what);
void block_on(std::unique_lock<std::mutex>& lock, enqueued_work const& all, char const* what);

// A query says that work is not done. Stepped, ends the process if that is asked again and again,
// and nobody steps. Lock held.
void note_vain_query(char const* call);

}  // namespace escrow::sim::model
