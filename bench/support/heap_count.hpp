// Counting heap allocations on threads that ask for it.
#pragma once

#include <cstdint>

namespace escrow::bench {

// Counts, or stops counting, the allocations of the calling thread.
void count_on_this_thread(bool counts) noexcept;

// Allocations counted so far, by malloc and all that leads to it, operator new among them; those
// inside a CUDA call do not count.
[[nodiscard]] std::uint64_t allocations_counted() noexcept;
// Bytes that were taken meanwhile, as the heap has room for, less those that were given back.
[[nodiscard]] std::int64_t bytes_counted() noexcept;

// The calling thread is inside a CUDA call.
class inside_cuda {
 public:
  inside_cuda() noexcept;
  inside_cuda(inside_cuda&&) = delete;
  ~inside_cuda();
};

}  // namespace escrow::bench
