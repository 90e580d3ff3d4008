// The free slots of a pool, by the stream that each was released on.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "escrow/detail/slot.hpp"
#include "escrow/detail/spin_lock.hpp"

namespace escrow {

// One list a stream, oldest release first, found by hash. Within a list the oldest is done first,
// so that a claim asks about one slot a list; it takes the slot out meanwhile, because no lock may
// be held across a CUDA call.
//   Each slot brings the head of a list. The first slot of a stream gives its own; further ones
// leave theirs with the list; a slot that is taken takes one along. So nothing is allocated when a
// stream appears, nor kept when it is destroyed.
// Thread safety: any thread. Streams are spread over shards, each with a lock that is held for a
//   few instructions and across no CUDA call.
class free_lists {
 public:
  // The list of slots that nothing uses.
  static constexpr std::uint64_t idle = 0;
  // A list of its own, for a slot that waits for other streams than that of its release.
  [[nodiscard]] static std::uint64_t own_list_of(slot const& free) noexcept {
    return free.number_ | (std::uint64_t{1} << 63);
  }

  // The slot put last on the list `key`; null if there is none.
  slot* take_newest(std::uint64_t key) noexcept;

  // The oldest slot of a list that pass number `pass` has not asked about, nor a later one; null if
  // there is none. Counts it in `looked_at` from before others miss it; the caller puts it back
  // with put_asked() or takes it, and then counts it off.
  slot* take_to_ask(std::uint64_t pass) noexcept;
  bool put_asked(slot& busy, std::uint64_t pass) noexcept;
  // The slot of the oldest release; null if there is none.
  slot* take_oldest() noexcept;

  // Adds a free slot as the newest of its list. False if the lists are closed: the slot stays the
  // caller's.
  [[nodiscard]] bool put(slot& free) noexcept;

  // How often a slot was put here. A search that found nothing, between two equal counts with no
  // slot being looked at, has missed none.
  [[nodiscard]] std::uint64_t puts() noexcept;
  // Slots taken out only to be asked about, or on their way from a graph. Relaxed: whoever changes
  // it does so before the slot leaves one list or enters another, under locks that a search takes.
  std::atomic<std::size_t> looked_at{0};

  [[nodiscard]] bool is_empty() noexcept;
  // Refuses slots from now on.
  void close() noexcept;

 private:
  using list = slot::stream_list;

  // Own cache line, so that threads with their own streams do not meet.
  struct alignas(64) shard {
    spin_lock mutex;  // guards the rest, the lists in it and the links of their slots
    bool is_closed = false;
    std::uint64_t puts = 0;
    list* first = nullptr;  // of all lists, those first that were not asked about lately
    list* last = nullptr;
    std::array<list*, 64> by_hash{};
  };

  static list*& chain_of(shard& in, std::uint64_t key) noexcept {
    return in.by_hash[(key / shards) % in.by_hash.size()];
  }
  static list* find(shard& in, std::uint64_t key) noexcept {
    list* found = chain_of(in, key);
    while (found != nullptr && found->key != key) found = found->chained;
    return found;
  }
  // Takes `free` off its list, of this shard, and the list away with the last one.
  static void unlink(shard& in, list& from, slot& free) noexcept;
  // The list `key`, which may be the one that `free` brings.
  static list& list_for(shard& in, slot& free) noexcept;
  static void link_last(shard& in, list& added) noexcept;
  static void unlink(shard& in, list& removed) noexcept;

  static constexpr std::size_t shards = 32;
  shard& shard_of(std::uint64_t key) noexcept { return shards_[key % shards]; }

  std::array<shard, shards> shards_;
};

// Every claim and release.

inline void free_lists::link_last(shard& in, list& added) noexcept {
  added.previous = std::exchange(in.last, &added);
  added.next = nullptr;
  (added.previous == nullptr ? in.first : added.previous->next) = &added;
}

inline void free_lists::unlink(shard& in, list& removed) noexcept {
  (removed.previous == nullptr ? in.first : removed.previous->next) = removed.next;
  (removed.next == nullptr ? in.last : removed.next->previous) = removed.previous;
}

inline void free_lists::unlink(shard& in, list& from, slot& free) noexcept {
  (free.older_ == nullptr ? from.oldest : free.older_->newer_) = free.newer_;
  (free.newer_ == nullptr ? from.newest : free.newer_->older_) = free.older_;
  free.older_ = free.newer_ = nullptr;
  if (from.spare != nullptr) {
    free.brought_.reset(std::exchange(from.spare, from.spare->spare));
    return;
  }
  list** at = &chain_of(in, from.key);
  while (*at != &from) at = &(*at)->chained;
  *at = from.chained;
  unlink(in, from);
  free.brought_.reset(&from);
}

inline free_lists::list& free_lists::list_for(shard& in, slot& free) noexcept {
  list& brought = *free.brought_.release();
  if (list* const found = find(in, free.key_)) {
    brought.spare = std::exchange(found->spare, &brought);
    return *found;
  }
  brought = {.key = free.key_, .chained = chain_of(in, free.key_)};
  chain_of(in, free.key_) = &brought;
  link_last(in, brought);
  return brought;
}

inline slot* free_lists::take_newest(std::uint64_t key) noexcept {
  shard& home = shard_of(key);
  std::lock_guard const lock(home.mutex);
  list* const found = find(home, key);
  if (found == nullptr) return nullptr;
  slot* const newest = found->newest;
  unlink(home, *found, *newest);
  return newest;
}

inline bool free_lists::put(slot& free) noexcept {
  shard& home = shard_of(free.key_);
  std::lock_guard const lock(home.mutex);
  if (home.is_closed) return false;
  list& of = list_for(home, free);
  free.older_ = std::exchange(of.newest, &free);
  (free.older_ == nullptr ? of.oldest : free.older_->newer_) = &free;
  ++home.puts;
  return true;
}

// Searches through all lists.

inline slot* free_lists::take_to_ask(std::uint64_t pass) noexcept {
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    for (list* at = each.first; at != nullptr; at = at->next) {
      slot* const oldest = at->oldest;
      if (oldest->asked_in_ >= pass) continue;
      looked_at.fetch_add(1, std::memory_order_relaxed);
      unlink(each, *at, *oldest);
      return oldest;
    }
  }
  return nullptr;
}

inline bool free_lists::put_asked(slot& busy, std::uint64_t pass) noexcept {
  shard& home = shard_of(busy.key_);
  std::lock_guard const lock(home.mutex);
  if (home.is_closed) return false;
  busy.asked_in_ = std::max(busy.asked_in_, pass);
  list& of = list_for(home, busy);
  busy.newer_ = std::exchange(of.oldest, &busy);
  (busy.newer_ == nullptr ? of.newest : busy.newer_->older_) = &busy;
  unlink(home, of);
  link_last(home, of);
  ++home.puts;
  return true;
}

inline slot* free_lists::take_oldest() noexcept {
  while (true) {
    shard* found_in = nullptr;
    std::uint64_t released_at = 0;
    for (shard& each : shards_) {
      std::lock_guard const lock(each.mutex);
      for (list* at = each.first; at != nullptr; at = at->next) {
        if (found_in != nullptr && at->oldest->released_at_ >= released_at) continue;
        found_in = &each;
        released_at = at->oldest->released_at_;
      }
    }
    if (found_in == nullptr) return nullptr;
    // Another thread may have taken that one meanwhile: then another is the oldest.
    std::lock_guard const lock(found_in->mutex);
    for (list* at = found_in->first; at != nullptr; at = at->next) {
      slot* const oldest = at->oldest;
      if (oldest->released_at_ != released_at) continue;
      unlink(*found_in, *at, *oldest);
      return oldest;
    }
  }
}

inline std::uint64_t free_lists::puts() noexcept {
  std::uint64_t sum = 0;
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    sum += each.puts;
  }
  return sum;
}

inline bool free_lists::is_empty() noexcept {
  return std::ranges::all_of(shards_, [](shard& each) {
    std::lock_guard const lock(each.mutex);
    return each.first == nullptr;
  });
}

inline void free_lists::close() noexcept {
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    each.is_closed = true;
  }
}

}  // namespace escrow
