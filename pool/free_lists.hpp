// SPDX-License-Identifier: Apache-2.0
// A pool's free slots, by the stream of their release.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "escrow/internal/spin_lock.hpp"
#include "slot.hpp"

namespace escrow::inline v0_2 {

// One list per stream, found by hash, in the order of releases:
//     oldest, covered, covered | uncovered, newest
// - covered: an event is behind its work, or it is idle. These complete in their order, so a claim
//   queries one slot per list; it removes the slot meanwhile, because no lock may be held across a
//   CUDA call.
// - uncovered (slot::is_uncovered_): only its stream can claim it, until one event is recorded
//   behind all of them.
// A list's oldest slot represents it, so nothing is allocated for a new stream or kept for a
// destroyed one.
// Thread safety: any thread. Streams are distributed over shards, each with a lock that is held for
//   a few instructions and across no CUDA call.
class free_lists {
 public:
  static constexpr std::uint64_t idle = 0;  // the list of unused slots
  // For a slot outside its stream's order: `idle`, or a list of its own.
  [[nodiscard]] static std::uint64_t own_list_of(slot const& free) noexcept {
    return free.is_done_ ? idle : free.number_ | (std::uint64_t{1} << 63);
  }

  // The newest slot of the list `key`; null if there is none.
  slot* take_newest(std::uint64_t key) noexcept;

  // A list's oldest slot, not yet queried in pass number `pass`; null if there is none. Counts it
  // in `looked_at` before it leaves the list. The caller puts it back, with the pass noted in it,
  // or takes it, and then decrements the count.
  slot* take_to_ask(std::uint64_t pass) noexcept;
  // The slot with the oldest release, of those released by the stamp `last`; null if there is none.
  static constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
  slot* take_oldest(std::uint64_t last = any) noexcept;
  // Of the covered slots, by its stamp; `any` if there is none.
  [[nodiscard]] std::uint64_t oldest_release() noexcept;

  // Adds a covered slot as its list's newest of these, or as its oldest. False if closed: the
  // caller keeps it.
  [[nodiscard]] bool put(slot& free, bool as_oldest = false) noexcept;

  // Adds an uncovered slot as its list's newest. False if closed, if there are `max` of them, or if
  // not `may_put()`, asked under the list's lock: the caller keeps it.
  template <class MayPut>
  [[nodiscard]] bool put_uncovered(slot& free, std::size_t max, MayPut may_put) noexcept;
  // Removes the uncovered slots of the list `key`, linked by newer_ from the oldest on, and then
  // `newer`, if not null.
  [[nodiscard]] slot* take_uncovered(std::uint64_t key, slot* newer = nullptr) noexcept;
  // The same of any list but those of cudaStreamPerThread, of which each thread has its own; null
  // if no list has any.
  [[nodiscard]] slot* take_uncovered_of_any() noexcept;
  // How many uncovered slots each list has, with its stream. Throws std::bad_alloc.
  [[nodiscard]] std::vector<std::pair<cudaStream_t, std::size_t>> uncovered();

  // Counted under the locks, and summed shard by shard.
  struct counts {
    std::uint64_t puts = 0;          // number of puts of covered slots so far
    std::size_t listed = 0;          // slots in the lists
    std::size_t uncovered = 0;       // of them
    std::uint64_t newest_taken = 0;  // how many take_newest() has taken
  };
  [[nodiscard]] counts count() noexcept;
  // Slots removed to be queried or destroyed. Relaxed when incremented: before the slot leaves its
  // list, under a lock that a search takes.
  std::atomic<std::size_t> looked_at{0};
  // A search that found nothing may have missed a slot if one was looked at afterwards, or if then
  // the puts are not those of before: it was put where the search had been. Acquire, and released
  // when decremented: with `looked_at` also the put is seen.
  [[nodiscard]] bool is_any_looked_at() const noexcept {
    return looked_at.load(std::memory_order_acquire) != 0;
  }

  [[nodiscard]] std::size_t lists() const noexcept;  // how many have covered slots
  void close() noexcept;                             // refuses slots from now on

 private:
  // Cache-line aligned: no false sharing between threads with their own streams.
  struct alignas(64) shard {
    spin_lock mutex;  // guards all below, and the links of its slots
    bool is_closed = false;
    std::uint64_t puts = 0;          // of covered ones
    std::uint64_t taken = 0;         // covered ones
    std::uint64_t newest_taken = 0;  // by take_newest()
    std::size_t uncovered = 0;
    // Number of lists with covered slots. Written under the lock, read without it: acquire and
    // release, so that a search that sees a list removed sees its slot in `looked_at`. A new list
    // adds to `puts`.
    std::atomic<std::size_t> lists{0};
    std::array<slot*, 32> by_hash{};  // the lists' oldest slots

    [[nodiscard]] bool is_empty() const noexcept {
      return lists.load(std::memory_order_acquire) == 0;
    }
    void count_lists(std::size_t more) noexcept {  // unsigned numbers wrap around
      lists.store(lists.load(std::memory_order_relaxed) + more, std::memory_order_release);
    }
  };

  // The link to the list's oldest slot; to null if there is none.
  static slot*& find(shard& in, std::uint64_t key) noexcept {
    slot** at = &in.by_hash[(key / shards) % in.by_hash.size()];
    while (*at != nullptr && (*at)->key_ != key) at = &(*at)->list_.chained;
    return *at;
  }
  // The link to the oldest release of those by the stamp `last`, of covered slots not yet asked
  // about in pass number `pass`; null if there is none.
  static slot** find_oldest(shard& in, std::uint64_t last, std::uint64_t pass) noexcept {
    slot** found = nullptr;
    for (slot*& first : in.by_hash) {
      for (slot** at = &first; *at != nullptr; at = &(*at)->list_.chained) {
        if ((*at)->released_at_ > last || (*at)->asked_in_ >= pass) continue;
        if ((*at)->is_uncovered_) continue;
        found = at;
        last = (*at)->released_at_;
      }
    }
    return found;
  }
  static slot* take(shard& in, slot*& oldest) noexcept;
  static slot* take_uncovered(shard& in, slot*& oldest) noexcept;

  static constexpr std::size_t shards = 32;
  shard& shard_of(std::uint64_t key) noexcept { return shards_[key % shards]; }

  // The shard of the last question, where the next search begins, so that it does not ask first
  // about what was busy then. Relaxed: any shard will do.
  std::atomic<std::size_t> asked_last_{0};
  std::array<shard, shards> shards_;
};

// Used by every claim and release.

inline slot* free_lists::take(shard& in, slot*& oldest) noexcept {
  slot* const taken = oldest;
  slot* const heir = std::exchange(taken->newer_, nullptr);
  if (!taken->is_uncovered_) {
    ++in.taken;
    if (heir == nullptr || heir->is_uncovered_) in.count_lists(-std::size_t{1});
  } else {
    --in.uncovered;
  }
  if (heir != nullptr) {
    heir->older_ = nullptr;
    heir->list_ = taken->list_;
    oldest = heir;
  } else {
    oldest = taken->list_.chained;
  }
  return taken;
}

inline slot* free_lists::take_newest(std::uint64_t key) noexcept {
  shard& home = shard_of(key);
  std::lock_guard const lock(home.mutex);
  slot*& oldest = find(home, key);
  if (oldest == nullptr) return nullptr;
  ++home.newest_taken;
  auto& list = oldest->list_;
  slot* const newest = list.newest;
  if (newest == oldest) return take(home, oldest);
  slot* const heir = std::exchange(newest->older_, nullptr);
  heir->newer_ = nullptr;
  list.newest = heir;
  if (newest->is_uncovered_) {
    --home.uncovered;
    if (--list.uncovered_count == 0) list.uncovered = nullptr;
  } else {
    ++home.taken;
  }
  return newest;
}

inline bool free_lists::put(slot& free, bool as_oldest) noexcept {
  shard& home = shard_of(free.key_);
  std::lock_guard const lock(home.mutex);
  if (home.is_closed) return false;
  slot*& oldest = find(home, free.key_);
  ++home.puts;
  if (oldest == nullptr) {
    oldest = &free;
    free.list_ = {.newest = &free};
    home.count_lists(1);
    return true;
  }
  bool const is_first = oldest->is_uncovered_;
  if (is_first) home.count_lists(1);
  if (as_oldest || is_first) {
    oldest->older_ = &free;
    free.list_ = oldest->list_;
    free.newer_ = std::exchange(oldest, &free);
    return true;
  }
  slot* const newer = oldest->list_.uncovered;
  slot*& link = newer != nullptr ? newer->older_ : oldest->list_.newest;
  free.newer_ = newer;
  free.older_ = std::exchange(link, &free);
  free.older_->newer_ = &free;
  return true;
}

// Slots without an event.

template <class MayPut>
bool free_lists::put_uncovered(slot& free, std::size_t max, MayPut may_put) noexcept {
  shard& home = shard_of(free.key_);
  std::lock_guard const lock(home.mutex);
  if (home.is_closed || max == 0 || !may_put()) return false;
  slot*& oldest = find(home, free.key_);
  if (oldest == nullptr) {
    oldest = &free;
    free.list_ = {.newest = &free, .uncovered = &free, .uncovered_count = 1};
  } else {
    auto& list = oldest->list_;
    if (list.uncovered_count >= max) return false;
    if (list.uncovered_count++ == 0) list.uncovered = &free;
    free.older_ = std::exchange(list.newest, &free);
    free.older_->newer_ = &free;
  }
  ++home.uncovered;
  return true;
}

inline slot* free_lists::take_uncovered(shard& in, slot*& oldest) noexcept {
  auto& list = oldest->list_;
  slot* const first = list.uncovered;
  in.uncovered -= std::exchange(list.uncovered_count, 0);
  if (first == oldest) {
    oldest = list.chained;
  } else {
    list.newest = std::exchange(first->older_, nullptr);
    list.newest->newer_ = nullptr;
    list.uncovered = nullptr;
  }
  return first;
}

[[gnu::noinline]] inline slot* free_lists::take_uncovered(std::uint64_t key, slot* newer) noexcept {
  shard& home = shard_of(key);
  std::lock_guard const lock(home.mutex);
  slot*& oldest = find(home, key);
  if (oldest == nullptr || oldest->list_.uncovered == nullptr) return newer;
  slot* const newest = oldest->list_.newest;
  newest->newer_ = newer;
  return take_uncovered(home, oldest);
}

inline slot* free_lists::take_uncovered_of_any() noexcept {
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    for (slot*& first : each.by_hash) {
      for (slot** at = &first; *at != nullptr; at = &(*at)->list_.chained) {
        slot const* const uncovered = (*at)->list_.uncovered;
        if (uncovered == nullptr || uncovered->released_on_ == cudaStreamPerThread) continue;
        return take_uncovered(each, *at);
      }
    }
  }
  return nullptr;
}

inline std::vector<std::pair<cudaStream_t, std::size_t>> free_lists::uncovered() {
  std::vector<std::pair<cudaStream_t, std::size_t>> all;
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    for (slot const* first : each.by_hash) {
      for (; first != nullptr; first = first->list_.chained) {
        auto const& [newest, chained, uncovered, count] = first->list_;
        if (count != 0) all.emplace_back(uncovered->released_on_, count);
      }
    }
  }
  return all;
}

// Searches through all lists.

inline slot* free_lists::take_to_ask(std::uint64_t pass) noexcept {
  std::size_t const begin = asked_last_.load(std::memory_order_relaxed);
  for (std::size_t i = begin; i < begin + shards; ++i) {
    shard& each = shards_[i % shards];
    if (each.is_empty()) continue;
    std::lock_guard const lock(each.mutex);
    slot** const oldest = find_oldest(each, any, pass);
    if (oldest == nullptr) continue;
    asked_last_.store(i % shards, std::memory_order_relaxed);
    looked_at.fetch_add(1, std::memory_order_relaxed);
    return take(each, *oldest);
  }
  return nullptr;
}

inline slot* free_lists::take_oldest(std::uint64_t last) noexcept {
  while (true) {
    shard* found_in = nullptr;
    std::uint64_t released_at = last;
    for (shard& each : shards_) {
      if (each.is_empty()) continue;
      std::lock_guard const lock(each.mutex);
      if (slot** const oldest = find_oldest(each, released_at, any)) {
        found_in = &each;
        released_at = (*oldest)->released_at_;
      }
    }
    if (found_in == nullptr) return nullptr;
    std::lock_guard const lock(found_in->mutex);
    // If another thread has taken it meanwhile, search again.
    slot** const oldest = find_oldest(*found_in, released_at, any);
    if (oldest != nullptr) return take(*found_in, *oldest);
  }
}

inline std::uint64_t free_lists::oldest_release() noexcept {
  std::uint64_t released_at = any;
  for (shard& each : shards_) {
    if (each.is_empty()) continue;
    std::lock_guard const lock(each.mutex);
    if (slot** const oldest = find_oldest(each, released_at, any)) {
      released_at = (*oldest)->released_at_;
    }
  }
  return released_at;
}

inline free_lists::counts free_lists::count() noexcept {
  counts sum;
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    sum.puts += each.puts;
    sum.listed += each.puts - each.taken + each.uncovered;
    sum.uncovered += each.uncovered;
    sum.newest_taken += each.newest_taken;
  }
  return sum;
}

inline std::size_t free_lists::lists() const noexcept {
  std::size_t sum = 0;
  for (shard const& each : shards_) sum += each.lists.load(std::memory_order_acquire);
  return sum;
}

inline void free_lists::close() noexcept {
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    each.is_closed = true;
  }
}

}  // namespace escrow::inline v0_2
