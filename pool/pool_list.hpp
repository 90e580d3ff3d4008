// SPDX-License-Identifier: Apache-2.0
// All pools of the process.
#pragma once

#include <atomic>
#include <boost/intrusive/list.hpp>
#include <cstddef>
#include <mutex>

#include "escrow/internal/never_destroyed.hpp"
#include "escrow/version.hpp"

namespace escrow::inline v0_2 {

// What: a pool as the list of all pools has it, from list() until its end: also one whose owner is
//   gone, while slots are left.
// Thread safety: any thread. The list's lock is taken alone, and held across no CUDA call.
class ESCROW_LOCAL listed_pool : public boost::intrusive::list_base_hook<> {
 public:
  listed_pool(listed_pool&&) = delete;

  void list() noexcept {
    std::lock_guard const lock(all().mutex);
    all().pools.push_back(*this);
  }
  // Calls with the number of pools, and then with each, the oldest first, that still lives, and
  // which the caller has one more of `references` of. With the lock: `take` takes none.
  template <class Reserve, class Take>
  static void hold_all(Reserve reserve, Take take) {
    std::lock_guard const lock(all().mutex);
    reserve(all().pools.size());
    for (listed_pool& each : all().pools) {
      if (each.add_reference()) take(each);
    }
  }

  // Held by the owner and each slot; the last one frees the pool. acq_rel, as in std::shared_ptr.
  std::atomic<std::size_t> references{1};

 protected:
  listed_pool() = default;
  ~listed_pool() {
    std::lock_guard const lock(all().mutex);
    if (is_linked()) all().pools.erase(all().pools.iterator_to(*this));
  }

 private:
  struct list_of_all {
    std::mutex mutex;  // guards the list
    boost::intrusive::list<listed_pool> pools;
  };
  [[nodiscard]] static list_of_all& all() noexcept {
    static never_destroyed<list_of_all> only;
    return *only;
  }
  // False if the last one is gone.
  [[nodiscard]] bool add_reference() noexcept {
    // Relaxed: what the pool was at its listing is seen by the lock, and its own locks guard it.
    std::size_t now = references.load(std::memory_order_relaxed);
    while (now != 0 && !references.compare_exchange_weak(now, now + 1, std::memory_order_relaxed)) {
    }
    return now != 0;
  }
};

}  // namespace escrow::inline v0_2
