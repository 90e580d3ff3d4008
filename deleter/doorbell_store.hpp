// Doorbells whose memory is never freed.
#pragma once

#include "doorbell.hpp"

namespace escrow {

// A pusher rings after its push, and by then the worker may have reclaimed everything and freed the
// hub. So a hub borrows its doorbell from memory that stays doorbells for good (type-stable
// memory): a late ring meets a doorbell, if of another hub, and at worst wakes a worker that finds
// nothing to do.
// Thread safety: any thread. Leaked on purpose, 64 bytes for each hub that was alive at the same
//   time.
class doorbell_store {
 public:
  // One that no other hub uses. Throws std::bad_alloc.
  [[nodiscard]] static doorbell& take();
  // Gives it back.
  static void put(doorbell& unused) noexcept;

  // One that is taken for as long as this lasts, also if its owner's construction fails later.
  struct loan {
    loan() : bell(take()) {}
    loan(loan&&) = delete;
    ~loan() { put(bell); }

    doorbell& bell;
  };
};

}  // namespace escrow
