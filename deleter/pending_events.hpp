// The worker's nodes whose ready event is not done yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "escrow/detail/ready_event.hpp"
#include "release_list.hpp"

namespace escrow {

// Worker only. Nodes of one release_order become ready one after another, so each order has a line,
// and a poll finds the end of its ready part by halving: it asks CUDA about few events, and never
// waits on the first unready event of one line while those of another are ready. Nodes in no order
// are asked about one by one.
class pending_events {
 public:
  using report_function = std::function<void(std::exception const&)>;

  pending_events();

  // Takes a node whose ready event is set. Never fails: without memory for a line, the node is kept
  // with those in no order.
  void add(release_node& node) noexcept;

  // Moves every node whose event is done to the end of `ready`. An event that cannot be asked about
  // is reported once and asked again; after a sticky fault in a process with one device nothing
  // runs, so it counts as done. A node whose event nothing will ever tell of is kept for ever: see
  // release_hub::keep_for_ever().
  void poll(release_list& ready, report_function const& report) noexcept;

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  // Some node that is here; null if empty.
  [[nodiscard]] release_node const* any() const noexcept;
  // The lowest sequence number here; the highest possible one if empty.
  [[nodiscard]] std::uint64_t oldest() const noexcept;

 private:
  struct line {
    release_order order;
    std::vector<release_node*> nodes;  // from `first` on, oldest first
    std::size_t first = 0;

    [[nodiscard]] bool empty() const noexcept { return first == nodes.size(); }
  };

  static ready_answer ask(release_node& node, report_function const& report) noexcept;
  line& line_of(release_order order);
  void poll_line(line& polled, release_list& ready, report_function const& report) noexcept;
  // The first `count` nodes of the line leave it.
  static void take(line& polled, std::size_t count) noexcept;
  void poll_unordered(release_list& ready, report_function const& report) noexcept;

  std::vector<line> lines_;
  release_list unordered_;
  std::uint64_t size_ = 0;
};

}  // namespace escrow
