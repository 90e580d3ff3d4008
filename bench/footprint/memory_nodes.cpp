// SPDX-License-Identifier: Apache-2.0
// Scratch by CUDA's memory nodes: graphs that are launched on one stream share the pages.
#include "graphs.hpp"
#include "scratch_ways.hpp"

namespace escrow::bench {

scratch_way make_memory_nodes(std::size_t) {
  test::must(cudaDeviceGraphMemTrim(0));  // what earlier graphs left
  std::uint64_t none = 0;                 // the only value allowed: starts anew
  test::must(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &none));
  auto const claim = [](cudaStream_t stream, std::size_t bytes) {
    void* scratch = nullptr;
    test::must(cudaMallocAsync(&scratch, bytes, stream));
    return scratch;
  };
  auto const release = [](cudaStream_t stream, void* scratch) {
    test::must(cudaFreeAsync(scratch, stream));
  };
  return {.claim = claim, .release = release, .device_bytes = [] {
            std::uint64_t bytes = 0;
            test::must(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &bytes));
            return std::size_t{bytes};
          }};
}

}  // namespace escrow::bench
