// SPDX-License-Identifier: Apache-2.0
// Where the handles of the C API are: one that was destroyed, or is of another type, is known.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: memory of the handles of one type, which stays theirs: a handle that was destroyed is told
//   from one that exists, until a later one has its address. Those that were destroyed last are
//   used again last.
// Thread safety: any.
// Lifetime: kept until the process ends.
// Errors: take() throws std::bad_alloc.
class handle_memory {
 public:
  [[nodiscard]] void* take(std::size_t bytes) {
    place* found = unused();
    if (found == nullptr) found = ::new (::operator new(sizeof(place) + bytes)) place;
    // relaxed, as below: whoever has the handle was given it by the thread that made it, and two
    // threads that destroy one race in any case.
    found->has_one_of.store(this, std::memory_order_relaxed);
    return found + 1;
  }
  void give_back(void* unused) noexcept {
    place* const its = static_cast<place*>(unused) - 1;
    its->has_one_of.store(nullptr, std::memory_order_relaxed);
    its->next = nullptr;
    std::lock_guard const guard(mutex_);
    (last_ == nullptr ? first_ : last_->next) = its;
    last_ = its;
    ++unused_;
  }
  // What has the handle; null: nothing, it was destroyed. Of what is no handle, anything.
  [[nodiscard]] static handle_memory const* memory_of(void const* handle) noexcept {
    place const* const its = static_cast<place const*>(handle) - 1;
    return its->has_one_of.load(std::memory_order_relaxed);
  }

 private:
  struct alignas(std::max_align_t) place {
    std::atomic<handle_memory const*> has_one_of{nullptr};
    place* next = nullptr;
  };

  // Null: a new one.
  place* unused() noexcept {
    constexpr std::size_t kept = 64;
    std::lock_guard const guard(mutex_);
    if (unused_ <= kept) return nullptr;
    --unused_;
    return std::exchange(first_, first_->next);
  }

  std::mutex mutex_;        // guards the list of those that were destroyed
  place* first_ = nullptr;  // the first that was
  place* last_ = nullptr;   // null if there is none
  std::size_t unused_ = 0;  // how many they are
};

// The base of what a handle points to.
template <class Handle>
class in_handle_memory {
 public:
  static constexpr handle_memory const& memory_of_all() noexcept { return all_; }
  static void* operator new(std::size_t bytes) { return all_.take(bytes); }
  static void operator delete(void* unused) noexcept { all_.give_back(unused); }

 private:
  static inline constinit handle_memory all_;  // trivially destroyed: a handle may outlive it
};

}  // namespace escrow::inline v0_2
