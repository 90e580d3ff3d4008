// SPDX-License-Identifier: Apache-2.0
// The sizes of a pool's slots, and the bytes that all slots may have.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "search.hpp"
#include "size_class.hpp"

namespace escrow::inline v0_2 {

// What: a list of sizes, which grows with the claims, and how many bytes their slots have together.
// Thread safety: any thread.
// Lifetime: the pool's. No size is removed before.
class ESCROW_LOCAL pool_sizes {
 public:
  // `smallest_bytes`: 0 for a resource_pool, which has one size.
  pool_sizes(std::string label, std::size_t smallest_bytes, std::size_t most);
  pool_sizes(pool_sizes&&) = delete;
  ~pool_sizes();

  // Of the slots for a claim of so many bytes, more than `smallest` has. Null: there is none, and
  // the pool is closed. Throws usage_error, naming `call`, for more than there can be.
  [[nodiscard]] size_class* larger_for(char const* call, std::size_t bytes);
  [[nodiscard]] std::string label_of(std::size_t bytes) const;
  template <class Call>
  void for_each(Call call) {
    for (size_class* each = &smallest; each != nullptr;) {
      call(*std::exchange(each, each->larger()));
    }
  }
  // The pool makes no size afterwards.
  void close() noexcept;
  // A claim that misses it may still succeed; its slot is destroyed later.
  [[nodiscard]] bool is_closed() const noexcept {
    return is_closed_.load(std::memory_order_relaxed);
  }

  // Takes room for a slot, beside what is left to others. False: that is beyond the limit.
  [[nodiscard]] bool reserve(size_class const& of, std::size_t left_to_others) noexcept;
  // What becomes of a slot, or of what was reserved for it. What is leaked counts for the limit.
  enum class end : std::uint8_t { destroyed, leaked, not_made };
  void give_back(size_class const& of, end how) noexcept;
  // Whether room will come by itself: work on free slots ends, slots are being destroyed.
  void look_for_room(search_result& seen) noexcept;
  // How often that happened, or slots of a size, or `is_of_all`, became free.
  [[nodiscard]] std::uint64_t moves(size_class& of, bool is_of_all) noexcept;
  [[nodiscard]] std::size_t existing(size_class& of, bool is_of_all) noexcept;
  [[nodiscard]] std::size_t bytes_alive(bool is_in_use) noexcept;
  void note_peak() noexcept;

  // Relaxed: numbers.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return reserved_.load(std::memory_order_relaxed) + bytes_leaked();
  }
  [[nodiscard]] std::size_t bytes_leaked() const noexcept {
    return leaked_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t bytes_peak() const noexcept {
    return bytes_peak_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t returned() const noexcept {
    return returned_.load(std::memory_order_relaxed);
  }

  static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();
  std::size_t const bytes_max;  // of all slots
  size_class smallest;          // the first of the list of all, by size

 private:
  std::string const label_;
  std::mutex mutex_;  // guards the list, and the closing against it; held across no CUDA call
  // The last used size above the smallest, by hash. Stored with release under the lock, acquired by
  // claims without it.
  std::array<std::atomic<size_class*>, 256> last_used_{};

  // Bytes. Relaxed: what allocates and frees orders the memory.
  std::atomic<std::size_t> reserved_{0};  // for slots, and for those that are being made
  std::atomic<std::size_t> leaked_{0};
  std::atomic<std::size_t> bytes_peak_{0};
  std::atomic<std::uint64_t> returned_{0};
  std::atomic<std::uint64_t> given_back_{0};  // the same, and what was reserved in vain

  // Stored under the lock, read by each claim: a cache line of its own. Relaxed: who misses the
  // change sees it the next time.
  alignas(64) std::atomic<bool> is_closed_{false};
};

}  // namespace escrow::inline v0_2
