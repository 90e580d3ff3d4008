// Keeps code loaded that is called later: owners' destructors, the functions of a pool, on_error.
#pragma once

#include "escrow/api.hpp"

namespace escrow::inline v0_1 {

// Keeps the program or shared library that has `code` loaded until the process ends: dlclose() then
// leaves it. False if it cannot be found. Any thread.
ESCROW_API bool pin_module_of(void (*code)() noexcept) noexcept;

// The same for the module that this call is compiled into, e.g. a plugin, and only once for each:
// the worker and CUDA may call its code at any time. Hidden, so that each module has its own.
ESCROW_LOCAL inline void pin_this_module() noexcept {
  static bool const is_pinned = pin_module_of(&pin_this_module);
  static_cast<void>(is_pinned);
}

}  // namespace escrow::inline v0_1
