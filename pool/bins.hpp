// The free slots of a pool, by the stream that each was released on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "escrow/detail/spin_lock.hpp"
#include "escrow/pool/slot.hpp"

namespace escrow {

// Streams are spread over shards. A shard is one list of free slots, oldest release first, so a
// bin, the slots last used on one stream, is those of the list that carry its id: a claim looks
// from the newest on and nearly always takes the first. Nothing has to be made when a stream
// appears, or forgotten when it goes.
// Thread safety: any thread. Each shard has a lock, held for a few instructions and across no call
//   of CUDA. Progress: blocking, briefly; never allocates.
class bins {
 public:
  // The slot released last on `stream`; null if there is none.
  slot* take_newest(std::uint64_t stream) noexcept;

  // The slot of the oldest release in shard `index` whose stream is not among `except`; null if
  // none.
  slot* take_oldest_except(std::size_t index, std::span<std::uint64_t const> except) noexcept;
  static constexpr std::size_t shards = 32;

  // The slot of the oldest release of all; null if none.
  slot* take_oldest() noexcept;

  // Adds a free slot in the order of its release. False if the bins are closed: the slot stays the
  // caller's.
  [[nodiscard]] bool put(slot& free) noexcept;

  // How often a slot was put here. A search that found nothing, between two equal counts, has
  // missed none.
  [[nodiscard]] std::uint64_t puts() noexcept;

  // Refuses slots from now on.
  void close() noexcept;
  // Any slot that is left; null if none. For emptying closed bins.
  slot* take_any() noexcept;

 private:
  // Own cache line, so that threads with their own streams do not meet.
  struct alignas(64) shard {
    spin_lock mutex;  // guards the rest, and the links of the slots in it
    slot* oldest = nullptr;
    slot* newest = nullptr;
    std::uint64_t puts = 0;
    bool is_closed = false;

    void unlink(slot& free) noexcept;
    void link(slot& free) noexcept;
  };

  shard& shard_of(std::uint64_t stream) noexcept { return shards_[stream % shards]; }

  std::array<shard, shards> shards_;
};

// Inline, because every claim and release goes through them.

inline void bins::shard::unlink(slot& free) noexcept {
  (free.previous_ == nullptr ? oldest : free.previous_->next_) = free.next_;
  (free.next_ == nullptr ? newest : free.next_->previous_) = free.previous_;
  free.previous_ = free.next_ = nullptr;
}

inline void bins::shard::link(slot& free) noexcept {
  // Nearly always the newest; a slot that was only looked at goes back to where it was.
  slot* before = newest;
  while (before != nullptr && before->released_at_ > free.released_at_) before = before->previous_;
  free.previous_ = before;
  free.next_ = before == nullptr ? oldest : before->next_;
  (before == nullptr ? oldest : before->next_) = &free;
  (free.next_ == nullptr ? newest : free.next_->previous_) = &free;
}

inline slot* bins::take_newest(std::uint64_t stream) noexcept {
  shard& home = shard_of(stream);
  std::lock_guard const lock(home.mutex);
  for (slot* free = home.newest; free != nullptr; free = free->previous_) {
    if (free->stream_ == stream) {
      home.unlink(*free);
      return free;
    }
  }
  return nullptr;
}

inline bool bins::put(slot& free) noexcept {
  shard& home = shard_of(free.stream_);
  std::lock_guard const lock(home.mutex);
  if (home.is_closed) return false;
  home.link(free);
  ++home.puts;
  return true;
}

}  // namespace escrow
