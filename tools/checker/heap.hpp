// SPDX-License-Identifier: Apache-2.0
// The memory of one execution: never used twice, dropped as a whole, the same each time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "clocks.hpp"

namespace escrow::model {

// Each thread has a part of its own, so that where an object lies does not depend on what others
// allocate meanwhile.
class heap {
 public:
  heap();
  heap(heap&&) = delete;
  ~heap();

  // Drops all.
  void clear() noexcept { used_ = {}; }
  // Notes what the setup has made, and puts that back, and only that.
  void keep_setup();
  void restore_setup() noexcept;
  // Never fails but by ending the program: a model that needs more is too large.
  [[nodiscard]] void* allocate(std::size_t part, std::size_t size, std::size_t alignment) noexcept;
  [[nodiscard]] bool has(void const* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(begin_) <
           part_bytes * parts;
  }
  [[nodiscard]] std::size_t used(std::size_t part) const noexcept { return used_[part]; }
  // What was asked for.
  [[nodiscard]] static std::size_t size_of(void const* address) noexcept;

 private:
  static constexpr std::size_t setup_part = threads_max;
  static constexpr std::size_t parts = threads_max + 1;
  static constexpr std::size_t part_bytes = std::size_t{4} << 20U;

  std::byte* begin_;
  std::array<std::size_t, parts> used_{};
  std::vector<std::byte> kept_;
};

}  // namespace escrow::model
