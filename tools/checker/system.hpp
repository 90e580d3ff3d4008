// SPDX-License-Identifier: Apache-2.0
// What a program of the model asks of the system, for tests that need to see it.
#pragma once

namespace escrow::model {

// What the library gave to atexit() in this execution; null: nothing.
[[nodiscard]] void (*exit_handler())();

}  // namespace escrow::model
