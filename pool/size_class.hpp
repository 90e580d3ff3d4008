// A pool's slots of one size.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <mutex>
#include <string>
#include <utility>

#include "capture_reuse.hpp"
#include "free_lists.hpp"
#include "local_slots.hpp"

namespace escrow::inline v0_1 {

// What a pool has for each size of its slots: a resource_pool has one, a scratch_pool makes them.
// Thread safety: any thread. Lifetime: the pool's.
struct ESCROW_LOCAL size_class {
  size_class(std::size_t of_each, std::string its_label, std::size_t local_max)
      : bytes(of_each), label(std::move(its_label)), local_left(local_max) {}

  std::size_t const bytes;  // of each slot; 0: a resource_pool's
  std::string const label;  // in errors and holders
  // The next larger one. Stored with release under the pool's sizes_mutex, acquired without it.
  std::atomic<size_class*> next{nullptr};

  free_lists free;
  // Existing slots, neither handed to the worker for destruction nor leaked. Released when
  // decremented, acquired when incremented: a claim that gets a closed pool's room sees it closed.
  std::atomic<std::size_t> slots{0};
  std::atomic<std::size_t> slots_peak{0};  // statistics: relaxed
  capture_reuse::of_size captured;

  mutable std::mutex locals_mutex;        // guards it; held across no CUDA call
  std::forward_list<local_slots> locals;  // never removed before the pool's end
  // Those of streams, by id; empty if they do not outlive the pool. Stored with release under the
  // lock, acquired by claims without it.
  std::array<std::atomic<local_slots*>, 64> by_stream{};
  std::atomic<std::size_t> local_left;  // see local_slots

  // Read by each claim or release, and seldom written: a cache line of their own. Relaxed: a call
  // that misses a change acts on it the next time.
  alignas(64) std::atomic<std::size_t> local_users{0};  // claimers and streams
  std::atomic<std::size_t> local_idle_max{0};           // each may keep so many

  // Whether there are free slots, or some on their way from a list.
  [[nodiscard]] bool has_busy() noexcept {
    if (free.is_any_looked_at() || free.lists() != 0) return true;
    std::uint64_t const puts_before = free.count().puts;
    return free.lists() != 0 || free.has_moved_since(puts_before);
  }
};

// While a free slot is on its way to its destruction: a claim that finds neither it nor its room
// sees `looked_at`, or less `slots`, and tries again.
class ESCROW_LOCAL shrinking {
 public:
  explicit shrinking(size_class& of) noexcept : of_(of) {
    of_.free.looked_at.fetch_add(1, std::memory_order_relaxed);
  }
  shrinking(shrinking&&) = delete;
  // Release: see free_lists::has_moved_since().
  ~shrinking() { of_.free.looked_at.fetch_sub(1, std::memory_order_release); }

 private:
  size_class& of_;
};

}  // namespace escrow::inline v0_1
