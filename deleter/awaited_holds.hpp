// Holds that wait for an event, for those who cannot wait for the worker.
#pragma once

#include <mutex>

#include "escrow/deleter/bundle_hold.hpp"
#include "escrow/detail/ready_event.hpp"

namespace escrow {

// The worker finds each hold in the release queue, too, and lets go when the event is done. A claim
// that finds no slot looks here, because the worker may be busy with a destroy that blocks.
// Thread safety: any thread.
class awaited_holds {
 public:
  // Adds one that is about to be pushed.
  void add(bundle_hold& sent) noexcept;

  // Lets go what is done already, of a few in turn. Asks CUDA about their events in Relaxed mode.
  // Returns false at once if another thread is at it.
  bool let_go_done() noexcept;
  // The same, after those who are at it.
  void let_go_done_after_others() noexcept;

  // Worker: the event is done. Lets go, unless that was done, and frees the hold.
  void reclaim(bundle_hold& done) noexcept;

 private:
  void look_at_a_few() noexcept;
  [[nodiscard]] bundle_hold* take_next() noexcept;
  // One whose event is gone is left to the worker, who keeps it for ever.
  void put_back(bundle_hold& looked_at, ready_answer answer) noexcept;
  void link(bundle_hold& hold) noexcept;
  void unlink(bundle_hold& hold) noexcept;
  static void let_go(bundle_hold& hold) noexcept;

  // Guards nothing but the turn of who asks CUDA. Held across event queries, which run no
  // destructor.
  std::mutex asking_mutex_;
  // Guards the list and what bundle_hold says. Held while a bundle is let go, so that a drain never
  // overtakes that, and across no call of CUDA.
  std::mutex mutex_;
  bundle_hold* first_ = nullptr;
  bundle_hold* last_ = nullptr;
};

}  // namespace escrow
