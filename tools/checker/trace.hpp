// SPDX-License-Identifier: Apache-2.0
// Names of functions, for traces and for planting.
#pragma once

#include <string>

namespace escrow::model {

// The function that an address of code is in.
[[nodiscard]] std::string const& function_at(void const* caller);

}  // namespace escrow::model
