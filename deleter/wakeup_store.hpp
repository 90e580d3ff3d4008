// Doorbells whose memory is never freed.
#pragma once

#include <memory>

#include "wakeup.hpp"

namespace escrow {

// A pusher rings after its push, and by then the worker may have reclaimed everything and freed the
// hub. So a hub borrows its wakeup from memory that stays wakeups for good (type-stable
// memory): a late ring meets a wakeup, if of another hub, and at worst wakes a worker that finds
// nothing to do.
// Thread safety: any thread. Leaked on purpose, 64 bytes for each hub that was alive at the same
//   time.
class wakeup_store {
 public:
  struct give_back {
    void operator()(wakeup* unused) const noexcept;
  };
  using loan = std::unique_ptr<wakeup, give_back>;

  // One that no other hub uses for as long as the loan lasts. Throws std::bad_alloc.
  [[nodiscard]] static loan take();
};

}  // namespace escrow
