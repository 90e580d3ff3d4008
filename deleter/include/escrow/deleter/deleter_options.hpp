// SPDX-License-Identifier: Apache-2.0
// What a deleter is told, and what it tells.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// How a deleter's worker runs, and whom it tells of errors.
struct deleter_options {
  // Starts a worker thread. Without one, the program must call deleter::poll(): if 64 owners were
  // retired and it was not called yet, `on_error` is told.
  bool own_worker = true;
  // The worker's name in a debugger, cut to 15 characters.
  std::string thread_name = "escrow";
  // The worker's sleep while events are pending and none is done: starts with the minimum, doubles
  // up to the maximum. Polling every 50 us was measured not to slow other threads down.
  std::chrono::microseconds poll_interval_min{50};
  std::chrono::microseconds poll_interval_max{400};
  // How long after its last work the worker continues to poll every poll_interval_min; then it
  // sleeps until a push wakes it. Meanwhile a push needs no wake-up.
  std::chrono::microseconds linger{1000};
  // Called with each error that no caller can be told, on the worker or the thread that polls or
  // releases; possibly concurrently. Must not throw: the exception is dropped, and the
  // error goes to standard error. If empty, the first ten of the process go there. See
  // deleter::set_on_error().
  std::function<void(std::exception const&)> on_error = {};
};

// Statistics, read one by one without a lock, so they may be inconsistent by a few.
struct deleter_stats {
  // Reclaimed so far: owners destroyed, slots recycled or destroyed, and what leaked while it was
  // reclaimed (also in `leaked`).
  std::uint64_t reclaimed = 0;
  std::uint64_t pending = 0;       // known to the last pass, waiting for a ready event
  std::uint64_t pending_peak = 0;  // the highest `pending` so far, at the end of a pass
  std::uint64_t in_graphs = 0;     // slots and owners that graphs and execs hold, leaked ones too
  std::uint64_t leaked = 0;        // never freed: not known when the GPU is done
  std::uint64_t errors = 0;        // that no caller could be told
};

// The same as a JSON object on one line, with the names of the members.
[[nodiscard]] ESCROW_API std::string to_json(deleter_stats const& stats);

// What a graph or an exec holds. Owners are those of deleter::retire().
struct resource_usage {
  std::size_t slots = 0;
  std::size_t owners = 0;
  // Of slots whose size is known, and of a sharing group's arena up to the last of its slots.
  std::size_t bytes = 0;
};

}  // namespace escrow::inline v0_2
