// SPDX-License-Identifier: Apache-2.0
// An object that lives until the process ends.
#pragma once

#include <utility>

#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: holds a T that is constructed in place and never destroyed. For process-wide objects:
//   during exit other threads may still use them, static destruction order is undefined, and the
//   CUDA driver may be unloaded. Use it as a static variable:
//     static never_destroyed<registry> only;
//     return *only;
//   Leak checkers find what T points to, since T is in static memory.
// Thread safety: that of T. A static local variable is initialized once, by any thread.
template <class T>
class never_destroyed {
 public:
  template <class... Arguments>
  constexpr explicit never_destroyed(Arguments&&... arguments)
      : value_(std::forward<Arguments>(arguments)...) {}
  never_destroyed(never_destroyed&&) = delete;
  ~never_destroyed() {}  // NOLINT(modernize-use-equals-default): a defaulted one would be deleted

  [[nodiscard]] T& operator*() noexcept { return value_; }
  [[nodiscard]] T* operator->() noexcept { return &value_; }

 private:
  union {
    T value_;
  };
};

}  // namespace escrow::inline v0_2
