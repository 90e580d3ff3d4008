// A claim that found nothing, as an exception.
#pragma once

#include <stdexcept>

namespace escrow {

// What: all slots of the pool are out, no more may be made, and the claim may not wait (any
//   longer). The text says who holds them and what to do.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: everything is copied.
// Capture: none; a capture in progress stays valid.
// Errors: none.
class pool_exhausted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace escrow
