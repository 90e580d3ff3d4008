// What a memset node writes.
#pragma once

#include <cstddef>

namespace escrow {

// What: the value and the extent of a memset: `height` rows of `width` elements.
// Thread safety: a value.
// Memory ordering: none.
// Lifetime: read by the call that takes it.
// Capture: none.
// Errors: none.
struct memset_config {
  unsigned value = 0;          // of an element; has to fit in one
  unsigned element_bytes = 1;  // 1, 2 or 4
  std::size_t width = 0;       // of a row, in elements
  std::size_t height = 1;      // in rows
  std::size_t pitch = 0;       // from row to row, in bytes; not used with one row
};

}  // namespace escrow
