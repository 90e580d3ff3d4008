// SPDX-License-Identifier: Apache-2.0
// Which API calls were made: the sites where a fault can be injected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace escrow::sim {

// One API call that can be failed. The n-th of a recording is the one that fail_nth(n), asked for
// when the recording began, fails; of a recording of one thread, that fail_nth_here(n) fails.
struct recorded_call {
  std::string api;           // "cudaEventRecord"
  std::uint64_t thread = 0;  // a number for the thread that made it, never used again

  bool operator==(recorded_call const&) const = default;
};

enum class recorded_threads { all, this_one };

// Begins to note all calls that faults can fail, in their order; what was noted before is dropped.
// Any thread.
void start_recording(recorded_threads of = recorded_threads::all);
// Ends that, and returns what was noted.
std::vector<recorded_call> stop_recording();

}  // namespace escrow::sim
