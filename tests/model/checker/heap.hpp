// The memory of one execution: never used twice, dropped as a whole, the same each time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "clocks.hpp"

namespace escrow::model {

// Each thread has a part of its own, so that where an object lies does not depend on what others
// allocate meanwhile.
class heap {
 public:
  heap();
  heap(heap&&) = delete;
  ~heap();

  void clear() noexcept { used_ = {}; }
  // Never fails but by ending the program: a model that needs more is too large.
  [[nodiscard]] void* allocate(std::size_t part, std::size_t size, std::size_t alignment) noexcept;
  [[nodiscard]] bool has(void const* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(begin_) <
           part_bytes * parts;
  }
  // What was asked for.
  [[nodiscard]] static std::size_t size_of(void const* address) noexcept;

 private:
  static constexpr std::size_t parts = threads_max + 1;  // the last is the setup's
  static constexpr std::size_t part_bytes = std::size_t{4} << 20U;

  std::byte* begin_;
  std::array<std::size_t, parts> used_{};
};

}  // namespace escrow::model
