// Polling the ready events of retired owners, line by line.
#include "pending_events.hpp"

#include <algorithm>
#include <limits>

#include "escrow/core/error.hpp"
#include "escrow/deleter/release_hub.hpp"

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
  bool is_one_gone = false;
  auto const first = polled.nodes.begin() + static_cast<std::ptrdiff_t>(polled.first);
  auto const end = std::partition_point(first, polled.nodes.end(), [&](release_node* node) {
    ready_answer const answer = ask(*node, report);
    is_one_gone |= answer == ready_answer::gone;
    return answer != ready_answer::not_yet;
  });
  std::for_each(first, end, [&](release_node* node) {
    // What comes before a done event is done, but what comes before one that is gone may be gone.
    bool const is_gone = is_one_gone && ask(*node, report) == ready_answer::gone;
    is_gone ? release_hub::keep_for_ever(*node) : ready.push_back(*node);
  });
  auto const count = static_cast<std::size_t>(end - first);
  size_ -= count;
  take(polled, count);
}

void pending_events::take(line& polled, std::size_t count) noexcept {
  polled.first += count;
  // The space of those gone is used again once they are the greater part.
  if (polled.first <= polled.nodes.size() / 2) return;
  auto const begin = polled.nodes.begin();
  polled.nodes.erase(begin, begin + static_cast<std::ptrdiff_t>(polled.first));
  polled.first = 0;
}

void pending_events::poll_unordered(release_list& ready, report_function const& report) noexcept {
  release_list kept;
  while (release_node* const node = unordered_.pop_front()) {
    ready_answer const answer = ask(*node, report);
    if (answer == ready_answer::not_yet) {
      kept.push_back(*node);
      continue;
    }
    --size_;
    answer == ready_answer::gone ? release_hub::keep_for_ever(*node) : ready.push_back(*node);
  }
  unordered_ = std::move(kept);
}

ready_answer pending_events::ask(release_node& node, report_function const& report) noexcept {
  cudaError_t const status = cudaEventQuery(node.ready_);
  if (succeeded(status)) return ready_answer::done;
  ready_answer answer = answer_of(status);
  // Not at the first word: it is for ever.
  if (answer == ready_answer::gone) {
    cudaError_t const again = cudaEventQuery(node.ready_);
    static_cast<void>(succeeded(again));  // clears the last error
    answer = answer_of(again);
  }
  if (status != cudaErrorNotReady && !node.is_reported_) {
    node.is_reported_ = true;
    try {
      report(cuda_error(status, "cudaEventQuery"));
    } catch (std::bad_alloc const&) {
      // There is no memory to describe the error with; it will show again elsewhere.
    }
  }
  return answer;
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
