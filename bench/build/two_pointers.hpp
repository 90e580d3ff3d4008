// The kernel of the graphs that are built: it takes two pointers, and does nothing.
#pragma once

namespace escrow::bench {

// Its address, as cudaGraphAddKernelNode takes it.
[[nodiscard]] void* two_pointers_kernel();

}  // namespace escrow::bench
