// SPDX-License-Identifier: Apache-2.0
// A source of memory for tests: with a capacity, and it knows what is allocated.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <escrow/pool.hpp>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

namespace escrow::test {

/// A source with a capacity that knows what is allocated. It frees at its end, since cudaFree waits
/// for kernels. The worker may use it after the test.
class counted_memory : public std::enable_shared_from_this<counted_memory> {
 public:
  counted_memory() = default;
  counted_memory(counted_memory&&) = delete;
  ~counted_memory() {
    for (auto const& each : sizes_) static_cast<void>(cudaFree(each.first));
  }

  [[nodiscard]] memory_source source() {
    return {[its = shared_from_this()](void** address, std::size_t bytes) {
              std::lock_guard const lock(its->mutex_);
              if (its->used.load() + bytes > its->capacity) return cudaErrorMemoryAllocation;
              cudaError_t const status = cudaMalloc(address, bytes);
              if (status != cudaSuccess) return status;
              its->sizes_[*address] = bytes;
              its->used.fetch_add(bytes);
              return status;
            },
            [its = shared_from_this()](void* address) {
              std::lock_guard const lock(its->mutex_);
              its->used.fetch_sub(its->sizes_.at(address));
              return cudaSuccess;
            },
            "counted_memory"};
  }

  std::size_t capacity = std::numeric_limits<std::size_t>::max();
  std::atomic<std::size_t> used{0};

 private:
  std::mutex mutex_;  // guards the sizes
  std::map<void*, std::size_t> sizes_;
};

}  // namespace escrow::test
