// The kernel on the simulated runtime.
#include <escrow/sim.hpp>

#include "two_pointers.hpp"

namespace escrow::bench {
namespace {

bool two_pointers(void**) {
  return true;
}

bool add_to_runtime() {
  escrow::sim::register_kernel(reinterpret_cast<void const*>(&two_pointers), &two_pointers,
                               {sizeof(int*), sizeof(int*)}, "two_pointers");
  return true;
}

}  // namespace

void* two_pointers_kernel() {
  [[maybe_unused]] static bool const added = add_to_runtime();
  return reinterpret_cast<void*>(&two_pointers);
}

}  // namespace escrow::bench
