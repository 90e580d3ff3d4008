// Which API calls were made: the sites where a fault can be injected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace escrow::sim {

/// One API call that can be failed. The n-th of a recording is the one that fail_nth(n), asked for
/// when the recording began, fails.
struct recorded_call {
  std::string api;           // "cudaEventRecord"
  std::uint64_t thread = 0;  // a number for the thread that made it, never used again

  bool operator==(recorded_call const&) const = default;
};

/// Begins to note all calls that faults can fail, of every thread, in their order; what was noted
/// before is dropped. Any thread.
void start_recording();
/// Ends that, and returns what was noted.
std::vector<recorded_call> stop_recording();

}  // namespace escrow::sim
