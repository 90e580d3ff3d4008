// SPDX-License-Identifier: Apache-2.0
// Pages of the machine.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace escrow::sim::model {

[[nodiscard]] inline std::size_t page_bytes() noexcept {
  static auto const its = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return its;
}

// `how`: as of mprotect().
inline void protect(std::uintptr_t address, std::size_t bytes, int how) noexcept {
  ::mprotect(reinterpret_cast<void*>(address), bytes, how);
}

}  // namespace escrow::sim::model
