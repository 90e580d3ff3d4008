// The pin: one more open of the module, never closed. Not a link option (-z nodelete), which only
// those get who link with CMake.
#include "pin_module.hpp"

#include <dlfcn.h>

namespace escrow {

namespace {

bool open_once_more() noexcept {
  Dl_info found{};
  // Not found: the program is linked statically, and nothing can be unloaded.
  if (dladdr(reinterpret_cast<void*>(&pin_module), &found) == 0) return false;
  // Found by the very name that it was loaded under, so that no file is looked at. Null for a
  // program, which is never unloaded.
  return dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace

void pin_module() noexcept {
  static bool const is_pinned = open_once_more();
  static_cast<void>(is_pinned);
}

}  // namespace escrow
