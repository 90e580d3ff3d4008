// SPDX-License-Identifier: Apache-2.0
// Apart from unity builds, so that it can be replaced at the link.
#include "address_number.hpp"

namespace escrow::inline v0_2 {

std::uintptr_t address_number(void const* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace escrow::inline v0_2
