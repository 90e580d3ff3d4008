// SPDX-License-Identifier: Apache-2.0
// A function whose name is in ThreadSanitizer's reports.
#include "escrow/internal/used_alone.hpp"

namespace escrow::inline v0_2 {

void one_thread_at_a_time_may_use_it(void const* used) noexcept {
  __tsan_write8(const_cast<void*>(used));
}

}  // namespace escrow::inline v0_2
