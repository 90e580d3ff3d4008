// SPDX-License-Identifier: Apache-2.0
// Slots that wait for records, found by the streams that they wait for.
#pragma once

#include <array>
#include <atomic>
#include <boost/intrusive/set.hpp>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "address_number.hpp"
#include "slot.hpp"
#include "stream_use.hpp"

namespace escrow::inline v0_2 {

// A pool's slots whose lease has ended, each with uses on streams that no event covers yet. A call
// with a stream finds its slots, and looks at no others.
// Thread safety: any thread. One lock, held across no CUDA call. No function allocates.
class deferred_slots {
 public:
  // Adds a slot that has unrecorded uses. False if closed: the caller keeps it.
  [[nodiscard]] bool add(slot& ended) noexcept {
    std::lock_guard const lock(mutex_);
    if (is_closed_) return false;
    all_.add(ended);
    for (unrecorded_use& each : ended.unrecorded_) {
      each.of = &ended;
      by_stream_.insert(each);
      count(each, 1);
    }
    return true;
  }

  // Whether slots may wait for that stream of the calling thread. Relaxed: a call that misses one
  // records it the next time.
  [[nodiscard]] bool may_have(stream_use const& use) const noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) [[likely]]
      return false;
    return counts_[place_of(key_of(use))].load(std::memory_order_relaxed) != 0;
  }

  // Removes the slots that wait for `given`, linked by newer_ from the first added on. Also, marked
  // as lost, those that wait for a destroyed stream, whose handle `given` has now.
  [[nodiscard]] slot* take(stream_use const& given) noexcept;

  // Removes all; from now on refuses others.
  [[nodiscard]] slot_list close() noexcept;

  void for_each(auto visit) const {
    std::lock_guard const lock(mutex_);
    for (slot const* each = all_.oldest(); each != nullptr; each = each->newer_) visit(*each);
  }

 private:
  // Equal for a stream and a later one with its handle.
  using key = std::pair<cudaStream_t, std::uint64_t>;
  [[nodiscard]] static key key_of(stream_use const& use) noexcept {
    return {use.handle, use.thread};
  }
  struct its_key {
    using type = key;
    key operator()(unrecorded_use const& use) const noexcept { return key_of(use); }
  };
  using uses_by_stream =
      boost::intrusive::multiset<unrecorded_use, boost::intrusive::key_of_value<its_key>,
                                 boost::intrusive::constant_time_size<false>>;

  static constexpr std::size_t places = 256;
  // By the high bits of a product, which all bits of a handle reach.
  [[nodiscard]] static std::size_t place_of(key const& of) noexcept {
    std::uint64_t const number = address_number(of.first) + of.second;
    return static_cast<std::size_t>((number * 0x9E3779B97F4A7C15U) >> 56U);
  }
  void remove(slot& listed) noexcept;  // under the lock
  // Relaxed: see may_have(). Unsigned numbers wrap around.
  void count(stream_use const& use, int change) noexcept {
    count_.fetch_add(static_cast<std::size_t>(change), std::memory_order_relaxed);
    counts_[place_of(key_of(use))].fetch_add(static_cast<std::uint32_t>(change),
                                             std::memory_order_relaxed);
  }

  mutable std::mutex mutex_;  // guards the three below, and the uses of the slots
  slot_list all_;
  uses_by_stream by_stream_;  // of one stream, in the order in which they were added
  bool is_closed_ = false;
  // Uses, and by a hash of their streams. Written under the lock, read by each claim and release:
  // cache lines of their own.
  alignas(64) std::atomic<std::size_t> count_{0};
  std::array<std::atomic<std::uint32_t>, places> counts_{};
};

inline void deferred_slots::remove(slot& listed) noexcept {
  all_.remove(listed);
  for (unrecorded_use const& each : listed.unrecorded_) {
    by_stream_.erase(by_stream_.iterator_to(each));
    count(each, -1);
  }
}

inline slot* deferred_slots::take(stream_use const& given) noexcept {
  slot* oldest = nullptr;
  slot** end = &oldest;
  std::lock_guard const lock(mutex_);
  auto at = by_stream_.lower_bound(key_of(given));
  while (at != by_stream_.end() && key_of(*at) == key_of(given)) {
    slot& its = *at->of;
    if (!was_destroyed(*at, given) && !is_same_stream(*at, given)) {
      ++at;
      continue;
    }
    // Past all of the slot's uses that follow, which are removed.
    for (; at != by_stream_.end() && at->of == &its; ++at) {
      its.is_lost_ |= was_destroyed(*at, given);
    }
    remove(its);
    *end = &its;
    end = &its.newer_;
  }
  return oldest;
}

inline slot_list deferred_slots::close() noexcept {
  std::lock_guard const lock(mutex_);
  is_closed_ = true;
  by_stream_.clear();
  count_.store(0, std::memory_order_relaxed);  // see may_have()
  for (auto& each : counts_) each.store(0, std::memory_order_relaxed);
  return std::exchange(all_, {});
}

}  // namespace escrow::inline v0_2
