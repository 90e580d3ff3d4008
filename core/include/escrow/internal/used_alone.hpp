// SPDX-License-Identifier: Apache-2.0
// Tells of what one thread at a time may use.
#pragma once

#include "escrow/version.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): ThreadSanitizer's name.
// Null in a program without it.
extern "C" [[gnu::weak]] void __tsan_write8(void* address);
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
// Null without the simulated runtime.
extern "C" [[gnu::weak, gnu::visibility("hidden")]] void escrow_simulated_use(
    void const* used, char const* call) noexcept;

namespace escrow::inline v0_2 {

// Its name is in ThreadSanitizer's reports.
ESCROW_API void one_thread_at_a_time_may_use_it(void const* used) noexcept;

// `call` changes what one thread at a time may use: ThreadSanitizer, and else the simulated
// runtime, report two threads.
inline void tell_used_alone(void const* used, char const* call) noexcept {
  if (__tsan_write8 != nullptr) {
    one_thread_at_a_time_may_use_it(used);
  } else if (&escrow_simulated_use != nullptr) {
    escrow_simulated_use(used, call);
  }
}

}  // namespace escrow::inline v0_2
