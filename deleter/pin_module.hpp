// Keeps the code loaded that CUDA and the worker may call.
#pragma once

namespace escrow {

// From the first call on, dlclose() leaves the module in memory that this code is linked into: a
// plugin that has Escrow's static libraries inside, for one. Any thread.
void pin_module() noexcept;

}  // namespace escrow
