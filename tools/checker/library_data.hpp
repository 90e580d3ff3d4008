// SPDX-License-Identifier: Apache-2.0
// The statics of the library under test, which every execution finds as they were.
#pragma once

#include <cstdint>

namespace escrow::model {

// Puts them back as they were when the program began; the first call notes how that is.
void reset_library_data();
// Notes how they are after a setup, and puts that back.
void keep_library_data();
void restore_library_data();
[[nodiscard]] bool is_library_data(std::uintptr_t address) noexcept;

}  // namespace escrow::model
