// The release queue: many producers, one consumer at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "escrow/detail/reclaimable.hpp"

namespace escrow::inline v0_1 {

// An intrusive FIFO list: never allocates. One thread at a time. An element is in one list at most.
class release_list {
 public:
  release_list() = default;
  release_list(release_list&& other) noexcept
      : head_(std::exchange(other.head_, nullptr)), tail_(std::exchange(other.tail_, nullptr)) {}
  release_list& operator=(release_list&& other) noexcept {
    std::swap(head_, other.head_);
    std::swap(tail_, other.tail_);
    return *this;
  }

  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] reclaimable* front() const noexcept { return head_; }
  [[nodiscard]] reclaimable* back() const noexcept { return tail_; }
  // The lowest epoch of all elements, which are not sorted by it; the maximum value if empty.
  [[nodiscard]] std::uint64_t oldest_epoch() const noexcept {
    std::uint64_t oldest = std::numeric_limits<std::uint64_t>::max();
    for (reclaimable* each = head_; each != nullptr; each = each->next_) {
      oldest = std::min(oldest, each->epoch_);
    }
    return oldest;
  }

  void push_back(reclaimable& element) noexcept {
    element.next_ = nullptr;
    (head_ == nullptr ? head_ : tail_->next_) = &element;
    tail_ = &element;
  }

  void push_front(reclaimable& element) noexcept {
    element.next_ = head_;
    if (head_ == nullptr) tail_ = &element;
    head_ = &element;
  }

  reclaimable* pop_front() noexcept {
    reclaimable* const element = head_;
    if (element != nullptr) {
      head_ = element->next_;
      if (head_ == nullptr) tail_ = nullptr;
      element->next_ = nullptr;
    }
    return element;
  }

  void splice_back(release_list& other) noexcept {  // moves all of `other` to the end
    if (other.empty()) return;
    (head_ == nullptr ? head_ : tail_->next_) = other.head_;
    tail_ = other.tail_;
    other.head_ = other.tail_ = nullptr;
  }

 private:
  reclaimable* head_ = nullptr;
  reclaimable* tail_ = nullptr;
};

// A stack linked through the elements (Treiber's), always taken whole and reversed, which makes it
// FIFO. Nothing is popped singly, and a push uses the newest element's address only, so it has no
// ABA problem and reads no element that another thread may have taken.
// Progress: push is lock-free and take_all is wait-free. Neither allocates.
class release_queue {
 public:
  release_queue() = default;
  release_queue(release_queue&&) = delete;

  // Any thread. The element is in no list and no queue.
  void push(reclaimable& element) noexcept {
    // Relaxed: a stale value makes the exchange below fail.
    reclaimable* newest = newest_.load(std::memory_order_relaxed);
    do {
      element.next_ = newest;
      // Release: pairs with the acquire in take_all().
    } while (!newest_.compare_exchange_weak(newest, &element, std::memory_order_release,
                                            std::memory_order_relaxed));
  }

  // All elements pushed before, oldest first.
  release_list take_all() noexcept {
    release_list taken;
    // Acquire: pairs with the releases in push().
    reclaimable* next = newest_.exchange(nullptr, std::memory_order_acquire);
    while (next != nullptr) {
      reclaimable& each = *next;
      next = each.next_;
      taken.push_front(each);
    }
    return taken;
  }

  // Relaxed: before it sleeps the worker synchronizes with the pusher (wakeup).
  [[nodiscard]] bool empty() const noexcept {
    return newest_.load(std::memory_order_relaxed) == nullptr;
  }

 private:
  alignas(64) std::atomic<reclaimable*> newest_{nullptr};
};

}  // namespace escrow::inline v0_1
