// SPDX-License-Identifier: Apache-2.0
// Hands things over between threads by atomics, so that a program's ThreadSanitizer sees it in a
// library that was built without it.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "escrow/version.hpp"

// Of ThreadSanitizer's runtime; null in a program without.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): its names.
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void __tsan_acquire(void* address);
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
}

namespace escrow::inline v0_2 {

// What this thread did so far happens before what a thread does that takes `shared` later: tells
// ThreadSanitizer what an atomic in the library says. Any thread; also in destroy callbacks.
inline void tell_handed_over(void* shared) noexcept {
  if (__tsan_release != nullptr) __tsan_release(shared);
}
inline void tell_taken(void* shared) noexcept {
  if (__tsan_acquire != nullptr) __tsan_acquire(shared);
}

// Drops one of `count`. True for the last one: then what all others did before has happened.
template <class Count>
[[nodiscard]] bool drop_one(std::atomic<Count>& count) noexcept {
  tell_handed_over(&count);
  // Release: this thread's use; acquire: the others', for the last one.
  if (count.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  tell_taken(&count);
  return true;
}

// As std::make_shared, for what has a mutex and weak references: the last one may end on another
// thread than the object. It frees no memory then that had the mutex, and ThreadSanitizer, which
// sees no counts of the standard library's in here, reports nothing.
template <class T, class... Arguments>
[[nodiscard]] std::shared_ptr<T> make_apart(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...));
}

}  // namespace escrow::inline v0_2
