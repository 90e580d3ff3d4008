// SPDX-License-Identifier: Apache-2.0
// Leases of sharing groups, and where in a graph each of them is claimed and released.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <boost/container/small_vector.hpp>
#include <boost/container/static_vector.hpp>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/launch_order.hpp"

namespace escrow::inline v0_2 {

class deleter_core;

using few_nodes = boost::container::small_vector<cudaGraphNode_t, 2>;

// What becomes of a lease that was claimed in a capture, and what may then use its slot in the same
// graph behind the claim:
//   lives       nothing, but the lease's own graph, if that is embedded
//   outlives    the same: its capture has ended before
//   released    what comes after all nodes of the release, in that graph
//   over        anything: it ended elsewhere, so what is captured later uses it no more
enum class lease_state : std::uint8_t { lives, outlives, released, over };

[[nodiscard]] constexpr bool is_alive(lease_state its) noexcept {
  return its == lease_state::lives || its == lease_state::outlives;
}

// What a lease of a group covers: a slot of a pool, or a range of the group's arena.
struct covered_place {
  std::uint64_t slot = 0;  // its number, which no other slot of the process ever gets; 0: a range
  std::size_t begin = 0;
  std::size_t end = 0;

  bool operator==(covered_place const&) const = default;
  [[nodiscard]] bool overlaps(covered_place const& other) const noexcept {
    if (slot != 0 || other.slot != 0) return slot == other.slot;
    return begin < other.end && other.begin < end;
  }
};

// What all leases of a pool have in common.
struct lease_origin {
  group_order const& group;                           // only compared: it may be destroyed
  deleter_core const& core;                           // the same
  std::string pool;                                   // the label
  std::shared_ptr<group_order::lease_counts> counts;  // of the group
};

// What: a lease that a capture claimed of a pool of a sharing group.
// Thread safety: the lease's thread ends it, others may look at it meanwhile.
// Lifetime: shared by its slot, while it lives, and the graphs that have it.
struct group_lease {
  group_lease(std::shared_ptr<lease_origin const> of, source_location at, covered_place covered,
              std::span<cudaGraphNode_t const> after)
      : origin(std::move(of)),
        where(at),
        place(covered),
        claimed_after(after.begin(), after.end()) {}
  group_lease(group_lease&&) = delete;
  ~group_lease() { end(lease_state::over); }

  // Acquire and release: `released_after` is written before.
  [[nodiscard]] lease_state state() const noexcept {
    return state_.load(std::memory_order_acquire);
  }
  // It ends; only the first call counts. `released`: in its graph, after `released_after`.
  void end(lease_state as) noexcept {
    // Relaxed, also on failure: nothing else is read.
    lease_state now = state_.load(std::memory_order_relaxed);
    if (!is_alive(now)) return;
    if (as == lease_state::released) {
      released_at.store(origin->counts->note_release(), std::memory_order_relaxed);
    } else {
      origin->counts->note_end();
    }
    // Meanwhile its capture may end.
    while (!state_.compare_exchange_weak(now, as, std::memory_order_release,
                                         std::memory_order_relaxed)) {
    }
    // Relaxed: a number.
    if (now == lease_state::outlives) {
      origin->counts->outliving.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  // The same place is claimed on the same line, after `after` and nothing else: if it was released
  // there, both are one lease, from the first claim to the last release. False: they are not.
  [[nodiscard]] bool go_on(source_location at, covered_place const& covered,
                           std::span<cudaGraphNode_t const> after) noexcept {
    // Relaxed: the capture is ordered with calls that copy its graph.
    if (where != at || place != covered || is_copied.load(std::memory_order_relaxed)) return false;
    if (state() != lease_state::released || !std::ranges::is_permutation(released_after, after))
      return false;
    static_cast<void>(origin->counts->note_claim());
    // Relaxed: nothing is published.
    state_.store(lease_state::lives, std::memory_order_relaxed);
    return true;
  }
  // Its capture has ended. False if it is known, or the lease does not live.
  bool note_end_of_capture() noexcept {
    lease_state expected = lease_state::lives;
    // Relaxed: nothing else is published, and the count is a number. First, so that it is not below
    // zero when the lease ends.
    origin->counts->outliving.fetch_add(1, std::memory_order_relaxed);
    if (state_.compare_exchange_strong(expected, lease_state::outlives,
                                       std::memory_order_relaxed)) {
      return true;
    }
    origin->counts->outliving.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }

  std::shared_ptr<lease_origin const> const origin;
  source_location const where;
  covered_place const place;
  few_nodes const claimed_after;  // what the claim's stream depended on
  few_nodes released_after;       // written before it is released
  // The order of claims and releases: for reports.
  std::uint64_t const claimed_at = origin->counts->note_claim();
  // As released_after, but a report may read it while the lease goes on. Relaxed: a number.
  std::atomic<std::uint64_t> released_at{0};
  std::atomic<bool> is_copied{false};  // copies of its graph know of its end, or will not

 private:
  std::atomic<lease_state> state_{lease_state::lives};
};

// What: the leases that captures have claimed in a graph, oldest first.
// Thread safety: as its owner's.
// Lifetime: a lease lives as long as the log or a pointer to it.
class lease_log {
  using chunk = boost::container::static_vector<group_lease, 16>;  // an allocation for all

 public:
  // Memory for further leases, made in advance.
  using room = std::list<std::shared_ptr<chunk>>;
  [[nodiscard]] static room make_room() { return room(1, std::make_shared<chunk>()); }
  [[nodiscard]] bool has_room() const noexcept {
    return !chunks_.empty() && chunks_.back()->size() != chunk::static_capacity;
  }

  // Throws std::bad_alloc.
  template <class... Arguments>
  [[nodiscard]] std::shared_ptr<group_lease> add(room& spare, Arguments&&... arguments) {
    if (!has_room() && !take(spare, chunks_)) chunks_.splice(chunks_.end(), make_room());
    chunk& last = *chunks_.back();
    return {chunks_.back(), &last.emplace_back(std::forward<Arguments>(arguments)...)};
  }
  template <class Call>
  void for_each(Call call) const {
    for (auto const& each : chunks_) {
      for (group_lease& lease : *each) call(std::shared_ptr<group_lease>(each, &lease));
    }
  }
  // Memory whose leases are over goes to `spare`, which has at most spare_max then.
  void clear(room& spare) noexcept {
    for (auto next = chunks_.begin(); next != chunks_.end() && spare.size() < spare_max;) {
      auto const each = next++;
      // Acquires what the leases' threads have written; they write no more.
      bool const are_over = std::ranges::none_of(
          **each, [](group_lease const& lease) { return is_alive(lease.state()); });
      if (are_over) spare.splice(spare.end(), chunks_, each);
    }
    chunks_.clear();
  }
  // Moves some of it that no pointer to a lease keeps any more. False: there is none.
  [[nodiscard]] static bool take(room& spare, room& to) noexcept {
    auto const is_unused = [](auto const& each) { return each.use_count() == 1; };
    auto const found = std::ranges::find_if(spare, is_unused);
    if (found == spare.end()) return false;
    (*found)->clear();
    to.splice(to.end(), spare, found);
    return true;
  }
  static constexpr std::size_t spare_max = 64;  // 170 KiB

 private:
  room chunks_;
};

// A lease in one graph: of the capture that claimed it, or of a copy.
struct lease_span {
  std::shared_ptr<group_lease> lease;
  few_nodes claimed_after;  // as the lease's, in that graph
  // Of a copy: where the lease was released when the graph was copied; what a later release came
  // after is not in the copy.
  bool is_copy = false;
  bool was_released = false;
  few_nodes released_after = {};

  [[nodiscard]] lease_state state() const noexcept {
    lease_state const now = lease->state();
    return now == lease_state::released && is_copy && !was_released ? lease_state::over : now;
  }
  [[nodiscard]] few_nodes const& release() const noexcept {  // of a released one
    return is_copy ? released_after : lease->released_after;
  }
};

using lease_spans = std::list<lease_span>;

// In words: its pool and the line of its claim. Throws std::bad_alloc.
[[nodiscard]] std::string name_of(group_lease const& lease);

}  // namespace escrow::inline v0_2
