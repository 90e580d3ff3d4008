// A clock for the shortest times: the processor's own counter where it has one.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include <chrono>
#endif

namespace escrow::bench {

// The counter. Nothing before it in the program is done later, and nothing behind it earlier.
[[nodiscard]] inline std::uint64_t ticks() {
#if defined(__x86_64__)
  _mm_lfence();
  std::uint64_t const now = __rdtsc();
  _mm_lfence();
  return now;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Nanoseconds per tick, measured at the first call.
[[nodiscard]] double ns_per_tick();

}  // namespace escrow::bench
