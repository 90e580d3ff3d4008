// SPDX-License-Identifier: Apache-2.0
// The streams whose releases may record no event, and what others ask them for.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <forward_list>
#include <mutex>

#include "size_class.hpp"

namespace escrow::inline v0_2 {

// The stream of a claimer. What its leases release is covered at its end at the latest, so after
// that no release leaves anything uncovered.
struct ESCROW_LOCAL claimer_stream {
  size_class const* of = nullptr;  // also for the next claimer: its leases may outlive it
  // 0: not known yet, or the claimer has ended. Relaxed: see may_keep().
  std::atomic<std::uint64_t> id{0};
  bool is_spare = false;  // no claimer uses it
};

// The claimers of a pool, and, if streams outlive it, all streams.
// Thread safety: any thread. One lock, held across no CUDA call.
class ESCROW_LOCAL claimer_streams {
 public:
  claimer_stream const lasting{};  // stands for all streams that outlive the pool

  // Throws std::bad_alloc.
  [[nodiscard]] claimer_stream& add(size_class const& of) {
    std::lock_guard const lock(mutex_);
    auto const spare = std::ranges::find_if(
        all_, [&of](claimer_stream const& each) { return each.is_spare && each.of == &of; });
    claimer_stream& its = spare != all_.end() ? *spare : all_.emplace_front();
    its.of = &of;
    its.is_spare = false;
    return its;
  }
  // What the claimer keeps must be covered between end() and remove().
  static void end(claimer_stream& its) noexcept { its.id.store(0, std::memory_order_relaxed); }
  void remove(claimer_stream& its) noexcept {
    std::lock_guard const lock(mutex_);
    its.is_spare = true;
  }
  // Whether a release on the stream with that id may leave its slot uncovered. Called under the
  // lock of the stream's free list, which the claimer's end takes after end(): what is put before
  // that is covered there.
  [[nodiscard]] bool may_keep(claimer_stream const& its, std::uint64_t id) const noexcept {
    return &its == &lasting || its.id.load(std::memory_order_relaxed) == id;
  }

  // Asks all streams for their uncovered slots of that size: the next claim of each covers what it
  // has in all sizes, and releases until then cover what they release.
  void ask(size_class const& of) noexcept {
    // Relaxed: a call that misses a request answers it the next time.
    if (of.uncovered.load(std::memory_order_relaxed) == 0) return;
    requests_.fetch_add(1, std::memory_order_relaxed);
  }
  // Whether others have asked since the slot's last claim without an event.
  [[nodiscard]] bool has_asked(slot const& its) const noexcept {
    return its.requests_seen_ != requests_.load(std::memory_order_relaxed);
  }
  // What a claim asked for itself, it does not answer.
  void note_claim(slot& claimed) const noexcept {
    claimed.requests_seen_ = requests_.load(std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;                       // guards the list, and each one's is_spare
  std::forward_list<claimer_stream> all_;  // none is removed before the pool's end
  // Read by each claim or release without an event, and seldom written: a cache line of its own.
  alignas(64) std::atomic<std::uint64_t> requests_{0};
};

}  // namespace escrow::inline v0_2
