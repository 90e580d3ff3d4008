// SPDX-License-Identifier: Apache-2.0
// The living leases of a pool, for reports.
#pragma once

#include <mutex>

#include "size_class.hpp"

namespace escrow::inline v0_2 {

// What: the slots of all leases, if pool_options::track_leases.
// Thread safety: any thread. The lock is held across no CUDA call.
class ESCROW_LOCAL lease_list {
 public:
  void add(slot& leased) noexcept {
    std::lock_guard const lock(mutex_);
    all_.add(leased);
  }
  void remove(slot& ended) noexcept {
    std::lock_guard const lock(mutex_);
    all_.remove(ended);
  }
  // Calls with each, under the lock: `look` takes none.
  template <class Look>
  void for_each(Look look) const {
    std::lock_guard const lock(mutex_);
    for (slot const* each = all_.oldest(); each != nullptr; each = each->newer_) look(*each);
  }

 private:
  mutable std::mutex mutex_;  // guards the list
  slot_list all_;
};

}  // namespace escrow::inline v0_2
