// The lists of free slots.
#include "bins.hpp"

#include <algorithm>
#include <mutex>

namespace escrow {

slot* bins::take_oldest_except(std::size_t index, std::span<std::uint64_t const> except) noexcept {
  shard& searched = shards_[index];
  std::lock_guard const lock(searched.mutex);
  for (slot* free = searched.oldest; free != nullptr; free = free->next_) {
    if (std::find(except.begin(), except.end(), free->stream_) == except.end()) {
      searched.unlink(*free);
      return free;
    }
  }
  return nullptr;
}

slot* bins::take_oldest() noexcept {
  shard* found = nullptr;
  std::uint64_t released_at = 0;
  for (shard& candidate : shards_) {
    std::lock_guard const lock(candidate.mutex);
    if (candidate.oldest == nullptr) continue;
    if (found == nullptr || candidate.oldest->released_at_ < released_at) {
      found = &candidate;
      released_at = candidate.oldest->released_at_;
    }
  }
  if (found == nullptr) return nullptr;
  // Somebody else may have taken that one meanwhile; then the next of its shard is as good, and if
  // there is none, any.
  {
    std::lock_guard const lock(found->mutex);
    if (slot* const oldest = found->oldest) {
      found->unlink(*oldest);
      return oldest;
    }
  }
  return take_any();
}

std::uint64_t bins::puts() noexcept {
  std::uint64_t sum = 0;
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    sum += each.puts;
  }
  return sum;
}

void bins::close() noexcept {
  for (shard& each : shards_) {
    std::lock_guard const lock(each.mutex);
    each.is_closed = true;
  }
}

slot* bins::take_any() noexcept {
  for (std::size_t index = 0; index < shards; ++index) {
    if (slot* const free = take_oldest_except(index, {})) return free;
  }
  return nullptr;
}

}  // namespace escrow
