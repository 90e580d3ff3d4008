// SPDX-License-Identifier: Apache-2.0
// Things that wait for their ready event; used by the worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "escrow/detail/reclaimable.hpp"
#include "escrow/internal/ready_event.hpp"
#include "escrow/internal/release_queue.hpp"

namespace escrow::inline v0_2 {

// Queries a ready event; twice before the answer `gone`, because the thing is leaked then. Reports
// the first error of each thing to `its`. The thread is in Relaxed capture mode.
[[nodiscard]] ready_answer ask(cudaEvent_t ready, bool& is_reported,
                               deleter_accounts& its) noexcept;

// Worker only. Things of one release_order become ready in order, so each order has a line, of
// which a poll queries the oldest thing only. Things without an order are queried one by one.
class pending_events {
 public:
  // `thing` has a ready event. Never fails: without memory for a line, it is added as unordered.
  void add(reclaimable& thing) noexcept;

  // Moves every thing whose event is done to the end of `ready`. A failed query is reported once
  // and repeated; after a sticky fault in a process with one device nothing runs, so it counts as
  // done. If the event will never be known to be done, the thing is leaked.
  void poll(release_list& ready) noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  // The lowest epoch; the maximum value if empty.
  [[nodiscard]] std::uint64_t oldest_epoch() const noexcept;

 private:
  void poll_line(release_list& line, release_list& ready) noexcept;
  void poll_unordered(release_list& ready) noexcept;
  void forget_idle_lines() noexcept;

  static constexpr std::size_t idle_lines_max = 4096;  // empty lines kept

  std::map<release_order, release_list> lines_;
  release_list unordered_;
  std::size_t lines_max_ = idle_lines_max;
  std::uint64_t size_ = 0;
};

}  // namespace escrow::inline v0_2
