// The release queue: many pushers, one taker at a time, Boost.Lockfree inside.
#pragma once

#include <boost/lockfree/stack.hpp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "release_list.hpp"

namespace escrow {

// A boost::lockfree::stack (Treiber's, with a free list of its nodes), always taken whole and
// turned round, which makes it first-in first-out. Differences from using the stack plainly:
// - Room is reserved ahead, one for each release_node alive, so push() finds a free node at once
//   and never allocates. A node goes back to Boost's free list in take_all(), before any
//   release_node taken can be pushed again, so the free list is never short of what is reserved.
// - Nothing is ever popped singly, so the stack itself has no ABA problem. Its free list has one in
//   theory: tags of 16 bits, so a pusher would have to be held up between two instructions for
//   exactly a multiple of 65,536 pushes, with the same node on top again. The model tests cover
//   the list below that number: what a pusher read of a node that somebody else has taken
//   meanwhile is never used.
// Progress: push is lock-free; take_all is lock-free; reserve may allocate and lock.
class release_queue {
 public:
  release_queue() : stack_(0) {}
  release_queue(release_queue&&) = delete;

  // Makes room for some nodes more. Any thread. Throws std::bad_alloc and then has reserved
  // nothing.
  void reserve_places(std::size_t count) {
    std::lock_guard const lock(mutex_);
    while (places_ + count > capacity_) {
      stack_.reserve(growth);  // thread-safe against push() and take_all()
      capacity_ += growth;
    }
    places_ += count;
  }

  // Gives the room of one node back, for the next reserve_places(). Any thread.
  void cancel_place() noexcept {
    std::lock_guard const lock(mutex_);
    --places_;
  }

  // Any thread that owns a reserved place. Never fails.
  void push(release_node& node) noexcept {
    if (!stack_.bounded_push(&node)) [[unlikely]] {
      // Cannot happen: places_ <= capacity_, and each place is in the stack once at most.
      static_cast<void>(
          std::fputs("escrow: a release was pushed without a reserved place\n", stderr));
      std::abort();
    }
  }

  // All that was pushed before, oldest first. One thread at a time.
  release_list take_all() noexcept {
    release_list taken;
    stack_.consume_all_atomic([&taken](release_node* node) { taken.push_front(*node); });
    return taken;
  }

  // Whether take_all() would find nothing. Boost reads the top with an acquire or stronger.
  [[nodiscard]] bool empty() const noexcept { return stack_.empty(); }

 private:
  static constexpr std::size_t growth = 64;

  boost::lockfree::stack<release_node*> stack_;
  std::mutex mutex_;          // guards places_ and capacity_; push() and take_all() never take it
  std::size_t places_ = 0;    // release_nodes alive
  std::size_t capacity_ = 0;  // nodes that Boost has, free or in the stack
};

}  // namespace escrow
