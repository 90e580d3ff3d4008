// SPDX-License-Identifier: Apache-2.0
// Forgets what has used memory that is gone.
#include "used.hpp"

namespace escrow::sim::model {

void used_memory::forget(void const* begin, std::size_t bytes) {
  auto const first = reinterpret_cast<std::uintptr_t>(begin);
  short_ones.erase(short_ones.lower_bound(first), short_ones.lower_bound(first + bytes));
  std::erase_if(long_ones, [&](touch const& each) {
    return each.what.begin >= first && each.what.begin < first + bytes;
  });
}

}  // namespace escrow::sim::model
