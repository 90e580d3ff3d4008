// Searches through all free lists.
#include "free_lists.hpp"

#include <algorithm>
#include <mutex>

namespace escrow {

slot* free_lists::take_to_ask(std::uint64_t pass) noexcept {
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

bool free_lists::put_asked(slot& busy, std::uint64_t pass) noexcept {
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

slot* free_lists::take_oldest() noexcept {
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

std::uint64_t free_lists::puts() noexcept {
  std::uint64_t sum = 0;
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    sum += each.puts;
  }
  return sum;
}

bool free_lists::is_empty() noexcept {
  return std::ranges::all_of(shards_, [](shard& each) {
    std::lock_guard const lock(each.mutex);
    return each.first == nullptr;
  });
}

void free_lists::close() noexcept {
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    each.is_closed = true;
  }
}

}  // namespace escrow
