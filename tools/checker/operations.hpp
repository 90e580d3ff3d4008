// SPDX-License-Identifier: Apache-2.0
// What the threads of a model do: atomic operations, and sleeping on a word.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace escrow::model {

// An atomic object of 1 to 8 bytes, and where the program operates on it.
struct target {
  std::uintptr_t where;
  std::size_t size;
  void const* caller;
};

std::uint64_t atomic_load(target const& at, std::memory_order order);
void atomic_store(target const& at, std::uint64_t value, std::memory_order order);
// Returns the value before.
std::uint64_t atomic_modify(target const& at, char const* operation, std::memory_order order,
                            std::function<std::uint64_t(std::uint64_t)> const& change);
// Puts what it read in `expected` if that was something else.
bool atomic_compare_exchange(target const& at, std::uint64_t& expected, std::uint64_t desired,
                             std::memory_order success, std::memory_order failure);
void atomic_fence(std::memory_order order);

// A futex: sleeps unless the newest value is another; wakes some of those who sleep, and says how
// many.
bool sleep_on(target const& at, std::uint64_t value, bool has_end);
std::size_t wake(std::uintptr_t where, std::size_t count, void const* caller);

}  // namespace escrow::model
