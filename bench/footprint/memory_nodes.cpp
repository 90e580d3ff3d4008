// Scratch by CUDA's memory nodes: graphs that are launched on one stream share the pages.
#include <cstdint>

#include "graphs.hpp"
#include "scratch_ways.hpp"

namespace escrow::bench {
namespace {

class memory_nodes final : public scratch_way {
 public:
  memory_nodes() {
    test::must(cudaDeviceGraphMemTrim(0));  // what earlier graphs left
    std::uint64_t none = 0;                 // the only value allowed: starts anew
    test::must(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &none));
  }

  [[nodiscard]] void* claim(cudaStream_t stream, std::size_t bytes) override {
    void* scratch = nullptr;
    test::must(cudaMallocAsync(&scratch, bytes, stream));
    return scratch;
  }
  void release(cudaStream_t stream, void* scratch) override {
    test::must(cudaFreeAsync(scratch, stream));
  }

  [[nodiscard]] std::size_t device_bytes() const override {
    std::uint64_t bytes = 0;
    test::must(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &bytes));
    return bytes;
  }
};

}  // namespace

std::unique_ptr<scratch_way> make_memory_nodes(std::size_t) {
  return std::make_unique<memory_nodes>();
}

}  // namespace escrow::bench
