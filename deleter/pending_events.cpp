// SPDX-License-Identifier: Apache-2.0
// Polling the ready events of retired owners, line by line.
#include "escrow/internal/pending_events.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "escrow/core/error.hpp"
#include "escrow/internal/deleter_accounts.hpp"

namespace escrow::inline v0_2 {

ready_answer ask(cudaEvent_t ready, bool& is_reported, deleter_accounts& its) noexcept {
  cudaError_t const status = cudaEventQuery(ready);
  if (status == cudaSuccess) return ready_answer::done;
  if (status == cudaErrorNotReady) return ready_answer::not_yet;
  ready_answer answer = answer_of(status);
  if (answer == ready_answer::gone) answer = answer_of(cudaEventQuery(ready));
  static_cast<void>(cudaGetLastError());
  if (!std::exchange(is_reported, true)) its.report(status, "cudaEventQuery");
  return answer;
}

void pending_events::add(reclaimable& thing) noexcept {
  ++size_;
  if (thing.order_) {
    try {
      if (lines_.size() >= lines_max_) forget_idle_lines();
      return lines_[thing.order_].push_back(thing);
    } catch (std::bad_alloc const&) {
      // Queried one by one instead.
    }
  }
  unordered_.push_back(thing);
}

void pending_events::forget_idle_lines() noexcept {
  std::erase_if(lines_, [](auto const& each) { return each.second.empty(); });
  // Twice those in use, so that the cost per new line stays low.
  lines_max_ = std::max(idle_lines_max, 2 * lines_.size());
}

void pending_events::poll(release_list& ready) noexcept {
  for (auto& [order, line] : lines_) {
    if (!line.empty()) poll_line(line, ready);
  }
  poll_unordered(ready);
}

void pending_events::poll_line(release_list& line, release_list& ready) noexcept {
  bool is_last_done = false;  // and so are all before it
  for (bool is_first = true; reclaimable* const oldest = line.front(); is_first = false) {
    if (!is_last_done) {
      switch (ask(oldest->ready_, oldest->is_reported_, oldest->accounts())) {
        case ready_answer::not_yet:
          return;
        case ready_answer::gone:
          --size_;
          deleter_accounts::leak(*line.pop_front());
          continue;
        case ready_answer::done:
          break;
      }
      // Often all are done: one query of the last saves the others.
      if (is_first && line.back() != oldest) {
        is_last_done = succeeded(cudaEventQuery(line.back()->ready_));
      }
    }
    --size_;
    ready.push_back(*line.pop_front());
  }
}

void pending_events::poll_unordered(release_list& ready) noexcept {
  release_list kept;
  while (reclaimable* const thing = unordered_.pop_front()) {
    ready_answer const answer = ask(thing->ready_, thing->is_reported_, thing->accounts());
    if (answer == ready_answer::not_yet) {
      kept.push_back(*thing);
      continue;
    }
    --size_;
    answer == ready_answer::gone ? deleter_accounts::leak(*thing) : ready.push_back(*thing);
  }
  unordered_ = std::move(kept);
}

std::uint64_t pending_events::oldest_epoch() const noexcept {
  std::uint64_t oldest = unordered_.oldest_epoch();
  for (auto const& [order, line] : lines_) oldest = std::min(oldest, line.oldest_epoch());
  return oldest;
}

}  // namespace escrow::inline v0_2
