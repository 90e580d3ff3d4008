// SPDX-License-Identifier: Apache-2.0
// Keeps what cannot be released while a stream is captured.
#include "late_release.hpp"

#include <atomic>
#include <list>
#include <mutex>
#include <new>
#include <utility>

#include "escrow/internal/deleter_core.hpp"
#include "escrow/internal/never_destroyed.hpp"

namespace escrow::inline v0_2 {

namespace {

struct kept_release {
  deferred_releases held;
  std::shared_ptr<launch_end> end;
};

struct kept_releases {
  std::mutex mutex;  // guards the next; held across no CUDA call
  std::list<kept_release> all;
  std::atomic<bool> is_any{false};  // relaxed: a thread that misses its own stream's has none
};

kept_releases& kept() noexcept {
  static never_destroyed<kept_releases> only;
  return *only;
}

void keep(deferred_releases held, std::shared_ptr<launch_end> const& end) noexcept {
  kept_releases& its = kept();
  try {
    std::lock_guard const lock(its.mutex);
    its.all.push_back({{}, end});
    its.all.back().held.swap(held);
    its.is_any.store(true, std::memory_order_relaxed);
  } catch (std::bad_alloc const&) {
    leak(std::move(held));
  }
}

}  // namespace

void release_behind(deferred_releases held, std::shared_ptr<launch_end> const& end) noexcept {
  if (!end->record_late()) return keep(std::move(held), end);
  end_state const known = end->known();
  if (known == end_state::unknown) {
    for (auto const& each : held) each.set->core().report(end->failure, "cudaEventRecord");
    leak(std::move(held));
  } else if (known == end_state::recorded) {
    release_after(std::move(held), end);
  }
}

void release_kept_for(cudaStream_t stream) noexcept {
  kept_releases& its = kept();
  if (!its.is_any.load(std::memory_order_relaxed)) [[likely]]
    return;
  std::list<kept_release> found;
  {
    std::lock_guard const lock(its.mutex);
    for (auto each = its.all.begin(); each != its.all.end();) {
      auto const here = each++;
      if (here->end->on == stream) found.splice(found.end(), its.all, here);
    }
    its.is_any.store(!its.all.empty(), std::memory_order_relaxed);
  }
  for (kept_release& each : found) release_behind(std::move(each.held), each.end);
}

}  // namespace escrow::inline v0_2
