// One more reference to a module, which is never dropped.
#include "escrow/detail/module_pin.hpp"

#include <dlfcn.h>

namespace escrow::inline v0_1 {

// A link option (-z nodelete) would reach only users of CMake.
bool pin_module_of(void (*code)() noexcept) noexcept {
  Dl_info found{};
  // Not found: a statically linked program, from which nothing is unloaded.
  if (dladdr(reinterpret_cast<void*>(code), &found) == 0) return false;
  // By the name it was loaded under, so no file is opened. Null for a program, which stays loaded.
  return dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr;
}

}  // namespace escrow::inline v0_1
