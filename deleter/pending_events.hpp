// The worker's things whose ready event is not done yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "escrow/detail/deleter_core.hpp"
#include "escrow/detail/ready_event.hpp"
#include "release_queue.hpp"

namespace escrow {

// Asks about the event of a thing that is leaked if the event will never answer: so that is asked
// twice. Reports the first error for each thing to `its`. The thread is in Relaxed capture mode.
[[nodiscard]] ready_answer ask(cudaEvent_t ready, bool& is_reported, deleter_core& its) noexcept;

// Worker only. Things of one release_order become ready one after another, so each order has a
// line: a poll asks for the oldest of each line, and never waits on the first unready event of one
// line while those of another are ready. Things without an order are asked about one by one.
class pending_events {
 public:
  pending_events() { lines_.reserve(idle_lines_max); }

  // Takes a thing whose ready event is set. Never fails: without memory for a line, the thing goes
  // to those without an order.
  void add(reclaimable& thing) noexcept;

  // Moves every thing whose event is done to the end of `ready`. An event that cannot be asked
  // about is reported once and asked again; after a sticky fault in a process with one device
  // nothing runs, so it counts as done. A thing whose event will never answer is leaked.
  void poll(release_list& ready) noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  // The lowest epoch here; the highest possible one if empty.
  [[nodiscard]] std::uint64_t oldest_epoch() const noexcept;

 private:
  struct hash {
    std::size_t operator()(release_order const& order) const noexcept {
      auto const thread = reinterpret_cast<std::uintptr_t>(order.thread);
      return static_cast<std::size_t>(order.stream * 0x9E3779B97F4A7C15U ^ thread);
    }
  };

  void poll_line(release_list& line, release_list& ready) noexcept;
  void poll_unordered(release_list& ready) noexcept;
  void forget_idle_lines() noexcept;

  static constexpr std::size_t idle_lines_max = 4096;  // lines kept with nothing in them

  std::unordered_map<release_order, release_list, hash> lines_;
  release_list unordered_;
  std::size_t lines_max_ = idle_lines_max;
  std::uint64_t size_ = 0;
};

}  // namespace escrow
