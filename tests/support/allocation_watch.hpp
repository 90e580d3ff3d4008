// SPDX-License-Identifier: Apache-2.0
// Counts, or fails, the heap allocations of the calling thread that are not made inside a CUDA
// call.
#pragma once

#include <cstdint>

namespace escrow::test {

/// From now until its end, allocations with operator new on this thread are counted, and the
/// `failing`-th throws std::bad_alloc, and those after it, `times` in all; 0: none does. What a
/// runtime allocates inside its own functions does not count: the simulated one allocates in nearly
/// all of them.
class allocation_watch {
 public:
  static constexpr std::uint64_t for_ever = ~std::uint64_t{0};

  explicit allocation_watch(std::uint64_t failing = 0, std::uint64_t times = 1) noexcept;
  allocation_watch(allocation_watch const&) = delete;
  allocation_watch& operator=(allocation_watch const&) = delete;
  ~allocation_watch();

  /// How many there were since the start.
  [[nodiscard]] std::uint64_t count() const noexcept;
  /// Bytes that were taken since then, as the heap has room for, less those that were given back.
  /// Only of a watch that fails none.
  [[nodiscard]] std::int64_t bytes() const noexcept;

 private:
  std::uint64_t before_;
  std::int64_t bytes_before_;
};

}  // namespace escrow::test
