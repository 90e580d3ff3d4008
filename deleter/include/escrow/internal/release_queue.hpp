// SPDX-License-Identifier: Apache-2.0
// The release queue: many producers, one consumer at a time; based on Boost.Lockfree.
#pragma once

#include <algorithm>
#include <boost/lockfree/stack.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <utility>

#include "escrow/detail/reclaimable.hpp"
#include "escrow/detail/shared_count.hpp"
#include "escrow/internal/reachable_allocator.hpp"

namespace escrow::inline v0_2 {

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

// A boost::lockfree::stack (Treiber's, with a free list of nodes), always taken whole and reversed,
// which makes it FIFO. Differences from plain use of the stack:
// - Room is reserved ahead, one place per live reclaimable, so push() always finds a free node and
//   never allocates. take_all() returns a node to Boost's free list before any taken reclaimable
//   can be pushed again, so the free list always covers the reservations.
// - Nothing is popped singly, so the stack has no ABA problem. Its free list has one in theory:
//   with 16-bit tags, a pusher would have to be stopped between two instructions for exactly a
//   multiple of 65,536 pushes, with the same node on top again. The model tests cover the list
//   below that number: data that a pusher read from a node taken meanwhile is never used.
// Progress: push is lock-free; take_all is lock-free; reserve may allocate and lock.
class release_queue {
 public:
  release_queue() : stack_(0) {}
  release_queue(release_queue&&) = delete;

  // Reserves room. Any thread. Throws std::bad_alloc and then has reserved nothing.
  void reserve_places(std::size_t count) {
    std::lock_guard const lock(mutex_);
    while (places_ + count > capacity_) {
      stack_.reserve(growth);  // thread-safe against push() and take_all()
      capacity_ += growth;
    }
    places_ += count;
  }

  // Returns one reserved place for reuse. Any thread.
  void cancel_place() noexcept {
    std::lock_guard const lock(mutex_);
    --places_;
  }

  // Any thread, with a reserved place. Never fails.
  void push(reclaimable& element) noexcept {
    tell_handed_over(&element);
    if (!stack_.bounded_push(&element)) [[unlikely]] {
      // Cannot happen: places_ <= capacity_, and each place is in the stack at most once.
      static_cast<void>(
          std::fputs("escrow: a release was pushed without a reserved place\n", stderr));
      std::abort();
    }
  }

  // All elements pushed before, oldest first. One thread at a time.
  release_list take_all() noexcept {
    release_list taken;
    stack_.consume_all_atomic([&taken](reclaimable* element) {
      tell_taken(element);
      taken.push_front(*element);
    });
    return taken;
  }

  // Boost reads the top with acquire or stronger.
  [[nodiscard]] bool empty() const noexcept { return stack_.empty(); }

 private:
  static constexpr std::size_t growth = 64;

  boost::lockfree::stack<reclaimable*,
                         boost::lockfree::allocator<reachable_allocator<reclaimable*>>>
      stack_;
  std::mutex mutex_;          // guards places_ and capacity_; push() and take_all() never take it
  std::size_t places_ = 0;    // reclaimables alive
  std::size_t capacity_ = 0;  // nodes that Boost has, free or in the stack
};

}  // namespace escrow::inline v0_2
