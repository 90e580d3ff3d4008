// What the threads of the stress test of pools share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "capture_fixture.hpp"

namespace escrow::test {

/// A number that the environment gives, or another.
inline std::uint64_t setting(char const* name, std::uint64_t otherwise) {
  char const* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// What the threads share, and what they found wrong.
struct arena {
  explicit arena(block_pool& common) : pool{common} {}

  static constexpr std::size_t numbers_max = 64;

  block_pool& pool;
  std::atomic<bool> stop{false};
  // Who has each block: 0 nobody, else one lease or one graph. Relaxed: the pool brings the order,
  // and if it does not, that is what is to be found out.
  std::array<std::atomic<std::uint64_t>, numbers_max> holders{};
  std::atomic<std::uint64_t> next_holder{1};
  std::atomic<int> shared{0};
  std::atomic<int> harmed{0};
  std::atomic<int> captures{0};
  std::atomic<int> claims{0};
  std::mutex mutex;  // guards given
  std::vector<block_lease> given;

  void take(int number, std::uint64_t holder) {
    auto const had =
        holders[static_cast<std::size_t>(number)].exchange(holder, std::memory_order_relaxed);
    if (had != 0 && had != holder) shared.fetch_add(1, std::memory_order_relaxed);
    claims.fetch_add(1, std::memory_order_relaxed);
  }
  void let_go(int number) {
    holders[static_cast<std::size_t>(number)].store(0, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t new_holder() {
    return next_holder.fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace escrow::test
