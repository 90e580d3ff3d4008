// What the nodes of a chain own: two shares of device memory each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "status.hpp"

namespace escrow::bench {

// The two arguments of one node.
struct node_owners {
  std::shared_ptr<int> first, second;
};

// What: owners for a chain of nodes, no two of which are the same; all are of one allocation, so
//   that neither making nor destroying them is a call of CUDA.
// Lifetime: must outlive what shares the owners.
class chain_owners {
 public:
  explicit chain_owners(int nodes) {
    void* memory = nullptr;
    auto const count = static_cast<std::size_t>(nodes);
    test::must(cudaMalloc(&memory, 2 * count * sizeof(int)));
    memory_.reset(static_cast<int*>(memory));
    all_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) all_.push_back({share(2 * i), share(2 * i + 1)});
  }

  [[nodiscard]] std::span<node_owners const> all() const noexcept { return all_; }

 private:
  struct free_memory {
    void operator()(int* memory) const noexcept { static_cast<void>(cudaFree(memory)); }
  };

  [[nodiscard]] std::shared_ptr<int> share(std::size_t at) const {
    return {memory_.get() + at, [](int*) {}};
  }

  std::unique_ptr<int, free_memory> memory_;
  std::vector<node_owners> all_;
};

}  // namespace escrow::bench
