// Polling the ready events of retired owners, line by line.
#include "pending_events.hpp"

#include <algorithm>
#include <limits>

#include "escrow/core/cuda_error.hpp"
#include "escrow/core/ready_event.hpp"

namespace escrow {

namespace {
constexpr std::size_t idle_lines_max = 256;  // lines kept with nothing in them, for their memory
}

pending_events::pending_events() {
  lines_.reserve(idle_lines_max);
}

void pending_events::add(release_node& node) noexcept {
  ++size_;
  if (node.order_) {
    try {
      return line_of(node.order_).nodes.push_back(&node);
    } catch (std::bad_alloc const&) {
      // Kept with those in no order: slower to poll, but never lost.
    }
  }
  unordered_.push_back(node);
}

pending_events::line& pending_events::line_of(release_order order) {
  auto const found = std::find_if(lines_.begin(), lines_.end(),
                                  [order](line const& each) { return each.order == order; });
  if (found != lines_.end()) return *found;
  if (lines_.size() >= idle_lines_max) {
    std::erase_if(lines_, [](line const& each) { return each.empty(); });
  }
  return lines_.emplace_back(line{order, {}});
}

void pending_events::poll(release_list& ready, report_function const& report) noexcept {
  for (line& each : lines_) {
    if (!each.empty()) poll_line(each, ready, report);
  }
  poll_unordered(ready, report);
}

void pending_events::poll_line(line& polled, release_list& ready,
                               report_function const& report) noexcept {
  auto const first = polled.nodes.begin() + static_cast<std::ptrdiff_t>(polled.first);
  auto const end = std::partition_point(first, polled.nodes.end(),
                                        [&](release_node* node) { return is_done(*node, report); });
  std::for_each(first, end, [&](release_node* node) { ready.push_back(*node); });
  auto const count = static_cast<std::size_t>(end - first);
  size_ -= count;
  polled.first += count;
  // The space of those gone is used again once they are the greater part.
  if (polled.first > polled.nodes.size() / 2) {
    polled.nodes.erase(polled.nodes.begin(), end);
    polled.first = 0;
  }
}

void pending_events::poll_unordered(release_list& ready, report_function const& report) noexcept {
  release_list kept;
  while (release_node* const node = unordered_.pop_front()) {
    bool const done = is_done(*node, report);
    (done ? ready : kept).push_back(*node);
    if (done) --size_;
  }
  unordered_ = std::move(kept);
}

bool pending_events::is_done(release_node& node, report_function const& report) noexcept {
  cudaError_t const status = query_ready(node.ready_, node.device_);
  if (status == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  if (status == cudaErrorNotReady) return false;
  if (!node.is_reported_) {
    node.is_reported_ = true;
    try {
      report(cuda_error(status, "cudaEventQuery"));
    } catch (std::bad_alloc const&) {
      // There is no memory to describe the error with; it will show again elsewhere.
    }
  }
  return is_sticky(status);
}

release_node const* pending_events::any() const noexcept {
  for (line const& each : lines_) {
    if (!each.empty()) return each.nodes[each.first];
  }
  return unordered_.front();
}

std::uint64_t pending_events::oldest() const noexcept {
  std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
  for (line const& each : lines_) {
    if (!each.empty()) oldest = std::min(oldest, each.nodes[each.first]->sequence_);
  }
  for (release_node* node = unordered_.front(); node != nullptr; node = node->next_) {
    oldest = std::min(oldest, node->sequence_);
  }
  return oldest;
}

}  // namespace escrow
