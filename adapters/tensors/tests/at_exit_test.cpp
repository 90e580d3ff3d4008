// SPDX-License-Identifier: Apache-2.0
// An allocator for TVM-FFI that is a static of the program. AddressSanitizer sees what is wrong.
#include <escrow/tensor_allocator.hpp>

#include "status.hpp"

namespace escrow::test {
namespace {

use_for_tvm_ffi const all;

TEST(TensorsAtExit, AStaticAllocatorEndsAfterTheAdaptersStatics) {
  stream_allocator memory = all.memory(0);
  memory.deallocate(memory.allocate(1024));
}

}  // namespace
}  // namespace escrow::test
