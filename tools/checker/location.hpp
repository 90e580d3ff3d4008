// SPDX-License-Identifier: Apache-2.0
// An atomic object: all its stores in modification order, and who has seen which.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "clocks.hpp"

namespace escrow::model {

[[nodiscard]] constexpr bool acquires(std::memory_order order) noexcept {
  // consume counts as acquire, as compilers have it.
  return order != std::memory_order_relaxed && order != std::memory_order_release;
}
[[nodiscard]] constexpr bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}

// One store. `released` is what who acquires it gets to know.
struct message {
  std::uint64_t value = 0;
  moment by;
  knowledge released;
};

// The operational semantics: a thread may read any store that is not older than one that it knows
// of; it knows what happened before, and what was read before that. A new store comes last in the
// modification order; see checker.hpp for what that leaves out.
class location {
 public:
  void begin(std::uintptr_t address) noexcept {
    where = address;
    messages.clear();
    for (auto& log : seen_) log.clear();
    sequential_ = 0;
  }

  [[nodiscard]] std::size_t newest() const noexcept { return messages.size() - 1; }
  // The oldest store that a thread which knows `known` may read.
  [[nodiscard]] std::size_t oldest_for(clock const& known, std::memory_order order) const noexcept {
    std::size_t oldest = order == std::memory_order_seq_cst ? sequential_ : 0;
    for (std::size_t thread = 0; thread < threads_max; ++thread) {
      auto const& log = seen_[thread];
      for (auto entry = log.rbegin(); entry != log.rend(); ++entry) {
        if (entry->when > known.at[thread]) continue;
        oldest = std::max(oldest, entry->message);
        break;
      }
    }
    return oldest;
  }
  // Notes that `by` read or wrote that message.
  void note(moment by, std::size_t index, std::memory_order order) {
    seen_[by.thread].push_back({by.when, index});
    if (order == std::memory_order_seq_cst) sequential_ = std::max(sequential_, index);
  }
  void append(message const& stored) { messages.push_back(stored); }
  // The last access that is not part of what is known; for the end of the object.
  [[nodiscard]] bool is_known_to(clock const& known) const noexcept {
    for (std::size_t thread = 0; thread < threads_max; ++thread) {
      if (!seen_[thread].empty() && seen_[thread].back().when > known.at[thread]) return false;
    }
    return true;
  }
  [[nodiscard]] std::size_t sequential() const noexcept { return sequential_; }

  std::uintptr_t where = 0;
  std::size_t size = 0;
  std::vector<message> messages;

 private:
  struct access {
    std::uint32_t when;
    std::size_t message;
  };
  std::array<std::vector<access>, threads_max> seen_;
  std::size_t sequential_ = 0;  // the newest store that a seq_cst operation wrote or read
};

}  // namespace escrow::model
