// SPDX-License-Identifier: Apache-2.0
// An address as a number to hash.
#pragma once

#include <cstdint>

namespace escrow::inline v0_2 {

// Random programs replace it at the link, so that the places of their handles and blocks in tables
// depend on no other program: no call of it may be inlined.
[[nodiscard]] std::uintptr_t address_number(void const* address) noexcept;

}  // namespace escrow::inline v0_2
