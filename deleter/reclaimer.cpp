// The pass: quick recycling first and in between, then owners whose work is done.
#include "reclaimer.hpp"

#include <utility>

#include "escrow/core/error.hpp"
#include "release_hub_state.hpp"

namespace escrow {

std::size_t reclaimer::pass(bool& is_thread_relaxed) noexcept {
  device_ = -1;
  hub_.state_->recycle_now();
  sort_arrivals();
  std::size_t count = 0;
  if (prepare_thread(is_thread_relaxed)) {
    pending_.poll(ready_, [this](std::exception const& error) { hub_.report(error); });
    while (release_node* const node = ready_.pop_front()) {
      if (reclaim(*node)) ++count;
      // A destroy may block, in cudaFree for one: what can be recycled meanwhile is, before the
      // next.
      if (!hub_.state_->recycled.empty()) hub_.state_->recycle_now();
    }
    hub_.state_->shelve_emptied();
    reach_markers();
  }
  // Relaxed: a count for people.
  hub_.state_->pending.store(pending_.size(), std::memory_order_relaxed);
  return count;
}

bool reclaimer::prepare_thread(bool& is_thread_relaxed) noexcept {
  if (is_thread_relaxed) return true;
  release_node const* const first = ready_.empty() ? pending_.any() : ready_.front();
  if (first == nullptr) return true;
  make_current(first->device_);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t const status = cudaThreadExchangeStreamCaptureMode(&mode);
  is_thread_relaxed = succeeded(status);
  if (!is_thread_relaxed) hub_.report(status, "cudaThreadExchangeStreamCaptureMode");
  // Without Relaxed mode a query could kill somebody's capture: better to try again later. On a
  // lost device there is no capture to kill.
  return is_thread_relaxed || is_sticky(status);
}

void reclaimer::make_current(int device) noexcept {
  if (device < 0 || device == device_) return;
  device_ = -1;
  constexpr int attempts_max = 3;  // then the node is reclaimed with whichever device is current
  for (int attempt = 0; attempt < attempts_max && device_ < 0; ++attempt) {
    cudaError_t const status = cudaSetDevice(device);
    if (succeeded(status)) {
      device_ = device;
    } else if (attempt == 0) {
      hub_.report(status, "cudaSetDevice");
    }
  }
}

void reclaimer::sort_arrivals() noexcept {
  // In this order, so that a marker comes behind all that was retired before it was sent.
  release_list pushed = hub_.state_->destroyed.take_all();
  release_list arrivals = hub_.state_->take_retired();
  arrivals.splice_back(pushed);
  while (release_node* const node = arrivals.pop_front()) {
    node->sequence_ = ++sequence_;
    if (node->is_marker_) {
      arrive(static_cast<drain_marker&>(*node));
    } else if (node->ready_ != nullptr) {
      pending_.add(*node);
    } else {
      ready_.push_back(*node);
    }
  }
}

void reclaimer::arrive(drain_marker& marker) noexcept {
  if (marker.is_first_arrival()) {
    hub_.state_->recycle_now();
    marker.push();
  } else {
    markers_.push_back(marker);
  }
}

bool reclaimer::reclaim(release_node& node) noexcept {
  make_current(node.device_);
  node.ready_ = nullptr;
  node.order_ = {};
  node.is_reported_ = false;
  node.reclaim_(node);
  device_ = -1;  // what was destroyed may have left another device current
  if (std::exchange(is_postponed_, false)) return false;
  // Relaxed: a count for people.
  hub_.state_->reclaimed.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void reclaimer::postpone(release_node& node) noexcept {
  // With its old place in the order of arrivals, so that markers behind it stay behind it.
  pending_.add(node);
  is_postponed_ = true;
}

void reclaimer::reach_markers() noexcept {
  std::uint64_t const oldest = pending_.oldest();
  while (!markers_.empty() && static_cast<drain_marker*>(markers_.front())->sequence() < oldest) {
    static_cast<drain_marker*>(markers_.pop_front())->pass();
  }
}

}  // namespace escrow
