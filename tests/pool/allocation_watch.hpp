// Counts, or fails, the heap allocations of the calling thread that are not made inside a CUDA
// call.
#pragma once

#include <cstdint>

namespace escrow::test {

/// Allocations with operator new on this thread so far. What a runtime allocates inside its own
/// functions is its own affair, and the simulated one allocates in nearly all of them.
[[nodiscard]] std::uint64_t allocations() noexcept;

/// From now until its end, allocations are counted, and the `failing`-th of this thread throws
/// std::bad_alloc, and those after it, `times` in all; 0: none does.
class allocation_watch {
 public:
  static constexpr std::uint64_t for_ever = ~std::uint64_t{0};

  explicit allocation_watch(std::uint64_t failing = 0, std::uint64_t times = 1) noexcept;
  allocation_watch(allocation_watch const&) = delete;
  allocation_watch& operator=(allocation_watch const&) = delete;
  ~allocation_watch();

  /// How many there were since the start.
  [[nodiscard]] std::uint64_t count() const noexcept;

 private:
  std::uint64_t before_;
};

}  // namespace escrow::test
