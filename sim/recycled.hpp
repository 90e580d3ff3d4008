// Memory of what handles of graphs and nodes point to.
#pragma once

#include <cstddef>

namespace escrow::sim::model {

// What: a base that gives its objects memory. CUDA gives a handle out again when its object is
// gone, and a library may take the new one for the old one. Stepped, a run decides that alone, not
// the heap: the newest object of that size that was made and destroyed in the same run leaves its
// address to the next. With AddressSanitizer none does, so that uses of what is gone are seen.
// The state's mutex is held by whoever makes and destroys them.
struct recycled {
  static void* operator new(std::size_t bytes);
  static void operator delete(void* memory, std::size_t bytes) noexcept;
};

// A run begins.
void forget_recycled() noexcept;

}  // namespace escrow::sim::model
