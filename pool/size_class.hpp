// SPDX-License-Identifier: Apache-2.0
// A pool's slots of one size.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "escrow/core/error.hpp"
#include "escrow/detail/shared_count.hpp"
#include "free_lists.hpp"
#include "slot.hpp"

namespace escrow::inline v0_2 {

// The slots of one size. Each is alive, then perhaps on its way to its destruction, and counts for
// the pool's limits until its memory is given back.
// Thread safety: any thread. Released when a slot goes, acquired when one is added: a claim that
//   gets a closed pool's room sees it closed.
class ESCROW_LOCAL slot_count {
 public:
  [[nodiscard]] std::size_t existing() const noexcept { return existing_in(load()); }
  [[nodiscard]] std::size_t alive() const noexcept {
    std::uint64_t const now = load();
    return existing_in(now) - ending_in(now);
  }
  [[nodiscard]] bool is_any_ending() const noexcept { return ending_in(load()) != 0; }

  // Adds one below `max`, if then `may_add()`. Returns how many exist now; 0: none was added.
  template <class MayAdd>
  [[nodiscard]] std::size_t try_add(std::size_t max, MayAdd may_add) noexcept {
    std::uint64_t now = load();
    do {
      if (existing_in(now) >= max || !may_add()) return 0;
    } while (!both_.compare_exchange_weak(now, now + 1, std::memory_order_acquire));
    return existing_in(now) + 1;
  }
  void begin_end() noexcept { both_.fetch_add(one_ending, std::memory_order_release); }
  void end() noexcept { both_.fetch_sub(one_ending + 1, std::memory_order_release); }
  void remove() noexcept { both_.fetch_sub(1, std::memory_order_release); }  // an alive one

 private:
  // In one number, so that a slot that ends is counted once at any moment.
  static constexpr std::uint64_t one_ending = std::uint64_t{1} << 32;
  [[nodiscard]] static std::size_t existing_in(std::uint64_t both) noexcept {
    return both % one_ending;
  }
  [[nodiscard]] static std::size_t ending_in(std::uint64_t both) noexcept {
    return both / one_ending;
  }
  [[nodiscard]] std::uint64_t load() const noexcept {
    return both_.load(std::memory_order_acquire);
  }

  std::atomic<std::uint64_t> both_{0};
};

// Relaxed: statistics.
inline void raise_to(std::atomic<std::size_t>& peak, std::size_t now) noexcept {
  std::size_t most = peak.load(std::memory_order_relaxed);
  while (most < now && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

// What the graph of one capture holds of the slots of one size. Guarded by capture_reuse.
struct captured_slots {
  std::size_t holds = 0;
  std::chrono::steady_clock::time_point since;
  source_location where;
  std::vector<slot*> reusable;  // in the order of their releases
  std::uint64_t offers = 0;     // releases that made a slot reusable so far
  // No reusable slot is before these nodes. Cleared by the next release.
  std::unordered_set<cudaGraphNode_t> barren;
};

// What all graphs hold of them. Guarded by capture_reuse.
struct slots_in_graphs {
  std::map<std::uint64_t, captured_slots> entries;  // by the capture's id
  std::size_t slots_held = 0;   // by any number of graphs; without those of arenas
  std::size_t places_held = 0;  // the same of arenas
  slot_list shared;
};

// What a pool has for each size of its slots: a resource_pool has one, a scratch_pool makes them.
// Thread safety: any thread. Lifetime: the pool's.
struct ESCROW_LOCAL size_class {
  size_class(std::size_t of_each, std::string its_label)
      : bytes(of_each), label(std::move(its_label)) {}

  std::size_t const bytes;  // of each slot; 0: a resource_pool's
  std::string const label;  // in errors and holders
  // Of a resource_pool: what its last resource tells. Relaxed: a number.
  std::atomic<std::size_t> bytes_told{0};
  [[nodiscard]] std::size_t bytes_each() const noexcept {
    return bytes != 0 ? bytes : bytes_told.load(std::memory_order_relaxed);
  }
  // The next larger one. Stored with release under the pool's sizes_mutex, acquired without it.
  std::atomic<size_class*> next{nullptr};
  [[nodiscard]] size_class* larger() const noexcept {
    size_class* const its = next.load(std::memory_order_acquire);
    if (its != nullptr) tell_taken(its);
    return its;
  }

  free_lists free;
  slot_count slots;                        // without leaked ones
  std::atomic<std::size_t> slots_peak{0};  // statistics: relaxed
  std::atomic<std::size_t> given_up{0};    // how many were freed for other sizes; relaxed: a number
  slot_count in_arena;                     // others, which no limit counts
  [[nodiscard]] slot_count& count_of(slot const& its) noexcept {
    return its.place_ == nullptr ? slots : in_arena;
  }
  slots_in_graphs captured;

  // How many slots are uncovered, free or leased again. Read by each claim or release without an
  // event, and seldom written: a cache line of its own. Relaxed: a number.
  alignas(64) std::atomic<std::size_t> uncovered{0};
  [[nodiscard]] bool uncover(slot& used, std::size_t most) noexcept {  // false: there are so many
    if (used.is_uncovered_) return true;
    std::size_t now = uncovered.load(std::memory_order_relaxed);
    do {
      if (now >= most) return false;
    } while (!uncovered.compare_exchange_weak(now, now + 1, std::memory_order_relaxed));
    used.is_uncovered_ = true;
    return true;
  }
  static void end_uncovered(slot& used) noexcept {
    if (!used.is_uncovered_) [[likely]]
      return;
    used.is_uncovered_ = false;
    used.of_.uncovered.fetch_sub(1, std::memory_order_relaxed);
  }

  // Whether a slot, or its room, is on its way: asked about, or to its destruction.
  [[nodiscard]] bool is_any_on_its_way() const noexcept {
    return free.is_any_looked_at() || slots.is_any_ending();
  }
};

// While a free slot is on its way to its destruction: a claim that finds neither it nor its room
// sees `looked_at`, or that it is ending, and tries again.
class ESCROW_LOCAL shrinking {
 public:
  explicit shrinking(size_class& of) noexcept : of_(of) {
    of_.free.looked_at.fetch_add(1, std::memory_order_relaxed);
  }
  shrinking(shrinking&&) = delete;
  // Release: see free_lists::is_any_looked_at().
  ~shrinking() { of_.free.looked_at.fetch_sub(1, std::memory_order_release); }

 private:
  size_class& of_;
};

}  // namespace escrow::inline v0_2
