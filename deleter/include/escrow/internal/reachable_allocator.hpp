// SPDX-License-Identifier: Apache-2.0
// Memory that LeakSanitizer finds although its pointers are hidden from it.
#pragma once

#include <cstddef>
#include <mutex>
#include <new>

#include "escrow/internal/never_destroyed.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: an allocator whose memory LeakSanitizer finds: Boost.Lockfree has tags in the upper bits of
//   its pointers. Each piece is in a list of the process until it is deallocated.
// Thread safety: any thread. Takes a lock: not for what must not.
template <class T>
class reachable_allocator {
 public:
  using value_type = T;

  reachable_allocator() noexcept = default;
  template <class Other>
  // NOLINTNEXTLINE(google-explicit-constructor): as the standard has it.
  reachable_allocator(reachable_allocator<Other> const&) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) {
    auto* const made = static_cast<piece*>(::operator new(head_bytes + count * sizeof(T)));
    std::lock_guard const lock(all->mutex);
    *made = {all->first.next, &all->first};
    if (made->next != nullptr) made->next->previous = made;
    all->first.next = made;
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(made) + head_bytes);
  }
  void deallocate(T* memory, std::size_t /*count*/) noexcept {
    auto* const ended = reinterpret_cast<piece*>(reinterpret_cast<std::byte*>(memory) - head_bytes);
    {
      std::lock_guard const lock(all->mutex);
      ended->previous->next = ended->next;
      if (ended->next != nullptr) ended->next->previous = ended->previous;
    }
    ::operator delete(ended);
  }

  bool operator==(reachable_allocator const&) const noexcept = default;

 private:
  struct piece {
    piece* next = nullptr;
    piece* previous = nullptr;
  };
  struct list {
    std::mutex mutex;  // guards the list
    piece first;
  };
  static constexpr std::size_t head_bytes = sizeof(piece);
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__ &&
                head_bytes % __STDCPP_DEFAULT_NEW_ALIGNMENT__ == 0);

  static inline constinit never_destroyed<list> all{};
};

}  // namespace escrow::inline v0_2
