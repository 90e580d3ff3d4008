// SPDX-License-Identifier: Apache-2.0
// The living leases of a pool, for reports.
#pragma once

#include <chrono>
#include <mutex>

#include "escrow/core/error.hpp"
#include "size_class.hpp"

namespace escrow::inline v0_2 {

// What: the slots of all leases, if pool_options::track_leases; else nothing.
// Thread safety: any thread. The lock is held across no CUDA call.
class ESCROW_LOCAL lease_list {
 public:
  explicit lease_list(bool is_kept) noexcept : is_kept_(is_kept) {}

  void add(slot& leased, source_location where) noexcept {
    if (!is_kept_) [[likely]]
      return;
    leased.note_ = {where, std::chrono::steady_clock::now()};
    add_again(leased);
  }
  // One that did not end after all, with its note.
  void add_again(slot& leased) noexcept {
    if (!is_kept_) return;
    std::lock_guard const lock(mutex_);
    all_.add(leased);
  }
  void remove(slot& ended) noexcept {
    if (!is_kept_) [[likely]]
      return;
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
  bool const is_kept_;
  mutable std::mutex mutex_;  // guards the list
  slot_list all_;
};

}  // namespace escrow::inline v0_2
