// CUB's place on the simulated runtime.
#include "cub_allocator.hpp"

namespace escrow::bench {

std::unique_ptr<cub_allocator> make_cub_allocator() {
  return nullptr;
}

}  // namespace escrow::bench
