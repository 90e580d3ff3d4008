// SPDX-License-Identifier: Apache-2.0
// What a thread knows of the others: vector clocks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace escrow::model {

constexpr std::size_t threads_max = 8;

// For each thread, up to which of its operations.
struct clock {
  std::array<std::uint32_t, threads_max> at{};

  void join(clock const& other) noexcept {
    for (std::size_t i = 0; i < threads_max; ++i) at[i] = std::max(at[i], other.at[i]);
  }
};

// `happened` is happens-before: it decides races, and what may be read. `seen` is never less: a
// sequentially consistent fence adds to what may not be read over any more, not to what happened.
struct knowledge {
  clock happened;
  clock seen;

  void join(knowledge const& other) noexcept {
    happened.join(other.happened);
    seen.join(other.seen);
  }
};

// One operation.
struct moment {
  std::uint32_t thread = 0;
  std::uint32_t when = 0;

  [[nodiscard]] bool is_in(clock const& known) const noexcept { return when <= known.at[thread]; }
};

// A step of a hash that tells states apart (splitmix64's finish).
[[nodiscard]] inline std::uint64_t mixed(std::uint64_t hash, std::uint64_t with) noexcept {
  std::uint64_t z = hash * 0x9e3779b97f4a7c15U + with + 0x632be59bd9b4e019U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

}  // namespace escrow::model
