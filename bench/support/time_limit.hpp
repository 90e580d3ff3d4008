// The end of the time that a bench program may take.
#pragma once

namespace escrow::bench {

// Starts the time. `seconds`: after that, benchmarks that have not begun are left out.
void start_time_limit(int seconds);

// Throws std::runtime_error once the time is over. Benchmarks ask before they begin, and within
// long loops: what was measured until then can still be written.
void require_time();

// What the error begins with, so that a reader of the results can tell it from failures.
inline constexpr char const* out_of_time = "out of time";

}  // namespace escrow::bench
